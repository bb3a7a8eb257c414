use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;

use super::count::Look;
use super::nodes::Nodes;
use super::step::Step;
use super::{giving, grant, list, survey};
use crate::OpenError;
use crate::redis::Settings;
use keylatch_core::lock::{
    Acquire, Acquisition, Attempt, Changes, Holder, ListLocks, LockName, LockStore, Page, Release,
    Renewal, StoreError, StoreHealth, TokenHash, Ttl, Turn,
};

/// For how long whoever waits leaves the nodes alone, at least and at most.
const ASK_AGAIN_MILLIS: [u64; 2] = [50, 150];

/// How several Redis servers make one store.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedlockSettings {
    /// How many nodes decide; 0 for a majority.
    pub quorum: usize,
    /// How long one node is given for an answer, in milliseconds, and a tenth of the TTL at most.
    pub node_timeout_ms: u64,
    /// The longest TTL, in milliseconds. A node that came up less than this ago does not vote.
    pub max_ttl_ms: u64,
}

/// A [`LockStore`] over several Redis servers that know nothing of each other.
///
/// It keeps no line, and no records of idempotency keys: nothing but a lock is the same on a quorum.
#[derive(Debug)]
pub struct RedlockStore {
    nodes: Arc<Nodes>,
}

impl RedlockStore {
    /// Opens the servers at `url`: `redlock://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],…[/DB]`.
    ///
    /// # Errors
    ///
    /// `url` is not understood, the settings do not fit it, or one of the servers answers and is not fit
    /// to keep locks. Servers that do not answer are no error: the store keeps trying.
    pub async fn open(
        url: &str,
        redis: &Settings,
        redlock: &RedlockSettings,
    ) -> Result<Self, OpenError> {
        let nodes = Arc::new(Nodes::open(url, redis, redlock).await?);
        survey::at_start(&nodes, redis.connect_timeout()).await?;
        Ok(Self { nodes })
    }
}

#[async_trait]
impl LockStore for RedlockStore {
    async fn acquire(&self, ask: &Acquire) -> Result<Acquisition, StoreError> {
        self.takes(ask.ttl)?;
        grant::acquire(&self.nodes, ask).await
    }

    async fn withdraw(
        &self,
        name: &LockName,
        token: &TokenHash,
        attempt: Attempt,
    ) -> Result<(), StoreError> {
        giving::withdraw(&self.nodes, name, token, attempt).await
    }

    async fn renew(
        &self,
        name: &LockName,
        token: &TokenHash,
        ttl: Ttl,
    ) -> Result<Renewal, StoreError> {
        self.takes(ttl)?;
        grant::renew(&self.nodes, name, token, ttl).await
    }

    async fn release(&self, name: &LockName, token: &TokenHash) -> Result<Release, StoreError> {
        giving::release(&self.nodes, name, token).await
    }

    async fn get(&self, name: &LockName) -> Result<Option<Holder>, StoreError> {
        let step = Step::Get(name.clone());
        let mut round = self.nodes.ask_all(&step, self.nodes.longest_node_time());
        let mut count = self.nodes.count(&mut round, |count| count.look() != Look::Unclear).await;
        match count.look() {
            Look::Unclear => Err(count.error(false)),
            Look::Held | Look::Nobody => Ok(count.holder(name)),
        }
    }

    async fn list(&self, query: &ListLocks) -> Result<Option<Page>, StoreError> {
        list::page(&self.nodes, query).await
    }

    fn max_ttl(&self) -> Ttl {
        self.nodes.max_ttl
    }

    /// Nobody is told of a turn: whoever waits asks again after a random time, in no order.
    fn turn(&self, _: &LockName, _: &TokenHash) -> Turn {
        let [least, most] = ASK_AGAIN_MILLIS;
        let random = getrandom::u64().unwrap_or_default() % (most - least + 1);
        Box::pin(tokio::time::sleep(Duration::from_millis(least + random)))
    }

    /// Nobody is told of changes either.
    fn changes(&self, _: &LockName) -> Changes {
        Box::pin(futures_util::stream::pending())
    }

    async fn ping(&self) -> Result<StoreHealth, StoreError> {
        survey::health(&self.nodes).await
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl RedlockStore {
    /// A longer TTL would outlast the silence of a node that has forgotten it.
    fn takes(&self, ttl: Ttl) -> Result<(), StoreError> {
        if ttl > self.nodes.max_ttl {
            return Err(StoreError::Refused("the TTL is longer than redlock.max_ttl_ms".into()));
        }
        Ok(())
    }
}
