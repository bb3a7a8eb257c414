//! Independent redis-servers, over which Redlock takes its votes.
//!
//! They know nothing of each other. A test can age them past the quarantine of a node that came up
//! lately, and count how many have a lock.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use futures_util::future::join_all;
use keylatch::config::Config;

use crate::open_store::OpenStore;
use crate::{RedisServer, config};

/// Five redis-servers that do not know each other.
#[derive(Debug)]
pub struct RedlockNodes(Vec<RedisServer>);

impl RedlockNodes {
    /// Servers that persist every write, so that they may vote at once.
    pub async fn start() -> Self {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await
    }

    /// Servers with these options.
    pub async fn start_with(options: &[&str]) -> Self {
        Self(join_all((0..5).map(|_| RedisServer::start_with(options))).await)
    }

    /// Its URL for the service.
    pub fn url(&self) -> String {
        redlock_url(self.iter().map(RedisServer::address))
    }

    /// A configuration for these servers with time enough on a busy machine.
    pub fn config(&self) -> Config {
        with_generous_timeouts(config(&self.url()))
    }

    /// A configuration for a test in which some of the servers do not answer.
    pub fn config_with_silent_nodes(&self) -> Config {
        let mut config = self.config();
        config.redlock.node_timeout_ms = 2000;
        config
    }

    /// A store over these servers that takes every TTL.
    pub async fn store(&self) -> OpenStore {
        open_redlock(&self.config()).await
    }

    /// Kills these servers.
    pub async fn kill_all(&mut self, servers: impl IntoIterator<Item = usize>) {
        for server in servers {
            self[server].kill().await;
        }
    }

    /// Starts these servers again.
    pub async fn restart_all(&mut self, servers: impl IntoIterator<Item = usize>) {
        for server in servers {
            self[server].restart().await;
        }
    }

    /// Stops these servers without ending them.
    pub fn pause_all(&self, servers: impl IntoIterator<Item = usize>) {
        servers.into_iter().for_each(|server| self[server].pause());
    }

    /// Continues these servers.
    pub fn resume_all(&self, servers: impl IntoIterator<Item = usize>) {
        servers.into_iter().for_each(|server| self[server].resume());
    }

    /// Lets a time pass for the locks on all servers.
    pub async fn age(&self, by: Duration) {
        join_all(self.iter().map(|node| node.age(by))).await;
    }

    /// The number of servers that have a key of a lock.
    pub async fn with_locks(&self) -> usize {
        let keys = self.iter().map(|node| node.run::<Vec<String>>(&["KEYS", "*:lock:*"]));
        join_all(keys).await.into_iter().filter(|keys| !keys.is_empty()).count()
    }
}

impl Deref for RedlockNodes {
    type Target = [RedisServer];

    fn deref(&self) -> &[RedisServer] {
        &self.0
    }
}

impl DerefMut for RedlockNodes {
    fn deref_mut(&mut self) -> &mut [RedisServer] {
        &mut self.0
    }
}

/// The URL of the nodes at these addresses.
pub fn redlock_url(addresses: impl Iterator<Item = String>) -> String {
    format!("redlock://{}", addresses.collect::<Vec<_>>().join(","))
}

/// A configuration with time enough on a busy machine, which takes every TTL.
pub fn with_generous_timeouts(mut config: Config) -> Config {
    // A node that is silent has a part of a test's time at most.
    (config.redlock.node_timeout_ms, config.redis.connect_timeout_ms) = (5000, 5000);
    config.redlock.max_ttl_ms = 86_400_000;
    config
}

/// The store that a configuration describes.
pub async fn open_redlock(config: &Config) -> OpenStore {
    let store = keylatch_stores::open(config.store.expose(), config.stores()).await;
    OpenStore(store.expect("the store opens"))
}
