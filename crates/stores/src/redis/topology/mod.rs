//! Which Redis servers there are, and which of them is the master of a key: one, Sentinel or
//! Cluster.
//!
//! Locks are kept in the same way on all of them; topologies differ in which server has a bucket,
//! and in how the next master is found. One server is a pool. With Sentinel and Cluster a task
//! follows the masters ([`DynamicTopology`]), because the driver does not tell "not executed" from
//! "unknown" when it follows them itself. Its [`Discovery`] asks several servers, each a [`source`]
//! with its own connection, and makes one view of what they report. No source is trusted alone: of
//! sentinels the latest failover counts, of cluster nodes the highest epoch of each slot.
//!
//! Tested below in `sentinel` and `cluster`, and over real servers by the tests of Sentinel, of
//! Cluster and of failover.

mod cluster;
mod dynamic;
mod masters;
mod sentinel;
mod source;

use std::sync::Arc;

use bb8_redis::redis::{FromRedisValue, ScriptInvocation};
use futures_util::future::join_all;

use super::client::RedisClient;
use super::connection::ScriptReply;
use super::failure::Failure;
use super::pool::Pool;
use crate::error::OpenError;
use crate::settings::RedisSettings;
use dynamic::{Discovery, DynamicTopology};
use keylatch_core::lock::LockName;
use keylatch_core::store::{StoreError, StoreHealth, Tier};
use masters::{Master, MasterId};

#[derive(Debug)]
pub(super) enum Topology {
    /// One server has all buckets.
    Single(Pool),
    /// The masters are looked up, and change.
    Dynamic(DynamicTopology),
}

impl Topology {
    pub(super) async fn open(url: &str, settings: &RedisSettings) -> Result<Self, OpenError> {
        match Discovery::of(url, settings)? {
            Some((discovery, client)) => {
                Ok(Self::Dynamic(DynamicTopology::open(discovery, client).await?))
            }
            None => Ok(Self::Single(Pool::open(RedisClient::of_one(url, settings)?).await?)),
        }
    }

    /// Checks a URL and the files that it names.
    pub(super) fn check(url: &str, settings: &RedisSettings) -> Result<(), OpenError> {
        match Discovery::of(url, settings)? {
            Some(_) => Ok(()),
            None => RedisClient::of_one(url, settings).map(drop),
        }
    }

    /// Runs a script on the keys of one bucket.
    pub(super) async fn run<T: FromRedisValue + ScriptReply>(
        &self,
        bucket: u8,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, StoreError> {
        match self {
            Self::Single(pool) => Ok(pool.check_out().await?.run(call, false).await?),
            Self::Dynamic(dynamic) => Ok(dynamic.run(bucket, call).await?),
        }
    }

    /// Into how many parts the buckets fall, each of which may be on a server of its own.
    pub(super) fn parts(&self) -> usize {
        match self {
            Self::Dynamic(dynamic) if dynamic.is_cluster => LockName::BUCKETS,
            _ => 1,
        }
    }

    /// The servers that have the keys, no two of them the same keys, in an order that lasts. A
    /// master that may be retired has its own name.
    pub(super) fn masters(&self) -> Vec<(String, Pool)> {
        match self {
            Self::Single(pool) => vec![(String::new(), pool.clone())],
            Self::Dynamic(dynamic) => {
                let named = |(((host, port), term), master): (&MasterId, &Arc<Master>)| {
                    (format!("{host}:{port}/{term}"), master.pool.clone())
                };
                dynamic.map().owners().into_iter().map(named).collect()
            }
        }
    }

    /// A server to subscribe at: another one at each attempt, since every server passes on all
    /// messages.
    pub(super) fn publisher(&self, attempt: usize) -> Option<Pool> {
        let masters = self.masters();
        let turn = attempt % masters.len().max(1);
        masters.into_iter().nth(turn).map(|(_, pool)| pool)
    }

    /// How many connections are subscribed to a channel, at all servers together; `None` where one
    /// of them does not say.
    pub(super) async fn subscribers(&self, channel: &str) -> Option<u64> {
        let masters = self.masters();
        let counts = masters.iter().map(|(_, pool)| pool.subscribers(channel));
        let counts = join_all(counts).await.into_iter().collect::<Result<Vec<_>, _>>().ok()?;
        Some(counts.iter().sum())
    }

    /// What the servers are now. One of several may be away.
    pub(super) async fn health(&self) -> Result<StoreHealth, StoreError> {
        let masters = self.masters();
        let replies = join_all(masters.iter().map(|(_, pool)| pool.inspect())).await;
        let answering = replies.iter().flatten().count();
        let unknown = || Err(Failure::Unreachable("no master is known yet".into()));
        let server = replies.into_iter().reduce(Result::or).unwrap_or_else(unknown)?;
        let health = server.health();
        if matches!(self, Self::Single(_)) {
            return Ok(health);
        }
        let mut health = StoreHealth { tier: Tier::Fenced, advice: Vec::new(), ..health };
        health.facts.insert("masters", format!("{answering} of {} answer", masters.len()));
        Ok(health)
    }
}
