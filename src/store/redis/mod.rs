//! Locks and records in one Redis, shared by every keylatch that uses it.
//!
//! Each step is one Lua script, so Redis itself makes it atomic. A held lock is one hash that Redis
//! expires, and so is a record; each of the 256 buckets has one fencing counter.
//! `keylatch:{3f}:lock:NAME`, `keylatch:{3f}:record:HASH` and `keylatch:{3f}:fence` carry the bucket
//! as their hash tag: the first braces of a key steer its slot, so braces in a name never do.

mod connect;
mod list;
mod record_reply;
mod records;
mod reply;
mod script;
mod server;

use async_trait::async_trait;
use bb8_redis::redis::{ErrorKind, RedisError};
use serde::Deserialize;

use crate::lock::{
    Acquire, Acquisition, Attempt, Busy, Holder, ListLocks, LockName, LockStore, Page, Release,
    Renewal, StoreError, StoreHealth, TokenHash, Ttl, Turn,
};

use super::OpenError;
use super::turns::Turns;
use connect::{Connections, Shared};
use reply::Reply;
use script::{Keys, Scripts};

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
}

/// A [`LockStore`] and [`RecordStore`](crate::idempotency::RecordStore) in one Redis.
#[derive(Debug)]
pub struct RedisStore {
    connections: Connections,
    scripts: Scripts,
    keys: Keys,
    turns: Turns,
}

impl RedisStore {
    /// Opens the Redis at `url`: `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, `rediss://` for TLS,
    /// `redis+unix:///PATH` for a socket.
    ///
    /// # Errors
    ///
    /// `url` is not understood, or the Redis answers and is not fit to keep locks. One that does
    /// not answer is not an error: the store keeps trying.
    pub async fn open(url: &str, settings: &Settings) -> Result<Self, OpenError> {
        let connections = Connections::open(url, settings).await?;
        Ok(Self {
            connections,
            scripts: Scripts::new(),
            keys: Keys::new(&settings.key_prefix),
            turns: Turns::default(),
        })
    }
}

#[async_trait]
impl LockStore for RedisStore {
    async fn acquire(&self, ask: &Acquire) -> Result<Acquisition, StoreError> {
        let bucket = ask.name.bucket();
        let mut call = self.scripts.acquire.prepare_invoke();
        call.key(self.keys.lock(bucket, &ask.name))
            .key(self.keys.fence(bucket))
            .arg(script::token(&ask.token))
            .arg(ask.ttl.as_millis())
            .arg(ask.owner.as_ref().map_or("", |owner| owner.as_str()))
            .arg(ask.attempt.get());
        let reply: Reply = self.connections.run(&call).await?;
        match reply.found() {
            "granted" => Ok(Acquisition::Granted(reply.lease()?)),
            "repeated" => Ok(Acquisition::Repeated(reply.lease()?)),
            "held" => {
                Ok(Acquisition::Held(Busy { holder: Some(reply.holder(&ask.name)?), ahead: 0 }))
            }
            _ => Err(Reply::unexpected()),
        }
    }

    async fn withdraw(
        &self,
        name: &LockName,
        token: &TokenHash,
        attempt: Attempt,
    ) -> Result<(), StoreError> {
        let mut call = self.scripts.withdraw.prepare_invoke();
        call.key(self.keys.lock(name.bucket(), name)).arg(script::token(token)).arg(attempt.get());
        self.connections.run::<Reply>(&call).await.map(|_| ())
    }

    async fn renew(
        &self,
        name: &LockName,
        token: &TokenHash,
        ttl: Ttl,
    ) -> Result<Renewal, StoreError> {
        let mut call = self.scripts.renew.prepare_invoke();
        call.key(self.keys.lock(name.bucket(), name))
            .arg(script::token(token))
            .arg(ttl.as_millis());
        let reply: Reply = self.connections.run(&call).await?;
        match reply.found() {
            "renewed" => Ok(Renewal::Renewed(reply.lease()?)),
            "not-held" => Ok(Renewal::NotHeld),
            "mismatch" => Ok(Renewal::Mismatch),
            _ => Err(Reply::unexpected()),
        }
    }

    async fn release(&self, name: &LockName, token: &TokenHash) -> Result<Release, StoreError> {
        let mut call = self.scripts.release.prepare_invoke();
        call.key(self.keys.lock(name.bucket(), name)).arg(script::token(token));
        let reply: Reply = self.connections.run(&call).await?;
        match reply.found() {
            "released" => Ok(Release::Released),
            "not-held" => Ok(Release::NotHeld),
            "mismatch" => Ok(Release::Mismatch),
            _ => Err(Reply::unexpected()),
        }
    }

    async fn get(&self, name: &LockName) -> Result<Option<Holder>, StoreError> {
        let mut call = self.scripts.get.prepare_invoke();
        call.key(self.keys.lock(name.bucket(), name));
        let reply: Reply = self.connections.run(&call).await?;
        match reply.found() {
            "held" => reply.holder(name).map(Some),
            "not-held" => Ok(None),
            _ => Err(Reply::unexpected()),
        }
    }

    async fn list(&self, query: &ListLocks) -> Result<Option<Page>, StoreError> {
        list::page(&self.connections, &self.keys, query).await
    }

    fn turn(&self, name: &LockName, token: &TokenHash) -> Turn {
        self.turns.wait(name, token)
    }

    async fn ping(&self) -> Result<StoreHealth, StoreError> {
        self.connections.ping().await
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// The errors by which Redis itself says that a command was not carried out. Of any other, such as
/// one of a proxy in between, nobody knows.
const REFUSALS: [&str; 17] = [
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOPERM",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "UNKILLABLE",
    "WRONGTYPE",
];

/// What a failed command means. Redis's own words stay out of it: they repeat the command, and with
/// it the name and the token's hash.
fn store_error(error: &RedisError) -> StoreError {
    match error.code().and_then(|code| REFUSALS.iter().find(|refusal| **refusal == code)) {
        Some(code) => StoreError::Refused(format!("Redis answered {code}").into()),
        None if error.code().is_some() => StoreError::Lost("Redis answered with an error".into()),
        None if error.kind() == ErrorKind::Parse => {
            StoreError::Lost("the reply is not one that this service expects".into())
        }
        None => StoreError::Lost(error.to_string().into()),
    }
}
