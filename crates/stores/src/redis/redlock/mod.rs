//! Redlock: locks over several Redis servers that know nothing of each other, by majority.
//!
//! Each command goes to all nodes at once, and a quorum of replies counts (the algorithm is the one
//! published as "Distributed Locks with Redis"). What keylatch adds is agreement on the fencing
//! token: a grant is one instance of Paxos, and the words here are Paxos's.
//!
//! - `messages`: what a node is sent and reports; ballot and proposal.
//! - `node` and `round`: one node with its voter quarantine; one request to all nodes.
//! - `votes`: the count of the reports, the promises, and the decision that follows.
//! - `consensus`: acquire and renew, in two phases, promise and accept.
//! - `list`: the held locks.
//!
//! This file has the store, the commands of one round (look, release and withdraw), and what the
//! nodes are, inspected at start and for `GET /v1/info` and the readiness probe. The proofs are
//! numbered in internals/redlock.md; the tests run real Redis servers.

mod consensus;
mod list;
mod messages;
mod node;
mod round;
mod votes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::stream;

use super::server::Server;
use crate::error::OpenError;
use crate::settings::Settings;
use keylatch_core::entry::Few;
use keylatch_core::idempotency::RecordSummary;
use keylatch_core::lock::{
    Attempt, Holder, Holding, LockCommand, LockName, LockReply, ReleaseReply, TokenHash, Ttl,
};
use keylatch_core::store::{
    Command, EntryLimits, Hint, Hints, ListLocks, ListRecords, Page, Reply, Store, StoreError,
    StoreGauges, StoreHealth, StoreProfile, Tier, Topic, chain,
};
use messages::{Message, Request};
use round::Nodes;
use votes::{Decision, Votes, no_quorum};

/// For how long a waiter leaves the nodes alone, at least and at most.
const RETRY_MILLIS: [u64; 2] = [50, 150];

/// How long a node may take to report what it is: more than for a command, since no lease runs
/// meanwhile.
const INSPECTION_MAX: Duration = Duration::from_millis(500);

/// Opens the servers at `url`: `redlock://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],…[/DB]`.
///
/// # Errors
///
/// `url` is not understood, the settings do not fit it, or one of the servers answers and is not
/// fit to keep locks. Servers that do not answer are no error: the store keeps trying.
pub(crate) async fn open(url: &str, settings: Settings<'_>) -> Result<Arc<dyn Store>, OpenError> {
    let Settings { redis, redlock, .. } = settings;
    let nodes = Arc::new(Nodes::open(url, redis, redlock).await?);
    check_at_start(&nodes, redis.connect_timeout()).await?;
    Ok(Arc::new(RedlockStore { nodes }))
}

/// Checks a URL, the files that it names and the settings that have to fit it.
pub(crate) fn check(url: &str, settings: Settings<'_>) -> Result<(), OpenError> {
    Nodes::check(url, settings.redis, settings.redlock)
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
        let Command::Lock(names, command) = command else { return Err(StoreError::Unsupported) };
        let [name] = names.names() else { return Err(StoreError::Unsupported) };
        if command.needs_modes() {
            return Err(StoreError::Unsupported);
        }
        Ok(Reply::Lock(match command {
            LockCommand::Acquire(command) => {
                self.check_ttl(command.ttl)?;
                let reply = consensus::acquire(&self.nodes, name.clone(), command).await?;
                LockReply::Acquire(reply)
            }
            LockCommand::Withdraw { token, attempt } => {
                self.withdraw(name.clone(), token, attempt).await?;
                LockReply::Withdraw
            }
            LockCommand::Renew { token, ttl } => {
                ttl.map_or(Ok(()), |ttl| self.check_ttl(ttl))?;
                let reply = consensus::renew(&self.nodes, name.clone(), token, ttl).await?;
                LockReply::Renew(reply)
            }
            LockCommand::Release { token, .. } => {
                let released = self.release(name.clone(), token).await?;
                LockReply::Release(Few::from_buf([(released, None)]))
            }
            LockCommand::Look => LockReply::Look(self.look(name).await?.map(Holding::by_one)),
            LockCommand::Break(_) | LockCommand::LookAtQueue | LockCommand::Recall => {
                return Err(StoreError::Unsupported);
            }
        }))
    }

    async fn list_locks(&self, query: &ListLocks) -> Result<Option<Page<Holding>>, StoreError> {
        Ok(list::page(&self.nodes, query).await?.map(|page| page.map(Holding::by_one)))
    }

    async fn list_records(
        &self,
        _: &ListRecords,
    ) -> Result<Option<Page<RecordSummary>>, StoreError> {
        Err(StoreError::Unsupported)
    }

    /// No node reports a turn or a change: a waiter acquires again after a random time, in no
    /// order, and a watcher looks.
    fn subscribe(&self, topic: Topic) -> Hints {
        match topic {
            Topic::Turn(..) => Box::pin(stream::unfold((), async |()| {
                let [least, most] = RETRY_MILLIS;
                let random = getrandom::u64().unwrap_or_default() % (most - least + 1);
                tokio::time::sleep(Duration::from_millis(least + random)).await;
                Some((Hint::Wakeup, ()))
            })),
            Topic::Changes(_) | Topic::Ends => Box::pin(stream::pending()),
        }
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        health(&self.nodes).await
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile {
            max_ttl: self.nodes.max_ttl,
            records: false,
            ..StoreProfile::new("redlock", EntryLimits::NONE)
        }
    }

    fn gauges(&self) -> StoreGauges {
        StoreGauges::default()
    }
}

/// The commands of one round.
impl RedlockStore {
    /// The holder, if a quorum has the same fencing token.
    async fn look(&self, name: &LockName) -> Result<Option<Holder>, StoreError> {
        let is_decided = |votes: &Votes| votes.decision() != Decision::Undecided;
        let votes = self.nodes.look(name, is_decided).await;
        match votes.decision() {
            Decision::Undecided => Err(votes.error(false)),
            Decision::Held | Decision::NotHeld => Ok(votes.holder(name)),
        }
    }

    /// Releases a lock on all nodes, if a quorum has it with this token. A repeat may reach the
    /// rest of the nodes, so the effect is unknown as soon as one node may have released the lock.
    async fn release(&self, name: LockName, token: TokenHash) -> Result<ReleaseReply, StoreError> {
        let is_decided = |votes: &Votes| votes.release_reply().is_some();
        let votes = self.end(name, token, None, is_decided).await;
        let may_be_done = !votes.maybe_done.is_empty();
        votes.release_reply().ok_or_else(|| votes.error(may_be_done))
    }

    /// Withdraws on all nodes what an attempt got, so that no quorum has it. Whether a node votes
    /// does not matter here.
    async fn withdraw(
        &self,
        name: LockName,
        token: TokenHash,
        attempt: Attempt,
    ) -> Result<(), StoreError> {
        let Nodes { all, quorum, .. } = &*self.nodes;
        let is_done = |votes: &Votes| all.len() - votes.answered < *quorum;
        let votes = self.end(name, token, Some(attempt), is_done).await;
        if is_done(&votes) { Ok(()) } else { Err(votes.error(true)) }
    }

    /// Ends a grant on all nodes, or what an attempt got of it.
    async fn end(
        &self,
        name: LockName,
        token: TokenHash,
        attempt: Option<Attempt>,
        is_decided: impl Fn(&Votes) -> bool,
    ) -> Votes {
        let (nodes, message) = (&self.nodes, Message::End { token, attempt });
        let mut round = nodes.send_to_all(Request { name, message }, nodes.longest_time);
        let votes = nodes.count(&mut round, is_decided).await;
        nodes.finish(round);
        votes
    }

    /// A longer TTL would outlast the quarantine of a node that has forgotten the lease.
    fn check_ttl(&self, ttl: Ttl) -> Result<(), StoreError> {
        if ttl > self.nodes.max_ttl {
            return Err(StoreError::Refused("the TTL is longer than redlock.max_ttl_ms".into()));
        }
        Ok(())
    }
}

/// Logs at start what the nodes are, and what they cannot do together.
async fn check_at_start(nodes: &Arc<Nodes>, within: Duration) -> Result<(), OpenError> {
    let inspection = Inspection::of(nodes, within).await;
    if let Some(duplicate) = inspection.duplicate() {
        return Err(OpenError::BadRedlock(duplicate));
    }
    let (total, quorum, voting) = (nodes.all.len(), nodes.quorum, inspection.voting);
    tracing::info!(
        nodes = total,
        quorum,
        voting,
        tier = inspection.tier(nodes).as_str(),
        "Redlock: waiters are served in no order, and idempotency keys have no records"
    );
    if voting < quorum {
        tracing::warn!(voting, quorum, "too few nodes may vote yet: no lock is granted before");
    }
    Ok(())
}

/// What the nodes are now; an error when too few of them vote.
async fn health(nodes: &Arc<Nodes>) -> Result<StoreHealth, StoreError> {
    let inspection = Inspection::of(nodes, INSPECTION_MAX).await;
    if let Some(duplicate) = inspection.duplicate() {
        return Err(StoreError::Refused(duplicate.into()));
    }
    if inspection.voting < nodes.quorum {
        let why = StoreError::Unreachable(inspection.not_voting.join("; ").into());
        return Err(no_quorum(inspection.voting, nodes.all.len(), false, Some(why)));
    }
    let known = || nodes.all.iter().filter_map(|node| node.last_inspection());
    let all = |fact: &dyn Fn(&Server) -> String| {
        known().map(|server| fact(&server)).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    let facts = BTreeMap::from([
        ("instances", "not known".to_owned()),
        ("nodes", nodes.all.len().to_string()),
        ("quorum", nodes.quorum.to_string()),
        ("answering", inspection.answering.len().to_string()),
        ("voting", inspection.voting.to_string()),
        ("version", all(&Server::version).join(", ")),
        ("appendfsync", all(&Server::sync).join(", ")),
        ("waiting", "unordered".to_owned()),
        ("idempotency_records", "none".to_owned()),
    ]);
    Ok(StoreHealth {
        id: None,
        tier: inspection.tier(nodes),
        facts,
        advice: Vec::new(),
        is_full: false,
    })
}

/// What the nodes reported of themselves, all inspected at once. A node that does not reply in
/// time, or is in quarantine, does not vote; with fewer voters than a quorum the store is not
/// ready.
struct Inspection {
    /// The nodes that replied, by address.
    answering: Vec<(String, Server)>,
    voting: usize,
    /// Why each of the others does not vote.
    not_voting: Vec<String>,
}

impl Inspection {
    async fn of(nodes: &Nodes, within: Duration) -> Self {
        let replies = join_all(nodes.all.iter().map(|node| node.inspect(within))).await;
        let mut inspection = Self { answering: Vec::new(), voting: 0, not_voting: Vec::new() };
        for (node, reply) in nodes.all.iter().zip(replies) {
            let at = &node.address;
            match reply {
                Ok(reply) => {
                    inspection.answering.push((at.clone(), reply.value));
                    inspection.voting += usize::from(reply.votes);
                    if !reply.votes {
                        let why = format!("{at} came up lately and does not vote yet");
                        inspection.not_voting.push(why);
                    }
                }
                Err(error) => inspection.not_voting.push(format!("{at}: {}", chain(&error))),
            }
        }
        inspection
    }

    /// Two addresses of one server, which would vote twice.
    fn duplicate(&self) -> Option<String> {
        let mut seen = BTreeMap::new();
        self.answering.iter().find_map(|(address, server)| {
            let other = seen.insert(server.run_id(), address)?;
            Some(format!("{other} and {address} are the same server, which would vote twice"))
        })
    }

    /// `strict` if no node forgets anything. Otherwise the quarantine protects the leases, and it
    /// rests on the node's own word where this process did not see it come up, so no more is
    /// promised.
    fn tier(&self, nodes: &Nodes) -> Tier {
        let forgets_nothing = |server: Server| server.forgets_nothing();
        let strict =
            nodes.all.iter().all(|node| node.last_inspection().is_some_and(forgets_nothing));
        if strict { Tier::Strict } else { Tier::Fenced }
    }
}
