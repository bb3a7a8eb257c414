//! The engines that keylatch keeps its locks in, each behind a cargo feature, chosen by URL.
//!
//! [`open`] opens one, and [`check`] looks at its URL alone. A new engine is a module, a feature
//! and its row in [`ENGINES`]. This crate knows no HTTP. Invariant: no error says a word of a URL
//! but its scheme, hosts and ports, because a URL may hold a password. Tested in `tests/stores`, on
//! every engine by one matrix.

#[cfg(any(feature = "postgres", feature = "etcd", feature = "zookeeper", feature = "redis"))]
mod conn;
#[cfg(any(feature = "embedded", feature = "memory", feature = "conditional"))]
mod cursor;
#[cfg(feature = "embedded")]
mod embedded;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod hints;
#[cfg(feature = "memory")]
mod memory;
#[cfg(feature = "conditional")]
mod optimistic;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod settings;
#[cfg(any(feature = "embedded", feature = "memory", feature = "conditional"))]
mod sweeper;
#[cfg(any(feature = "embedded", feature = "memory"))]
mod table;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use keylatch_core::store::Store;

#[cfg(feature = "embedded")]
pub use embedded::embedded;
#[cfg(feature = "test-medium")]
pub use embedded::test_medium;
pub use error::OpenError;
#[cfg(feature = "memory")]
pub use memory::memory;
#[cfg(feature = "conditional")]
pub use optimistic::{conditional, floor_row, optimistic};
#[cfg(all(feature = "redis", fuzzing))]
pub use redis::read_redis_reply;
pub use settings::{
    EtcdSettings, PostgresSettings, RedisSettings, RedlockSettings, Settings, ZookeeperSettings,
};

/// An engine that keylatch knows, in this build or not.
#[derive(Debug)]
pub struct Engine {
    /// The cargo feature that builds it in.
    pub feature: &'static str,
    /// The forms of its URL, for people.
    pub urls: &'static [&'static str],
    /// What its stores call themselves.
    pub kinds: &'static [&'static str],
    /// Whether it keeps records of idempotency keys.
    pub records: bool,
    schemes: &'static [&'static str],
    /// `None` where this build leaves it out.
    built: Option<Built>,
}

/// How the stores of an engine are opened and checked.
#[derive(Debug)]
struct Built {
    open: for<'a> fn(&'a str, Settings<'a>) -> Opening<'a>,
    check: fn(&str, Settings<'_>) -> Result<(), OpenError>,
}

type Opening<'a> = BoxFuture<'a, Result<Arc<dyn Store>, OpenError>>;

/// An engine of a feature: its module has `open` and `check`.
macro_rules! engine {
    ($feature:literal, $($module:ident)::+, $urls:expr, $kinds:expr, $schemes:expr, $records:expr) => {
        Engine {
            feature: $feature,
            urls: &$urls,
            kinds: &$kinds,
            records: $records,
            schemes: &$schemes,
            built: {
                #[cfg(feature = $feature)]
                let built = Some(Built {
                    open: |url, settings| Box::pin($($module)::+::open(url, settings)),
                    check: $($module)::+::check,
                });
                #[cfg(not(feature = $feature))]
                let built = None;
                built
            },
        }
    };
}

/// Every engine. This is the one list of schemes.
pub static ENGINES: [Engine; 7] = [
    engine!("embedded", embedded, ["embedded:DIRECTORY"], ["embedded"], ["embedded"], true),
    engine!("memory", memory, ["memory:"], ["memory"], ["memory"], true),
    engine!(
        "redis",
        redis,
        ["redis://HOST:PORT/DB", "redis+sentinel://HOST,HOST/MASTER", "redis+cluster://HOST,HOST"],
        ["redis", "redis+sentinel", "redis+cluster"],
        [
            "redis",
            "rediss",
            "redis+unix",
            "unix",
            "redis+sentinel",
            "rediss+sentinel",
            "redis+cluster",
            "rediss+cluster",
        ],
        true
    ),
    engine!(
        "redlock",
        redis::redlock,
        ["redlock://HOST,HOST,HOST"],
        ["redlock"],
        ["redlock", "rediss+redlock"],
        false
    ),
    engine!(
        "postgres",
        postgres,
        ["postgres://HOST,HOST/DB"],
        ["postgres"],
        ["postgres", "postgresql"],
        true
    ),
    engine!("etcd", etcd, ["etcd://HOST,HOST,HOST"], ["etcd"], ["etcd", "etcds"], true),
    engine!(
        "zookeeper",
        zookeeper,
        ["zookeeper://HOST,HOST,HOST"],
        ["zookeeper"],
        ["zookeeper", "zookeepers"],
        true
    ),
];

impl Engine {
    /// The engine that a URL names.
    ///
    /// # Errors
    ///
    /// The URL names none.
    pub fn of(url: &str) -> Result<&'static Self, OpenError> {
        let scheme = scheme_of(url).ok_or_else(|| OpenError::NoUrl(known_urls(url)))?;
        let engine = ENGINES.iter().find(|engine| engine.schemes.contains(&scheme));
        engine.ok_or_else(|| OpenError::UnknownScheme {
            scheme: scheme.to_owned(),
            known: known_urls(scheme),
        })
    }

    /// Whether this build has it.
    pub fn is_built(&self) -> bool {
        self.built.is_some()
    }

    fn built(&self) -> Result<&Built, OpenError> {
        self.built.as_ref().ok_or(OpenError::LeftOut(self.feature))
    }
}

/// Opens the store that `url` names: `embedded:DIRECTORY`, `memory:`, `postgres://…`, `etcd://…`,
/// `zookeeper://…`, or `redis://…`, `rediss://…`, `redis+unix://…`, `redis+sentinel://…`,
/// `redis+cluster://…`, `redlock://…`; `rediss+…` of these, `rediss+redlock://…` of the last, is
/// with TLS.
///
/// A PostgreSQL, an etcd, a ZooKeeper or a Redis that is down is no error: it may come back, and
/// until then every answer is that the store cannot be reached. One that responds and is not fit
/// to keep locks is an error.
///
/// # Errors
///
/// The URL names no store, or the store is not fit.
pub async fn open(url: &str, settings: Settings<'_>) -> Result<Arc<dyn Store>, OpenError> {
    (Engine::of(url)?.built()?.open)(url, settings).await
}

/// Checks what [`open`] does before it asks a server or opens a directory: the URL, and the files
/// of certificates that it names.
///
/// # Errors
///
/// The URL names no store, or what a file has is of no use.
pub fn check(url: &str, settings: Settings<'_>) -> Result<&'static Engine, OpenError> {
    let engine = Engine::of(url)?;
    (engine.built()?.check)(url, settings).map(|()| engine)
}

/// The secret of a store of this process alone, which it keeps in its directory and makes if there
/// is none; `None` for other stores. The store is open.
#[cfg(feature = "embedded")]
pub fn own_secret(url: &str) -> Option<Result<Vec<u8>, OpenError>> {
    let directory = url.strip_prefix("embedded:").filter(|directory| !directory.is_empty())?;
    Some(embedded::own_secret(directory.as_ref()))
}

/// The forms of URLs that this build or another one knows, for people: those of the engine whose
/// scheme a word resembles, or all.
fn known_urls(word: &str) -> String {
    let likeness = |engine: &&Engine| {
        let all = engine.schemes.iter().map(|scheme| strsim::jaro(word, scheme));
        all.fold(0.0, f64::max)
    };
    let meant: Vec<_> = ENGINES.iter().filter(|engine| likeness(engine) > 0.8).collect();
    let urls = |engines: &[&Engine]| {
        let urls = engines.iter().flat_map(|engine| engine.urls).map(|url| format!("`{url}`"));
        urls.collect::<Vec<_>>().join(", ")
    };
    if meant.is_empty() {
        return urls(&ENGINES.iter().collect::<Vec<_>>());
    }
    format!("did you mean {}?", urls(&meant))
}

/// The scheme of a URL. What has other characters is none, and may be a password.
pub fn scheme_of(url: &str) -> Option<&str> {
    let (scheme, _) = url.split_once(':')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    scheme.chars().all(plain).then_some(scheme)
}
