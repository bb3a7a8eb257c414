//! Locks and records in Redis, shared by every keylatch that uses it.
//!
//! Each step is one Lua script, so Redis itself makes it atomic. A held lock is one hash that Redis
//! expires, and so is a record; each of the 256 buckets has one fencing counter.
//! `keylatch:{3f}:lock:NAME`, `keylatch:{3f}:record:HASH` and `keylatch:{3f}:fence` carry the bucket
//! as their hash tag: the first braces of a key steer its slot, so braces in a name never do.
//!
//! Who waits for a lock is in three keys more, which `lua/line.lua` describes. A step that leaves a
//! lock free publishes on `keylatch:turns` who is the first in its line, and each store listens to
//! that. The channel is one for all databases of a Redis: what is said of another's lock calls nobody.
//!
//! What is watched somewhere is said on `keylatch:changes`, and so is each step on it ([`watches`]).

mod connection;
mod failure;
mod list;
mod pool;
mod pubsub;
mod record_reply;
mod records;
#[cfg(feature = "redlock")]
mod redlock;
mod reply;
mod script;
mod server;
mod topology;
mod url;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bb8_redis::redis::{Script, ScriptInvocation};
use serde::Deserialize;
use tokio_util::task::AbortOnDropHandle;

use keylatch_core::lock::{
    AcquireCommand, AcquireReply, LockCommand, LockName, LockReply, ReleaseReply, RenewReply,
    TokenHash, Ttl,
};
use keylatch_core::store::{
    Command, Hints, ListLocks, Page, Reply as StoreReply, Store, StoreError, StoreHealth,
    StoreProfile, Topic,
};

use super::OpenError;
use super::wakeups::Wakeups;
use pool::Pool;
use pubsub::Subscription;
use reply::Reply;
use script::{Keys, Scripts};
use topology::Topology;
use watches::Watches;

#[cfg(feature = "redlock")]
pub use redlock::{RedlockSettings, redlock};

/// How the service uses Redis.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
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

impl Settings {
    fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }
}

/// Opens the Redis at `url`: `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, `rediss://` for TLS,
/// `redis+unix:///PATH` for a socket; or the master that sentinels name, at
/// `redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,…]/MASTER[/DB]`; or a cluster, some nodes of which
/// are at `redis+cluster://[USER:PASSWORD@]HOST[:PORT][,…]`.
///
/// # Errors
///
/// `url` is not understood, the Redis answers and is not fit to keep locks, or all the sentinels
/// answer and none knows the master. What does not answer is not an error: the store keeps trying.
pub async fn redis(url: &str, settings: &Settings) -> Result<Arc<dyn Store>, OpenError> {
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
    /// Hear and announce hints for as long as the store lives.
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl RedisStore {
    async fn open(url: &str, settings: &Settings) -> Result<Self, OpenError> {
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
        let kind = match super::scheme_of(url) {
            Some("redis+sentinel" | "rediss+sentinel") => "redis+sentinel",
            Some("redis+cluster" | "rediss+cluster") => "redis+cluster",
            _ => "redis",
        };
        Ok(Self { kind, topology, scripts, keys, wakeups, watches, _tasks: tasks })
    }

    /// The channel on which a step says what it changes; empty where nobody watches.
    fn changes_of(&self, name: &LockName) -> String {
        if self.watches.is_watched(name) { self.keys.change_channel() } else { String::new() }
    }

    /// A call of a script that knows of lines.
    fn on_line<'a>(&self, script: &'a Script, name: &LockName) -> ScriptInvocation<'a> {
        let bucket = name.bucket();
        let mut call = script.prepare_invoke();
        call.key(self.keys.lock(bucket, name)).key(&self.keys.line(bucket, name));
        call
    }

    /// Calls a script that knows of lines until it has taken its step. Before that it may have to
    /// drop more lost places than it does in one go.
    async fn run_on_line(
        &self,
        name: &LockName,
        call: &ScriptInvocation<'_>,
    ) -> Result<Reply, StoreError> {
        loop {
            let reply: Reply = self.topology.run(name.bucket(), call).await?;
            if reply.found() != "again" {
                return Ok(reply);
            }
        }
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn execute(&self, command: Command) -> Result<StoreReply, StoreError> {
        match command {
            Command::Lock(name, command) => self.lock(&name, &command).await.map(StoreReply::Lock),
            Command::Record(key, command) => {
                self.record(&key, &command).await.map(StoreReply::Record)
            }
        }
    }

    async fn list(&self, query: &ListLocks) -> Result<Option<Page>, StoreError> {
        list::page(&self.topology, &self.keys, query).await
    }

    fn subscribe(&self, topic: Topic) -> Hints {
        match topic {
            Topic::Turn(name, token) => self.wakeups.subscribe(name, token),
            Topic::Changes(name) => self.watches.subscribe(name),
        }
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.topology.ping().await
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile { kind: self.kind, max_ttl: Ttl::MAX, records: true }
    }
}

/// The steps on a lock.
impl RedisStore {
    async fn lock(&self, name: &LockName, command: &LockCommand) -> Result<LockReply, StoreError> {
        Ok(match command {
            LockCommand::Acquire(command) => LockReply::Acquire(self.acquire(name, command).await?),
            LockCommand::Withdraw { token, attempt } => {
                let mut call = self.on_line(&self.scripts.withdraw, name);
                call.arg(script::token(token))
                    .arg(attempt.get())
                    .arg(self.keys.wakeup_channel())
                    .arg(self.changes_of(name));
                self.run_on_line(name, &call).await?;
                LockReply::Withdraw
            }
            LockCommand::Renew { token, ttl } => {
                LockReply::Renew(self.renew(name, token, *ttl).await?)
            }
            LockCommand::Release { token } => LockReply::Release(self.release(name, token).await?),
            LockCommand::Look => {
                let bucket = name.bucket();
                let [_, places, _] = self.keys.line(bucket, name);
                let mut call = self.scripts.get.prepare_invoke();
                call.key(self.keys.lock(bucket, name)).key(places);
                let reply: Reply = self.topology.run(bucket, &call).await?;
                LockReply::Look(match reply.found() {
                    "held" => Some(reply.holder(name)?),
                    "not-held" => None,
                    _ => return Err(Reply::unexpected()),
                })
            }
        })
    }

    async fn acquire(
        &self,
        name: &LockName,
        command: &AcquireCommand,
    ) -> Result<AcquireReply, StoreError> {
        let lasts = command.queue.map(|lasts| script::millis(lasts).to_string());
        let mut call = self.on_line(&self.scripts.acquire, name);
        call.key(self.keys.fence(name.bucket()))
            .arg(script::token(&command.token))
            .arg(command.ttl.as_millis())
            .arg(command.owner.as_ref().map_or("", |owner| owner.as_str()))
            .arg(command.attempt.get())
            .arg(lasts.unwrap_or_default())
            .arg(self.keys.wakeup_channel())
            .arg(self.changes_of(name));
        let reply = self.run_on_line(name, &call).await?;
        match reply.found() {
            "granted" => Ok(AcquireReply::Granted(reply.lease()?)),
            "repeated" => Ok(AcquireReply::Repeated(reply.lease()?)),
            "held" => Ok(AcquireReply::Busy(reply.busy(name)?)),
            _ => Err(Reply::unexpected()),
        }
    }

    async fn renew(
        &self,
        name: &LockName,
        token: &TokenHash,
        ttl: Ttl,
    ) -> Result<RenewReply, StoreError> {
        let mut call = self.scripts.renew.prepare_invoke();
        call.key(self.keys.lock(name.bucket(), name))
            .arg(script::token(token))
            .arg(ttl.as_millis());
        if self.watches.is_watched(name) {
            let [line, ..] = self.keys.line(name.bucket(), name);
            call.key(line).arg(self.keys.change_channel());
        }
        let reply: Reply = self.topology.run(name.bucket(), &call).await?;
        match reply.found() {
            "renewed" => Ok(RenewReply::Renewed(reply.lease()?)),
            "not-held" => Ok(RenewReply::NotHeld),
            "mismatch" => Ok(RenewReply::Mismatch),
            _ => Err(Reply::unexpected()),
        }
    }

    async fn release(
        &self,
        name: &LockName,
        token: &TokenHash,
    ) -> Result<ReleaseReply, StoreError> {
        let mut call = self.on_line(&self.scripts.release, name);
        call.arg(script::token(token)).arg(self.keys.wakeup_channel()).arg(self.changes_of(name));
        let reply = self.run_on_line(name, &call).await?;
        match reply.found() {
            "released" => Ok(ReleaseReply::Released),
            "not-held" => Ok(ReleaseReply::NotHeld),
            "mismatch" => Ok(ReleaseReply::Mismatch),
            _ => Err(Reply::unexpected()),
        }
    }
}
