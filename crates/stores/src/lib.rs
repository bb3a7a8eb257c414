//! The engines that keylatch keeps its locks in, each behind a cargo feature, chosen by URL.
//!
//! [`open`] opens one, and [`check`] looks at its URL alone. A new engine is a module, a feature and its lines here. This
//! crate knows no HTTP. Invariant: no error says a word of a URL but its scheme, because a URL may hold a password. Tested
//! in `tests/stores`, on every engine by one matrix.

#[cfg(any(feature = "postgres", feature = "etcd", feature = "zookeeper", feature = "redis"))]
mod conn;
#[cfg(any(feature = "embedded", feature = "memory", feature = "conditional"))]
mod cursor;
#[cfg(feature = "embedded")]
mod embedded;
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

use std::path::PathBuf;
use std::sync::Arc;

use keylatch_core::store::Store;

#[cfg(feature = "embedded")]
pub use embedded::embedded;
#[cfg(feature = "test-medium")]
pub use embedded::test_medium;
#[cfg(feature = "etcd")]
pub use etcd::etcd;
#[cfg(feature = "memory")]
pub use memory::memory;
#[cfg(feature = "conditional")]
pub use optimistic::{conditional, floor_row, optimistic};
#[cfg(feature = "postgres")]
pub use postgres::postgres;
#[cfg(all(feature = "redis", fuzzing))]
pub use redis::read_redis_reply;
#[cfg(feature = "redis")]
pub use redis::redis;
#[cfg(feature = "redlock")]
pub use redis::redlock;
pub use settings::{
    EtcdSettings, PostgresSettings, RedisSettings, RedlockSettings, Settings, ZookeeperSettings,
};
#[cfg(feature = "zookeeper")]
pub use zookeeper::zookeeper;

/// Opens the store that `url` names: `embedded:DIRECTORY`, `memory:`, `postgres://…`, `etcd://…`, `zookeeper://…`, or `redis://…`,
/// `rediss://…`, `redis+unix://…`, `redis+sentinel://…`, `redis+cluster://…`, `redlock://…`; `rediss+…` of these, `rediss+redlock://…` of the last, is with TLS.
///
/// A PostgreSQL, an etcd, a ZooKeeper or a Redis that is down is no error: it may come back, and until then every answer is that the
/// store cannot be reached. One that answers and is not fit to keep locks is an error.
///
/// # Errors
///
/// The URL names no store, or the store is not fit.
#[cfg_attr(
    not(any(feature = "postgres", feature = "etcd", feature = "zookeeper", feature = "redis")),
    expect(unused_variables, reason = "no store has settings")
)]
pub async fn open(url: &str, settings: Settings<'_>) -> Result<Arc<dyn Store>, OpenError> {
    match Engine::of(url)? {
        #[cfg(feature = "embedded")]
        Engine::Embedded(directory) => embedded(&directory).await,
        #[cfg(feature = "memory")]
        Engine::Memory => Ok(memory()),
        #[cfg(feature = "postgres")]
        Engine::Postgres => postgres(url, settings.postgres).await,
        #[cfg(feature = "etcd")]
        Engine::Etcd => etcd(url, settings.etcd).await,
        #[cfg(feature = "zookeeper")]
        Engine::Zookeeper => zookeeper(url, settings.zookeeper).await,
        #[cfg(feature = "redis")]
        Engine::Redis => redis(url, settings.redis).await,
        #[cfg(feature = "redlock")]
        Engine::Redlock => redlock(url, settings.redis, settings.redlock).await,
    }
}

/// Checks what [`open`] does before it asks a server or opens a directory: the URL, and the files of
/// certificates that it names.
///
/// # Errors
///
/// The URL names no store, or what a file has is of no use.
#[cfg_attr(
    not(feature = "redis"),
    expect(unused_variables, reason = "no store has settings to check")
)]
pub fn check(url: &str, settings: Settings<'_>) -> Result<UnopenedStore, OpenError> {
    match Engine::of(url)? {
        #[cfg(feature = "embedded")]
        Engine::Embedded(_) => {}
        #[cfg(feature = "memory")]
        Engine::Memory => {}
        #[cfg(feature = "postgres")]
        Engine::Postgres => postgres::check(url)?,
        #[cfg(feature = "etcd")]
        Engine::Etcd => etcd::check(url)?,
        #[cfg(feature = "zookeeper")]
        Engine::Zookeeper => zookeeper::check(url)?,
        #[cfg(feature = "redis")]
        Engine::Redis => redis::check(url, settings.redis)?,
        #[cfg(feature = "redlock")]
        Engine::Redlock => redis::check_redlock(url, settings.redis, settings.redlock)?,
    }
    Ok(UnopenedStore { records: scheme_of(url).and_then(feature_of) != Some("redlock") })
}

/// The secret of a store of this process alone, which it keeps in its directory and makes if there is none; `None` for
/// other stores. The store is open.
#[cfg(feature = "embedded")]
pub fn own_secret(url: &str) -> Option<Result<Vec<u8>, OpenError>> {
    let directory = url.strip_prefix("embedded:").filter(|directory| !directory.is_empty())?;
    Some(embedded::own_secret(directory.as_ref()))
}

/// What is known of a store by its URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnopenedStore {
    /// Whether it keeps records of idempotency keys.
    pub records: bool,
}

/// What a URL asks for. This is the one list of schemes.
#[derive(Debug)]
enum Engine {
    #[cfg(feature = "embedded")]
    Embedded(PathBuf),
    #[cfg(feature = "memory")]
    Memory,
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "etcd")]
    Etcd,
    #[cfg(feature = "zookeeper")]
    Zookeeper,
    #[cfg(feature = "redis")]
    Redis,
    #[cfg(feature = "redlock")]
    Redlock,
}

impl Engine {
    fn of(url: &str) -> Result<Self, OpenError> {
        let scheme = scheme_of(url).ok_or(OpenError::NoUrl)?;
        let rest = &url[scheme.len() + 1..];
        match (feature_of(scheme), rest) {
            #[cfg(feature = "embedded")]
            (Some("embedded"), directory) if !directory.is_empty() => {
                Ok(Self::Embedded(directory.into()))
            }
            #[cfg(feature = "memory")]
            (Some("memory"), "") => Ok(Self::Memory),
            #[cfg(feature = "memory")]
            (Some("memory"), _) => Err(OpenError::MemoryWithPath),
            #[cfg(feature = "postgres")]
            (Some("postgres"), _) => Ok(Self::Postgres),
            #[cfg(feature = "etcd")]
            (Some("etcd"), _) => Ok(Self::Etcd),
            #[cfg(feature = "zookeeper")]
            (Some("zookeeper"), _) => Ok(Self::Zookeeper),
            #[cfg(feature = "redis")]
            (Some("redis"), _) => Ok(Self::Redis),
            #[cfg(feature = "redlock")]
            (Some("redlock"), _) => Ok(Self::Redlock),
            (Some(feature), rest) if !rest.is_empty() => Err(OpenError::LeftOut(feature)),
            _ => Err(OpenError::UnknownScheme(scheme.to_owned())),
        }
    }
}

/// An engine that keylatch knows, in this build or not.
#[derive(Debug, Clone, Copy)]
pub struct KnownEngine {
    /// The cargo feature that builds it in.
    pub feature: &'static str,
    /// Whether this build has it.
    pub is_built: bool,
    /// The forms of its URL, for people.
    pub urls: &'static [&'static str],
    schemes: &'static [&'static str],
}

/// Defines each engine by its feature, the forms of its URL and its schemes.
macro_rules! engines {
    ($($feature:literal: $urls:expr, $schemes:expr;)+) => {
        [$(KnownEngine {
            feature: $feature,
            is_built: cfg!(feature = $feature),
            urls: &$urls,
            schemes: &$schemes,
        }),+]
    };
}

/// Every engine, with what URLs name it.
pub const ENGINES: [KnownEngine; 7] = engines! {
    "embedded": ["embedded:DIRECTORY"], ["embedded"];
    "memory": ["memory:"], ["memory"];
    "redis":
        ["redis://HOST:PORT/DB", "redis+sentinel://HOST,HOST/MASTER", "redis+cluster://HOST,HOST"],
        [
            "redis", "rediss", "redis+unix", "unix", "redis+sentinel", "rediss+sentinel",
            "redis+cluster", "rediss+cluster"
        ];
    "redlock": ["redlock://HOST,HOST,HOST"], ["redlock", "rediss+redlock"];
    "postgres": ["postgres://HOST,HOST/DB"], ["postgres", "postgresql"];
    "etcd": ["etcd://HOST,HOST,HOST"], ["etcd", "etcds"];
    "zookeeper": ["zookeeper://HOST,HOST,HOST"], ["zookeeper", "zookeepers"];
};

/// The feature by which the store of a scheme is built in.
fn feature_of(scheme: &str) -> Option<&'static str> {
    let engine = ENGINES.iter().find(|engine| engine.schemes.contains(&scheme))?;
    Some(engine.feature)
}

/// The forms of URLs that this build or another one knows, for people.
fn known_urls() -> String {
    let urls = ENGINES.iter().flat_map(|engine| engine.urls);
    urls.map(|url| format!("`{url}`")).collect::<Vec<_>>().join(", ")
}

/// What the stores call themselves, all features together.
pub const KINDS: [&str; 9] = [
    "embedded",
    "memory",
    "postgres",
    "etcd",
    "zookeeper",
    "redis",
    "redis+sentinel",
    "redis+cluster",
    "redlock",
];

/// The scheme of a URL. What has other characters is none, and may be a password.
pub fn scheme_of(url: &str) -> Option<&str> {
    let (scheme, _) = url.split_once(':')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    scheme.chars().all(plain).then_some(scheme)
}

/// Why a store cannot be used. None of these says a word of the URL but its scheme, because a URL
/// may hold a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No store has this scheme.
    #[error("no store has the scheme `{0}:`; the stores are {urls}", urls = known_urls())]
    UnknownScheme(String),
    /// This build has no such store.
    #[error(
        "this binary was built without {0}; `cargo build --release --features {0}` builds one that has it, \
         and releases have all stores"
    )]
    LeftOut(&'static str),
    /// The data directory cannot be used.
    #[error("the data directory {} cannot be used: {source}", path.display())]
    Directory {
        /// The path after `embedded:`.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// Another process has the data directory.
    #[error("the data directory {} is in use by process {owner}", path.display())]
    DirectoryInUse {
        /// The directory.
        path: PathBuf,
        /// The other process's id, or `unknown`.
        owner: String,
    },
    /// The data file cannot be trusted.
    #[error(
        "the data file {} is damaged ({reason}); restore it from a backup, or move it away to start \
         with no locks held, once every lease in it has surely ended", path.display()
    )]
    Damaged {
        /// The path of the data file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Another version wrote the data file.
    #[error(
        "the data file {} has format {found}, and this version of keylatch reads format {known} \
         alone: use the version that wrote it, or move the file away to start with no locks held, \
         once every lease in it has surely ended", path.display()
    )]
    OtherFormat {
        /// The path of the data file.
        path: PathBuf,
        /// The file's format.
        found: u64,
        /// The format of this version.
        known: u64,
    },
    /// Memory has no path.
    #[error("`memory:` keeps nothing and takes nothing after the colon")]
    MemoryWithPath,
    /// The text is no URL at all.
    #[error("the store must be a URL: {urls}", urls = known_urls())]
    NoUrl,
    /// The URL's scheme is known, and the rest is not understood.
    #[error("the store's URL is not {0} URL: {1}")]
    BadUrl(&'static str, String),
    /// The engine answered, and must not be used for locks as it is.
    #[error("this {0} cannot keep locks: {1}")]
    Unfit(&'static str, String),
    /// The URL names nodes that make no store, or the settings do not fit them.
    #[error("the nodes of `redlock://` make no store: {0}")]
    BadRedlock(String),
    /// The Redis answered, and must not be used for locks as it is.
    #[error("this Redis is not fit to keep locks: {0}")]
    UnfitRedis(String),
}
