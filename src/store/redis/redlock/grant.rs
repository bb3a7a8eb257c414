use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::ballot::{Ballot, Verdict, guaranteed, next_fence, no_quorum};
use super::nodes::Nodes;
use super::round::Round;
use super::step::{Return, Step};
use super::vote::{Found, Grant, Vote};
use crate::lock::{
    Acquire, Acquisition, Busy, FencingToken, Lease, LockName, Renewal, StoreError, TokenHash, Ttl,
};
use crate::store::redis::script;

/// How often whoever has the best right among those who contend asks again, for the others to give way.
const ROUNDS: usize = 6;
/// How often a fencing token is written back while another attempt with the same token writes its own.
const SETTLE_TRIES: usize = 4;

/// Asks all nodes for a lock, and gives it a fencing token, or takes back what was got of it.
pub(super) async fn acquire(nodes: &Arc<Nodes>, ask: &Acquire) -> Result<Acquisition, StoreError> {
    let mut asking = Asking::new(nodes, ask);
    let mut rounds_left = ROUNDS;
    loop {
        rounds_left -= 1;
        let (mut ballot, round) = asking.ask().await;
        match ballot.verdict(&asking.hash) {
            Verdict::Won => return asking.won(ballot, round).await,
            Verdict::Tied if rounds_left > 0 => sleep(back_off(asking.node_time)).await,
            Verdict::Held | Verdict::Tied => {
                asking.give_up(round);
                let holder = ballot.holder(&ask.name);
                return Ok(Acquisition::Held(Busy { holder, ahead: 0 }));
            }
            Verdict::Silent => {
                let error = ballot.error();
                asking.give_up(round);
                return Err(error);
            }
        }
    }
}

/// One acquire, over all its rounds.
struct Asking<'a> {
    nodes: &'a Arc<Nodes>,
    ask: Arc<Acquire>,
    hash: String,
    node_time: Duration,
    begun: Instant,
    /// Where the lock may be with this attempt now.
    suspects: BTreeSet<usize>,
    /// Where it had been with this token before.
    before: BTreeSet<usize>,
}

impl<'a> Asking<'a> {
    fn new(nodes: &'a Arc<Nodes>, ask: &Acquire) -> Self {
        Self {
            nodes,
            hash: script::token(&ask.token),
            node_time: nodes.node_time(ask.ttl),
            begun: Instant::now(),
            suspects: BTreeSet::new(),
            before: BTreeSet::new(),
            ask: Arc::new(ask.clone()),
        }
    }

    async fn ask(&mut self) -> (Ballot, Round<Vote>) {
        let since = self.begun.elapsed();
        let step = Step::Acquire(Arc::clone(&self.ask));
        let mut round = self.nodes.ask_all(&step, self.node_time);
        let mut ballot = self.nodes.count(&mut round, Ballot::is_decided).await;
        let before = ballot.votes.iter().filter(|(_, vote)| vote.found == Found::Mine);
        self.before.extend(before.map(|(node, _)| *node).filter(|n| !self.suspects.contains(n)));
        self.suspects.extend(&ballot.suspects);
        for vote in ballot.votes.values_mut() {
            // What is left is told as of the moment of asking, from which whoever asked counts: a node
            // that answered a later round had counted off what earlier ones took.
            if let Some(grant) = &mut vote.grant {
                grant.expires_in = (grant.expires_in + since).min(grant.ttl);
            }
        }
        (ballot, round)
    }

    /// A quorum gave the lock: it is told once a quorum has its fencing token too.
    async fn won(self, ballot: Ballot, round: Round<Vote>) -> Result<Acquisition, StoreError> {
        let Ballot { mut votes, suspects, .. } = ballot;
        votes.retain(|_, vote| vote.mine().is_some());
        let told = votes.iter().any(|(node, vote)| {
            let fence = vote.mine().map(|grant| grant.fence).unwrap_or_default();
            self.before.contains(node) && fence > FencingToken::NONE
        });
        let (name, token) = (&self.ask.name, &self.ask.token);
        let settled = settle(self.nodes, name, token, &mut votes, self.node_time).await;
        let lease = match settled.and_then(|fence| lease(self.nodes, &votes, fence)) {
            Ok(lease) => lease,
            Err(error) => {
                self.give_up(round);
                return Err(error);
            }
        };
        let unsettled = suspects.into_iter().filter(|node| !votes.contains_key(node)).collect();
        let settle = Step::Settle(name.clone(), *token, lease.fence);
        self.nodes.finish_grant(round, unsettled, settle);
        let again = told || self.before.len() >= self.nodes.quorum;
        Ok(if again { Acquisition::Repeated(lease) } else { Acquisition::Granted(lease) })
    }

    /// Takes back what this attempt got, on every node where it may have got something, in a task: a node
    /// that said nothing may grant it yet, and is sent the withdrawal behind.
    fn give_up(self, round: Round<Vote>) {
        let Self { nodes, ask, suspects, .. } = self;
        if suspects.is_empty() && round.unheard().is_empty() {
            return;
        }
        let withdrawal = Return::Withdraw(ask.name.clone(), ask.token, ask.attempt);
        let (nodes, limit) = (Arc::clone(nodes), ask.ttl.get());
        let known = Arc::clone(&nodes).take_back(
            suspects.iter().copied().collect(),
            withdrawal.clone(),
            limit,
        );
        let spawner = Arc::clone(&nodes);
        let late = async move {
            let mut rest = Ballot::new(nodes.all.len(), nodes.quorum);
            let end = round.end();
            let mut round = round.decided(end);
            while let Some((node, answer)) = round.next().await {
                rest.add(node, answer);
            }
            rest.suspects.extend(round.unheard());
            let late = rest.suspects.difference(&suspects).copied().collect();
            nodes.take_back(late, withdrawal, limit).await;
        };
        spawner.spawn(async move {
            tokio::join!(known, late);
        });
    }
}

/// Lets a lease last `ttl` from now on all nodes that have it, if a quorum does.
pub(super) async fn renew(
    nodes: &Arc<Nodes>,
    name: &LockName,
    token: &TokenHash,
    ttl: Ttl,
) -> Result<Renewal, StoreError> {
    let node_time = nodes.node_time(ttl);
    let mut round = nodes.ask_all(&Step::Renew(name.clone(), *token, ttl), node_time);
    let mut ballot = nodes.count(&mut round, |ballot| ballot.is_decided()).await;
    nodes.finish(round);
    if ballot.mine() >= nodes.quorum {
        let mut votes = std::mem::take(&mut ballot.votes);
        votes.retain(|_, vote| vote.mine().is_some());
        let fence = settle(nodes, name, token, &mut votes, node_time).await?;
        return Ok(Renewal::Renewed(lease(nodes, &votes, fence)?));
    }
    if ballot.other().len() >= nodes.quorum {
        return Ok(Renewal::Mismatch);
    }
    if ballot.mine() + ballot.missing() < nodes.quorum {
        return Ok(Renewal::NotHeld);
    }
    // What was renewed on some nodes lasts longer there, so a later try may find a quorum after all.
    let some_done = !ballot.suspects.is_empty();
    Err(no_quorum(ballot.votes.len(), nodes.all.len(), some_done, None))
}

/// Makes a quorum of these votes agree on the grant's fencing token, and says which it is. Only votes of
/// nodes that have the grant are left.
///
/// A node takes a fencing token only for a grant that it has, and only if it is above its counter of the
/// time when it gave the lock. So once a quorum has it, it is above those of all grants before.
async fn settle(
    nodes: &Arc<Nodes>,
    name: &LockName,
    token: &TokenHash,
    votes: &mut BTreeMap<usize, Vote>,
    node_time: Duration,
) -> Result<FencingToken, StoreError> {
    for _ in 0..SETTLE_TRIES {
        let fence = next_fence(votes, nodes.quorum);
        let has = |vote: &Vote| vote.mine().is_some_and(|grant| grant.fence == fence);
        if votes.values().filter(|vote| has(vote)).count() >= nodes.quorum {
            return Ok(fence);
        }
        let lacking = votes.iter().filter(|(_, vote)| !has(vote)).map(|(node, _)| *node);
        let step = Step::Settle(name.clone(), *token, fence);
        let mut round = nodes.ask(lacking.collect::<Vec<_>>(), &step, node_time);
        while let Some((node, answer)) = round.next().await {
            match answer {
                Ok(said) if said.votes && said.what.mine().is_some() => {
                    votes.entry(node).and_modify(|known| known.settle_as(said.what));
                }
                _ => {
                    votes.remove(&node);
                }
            }
        }
        votes.retain(|node, _| !round.unheard().contains(node));
        if votes.len() < nodes.quorum {
            break;
        }
    }
    Err(no_quorum(votes.len(), nodes.all.len(), true, None))
}

/// The lease that a quorum of these votes guarantees.
fn lease(
    nodes: &Nodes,
    votes: &BTreeMap<usize, Vote>,
    fence: FencingToken,
) -> Result<Lease, StoreError> {
    let grants = || votes.values().filter_map(Vote::mine);
    let expires_in = guaranteed(nodes.quorum, grants().map(|grant| grant.expires_in));
    let told_by = |expires_in: Duration| grants().find(|grant| grant.expires_in == expires_in);
    match expires_in.and_then(told_by) {
        Some(Grant { owner, ttl, expires_in, .. }) => {
            Ok(Lease { fence, owner: owner.clone(), ttl: *ttl, expires_in: *expires_in })
        }
        None => Err(no_quorum(votes.len(), nodes.all.len(), true, None)),
    }
}

/// A random time, so that those who contend do not meet again.
fn back_off(longest: Duration) -> Duration {
    let share = f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX);
    longest.mul_f64(share).max(Duration::from_millis(1))
}
