//! Goal: settings that are lists (guards, hosts, origins) are read from the file and the
//! environment, and whatever is wrong is named.
//!
//! Method: as in the file above.

use keylatch::config::DEFAULTS;
use keylatch_axum::{FailurePolicy, OnFailure};

use super::{File, file_is_refused, load, variable_is_refused};

/// A guard to which settings can be added.
const GUARD: &str = "[[guard]]\npath = \"/a\"\nupstream = \"http://a\"\n";

#[test]
fn guard_in_the_comments_of_the_defaults_shows_all_defaults() {
    assert!(load(None, &[]).unwrap().guard.is_empty());
    let shown = DEFAULTS.lines().skip_while(|line| *line != "# [[guard]]");
    let shown: Vec<_> = shown.map(|line| line.strip_prefix("# ").unwrap_or(line)).collect();
    let shown = load(Some(&shown.join("\n")), &[]).unwrap().guard;
    let short = "[[guard]]\npath = \"/orders\"\nupstream = \"http://orders.internal:8080\"";
    let short = load(Some(short), &[]).unwrap().guard;
    assert_eq!(format!("{shown:?}"), format!("{short:?}"));
}

#[track_caller]
fn guard_is_refused(settings: &str, key: &str) {
    let settings = format!("[[guard]]\n{settings}");
    file_is_refused(&settings, &format!("guard[0].{key}"));
}

#[test]
fn invalid_guard_is_named() {
    guard_is_refused("upstream = \"http://a\"", "path");
    guard_is_refused("path = \"/a\"", "upstream");
    for path in [
        "",
        "/",
        "a",
        "/a/",
        "/a//b",
        "/a/../b",
        "/{a}",
        "/a?b",
        "/v1",
        "/v1/locks",
        "/v1/locks/a",
        "/docs",
        "/v1/info",
        "/v1/backup",
        "/console/glance",
        "/demo",
    ] {
        guard_is_refused(&format!("path = \"{path}\"\nupstream = \"http://a\""), "path");
    }
    for upstream in
        ["", "sandbox", "orders.internal", "ftp://a", "http://a/b", "http://u:p@a", "http://a/"]
    {
        guard_is_refused(&format!("path = \"/a\"\nupstream = \"{upstream}\""), "upstream");
    }
}

#[test]
fn mode_of_a_guard_is_one_of_two() {
    let observing = load(Some(&format!("{GUARD}mode = \"observe\"")), &[]).unwrap();
    assert!(observing.guard[0].observes());
    file_is_refused(&format!("{GUARD}mode = \"watch\""), "mode");
}

#[test]
fn failures_of_a_guard_are_a_word_or_a_table() {
    let release: FailurePolicy = OnFailure::Release.into();
    let unknown: FailurePolicy = OnFailure::Unknown.into();
    for (written, policy) in [
        ("\"release\"", release),
        ("\"unknown\"", unknown.clone()),
        ("{ \"503\" = \"release\" }", unknown.clone().with_status(503, OnFailure::Release)),
        ("{ \"402\" = \"release\" }", unknown.with_status(402, OnFailure::Release)),
    ] {
        let config = load(Some(&format!("{GUARD}on_failure = {written}")), &[]).unwrap();
        assert_eq!(config.guard[0].on_failure, policy, "{written}");
    }
}

#[test]
fn invalid_guard_setting_is_named() {
    for (key, value) in [
        ("methods", "[\"GET\"]"),
        ("methods", "[\"PO ST\"]"),
        ("methods", "[\"post\"]"),
        ("methods", "[\"POST\", \"Patch\"]"),
        ("methods", "[]"),
        ("methods", "[\"*\"]"),
        ("methods", "[\"CONNECT\"]"),
        ("methods", "[\"POST\", \"PURGE\"]"),
        ("drop_headers", "[\"a b\"]"),
        ("drop_headers", "[\"X_User\"]"),
        ("fingerprint_headers", "[\"a:\"]"),
        ("principal_header", "\"X_User\""),
        ("lease_ms", "99"),
        ("retention_ms", "999"),
        ("max_wait_ms", "300001"),
        ("timeout_ms", "0"),
        ("body_timeout_ms", "0"),
        ("principal_header", "\"a b\""),
        ("on_crash", "\"again\""),
        ("on_failure", "\"retry\""),
        ("on_failure", "{ \"503\" = \"retry\" }"),
        ("on_failure", "{ \"399\" = \"release\" }"),
        ("on_failure", "503"),
        ("cross_origin", "\"allow\""),
    ] {
        file_is_refused(&format!("{GUARD}{key} = {value}"), &format!("guard[0].{key}"));
    }
    file_is_refused(&GUARD.repeat(2), "guard[1].path");
    file_is_refused(&format!("{GUARD}pth = 1"), "pth");
    variable_is_refused("KEYLATCH_GUARD", "/a", "KEYLATCH_GUARD");
}

#[test]
fn invalid_source_of_keys_is_named() {
    for (key, value) in [
        ("key", "[]"),
        ("key", "[\"cookie:a\"]"),
        ("key", "[\"json:order\"]"),
        ("key", "[\"json:/a~2\"]"),
        ("key", "[\"header:\"]"),
        ("missing_key", "\"run\""),
        ("key", "[\"issued\", \"query:id\"]"),
        ("key", "[\"header:Idempotency-Key\", \"issued\"]"),
        ("missing_key", "\"pass\"\nkey = [\"issued\"]"),
        ("missing_key", "\"derive\"\nkey = [\"issued\"]\nderive = { anonymous = true }"),
        ("once_per", "[\"path\"]\nkey = [\"issued\"]"),
        // A key that is derived of nobody's request would be everybody's.
        ("principal_header", "\"\"\nmissing_key = \"derive\""),
        ("derive", "{ of = [\"path\"] }\nmissing_key = \"derive\""),
        ("derive", "{ window_ms = 0 }\nmissing_key = \"derive\"\nprincipal_header = \"X-User\""),
        ("derive", "{ anonymous = true }"),
        ("once_per", "[\"body\"]\nprincipal_header = \"X-User\""),
        ("once_per", "[\"path\"]\nkey = [\"query:id\"]"),
        ("once_per", "[\"path\"]\nmissing_key = \"pass\""),
        ("on_crash", "\"rerun\"\nonce_per = [\"path\"]"),
        ("on_store_down", "\"run\""),
        ("on_store_down", "\"pass\"\nonce_per = [\"path\"]"),
        ("settle", "{ done = [200] }"),
        ("settle", "{ get = \"orders/{key}\" }"),
        ("settle", "{ get = \"/orders/by-key\" }"),
        ("settle", "{ get = \"/orders/{key}/{key}\" }"),
        ("settle", "{ get = \"/orders/{key}/{id}\" }"),
        ("settle", "{ get = \"/orders/a b/{key}\" }"),
        ("settle", "{ get = \"/orders/{key}\", done = [] }"),
        ("settle", "{ get = \"/orders/{key}\", done = [404] }"),
        ("settle", "{ get = \"/orders/{key}\", not_done = [500] }"),
        ("settle", "{ get = \"/orders/{key}\", every_ms = 99 }"),
        ("settle", "{ get = \"/orders/{key}\", for_ms = 2592000001 }"),
        ("settle", "{ get = \"/orders/{key}\", after_ms = 3600000 }"),
        ("settle", "{ get = \"/orders/{key}\" }\nprincipal_header = \"Authorization\""),
        ("settle", "{ get = \"/orders/{key}\" }\naccess = \"identity\""),
    ] {
        file_is_refused(&format!("{GUARD}{key} = {value}"), &format!("guard[0].{key}"));
    }
}

#[test]
fn field_that_matches_nothing_is_named() {
    for (key, value) in [
        ("ignore_fields", "[\"\"]"),
        ("ignore_fields", "[\"/a~2\"]"),
        ("ignore_fields", "[\"/a/b~\"]"),
        ("ignore_fields", "[\"/~~01\"]"),
        ("compare_fields", "[\"a\", \"\"]"),
        ("compare_fields", "[\"a\"]\nignore_fields = [\"b\"]"),
    ] {
        file_is_refused(&format!("{GUARD}{key} = {value}"), &format!("guard[0].{key}"));
    }
    file_is_refused(&format!("{GUARD}ignore_fields = [\"/a~\"]"), "`~0` a `~`");
}

#[test]
fn origins_come_from_file_or_variable() {
    let shop = ["https://shop.example", "http://localhost:3000"];
    let file = "cors.allow_origins = [\"https://shop.example\", \"http://localhost:3000\"]";
    assert_eq!(load(Some(file), &[]).unwrap().cors.allow_origins, shop);
    let variable = ("KEYLATCH_CORS_ALLOW_ORIGINS", "https://shop.example, http://localhost:3000");
    assert_eq!(load(None, &[variable]).unwrap().cors.allow_origins, shop);
    for origin in ["shop.example", "https://shop.example/", "https://*.example", "null", ""] {
        file_is_refused(&format!("cors.allow_origins = [\"{origin}\"]"), "cors.allow_origins");
    }
}

#[test]
fn hosts_come_from_file_or_variable() {
    let file = "server.hosts = [\"locks.example\", \"2001:db8::7\"]";
    assert_eq!(load(Some(file), &[]).unwrap().server.hosts, ["locks.example", "2001:db8::7"]);
    let variable = ("KEYLATCH_SERVER_HOSTS", "locks.example, 192.0.2.7");
    let hosts = load(None, &[variable]).unwrap().server.hosts;
    assert_eq!(hosts, ["locks.example", "192.0.2.7"]);
    for host in ["locks.example:7070", "http://locks.example", "*", "*.example", "a/b", ""] {
        file_is_refused(&format!("server.hosts = [\"{host}\"]"), "server.hosts");
    }
}

#[test]
fn trusted_proxies_are_on_loopback_by_default() {
    let defaults = load(None, &[]).unwrap().server.trusted_proxies;
    assert_eq!(defaults, ["127.0.0.0/8", "::1/128"]);
    let variable = ("KEYLATCH_SERVER_TRUSTED_PROXIES", "10.0.0.0/8, 192.0.2.7");
    let proxies = load(None, &[variable]).unwrap().server.trusted_proxies;
    assert_eq!(proxies, ["10.0.0.0/8", "192.0.2.7"]);
    for proxy in ["proxy.internal", "10.0.0.0/33", "10.0.0.1:80", "*", ""] {
        file_is_refused(
            &format!("server.trusted_proxies = [\"{proxy}\"]"),
            "server.trusted_proxies",
        );
    }
}

#[tokio::test]
async fn app_beside_other_parts_is_refused_and_so_is_a_page_that_cannot_be_read() {
    let app = "[gateway]\nupstream = \"http://127.0.0.1:8000\"\n";
    let listener = |port: u16, serves: &str| {
        format!("[[listener]]\naddress = \"127.0.0.1:{port}\"\nserves = [{serves}]\n")
    };
    let (alone, api) = (listener(1, "\"guards\""), listener(2, "\"api\", \"guards\""));
    for (text, named) in [
        (app.to_owned(), "serves = [\"guards\"]"),
        (format!("{app}{alone}{api}"), "serves = [\"guards\"]"),
        (format!("{app}{}", listener(1, "\"api\"")), "serves = [\"guards\"]"),
        (app.replace("8000", "8000/a") + &alone, "`gateway.upstream` must be a URL"),
        (format!("{GUARD}error_page = \"/nowhere.html\"\n"), "`guard[0].error_page`"),
        (format!("{GUARD}error_page = \"/dev/null\"\n"), "it has no {{message}}"),
    ] {
        let file = File::new(&text);
        let path = file.path().display().to_string();
        let checked = crate::KEYLATCH.run(&["config", "check", "--config", &path]).await;
        assert_ne!(checked.code, Some(0), "{text}");
        assert!(checked.stderr.contains(named), "{text}: {checked:?}");
    }
    let file = File::new(&format!("{app}{alone}{}", listener(2, "\"api\"")));
    let path = file.path().display().to_string();
    let checked = crate::KEYLATCH.run(&["config", "check", "--config", &path]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
}
