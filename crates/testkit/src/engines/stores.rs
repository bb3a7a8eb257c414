//! The stores of the matrix that the feature `engines` brings: how each is started, and how its
//! time passes.
//!
//! Invariant: as for the others (`stores.rs`), a store takes steps when it is handed out.

use std::time::Duration;

use async_trait::async_trait;

use super::{Cluster, PostgresDatabase, RedlockNodes, Sentinels, ZookeeperRoot, empty_etcd};
use crate::config;
use crate::store_time::pass_for_store;
use crate::stores::{AHEAD, StoreClock, TestStore, TokioClock};

/// A master that a sentinel monitors.
pub async fn sentinel() -> TestStore {
    let sentinels = Sentinels::start(0, 1).await;
    TestStore::new(config(&sentinels.url()), sentinels)
}

/// A cluster of three masters.
pub async fn cluster() -> TestStore {
    let cluster = Cluster::start(3, 0).await;
    TestStore::new(config(&cluster.url()), cluster)
}

/// Five independent nodes.
pub async fn redlock() -> TestStore {
    let nodes = RedlockNodes::start().await;
    TestStore::new(nodes.config(), nodes)
}

/// A database of one PostgreSQL.
pub async fn postgres() -> TestStore {
    let database = PostgresDatabase::create().await;
    TestStore::new(config(&database.url()), database)
}

/// The keys below a prefix of one etcd.
pub async fn etcd() -> TestStore {
    TestStore::new(config(&empty_etcd().await), EtcdClock(TokioClock::default()))
}

/// A node of one ZooKeeper.
pub async fn zookeeper() -> TestStore {
    let root = ZookeeperRoot::create().await;
    TestStore::new(config(&root.url()), root)
}

/// etcd has no clock, and a process counts from when it saw a write.
#[derive(Debug)]
struct EtcdClock(TokioClock);

#[async_trait]
impl StoreClock for EtcdClock {
    async fn advance(&self, by: Duration) {
        self.0.advance(by + AHEAD).await;
    }
}

#[async_trait]
impl StoreClock for Sentinels {
    async fn advance(&self, by: Duration) {
        self.servers[0].advance(by + AHEAD);
        pass_for_store(by + AHEAD);
    }
}

#[async_trait]
impl StoreClock for Cluster {
    async fn advance(&self, by: Duration) {
        for master in self.masters() {
            master.advance(by + AHEAD);
        }
        pass_for_store(by + AHEAD);
    }
}

#[async_trait]
impl StoreClock for RedlockNodes {
    async fn advance(&self, by: Duration) {
        self.age(by).await;
    }
}

#[async_trait]
impl StoreClock for PostgresDatabase {
    async fn advance(&self, by: Duration) {
        self.advance(by + AHEAD).await;
    }
}

/// A ZooKeeper has no clock: the store counts by tokio's, from when it saw a write.
#[async_trait]
impl StoreClock for ZookeeperRoot {
    async fn advance(&self, by: Duration) {
        self.pass(by + AHEAD).await;
    }

    async fn settle(&self) {
        self.settle().await;
    }
}
