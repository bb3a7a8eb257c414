//! Redlock: locks over several Redis servers that know nothing of each other, by majority.
//!
//! Each command goes to all nodes at once, and a quorum of replies counts (the algorithm is the one
//! published as "Distributed Locks with Redis"). What keylatch adds is agreement on the fencing token:
//! a grant is one instance of Paxos, and the words here are Paxos's.
//!
//! - `command`: what a node is sent and replies; ballot, promise and proposal.
//! - `node` and `round`: one node with its voter quarantine; one command to all nodes.
//! - `tally`: the count of the replies, and the decision that follows.
//! - `consensus`: acquire and renew, in two phases, promise and accept.
//! - `list` and `health`: the held locks, and what the nodes are.
//!
//! This file has the store, and the commands of one round: look, release and withdraw. The proofs are
//! numbered in docs/internals/redlock.md; the tests run real Redis servers.

mod command;
mod consensus;
mod health;
mod list;
mod node;
mod round;
mod tally;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream;
use serde::Deserialize;

use super::Settings;
use crate::OpenError;
use command::{AcquireAttempt, NodeCommand, ReleaseCommand};
use keylatch_core::lock::{
    AcquireCommand, Attempt, Holder, LockCommand, LockName, LockReply, ReleaseReply, TokenHash, Ttl,
};
use keylatch_core::store::{
    Command, Hint, Hints, ListLocks, Page, Reply, Store, StoreError, StoreHealth, StoreProfile,
    Topic,
};
use round::Nodes;
use tally::{Decision, ReleaseTally, no_quorum};

/// For how long a waiter leaves the nodes alone, at least and at most.
const RETRY_MILLIS: [u64; 2] = [50, 150];

/// How several Redis servers make one store.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedlockSettings {
    /// How many nodes decide; 0 for a majority.
    pub quorum: usize,
    /// How long one node has for a reply, in milliseconds, and a tenth of the TTL at most.
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
    health::check_at_start(&nodes, redis.connect_timeout()).await?;
    Ok(Arc::new(RedlockStore { nodes }))
}

/// A [`Store`] over several Redis servers that know nothing of each other.
///
/// It keeps no queue, and no records of idempotency keys: only a lock is the same on a quorum.
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
                self.check_ttl(ttl)?;
                let attempt = AcquireAttempt { name, token, ttl, owner, attempt };
                LockReply::Acquire(consensus::acquire(&self.nodes, attempt).await?)
            }
            LockCommand::Withdraw { token, attempt } => {
                self.withdraw(name, token, attempt).await?;
                LockReply::Withdraw
            }
            LockCommand::Renew { token, ttl } => {
                self.check_ttl(ttl)?;
                LockReply::Renew(consensus::renew(&self.nodes, &name, &token, ttl).await?)
            }
            LockCommand::Release { token } => LockReply::Release(self.release(name, token).await?),
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
                let [least, most] = RETRY_MILLIS;
                let random = getrandom::u64().unwrap_or_default() % (most - least + 1);
                tokio::time::sleep(Duration::from_millis(least + random)).await;
                Some((Hint::Wakeup, ()))
            })),
            Topic::Changes(_) => Box::pin(stream::pending()),
        }
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        health::health(&self.nodes).await
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile { kind: "redlock", max_ttl: self.nodes.max_ttl, records: false }
    }
}

/// The commands of one round.
impl RedlockStore {
    /// The holder, if a quorum has the same fencing token.
    async fn look(&self, name: &LockName) -> Result<Option<Holder>, StoreError> {
        let command = NodeCommand::Look(name.clone());
        let mut round = self.nodes.send_to_all(&command, self.nodes.longest_node_time());
        let is_decided = |tally: &tally::Tally| tally.decision() != Decision::Undecided;
        let mut tally = self.nodes.tally(&mut round, is_decided).await;
        match tally.decision() {
            Decision::Undecided => Err(tally.error(false)),
            Decision::Held | Decision::NotHeld => Ok(tally.holder(name)),
        }
    }

    /// Releases a lock on all nodes, if a quorum has it with this token.
    async fn release(&self, name: LockName, token: TokenHash) -> Result<ReleaseReply, StoreError> {
        let nodes = &self.nodes;
        let command = ReleaseCommand::Release(name, token);
        let mut round = nodes.release_on_all(&command, nodes.longest_node_time());
        let mut tally = ReleaseTally::new(nodes.all.len(), nodes.quorum);
        let decision = loop {
            if let Some(decision) = tally.decision() {
                break Ok(decision);
            }
            match round.next().await {
                Some((_, reply)) => tally.add(reply),
                None => break Err(tally.error(!round.unanswered().is_empty())),
            }
        };
        nodes.finish(round);
        decision
    }

    /// Withdraws on all nodes what an attempt got, so that no quorum has it.
    async fn withdraw(
        &self,
        name: LockName,
        token: TokenHash,
        attempt: Attempt,
    ) -> Result<(), StoreError> {
        let nodes = &self.nodes;
        let command = ReleaseCommand::Withdraw(name, token, attempt);
        let mut round = nodes.release_on_all(&command, nodes.longest_node_time());
        let (mut done, total) = (0, nodes.all.len());
        while let Some((_, reply)) = round.next().await {
            done += usize::from(reply.is_ok());
            if total - done < nodes.quorum {
                nodes.finish(round);
                return Ok(());
            }
        }
        Err(no_quorum(done, total, true, None))
    }

    /// A longer TTL would outlast the quarantine of a node that has forgotten the lease.
    fn check_ttl(&self, ttl: Ttl) -> Result<(), StoreError> {
        if ttl > self.nodes.max_ttl {
            return Err(StoreError::Refused("the TTL is longer than redlock.max_ttl_ms".into()));
        }
        Ok(())
    }
}
