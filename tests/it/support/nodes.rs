use std::ops::{Deref, DerefMut};
use std::time::Duration;

use futures_util::future::join_all;
use keylatch::config::Config;
use keylatch_stores::RedlockStore;

use super::{RedisServer, config};

/// Five redis-servers that know nothing of each other.
#[derive(Debug)]
pub(crate) struct Nodes(Vec<RedisServer>);

impl Nodes {
    /// Servers that forget nothing, and so may vote at once.
    pub(crate) async fn start() -> Self {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await
    }

    pub(crate) async fn start_with(options: &[&str]) -> Self {
        Self(join_all((0..5).map(|_| RedisServer::start_with(options))).await)
    }

    pub(crate) fn url(&self) -> String {
        url_of(self.iter().map(RedisServer::address))
    }

    /// A configuration for these servers with time enough for a machine that is busy.
    pub(crate) fn config(&self) -> Config {
        patient(config(&self.url()))
    }

    /// The same for a test in which some of them are silent.
    pub(crate) fn impatient_config(&self) -> Config {
        let mut config = self.config();
        config.redlock.node_timeout_ms = 1000;
        config
    }

    /// A store over these servers that takes every TTL.
    pub(crate) async fn store(&self) -> RedlockStore {
        store_of(&self.config()).await
    }

    /// Lets a time pass for the locks on all servers.
    pub(crate) async fn age(&self, by: Duration) {
        join_all(self.iter().map(|node| node.age(by))).await;
    }

    /// How many servers have a key of a lock.
    pub(crate) async fn with_locks(&self) -> usize {
        let keys = self.iter().map(|node| node.run::<Vec<String>>(&["KEYS", "*:lock:*"]));
        join_all(keys).await.into_iter().filter(|keys| !keys.is_empty()).count()
    }
}

impl Deref for Nodes {
    type Target = [RedisServer];

    fn deref(&self) -> &[RedisServer] {
        &self.0
    }
}

impl DerefMut for Nodes {
    fn deref_mut(&mut self) -> &mut [RedisServer] {
        &mut self.0
    }
}

pub(crate) fn url_of(addresses: impl Iterator<Item = String>) -> String {
    format!("redlock://{}", addresses.collect::<Vec<_>>().join(","))
}

/// The same with time enough for a machine that is busy, and with every TTL.
pub(crate) fn patient(mut config: Config) -> Config {
    config.redlock.node_timeout_ms = 5000;
    config.redlock.max_ttl_ms = 86_400_000;
    config.store_timeout_ms = 60_000;
    config
}

pub(crate) async fn store_of(config: &Config) -> RedlockStore {
    let store = RedlockStore::open(config.store.expose(), &config.redis, &config.redlock).await;
    store.expect("the store opens")
}
