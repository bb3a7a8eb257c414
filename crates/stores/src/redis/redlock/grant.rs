use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::agree::{self, Settling, Votes};
use super::ballot::Ballot;
use super::count::{Count, Verdict, guaranteed, no_quorum};
use super::nodes::Nodes;
use super::round::Round;
use super::step::Acquire;
use super::step::{Return, Step};
use super::vote::{Grant, Proposal, Vote};
use crate::redis::script;
use keylatch_core::lock::{AcquireReply, Contention, Lease, LockName, RenewReply, TokenHash, Ttl};
use keylatch_core::store::StoreError;

/// How often is asked: for those who contend to give way, and under a higher ballot where another attempt
/// with the same token came between.
const ROUNDS: usize = 6;
/// The longest pause between two rounds.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Asks all nodes for a lock, and gives it a fencing token, or takes back what was got of it.
pub(super) async fn acquire(nodes: &Arc<Nodes>, ask: &Acquire) -> Result<AcquireReply, StoreError> {
    let mut asking = Asking::new(nodes, ask);
    let mut rounds_left = ROUNDS;
    loop {
        rounds_left -= 1;
        let (mut count, round) = asking.ask().await;
        let verdict = count.verdict(&asking.hash);
        if verdict == Verdict::Won
            && let Some((votes, proposal)) = asking.agree(&count).await
        {
            return asking.tell(&votes, &proposal, round);
        }
        let goes_on = match verdict {
            Verdict::Won | Verdict::Tied | Verdict::Unclear => rounds_left > 0,
            Verdict::Held | Verdict::Silent => false,
        };
        if !goes_on {
            return asking.end(verdict, &mut count, round);
        }
        asking.suspects.extend(round.unheard());
        drop(round);
        sleep(back_off(asking.node_time)).await;
    }
}

/// One acquire, over all its rounds.
struct Asking<'a> {
    nodes: &'a Arc<Nodes>,
    ask: Arc<Acquire>,
    hash: String,
    node_time: Duration,
    begun: Instant,
    /// The ballot of this round, and the highest one that is known.
    ballot: Ballot,
    highest: Ballot,
    /// Whether a fencing token was written to nodes, so that another attempt may take it over.
    proposed: bool,
    /// Whether one was that this attempt chose.
    chose: bool,
    /// Where the lock may be with this attempt now.
    suspects: BTreeSet<usize>,
}

impl<'a> Asking<'a> {
    fn new(nodes: &'a Arc<Nodes>, ask: &Acquire) -> Self {
        Self {
            nodes,
            hash: script::token(&ask.token),
            node_time: nodes.node_time(ask.ttl),
            begun: Instant::now(),
            ballot: Ballot::NONE,
            highest: Ballot::NONE,
            proposed: false,
            chose: false,
            suspects: BTreeSet::new(),
            ask: Arc::new(ask.clone()),
        }
    }

    async fn ask(&mut self) -> (Count, Round<Vote>) {
        let since = self.begun.elapsed();
        let ballot = Ballot::above(self.highest, self.ask.attempt.get());
        self.ballot = ballot;
        let step = Step::Acquire(Arc::clone(&self.ask), ballot);
        let mut round = self.nodes.ask_all(&step, self.node_time);
        // If the first quorum could not agree, all that is to be known may help.
        let decided = |count: &Count| {
            if self.proposed { count.is_settled() } else { count.is_decided(ballot) }
        };
        let mut count = self.nodes.count(&mut round, decided).await;
        self.suspects.extend(&count.suspects);
        self.highest = count.highest_promise().unwrap_or(ballot).max(ballot);
        for vote in count.votes.values_mut() {
            // What is left is told as of the moment of asking, from which whoever asked counts: a node
            // that answered a later round had counted off what earlier ones took.
            if let Some(grant) = &mut vote.grant {
                grant.expires_in = (grant.expires_in + since).min(grant.ttl);
            }
        }
        (count, round)
    }

    /// Has a quorum of those who gave the lock agree on its fencing token: which one, and who they are;
    /// `None` if another attempt came between.
    async fn agree(&mut self, count: &Count) -> Option<(Votes, Proposal)> {
        let quorum = self.nodes.quorum;
        let mut votes = count.votes.clone();
        votes.retain(|_, vote| vote.mine().is_some());
        if let Some(proposal) = agree::settled(&mut votes, quorum) {
            return Some((votes, proposal));
        }
        votes.retain(|_, vote| vote.mine().is_some_and(|grant| grant.promised == self.ballot));
        if votes.len() < quorum {
            return None;
        }
        let by = self.ask.attempt.get();
        let own = |fence| {
            self.chose = true;
            Proposal { fence, owner: self.ask.owner.clone(), by }
        };
        let proposal = agree::proposal(&votes, self.nodes, own);
        self.proposed = true;
        let votes = self.settling().propose(votes, &proposal).await;
        (votes.len() >= quorum).then_some((votes, proposal))
    }

    fn settling(&self) -> Settling<'_> {
        Settling {
            nodes: self.nodes,
            name: &self.ask.name,
            token: &self.ask.token,
            ballot: self.ballot,
            node_time: self.node_time,
        }
    }

    /// A quorum agrees: whoever asked may know it, and the other nodes as well.
    fn tell(
        self,
        votes: &Votes,
        proposal: &Proposal,
        round: Round<Vote>,
    ) -> Result<AcquireReply, StoreError> {
        let lease = match lease(self.nodes, votes, proposal) {
            Ok(lease) => lease,
            Err(error) => {
                self.give_up(round);
                return Err(error);
            }
        };
        let unsettled = self.suspects.iter().filter(|node| !votes.contains_key(node));
        let settle = self.settling().step(proposal);
        self.nodes.finish_grant(round, unsettled.copied().collect(), settle);
        // Of all attempts with the token one chose what they agree on.
        let is_own = self.chose && proposal.by == self.ask.attempt.get();
        Ok(if is_own { AcquireReply::Granted(lease) } else { AcquireReply::Repeated(lease) })
    }

    /// Whoever asked has not got the lock, or nobody knows. Once something was proposed, another attempt
    /// with the token may take it over, so that nobody knows.
    fn end(
        self,
        verdict: Verdict,
        count: &mut Count,
        round: Round<Vote>,
    ) -> Result<AcquireReply, StoreError> {
        let is_others = matches!(verdict, Verdict::Held | Verdict::Tied) && !self.proposed;
        let found = if is_others {
            let holder = count.holder(&self.ask.name);
            Ok(AcquireReply::Busy(Contention { holder, ahead: 0 }))
        } else {
            // What an earlier round may have got counts as well.
            Err(count.error(self.proposed || self.suspects.len() >= self.nodes.quorum))
        };
        self.give_up(round);
        found
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
            let mut rest = Count::new(nodes.all.len(), nodes.quorum);
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
) -> Result<RenewReply, StoreError> {
    let node_time = nodes.node_time(ttl);
    let by = getrandom::u64().unwrap_or_default();
    let mut last = Ballot::NONE;
    let mut some_done = false;
    for _ in 0..ROUNDS {
        let ballot = Ballot::above(last, by);
        let mut round = nodes.ask_all(&Step::Renew(name.clone(), *token, ttl, ballot), node_time);
        let mut count = nodes.count(&mut round, |count| count.is_decided(ballot)).await;
        nodes.finish(round);
        // What was renewed on some nodes, in this round or an earlier one, lasts longer there or less
        // long than before.
        some_done |= !count.suspects.is_empty();
        if count.mine() < nodes.quorum {
            return not_renewed(&count, nodes, some_done);
        }
        last = count.highest_promise().unwrap_or(ballot).max(ballot);
        let votes = std::mem::take(&mut count.votes);
        let settling = Settling { nodes, name, token, ballot, node_time };
        match settle(&settling, votes).await {
            Settled::Yes(votes, proposal) => {
                return Ok(RenewReply::Renewed(lease(nodes, &votes, &proposal)?));
            }
            Settled::Never => return Ok(RenewReply::NotHeld),
            Settled::NotNow => sleep(back_off(node_time)).await,
        }
    }
    Err(no_quorum(nodes.all.len(), nodes.all.len(), true, None))
}

/// Whether the nodes that have a lease agree on its fencing token.
enum Settled {
    Yes(Votes, Proposal),
    /// None of a quorum has one, so nobody was told of the grant.
    Never,
    /// Another attempt came between.
    NotNow,
}

/// Has a quorum of these votes agree on the fencing token of a grant that was told before.
async fn settle(settling: &Settling<'_>, mut votes: Votes) -> Settled {
    let quorum = settling.nodes.quorum;
    votes.retain(|_, vote| vote.mine().is_some());
    let Some(proposal) = agree::latest(&votes).map(Grant::proposal) else { return Settled::Never };
    if let Some(proposal) = agree::settled(&mut votes, quorum) {
        return Settled::Yes(votes, proposal);
    }
    votes.retain(|_, vote| vote.mine().is_some_and(|grant| grant.promised == settling.ballot));
    if votes.len() < quorum {
        return Settled::NotNow;
    }
    let votes = settling.propose(votes, &proposal).await;
    if votes.len() < quorum { Settled::NotNow } else { Settled::Yes(votes, proposal) }
}

fn not_renewed(count: &Count, nodes: &Nodes, some_done: bool) -> Result<RenewReply, StoreError> {
    if count.other().len() >= nodes.quorum {
        return Ok(RenewReply::Mismatch);
    }
    if count.mine() + count.missing() < nodes.quorum {
        return Ok(RenewReply::NotHeld);
    }
    Err(no_quorum(count.votes.len(), nodes.all.len(), some_done, None))
}

/// The lease that a quorum of these votes guarantees.
fn lease(nodes: &Nodes, votes: &Votes, proposal: &Proposal) -> Result<Lease, StoreError> {
    let grants = || votes.values().filter_map(Vote::mine);
    let expires_in = guaranteed(nodes.quorum, grants().map(|grant| grant.expires_in));
    let told_by = |expires_in: Duration| grants().find(|grant| grant.expires_in == expires_in);
    match expires_in.and_then(told_by) {
        Some(Grant { ttl, expires_in, .. }) => {
            let Proposal { fence, owner, .. } = proposal.clone();
            Ok(Lease { fence, owner, ttl: *ttl, expires_in: *expires_in })
        }
        None => Err(no_quorum(votes.len(), nodes.all.len(), true, None)),
    }
}

/// A random time, so that those who contend do not meet again.
fn back_off(longest: Duration) -> Duration {
    let share = f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX);
    longest.min(LONGEST_PAUSE).mul_f64(share).max(Duration::from_millis(1))
}
