//! Locks and records in Redis, shared by all keylatch instances that use it.
//!
//! Each command is one Lua script, so Redis itself makes it atomic. A held lock is one hash that Redis
//! expires, and so is a record; each of the 256 buckets has one fencing counter. `keylatch:{3f}:lock:NAME`,
//! `keylatch:{3f}:record:HASH` and `keylatch:{3f}:fence` carry the bucket as their hash tag: the first braces
//! of a key steer its slot, so braces in a name never do.
//!
//! `keylatch:{3f}:unfinished` is the index of a bucket's unfinished records, in the same slot.
//!
//! `locks`, `records`, `list` and `record_list` have the commands; `topology`, `pool` and `connection` the
//! servers; `pubsub` the hints between instances. The invariants are those of [`Store`], and the conformance
//! tests hold this store to them, on one server, Sentinel and Cluster.

mod connection;
mod failure;
mod list;
mod locks;
mod pool;
mod pubsub;
mod record_list;
mod records;
#[cfg(feature = "redlock")]
mod redlock;
mod reply;
mod script;
mod server;
mod topology;
mod url;

use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::task::AbortOnDropHandle;

use keylatch_core::lock::{Holding, Ttl};
use keylatch_core::store::{
    Command, EntryLimits, Hints, ListQuery, ListReply, Reply, Store, StoreError, StoreHealth,
    StoreProfile, Topic,
};

use crate::hints::Wakeups;
use crate::{OpenError, RedisSettings};
use pool::Pool;
use pubsub::{Subscription, Watches};
use script::{Keys, Scripts};
use topology::Topology;

#[cfg(feature = "redlock")]
pub use redlock::redlock;

/// Opens the Redis at `url`: `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, `rediss://` for TLS,
/// `redis+unix:///PATH` for a socket; or the master that sentinels name, at
/// `redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,…]/MASTER[/DB]`; or a cluster, some nodes of which
/// are at `redis+cluster://[USER:PASSWORD@]HOST[:PORT][,…]`.
///
/// # Errors
///
/// `url` is not understood, the Redis answers and is not fit to keep locks, or all the sentinels
/// answer and none knows the master. What does not answer is not an error: the store keeps trying.
pub async fn redis(url: &str, settings: &RedisSettings) -> Result<Arc<dyn Store>, OpenError> {
    Ok(Arc::new(RedisStore::open(url, settings).await?))
}

/// A [`Store`] in one Redis.
#[derive(Debug)]
struct RedisStore {
    kind: &'static str,
    topology: Arc<Topology>,
    scripts: Arc<Scripts>,
    keys: Arc<Keys>,
    wakeups: Arc<Wakeups>,
    watches: Arc<Watches>,
    /// Subscribe to hints and announce watches for as long as the store lives.
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl RedisStore {
    async fn open(url: &str, settings: &RedisSettings) -> Result<Self, OpenError> {
        let topology = Arc::new(Topology::open(url, settings).await?);
        let (keys, wakeups) = (Arc::new(Keys::new(&settings.key_prefix)), Arc::default());
        let (scripts, watches) = (Arc::new(Scripts::new()), Arc::<Watches>::default());
        let subscription = Subscription::new(&topology, settings, &keys, &wakeups, &watches);
        // Before the first watch, so that no hint is missed because the store is new.
        let subscribed = subscription.subscribe(0).await;
        let listening = tokio::spawn(subscription.listen(subscribed));
        let announcing = Arc::clone(&watches).announce(
            Arc::clone(&topology),
            Arc::clone(&keys),
            Arc::clone(&scripts),
        );
        let tasks = [listening, tokio::spawn(announcing)].map(AbortOnDropHandle::new);
        let kind = match crate::scheme_of(url) {
            Some("redis+sentinel" | "rediss+sentinel") => "redis+sentinel",
            Some("redis+cluster" | "rediss+cluster") => "redis+cluster",
            _ => "redis",
        };
        Ok(Self { kind, topology, scripts, keys, wakeups, watches, _tasks: tasks })
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn execute(&self, command: Command) -> Result<Reply, StoreError> {
        match command {
            Command::Lock(name, command) => self.lock(&name, &command).await.map(Reply::Lock),
            Command::Set(..) => Err(StoreError::Unsupported),
            Command::Record(key, command) => self.record(&key, &command).await.map(Reply::Record),
        }
    }

    async fn list(&self, query: &ListQuery) -> Result<Option<ListReply>, StoreError> {
        match query {
            ListQuery::Locks(query) => {
                let page = list::page(&self.topology, &self.keys, query).await?;
                Ok(page.map(|page| ListReply::Locks(page.map(Holding::by_one))))
            }
            ListQuery::Records(query) => {
                Ok(self.list_records(query).await?.map(ListReply::Records))
            }
        }
    }

    fn subscribe(&self, topic: Topic) -> Hints {
        match topic {
            Topic::Turn(name, token) => self.wakeups.subscribe(name, token),
            Topic::Changes(name) => self.watches.subscribe(name),
        }
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.topology.health().await
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile {
            kind: self.kind,
            max_ttl: Ttl::MAX,
            records: true,
            limits: EntryLimits::NONE,
        }
    }
}
