//! How a store connects: to one server, and to those that make one store of several.
//!
//! Topologies differ in which server has a bucket and in who follows whom; how locks are kept is the
//! same on all of them.

use bb8_redis::redis::{Client, FromRedisValue, ScriptInvocation};

use super::pool::{self, Pool};
use super::{OpenError, Settings};
use crate::lock::{StoreError, StoreHealth};

/// The servers behind a URL.
#[derive(Debug)]
pub(super) enum Topology {
    /// One server has all buckets.
    Single(Client, Pool),
}

impl Topology {
    pub(super) async fn open(url: &str, settings: &Settings) -> Result<Self, OpenError> {
        let client = pool::client(url, settings)?;
        let pool = Pool::open(client.clone(), settings).await?;
        Ok(Self::Single(client, pool))
    }

    /// Runs a script on the keys of one bucket.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        _bucket: u8,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, StoreError> {
        match self {
            Self::Single(_, pool) => Ok(pool.run(call).await?),
        }
    }

    /// The servers that have the keys, which are all different.
    pub(super) fn masters(&self) -> Vec<&Pool> {
        match self {
            Self::Single(_, pool) => vec![pool],
        }
    }

    /// Where to hear what is published.
    pub(super) fn publisher(&self) -> Option<Client> {
        match self {
            Self::Single(client, _) => Some(client.clone()),
        }
    }

    /// Asks the servers anew what they are.
    pub(super) async fn ping(&self) -> Result<StoreHealth, StoreError> {
        match self {
            Self::Single(_, pool) => Ok(pool.ask().await?.health()),
        }
    }
}
