//! The sources against the rules of ARCHITECTURE.md: who may import whom, and what no file contains.

use std::collections::BTreeSet;

use crate::support::Source;

const MAX_LINES: usize = 700;
const HTTP: &[&str] =
    &["axum", "http", "hyper", "hyper_util", "http_body_util", "tower", "tower_http"];
const SERVERS: &[&str] = &["axum", "tower", "tower_http"];
const ENGINES: &[&str] = &["bb8", "bb8_redis", "redis"];

/// What the files of a module may not import.
struct Rule {
    module: &'static str,
    /// Modules of this crate.
    modules: &'static [&'static str],
    crates: &'static [&'static [&'static str]],
}

const RULES: &[Rule] = &[
    Rule {
        module: "lock",
        modules: &[
            "app",
            "client",
            "config",
            "error",
            "healthcheck",
            "http",
            "idempotency",
            "metrics",
            "run",
            "store",
            "telemetry",
        ],
        crates: &[HTTP, ENGINES],
    },
    Rule {
        module: "idempotency",
        modules: &[
            "app",
            "client",
            "config",
            "error",
            "healthcheck",
            "http",
            "metrics",
            "run",
            "store",
            "telemetry",
        ],
        crates: &[HTTP, ENGINES],
    },
    Rule {
        module: "store",
        modules: &["app", "client", "config", "error", "healthcheck", "http", "run", "telemetry"],
        crates: &[HTTP],
    },
    Rule {
        module: "http",
        modules: &["app", "client", "config", "error", "healthcheck", "run", "store", "telemetry"],
        crates: &[ENGINES],
    },
    Rule {
        module: "client",
        modules: &[
            "app",
            "config",
            "error",
            "healthcheck",
            "http",
            "idempotency",
            "metrics",
            "run",
            "store",
            "telemetry",
        ],
        crates: &[SERVERS, ENGINES],
    },
    Rule {
        module: "run",
        modules: &[
            "app",
            "config",
            "error",
            "healthcheck",
            "http",
            "idempotency",
            "metrics",
            "store",
            "telemetry",
        ],
        crates: &[HTTP, ENGINES],
    },
    Rule {
        module: "metrics",
        modules: &[
            "app",
            "client",
            "config",
            "error",
            "healthcheck",
            "http",
            "idempotency",
            "lock",
            "run",
            "store",
            "telemetry",
        ],
        crates: &[HTTP, ENGINES],
    },
    Rule {
        module: "config",
        modules: &["app", "client", "error", "idempotency", "lock", "metrics", "run"],
        crates: &[],
    },
    Rule {
        module: "telemetry",
        modules: &["app", "client", "config", "error", "idempotency", "lock", "run", "store"],
        crates: &[],
    },
    Rule {
        module: "error",
        modules: &["app", "client", "idempotency", "lock", "metrics", "run"],
        crates: &[],
    },
    Rule {
        module: "healthcheck",
        modules: &["app", "client", "http", "idempotency", "lock", "run", "store"],
        crates: &[],
    },
];

#[test]
fn no_arrow_is_turned_round() {
    let sources = Source::all_in("src");
    for rule in RULES {
        let of_module = |source: &&Source| source.module().first() == Some(&rule.module);
        assert!(sources.iter().any(|source| of_module(&source)), "there is no `{}`", rule.module);
    }
    let wrong: Vec<_> = sources.iter().flat_map(wrong_imports).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_file_has_what_none_may_have() {
    let sources = [Source::all_in("src"), Source::all_in("tests")].concat();
    let wrong: Vec<_> = sources.iter().flat_map(blemishes).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_form_of_a_wrong_import_is_found() {
    for (path, text, import) in [
        ("src/lock/a.rs", "use crate::http::Problem;", "crate::http"),
        ("src/lock/a.rs", "use super::super::http::Problem;", "crate::http"),
        ("src/lock/mod.rs", "use super::store;", "crate::store"),
        (
            "src/lock/mod.rs",
            "use crate::{lock::Token, metrics::{self, Metrics}};",
            "crate::metrics",
        ),
        ("src/lock/a.rs", "fn a() { crate::telemetry::init(); }", "crate::telemetry"),
        (
            "src/lock/a.rs",
            "const A: &str = \"//\"; use /* a */ crate :: config :: Config;",
            "crate::config",
        ),
        ("src/lock/a.rs", "pub(crate) use axum as web;", "axum"),
        ("src/lock/a.rs", "fn a(x: &'static hyper::Error, y: char) {}", "hyper"),
        ("src/lock/a.rs", "fn a() -> ::http::StatusCode {}", "http"),
        ("src/lock/a.rs", "use {std::fmt, bb8_redis::{bb8, redis}};", "bb8_redis"),
        ("src/lock/a.rs", "use crate::idempotency::View;", "crate::idempotency"),
        ("src/idempotency/a.rs", "use crate::http::Problem;", "crate::http"),
        ("src/idempotency/a.rs", "use redis::Client;", "redis"),
        ("src/store/redis/a.rs", "use super::super::super::app::App;", "crate::app"),
        ("src/store/memory.rs", "use crate::{config};", "crate::config"),
        ("src/store/mod.rs", "use axum::Router;", "axum"),
        ("src/http/mod.rs", "use crate::store::MemoryStore;", "crate::store"),
        ("src/http/a.rs", "use redis::Client;", "redis"),
        ("src/client/wire.rs", "use crate::http::Problem;", "crate::http"),
        ("src/client/guard.rs", "use axum::body::Body;", "axum"),
        ("src/lock/a.rs", "use crate::client::Guard;", "crate::client"),
        ("src/run/job.rs", "use crate::store::open;", "crate::store"),
        ("src/run/job.rs", "use hyper::Request;", "hyper"),
        ("src/config.rs", "use super::app::App;", "crate::app"),
        ("src/metrics.rs", "const Q: char = '\"'; use crate::lock::Token;", "crate::lock"),
    ] {
        let found = wrong_imports(&Source::new(path, text));
        assert_eq!(found, [format!("{path} imports {import}")], "{text}");
    }
}

#[test]
fn what_is_no_wrong_import_is_not_found() {
    for (path, text) in [
        ("src/lock/a.rs", "/// As [`Problem`](crate::http::Problem) says.\n// use axum::Router;"),
        ("src/lock/a.rs", "/* use crate::http; /* nested */ use axum; */"),
        ("src/lock/a.rs", "const A: &str = \"use \\\" crate::http::Problem;\";"),
        (
            "src/lock/a.rs",
            "const A: &str = r#\"use \" crate::http;\"#; const B: &[u8] = b\"axum::\";",
        ),
        (
            "src/lock/a.rs",
            "use super::store::LockStore; use crate::lock::store; use self::http::a;",
        ),
        ("src/lock/a.rs", "use tokio::{http::A, redis}; fn b() { a.http::<u8>(); x::axum(); }"),
        (
            "src/store/redis/mod.rs",
            "use super::OpenError; use bb8_redis::redis; use crate::metrics::A;",
        ),
        ("src/store/mod.rs", "pub use redis::RedisStore; use crate::lock::http;"),
        (
            "src/http/mod.rs",
            "use axum::http; use crate::lock::A; use crate::metrics::B; use store::A;",
        ),
        ("src/client/wire.rs", "use hyper::Request; use crate::lock::Token;"),
        ("src/run/job.rs", "use crate::client::Guard; use crate::lock::Release;"),
        ("src/app.rs", "use crate::{config, http, lock, store};"),
        ("src/main.rs", "use keylatch::{app::App, http, store};"),
    ] {
        let found = wrong_imports(&Source::new(path, text));
        assert!(found.is_empty(), "{text}: {found:?}");
    }
}

#[test]
fn every_blemish_is_found() {
    let long = "\n".repeat(MAX_LINES + 1);
    for (path, text) in [
        ("src/a.rs", "#[allow(dead_code)]\nfn a() {}"),
        ("src/a.rs", "#![ allow (clippy::all)]"),
        ("src/a.rs", "#[cfg_attr(test, allow(dead_code))]"),
        ("src/a.rs", "fn a() { todo!() }"),
        ("src/a.rs", "fn a() {} // TODO: write it"),
        ("src/a.rs", "/// Does a thing. FIXME\nfn a() {}"),
        ("src/a.rs", &long),
        ("tests/a.rs", "#[test]\n#[ignore]\nfn a() {}"),
        ("tests/a.rs", "#[test]\n#[ignore = \"slow\"]\nfn a() {}"),
        ("tests/a.rs", "fn a() { std::thread::sleep(A); }"),
        ("tests/a.rs", "async fn a() { tokio::time::sleep(A).await; }"),
        ("tests/a.rs", "use tokio::time::{sleep, timeout};"),
        ("tests/a.rs", "async fn a() { sleep_until(A).await; }"),
    ] {
        let found = blemishes(&Source::new(path, text));
        assert_eq!(found.len(), 1, "{text}: {found:?}");
    }
}

#[test]
fn what_is_no_blemish_is_not_found() {
    let just_fits = "\n".repeat(MAX_LINES);
    for (path, text) in [
        ("src/a.rs", "#[expect(dead_code, reason = \"#[allow(a)]\")] fn a() { allow(b); }"),
        ("src/a.rs", "// Never todo!() and #[ignore], never #[allow(a)].\nfn todo() {}"),
        (
            "src/a.rs",
            "const A: &str = \"TODO // FIXME\"; fn ignore() {} async fn a() { sleep(B).await }",
        ),
        ("src/a.rs", &just_fits),
        ("tests/a.rs", "// Nothing may sleep here.\nfn asleep() {} const A: char = '/'; // b"),
    ] {
        let found = blemishes(&Source::new(path, text));
        assert!(found.is_empty(), "{text}: {found:?}");
    }
}

/// The imports of a source that its module's rule forbids.
fn wrong_imports(source: &Source) -> Vec<String> {
    let module = source.module();
    let Some(rule) = RULES.iter().find(|rule| module.first() == Some(&rule.module)) else {
        return Vec::new();
    };
    let imports = source.paths().into_iter().map(|path| Import::of(&path, &module));
    let wrong = imports.filter(|import| match import {
        Import::Module(name) => rule.modules.contains(&name.as_str()),
        Import::Name(name) => rule.crates.iter().any(|crates| crates.contains(&name.as_str())),
    });
    let wrong: BTreeSet<_> =
        wrong.map(|import| format!("{} imports {import}", source.path)).collect();
    wrong.into_iter().collect()
}

/// What a file may not contain, whatever module it is of.
fn blemishes(source: &Source) -> Vec<String> {
    let tokens = source.tokens();
    let has = |found: &[&str]| tokens.windows(found.len()).any(|window| window == found);
    let allow = has(&["[", "allow", "("]) || has(&[",", "allow", "("]);
    let sleeps = tokens.iter().any(|token| matches!(*token, "sleep" | "sleep_until"));
    let noted = source.comments.contains("TODO") || source.comments.contains("FIXME");
    let found = [
        (source.lines > MAX_LINES, "has more than 700 lines"),
        (allow, "allows a lint: expect it, with a reason"),
        (has(&["todo", "!"]), "is not finished"),
        (has(&["[", "ignore"]), "ignores a test"),
        (source.path.starts_with("tests") && sleeps, "sleeps: wait for what has to happen"),
        (noted, "has a note of what is to be done"),
    ];
    let found = found.into_iter().filter(|(found, _)| *found);
    found.map(|(_, what)| format!("{} {what}", source.path)).collect()
}

/// What the first segments of a path name.
enum Import {
    /// A module at the root of this crate.
    Module(String),
    /// A crate, or something that the file has by that name.
    Name(String),
}

impl Import {
    fn of(path: &[&str], module: &[&str]) -> Self {
        let supers = path.iter().take_while(|segment| **segment == "super").count();
        let nth = |at: usize| path.get(at).copied().unwrap_or_default().to_owned();
        match path.first() {
            Some(&"crate") => Self::Module(nth(1)),
            Some(_) if supers > 0 && supers >= module.len() => Self::Module(nth(supers)),
            Some(&("super" | "self")) => {
                Self::Module(module.first().copied().unwrap_or_default().to_owned())
            }
            _ => Self::Name(nth(0)),
        }
    }
}

impl std::fmt::Display for Import {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Module(name) => write!(f, "crate::{name}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}
