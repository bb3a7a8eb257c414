//! How the stores are used that are not this process's own.
//!
//! The service reads these from its configuration; a program that opens a store itself fills them
//! in. They are there whatever features are on, so that [`open`](crate::open) has one signature.

use std::time::Duration;

use serde::Deserialize;

/// The settings of every store that has any.
#[derive(Debug, Clone, Copy)]
pub struct Settings<'a> {
    /// PostgreSQL.
    pub postgres: &'a PostgresSettings,
    /// etcd.
    pub etcd: &'a EtcdSettings,
    /// ZooKeeper.
    pub zookeeper: &'a ZookeeperSettings,
    /// Every Redis.
    pub redis: &'a RedisSettings,
    /// Several that make one store.
    pub redlock: &'a RedlockSettings,
}

/// How the service uses PostgreSQL.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostgresSettings {
    /// The schema that has the table: `A-Z a-z 0-9 _`.
    pub schema: String,
    /// How long connecting may take, in milliseconds.
    pub connect_timeout_ms: u64,
}

/// How the service uses etcd.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdSettings {
    /// How long connecting to a member may take, in milliseconds.
    pub connect_timeout_ms: u64,
}

/// How the service uses ZooKeeper.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZookeeperSettings {
    /// How long a member may be silent before the service leaves it for another, in milliseconds.
    pub connect_timeout_ms: u64,
}

/// How the service uses Redis.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisSettings {
    /// How many multiplexed connections share the load.
    pub connections: u32,
    /// How long connecting may take, in milliseconds.
    pub connect_timeout_ms: u64,
    /// What every key begins with: `A-Z a-z 0-9 : . _ -`.
    pub key_prefix: String,
    /// Use a Redis that may evict keys, and with them locks.
    pub allow_eviction: bool,
    /// How many replicas must have a grant before it is answered.
    pub min_replicas: u32,
}

impl RedisSettings {
    /// How long connecting may take.
    pub fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }
}

/// How several Redis servers make one store.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedlockSettings {
    /// How many nodes decide; 0 for a majority.
    pub quorum: usize,
    /// How long one node has for a reply, in milliseconds, and a tenth of the TTL at most.
    pub node_timeout_ms: u64,
    /// The longest TTL, in milliseconds. A node that came up less than this ago does not vote.
    pub max_ttl_ms: u64,
}
