//! Locks and records in Redis, shared by all keylatch instances that use it.
//!
//! The adapter over conditional writes runs the rules (`optimistic`); this is its engine: rows that
//! Redis expires, and one script for a batch (`engine.rs`). `keylatch:{3f}:lock:NAME`,
//! `keylatch:{3f}:record:HASH`, `keylatch:{3f}:fence` and `keylatch:{3f}:unfinished`, the index of
//! a bucket's unfinished records, carry the bucket as their hash tag: the first braces of a key
//! steer its slot, so braces in a name never do.
//!
//! `list` walks over keys; `topology`, `pool` and `connection` have the servers; `pubsub` the hints
//! between instances. The invariants are those of [`Store`], and the conformance tests hold this
//! store to them, on one server, Sentinel and Cluster.

mod client;
mod connection;
mod engine;
mod failure;
#[cfg(fuzzing)]
mod fuzzing;
mod list;
mod pool;
mod pubsub;
#[cfg(feature = "redlock")]
pub(crate) mod redlock;
mod row;
mod script;
mod server;
mod topology;
mod url;

use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::task::AbortOnDropHandle;

use keylatch_core::idempotency::RecordSummary;
use keylatch_core::lock::Holding;
use keylatch_core::store::{
    Command, Hints, ListLocks, ListRecords, Page, Reply, Store, StoreError, StoreGauges,
    StoreHealth, StoreProfile, Topic,
};

use crate::conn::locked;
use crate::conn::subscription::Source as _;
use crate::error::OpenError;
use crate::optimistic::Optimistic;
use crate::settings::Settings;
use engine::RedisEngine;
use pool::Pool;
use script::Keys;
use topology::Topology;

#[cfg(fuzzing)]
pub use fuzzing::read_redis_reply;

/// Opens the Redis at `url`: `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, `rediss://` for TLS,
/// `redis+unix:///PATH` for a socket; or the master that sentinels name, at
/// `redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,…]/MASTER[/DB]`; or a cluster, some nodes of
/// which are at `redis+cluster://[USER:PASSWORD@]HOST[:PORT][,…]`. With TLS,
/// `?cacert=PATH&cert=PATH&key=PATH` name certificates, and `servername=NAME` the name that those
/// of the servers are for.
///
/// # Errors
///
/// `url` is not understood, the Redis answers and is not fit to keep locks, or all the sentinels
/// answer and none knows the master. What does not answer is not an error: the store keeps trying.
pub(crate) async fn open(url: &str, settings: Settings<'_>) -> Result<Arc<dyn Store>, OpenError> {
    let settings = settings.redis;
    let kind = match crate::scheme_of(url) {
        Some("redis+sentinel" | "rediss+sentinel") => "redis+sentinel",
        Some("redis+cluster" | "rediss+cluster") => "redis+cluster",
        _ => "redis",
    };
    let engine = RedisEngine {
        kind,
        topology: Arc::new(Topology::open(url, settings).await?),
        keys: Arc::new(Keys::new(&settings.key_prefix)),
        watches: Arc::default(),
        replicates: settings.min_replicas > 0,
        written: Arc::default(),
        subscribe_limit: settings.connect_timeout(),
        subscriptions: Arc::default(),
        subscription: Arc::default(),
    };
    // Before the first watch, so that no hint is missed because the store is new.
    *locked(&engine.subscription) = engine.subscribe().await.ok();
    let commands = Optimistic::new(Arc::new(engine.clone()));
    let announcing = AbortOnDropHandle::new(tokio::spawn(engine.clone().announce()));
    Ok(Arc::new(RedisStore { engine, commands, _announcing: announcing }))
}

/// Checks a URL and the files that it names.
pub(crate) fn check(url: &str, settings: Settings<'_>) -> Result<(), OpenError> {
    Topology::check(url, settings.redis)
}

#[derive(Debug)]
struct RedisStore {
    engine: RedisEngine,
    commands: Optimistic,
    /// Announces watches for as long as the store lives.
    _announcing: AbortOnDropHandle<()>,
}

#[async_trait]
impl Store for RedisStore {
    async fn execute(&self, command: Command) -> Result<Reply, StoreError> {
        self.commands.run(command).await
    }

    async fn list_locks(&self, query: &ListLocks) -> Result<Option<Page<Holding>>, StoreError> {
        list::locks(&self.engine, query).await
    }

    async fn list_records(
        &self,
        query: &ListRecords,
    ) -> Result<Option<Page<RecordSummary>>, StoreError> {
        if query.filter.is_of_unfinished() {
            return self.commands.list_records(query).await;
        }
        list::records(&self.engine, query).await
    }

    fn subscribe(&self, topic: Topic) -> Hints {
        let watched = match &topic {
            Topic::Changes(name) => Some(name.clone()),
            Topic::Turn(..) | Topic::Ends => None,
        };
        let hints = self.commands.subscribe(topic);
        match watched {
            Some(name) => self.engine.watches.watch(name, hints),
            None => hints,
        }
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.commands.health().await
    }

    fn profile(&self) -> StoreProfile {
        self.commands.profile()
    }

    fn gauges(&self) -> StoreGauges {
        self.commands.gauges()
    }
}
