//! How a store connects: to one server, and to those that make one store of several.
//!
//! Topologies differ in which server has a bucket and in who follows whom; how locks are kept is the
//! same on all of them.

mod cluster;
mod follow;
mod informant;
mod node;
mod sentinel;

use std::sync::Arc;

use bb8_redis::redis::{Client, FromRedisValue, ScriptInvocation};
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::pool::{self, Pool};
use super::replicas::NeedsReplicas;
use super::shared::Failure;
use super::{OpenError, Settings};
use cluster::Cluster;
use follow::{Followed, Guide};
use keylatch_core::store::{StoreError, StoreHealth, Tier};
use node::{Name, Node};
use sentinel::Sentinels;

/// The servers behind a URL.
#[derive(Debug)]
pub(super) enum Topology {
    /// One server has all buckets.
    Single(Pool),
    /// The masters are found out, and change.
    Followed(Followed),
}

impl Topology {
    pub(super) async fn open(url: &str, settings: &Settings) -> Result<Self, OpenError> {
        let scheme = url.split(':').next().unwrap_or_default();
        if scheme.ends_with("+sentinel") {
            let (sentinels, way) = Sentinels::parse(url, settings)?;
            let guide = Guide::Sentinels(sentinels);
            return Ok(Self::Followed(Followed::open(guide, way).await?));
        }
        if scheme.ends_with("+cluster") {
            let (cluster, way) = Cluster::parse(url, settings)?;
            let guide = Guide::Cluster(cluster);
            return Ok(Self::Followed(Followed::open(guide, way).await?));
        }
        let client = pool::client(url, settings)?;
        Ok(Self::Single(Pool::open(client, settings).await?))
    }

    /// Runs a script on the keys of one bucket.
    pub(super) async fn run<T: FromRedisValue + NeedsReplicas>(
        &self,
        bucket: u8,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, StoreError> {
        match self {
            Self::Single(pool) => Ok(pool.check_out().await?.run(call).await?),
            Self::Followed(followed) => Ok(followed.run(bucket, call).await?),
        }
    }

    /// The servers that have the keys, no two of them the same keys, in an order that lasts. A server
    /// that may be left for another has a name of its own.
    pub(super) fn masters(&self) -> Vec<(String, Pool)> {
        match self {
            Self::Single(pool) => vec![(String::new(), pool.clone())],
            Self::Followed(followed) => {
                let named = |(((host, port), term), node): (&Name, &Arc<Node>)| {
                    (format!("{host}:{port}/{term}"), node.pool.clone())
                };
                followed.map().masters().into_iter().map(named).collect()
            }
        }
    }

    /// Where to hear what is published. Every server has it; another is named at another try.
    pub(super) fn publisher(&self, attempt: usize) -> Option<Publisher> {
        match self {
            Self::Single(pool) => {
                Some(Publisher { client: pool.client(), left: CancellationToken::new() })
            }
            Self::Followed(followed) => {
                let map = followed.map();
                let masters = map.masters();
                let (_, node) = masters.get(attempt % masters.len().max(1))?;
                Some(Publisher { client: node.pool.client(), left: node.left() })
            }
        }
    }

    /// Asks the servers anew what they are. One of several may be away.
    pub(super) async fn ping(&self) -> Result<StoreHealth, StoreError> {
        let followed = match self {
            Self::Single(pool) => return Ok(pool.ask().await?.health()),
            Self::Followed(followed) => followed,
        };
        let map = followed.map();
        let asked = join_all(map.masters().iter().map(|(_, node)| node.pool.ask())).await;
        let all = asked.len();
        let mut failure = Failure::Unreachable("no master is known yet".into());
        let mut servers = Vec::with_capacity(all);
        for answer in asked {
            match answer {
                Ok(server) => servers.push(server),
                Err(error) => failure = error,
            }
        }
        let Some(server) = servers.first() else { return Err(failure.into()) };
        let mut health = StoreHealth { tier: Tier::Fenced, ..server.health() };
        health.facts.insert("masters", format!("{} of {all} answer", servers.len()));
        Ok(health)
    }
}

/// A server from which messages are heard, until it is left.
pub(super) struct Publisher {
    pub(super) client: Arc<Client>,
    pub(super) left: CancellationToken,
}
