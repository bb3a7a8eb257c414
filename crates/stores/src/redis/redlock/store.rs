use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream;
use serde::Deserialize;

use super::count::Look;
use super::nodes::Nodes;
use super::step::{Acquire, Step};
use super::{giving, grant, list, survey};
use crate::OpenError;
use crate::redis::Settings;
use keylatch_core::lock::{AcquireCommand, Holder, LockCommand, LockName, LockReply, Ttl};
use keylatch_core::store::{
    Command, Hint, Hints, ListLocks, Page, Reply, Store, StoreError, StoreHealth, StoreProfile,
    Topic,
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

/// Opens the servers at `url`: `redlock://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],…[/DB]`.
///
/// # Errors
///
/// `url` is not understood, the settings do not fit it, or one of the servers answers and is not fit
/// to keep locks. Servers that do not answer are no error: the store keeps trying.
pub async fn redlock(
    url: &str,
    redis: &Settings,
    redlock: &RedlockSettings,
) -> Result<Arc<dyn Store>, OpenError> {
    let nodes = Arc::new(Nodes::open(url, redis, redlock).await?);
    survey::at_start(&nodes, redis.connect_timeout()).await?;
    Ok(Arc::new(RedlockStore { nodes }))
}

/// A [`Store`] over several Redis servers that know nothing of each other.
///
/// It keeps no queue, and no records of idempotency keys: nothing but a lock is the same on a quorum.
#[derive(Debug)]
struct RedlockStore {
    nodes: Arc<Nodes>,
}

#[async_trait]
impl Store for RedlockStore {
    async fn execute(&self, command: Command) -> Result<Reply, StoreError> {
        let Command::Lock(name, command) = command else { return Err(StoreError::Unsupported) };
        Ok(Reply::Lock(match command {
            LockCommand::Acquire(AcquireCommand { token, ttl, owner, attempt, .. }) => {
                self.takes(ttl)?;
                let acquire = Acquire { name, token, ttl, owner, attempt };
                LockReply::Acquire(grant::acquire(&self.nodes, &acquire).await?)
            }
            LockCommand::Withdraw { token, attempt } => {
                giving::withdraw(&self.nodes, &name, &token, attempt).await?;
                LockReply::Withdraw
            }
            LockCommand::Renew { token, ttl } => {
                self.takes(ttl)?;
                LockReply::Renew(grant::renew(&self.nodes, &name, &token, ttl).await?)
            }
            LockCommand::Release { token } => {
                LockReply::Release(giving::release(&self.nodes, &name, &token).await?)
            }
            LockCommand::Look => LockReply::Look(self.look(&name).await?),
        }))
    }

    async fn list(&self, query: &ListLocks) -> Result<Option<Page>, StoreError> {
        list::page(&self.nodes, query).await
    }

    /// No node reports a turn or a change: a waiter acquires again after a random time, in no order,
    /// and a watcher looks.
    fn subscribe(&self, topic: Topic) -> Hints {
        match topic {
            Topic::Turn(..) => Box::pin(stream::unfold((), async |()| {
                let [least, most] = ASK_AGAIN_MILLIS;
                let random = getrandom::u64().unwrap_or_default() % (most - least + 1);
                tokio::time::sleep(Duration::from_millis(least + random)).await;
                Some((Hint::Wakeup, ()))
            })),
            Topic::Changes(_) => Box::pin(stream::pending()),
        }
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        survey::health(&self.nodes).await
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile { kind: "redlock", max_ttl: self.nodes.max_ttl, records: false }
    }
}

impl RedlockStore {
    async fn look(&self, name: &LockName) -> Result<Option<Holder>, StoreError> {
        let step = Step::Get(name.clone());
        let mut round = self.nodes.ask_all(&step, self.nodes.longest_node_time());
        let mut count = self.nodes.count(&mut round, |count| count.look() != Look::Unclear).await;
        match count.look() {
            Look::Unclear => Err(count.error(false)),
            Look::Held | Look::Nobody => Ok(count.holder(name)),
        }
    }

    /// A longer TTL would outlast the silence of a node that has forgotten it.
    fn takes(&self, ttl: Ttl) -> Result<(), StoreError> {
        if ttl > self.nodes.max_ttl {
            return Err(StoreError::Refused("the TTL is longer than redlock.max_ttl_ms".into()));
        }
        Ok(())
    }
}
