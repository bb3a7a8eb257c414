//! What a Redis server reports of itself, and whether it is fit to keep locks.
//!
//! Every new connection inspects its server: version, role, persistence, eviction, and the process
//! at its other end. The tier of the store follows from it, and so does the voter quarantine of
//! Redlock.
//!
//! Tested over real servers of several settings, by the tests of Redis's fitness and of Redlock.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
#[cfg(feature = "redlock")]
use std::time::Duration;

use bb8_redis::redis::aio::MultiplexedConnection;
use bb8_redis::redis::{RedisResult, cmd};
use tokio::time::Instant;

use keylatch_core::store::{StoreHealth, Tier};

/// The oldest Redis that speaks RESP3, with which a lost connection is noticed at once.
const OLDEST_MAJOR: u32 = 6;

/// What a Redis reported of itself.
#[derive(Debug, Clone)]
pub(super) struct Server {
    info: HashMap<String, String>,
    /// `None` where `CONFIG` is forbidden, as many hosts do.
    appendfsync: Option<String>,
    /// When it was inspected.
    #[cfg_attr(not(feature = "redlock"), expect(dead_code, reason = "Redlock asks for it"))]
    pub(super) seen: Instant,
}

impl Server {
    pub(super) async fn inspect(connection: &mut MultiplexedConnection) -> RedisResult<Self> {
        let info: String = cmd("INFO").query_async(connection).await?;
        let config: RedisResult<HashMap<String, String>> =
            cmd("CONFIG").arg("GET").arg("appendfsync").query_async(connection).await;
        let appendfsync = match config {
            Ok(mut found) => found.remove("appendfsync"),
            Err(error) if error.code().is_some() => None,
            Err(error) => return Err(error),
        };
        Ok(Self::of(&info, appendfsync))
    }

    /// A server that says this of itself now.
    pub(super) fn of(info: &str, appendfsync: Option<String>) -> Self {
        let pairs = info.lines().filter_map(|line| line.split_once(':'));
        let info = pairs.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect();
        Self { info, appendfsync, seen: Instant::now() }
    }

    /// Why the server must not keep locks, in a sentence that says what to do. One that is named
    /// alone has all keys.
    pub(super) fn unfit(&self, is_alone: bool, allow_eviction: bool) -> Option<String> {
        let version = self.get("redis_version");
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_some_and(|major| major < OLDEST_MAJOR) {
            return Some(format!("it is version {version}; use 6.0 or newer"));
        }
        if self.is_replica() {
            return Some("it is a replica; name its master".to_owned());
        }
        if is_alone && self.get("cluster_enabled") == "1" {
            return Some("it is a node of a cluster; name it as `redis+cluster://`".to_owned());
        }
        if self.evicts() && !allow_eviction {
            let policy = self.get("maxmemory_policy");
            return Some(format!(
                "its maxmemory-policy `{policy}` evicts keys, and with them held locks; set \
                 `maxmemory-policy noeviction`, or redis.allow_eviction if that is what you want"
            ));
        }
        None
    }

    pub(super) fn is_replica(&self) -> bool {
        self.get("role") == "slave"
    }

    /// Whether it is still reading its data from disk. Until then it takes no other command, and
    /// reports that it appends nothing to its log.
    pub(super) fn is_loading(&self) -> bool {
        self.get("loading") == "1"
    }

    /// What it is, for people, and what its grants are worth.
    pub(super) fn health(&self) -> StoreHealth {
        let mut facts = BTreeMap::from([
            ("version", self.get("redis_version").to_owned()),
            ("role", self.get("role").to_owned()),
            ("aof_enabled", self.get("aof_enabled").to_owned()),
            ("maxmemory_policy", self.get("maxmemory_policy").to_owned()),
        ]);
        let unknown = || "unknown".to_owned();
        facts.insert("appendfsync", self.appendfsync.clone().unwrap_or_else(unknown));
        let (tier, mut advice) = (self.tier(), Vec::new());
        if tier == Tier::BestEffort && !self.evicts() {
            let set = "set `appendonly yes` and `appendfsync always`";
            advice.push(format!("a crash of Redis can forget the last grants: {set}"));
        }
        StoreHealth { id: None, tier, facts, advice, is_full: false }
    }

    fn tier(&self) -> Tier {
        let synced =
            self.get("aof_enabled") == "1" && self.appendfsync.as_deref() == Some("always");
        if synced && !self.evicts() { Tier::Strict } else { Tier::BestEffort }
    }

    /// Whether it evicts keys when its memory is full. Without a limit it never does.
    fn evicts(&self) -> bool {
        !matches!(self.get("maxmemory"), "" | "0") && self.get("maxmemory_policy") != "noeviction"
    }

    fn get(&self, key: &str) -> &str {
        self.info.get(key).map_or("", String::as_str)
    }
}

#[cfg(feature = "redlock")]
impl Server {
    /// Another one for each process.
    pub(super) fn run_id(&self) -> &str {
        self.get("run_id")
    }

    /// How long its process had been up, by its wall clock and in whole seconds. One that hides it
    /// counts as one that came up just now.
    pub(super) fn uptime(&self) -> Duration {
        Duration::from_secs(self.get("uptime_in_seconds").parse().unwrap_or(0))
    }

    /// Whether every write is on disk before its reply, and no key is evicted.
    pub(super) fn forgets_nothing(&self) -> bool {
        self.tier() == Tier::Strict
    }

    pub(super) fn version(&self) -> String {
        self.get("redis_version").to_owned()
    }

    /// When it syncs its writes: `appendfsync`, or `no` where it appends nothing.
    pub(super) fn sync(&self) -> String {
        let appends = self.get("aof_enabled") == "1";
        let sync = self.appendfsync.as_deref().filter(|_| appends);
        sync.unwrap_or(if appends { "unknown" } else { "no" }).to_owned()
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (fact, value)) in self.health().facts.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{fact}={value}")?;
        }
        Ok(())
    }
}
