//! Consensus on a grant's fencing token: Paxos, with one instance for each grant.
//!
//! In phase 1 an attempt asks all nodes for the lock and for a promise; in phase 2 it proposes a
//! fencing token to the nodes that promised, and is granted the lock once a quorum has accepted it. A
//! renewal does the same with the grant's own fencing token, and needs phase 2 only where not all of
//! a quorum has accepted that yet.
//!
//! Why one token serves: docs/internals/redlock.md proves in numbered steps that a lease is exclusive,
//! that fencing tokens rise, that a grant has one fencing token, and that there is at most one 201.
//! The comments here name the steps. Invariant of this file: once a fencing token is proposed, another
//! attempt with the same token may carry it on, so the attempt is granted or unknown, never "held".
//! Tested over real nodes with arranged grants, and under contention by the lock campaign.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::command::{
    AcquireAttempt, Ballot, LockReport, NodeCommand, NodeGrant, Promise, Proposal, ReleaseCommand,
};
use super::round::{Nodes, Round};
use super::tally::{AcquireDecision, Decision, Tally, no_quorum, time_at_quorum, with_same_accept};
use crate::redis::script;
use keylatch_core::lock::{
    AcquireReply, Contention, FencingToken, Holding, Lease, LockLoss, LockName, RenewReply,
    TokenHash, Ttl,
};
use keylatch_core::retry::random_part_of;
use keylatch_core::store::StoreError;

/// How many rounds of promises there are at most: contenders give way, and an attempt that lost to a
/// higher ballot with the same token takes a higher one.
const MAX_ROUNDS: usize = 6;
/// The longest pause between two rounds.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Acquires a lock on a quorum of nodes with one fencing token, or withdraws what the attempt got.
pub(super) async fn acquire(
    nodes: &Arc<Nodes>,
    attempt: AcquireAttempt,
) -> Result<AcquireReply, StoreError> {
    let mut proposer = Proposer::new(nodes, attempt);
    let mut rounds_left = MAX_ROUNDS;
    loop {
        rounds_left -= 1;
        let (mut tally, round) = proposer.collect_promises().await;
        let decision = tally.acquire_decision(&proposer.hash);
        if decision == AcquireDecision::Granted
            && let Some(accepted) = proposer.choose(&tally).await
        {
            return proposer.grant(&accepted, round);
        }
        let may_change = match decision {
            AcquireDecision::Granted | AcquireDecision::Contended | AcquireDecision::Undecided => {
                rounds_left > 0
            }
            AcquireDecision::Held | AcquireDecision::NoQuorum => false,
        };
        if !may_change {
            return proposer.refuse(decision, &mut tally, round);
        }
        proposer.maybe_granted.extend(round.unanswered());
        drop(round);
        sleep(random_pause(proposer.node_time)).await;
    }
}

/// One attempt to acquire, over all its rounds.
struct Proposer<'a> {
    nodes: &'a Arc<Nodes>,
    attempt: Arc<AcquireAttempt>,
    /// The token's hash, as scripts write it.
    hash: String,
    node_time: Duration,
    begun: Instant,
    /// The ballot of this round, and the highest one that is known.
    ballot: Ballot,
    highest: Ballot,
    /// Whether a fencing token was proposed, so that another attempt may carry it on.
    has_proposed: bool,
    /// Whether this attempt proposed its own fencing token.
    has_proposed_own: bool,
    /// The nodes where this attempt may have the lock now.
    maybe_granted: BTreeSet<usize>,
}

impl<'a> Proposer<'a> {
    fn new(nodes: &'a Arc<Nodes>, attempt: AcquireAttempt) -> Self {
        Self {
            nodes,
            hash: script::token(&attempt.token),
            node_time: nodes.node_time(attempt.ttl),
            begun: Instant::now(),
            ballot: Ballot::NONE,
            highest: Ballot::NONE,
            has_proposed: false,
            has_proposed_own: false,
            maybe_granted: BTreeSet::new(),
            attempt: Arc::new(attempt),
        }
    }

    /// Phase 1: asks all nodes for the lock and for a promise of a new, higher ballot.
    async fn collect_promises(&mut self) -> (Tally, Round<LockReport>) {
        let since = self.begun.elapsed();
        let ballot = Ballot::above(self.highest, self.attempt.attempt.get());
        self.ballot = ballot;
        let command = NodeCommand::Acquire(Arc::clone(&self.attempt), ballot);
        let mut round = self.nodes.send_to_all(&command, self.node_time);
        // Where the first quorum could not agree, all reports together may.
        let has_proposed = self.has_proposed;
        let is_decided = |tally: &Tally| {
            if has_proposed { tally.decides_chosen() } else { tally.decides_proposal(ballot) }
        };
        let mut tally = self.nodes.tally(&mut round, is_decided).await;
        self.maybe_granted.extend(&tally.maybe_granted);
        self.highest = tally.highest_promise().unwrap_or(ballot).max(ballot);
        for report in tally.reports.values_mut() {
            // A remaining time counts from the first request of the attempt, and a node that replies
            // in a later round has already taken off what the earlier rounds took.
            if let Some(grant) = &mut report.grant {
                grant.expires_in = (grant.expires_in + since).min(grant.ttl);
            }
        }
        (tally, round)
    }

    /// Phase 2, unless phase 1 shows that a fencing token is chosen. `None` if an attempt with a
    /// higher ballot came between.
    async fn choose(&mut self, tally: &Tally) -> Option<ChosenProposal> {
        let mut promises = Promises(tally.promises());
        if let Some(proposal) = promises.chosen(self.nodes.quorum) {
            promises.retain(|grant| grant.fencing_token == proposal.fencing_token);
            return Some(ChosenProposal { promises, proposal });
        }
        promises.retain(|grant| grant.promised == self.ballot);
        if promises.len() < self.nodes.quorum {
            return None;
        }
        let proposal = match promises.carried_on(self.nodes.all.len(), self.nodes.quorum) {
            Some(proposal) => proposal,
            None => {
                self.has_proposed_own = true;
                let (fencing_token, attempt) =
                    (promises.next_fencing_token(), self.attempt.attempt.get());
                Proposal { fencing_token, owner: self.attempt.owner.clone(), attempt }
            }
        };
        self.has_proposed = true;
        self.accept_phase().run(promises, proposal).await
    }

    fn accept_phase(&self) -> AcceptPhase<'_> {
        AcceptPhase {
            nodes: self.nodes,
            name: &self.attempt.name,
            token: &self.attempt.token,
            ballot: self.ballot,
            node_time: self.node_time,
        }
    }

    /// Answers with the grant, and lets the other nodes accept its fencing token as well.
    fn grant(
        self,
        accepted: &ChosenProposal,
        round: Round<LockReport>,
    ) -> Result<AcquireReply, StoreError> {
        let lease = match accepted.lease(self.nodes) {
            Ok(lease) => lease,
            Err(error) => {
                self.withdraw(round);
                return Err(error);
            }
        };
        let rest = self.maybe_granted.iter().filter(|node| !accepted.promises.0.contains_key(node));
        let accept = self.accept_phase().command(&accepted.proposal);
        self.nodes.finish_grant(round, rest.copied().collect(), accept);
        // "At most one 201", step 3: only the attempt that first proposed the chosen fencing token is
        // granted the lock, all others repeat it.
        let attempt = self.attempt.attempt.get();
        let is_first = self.has_proposed_own && accepted.proposal.attempt == attempt;
        Ok(if is_first { AcquireReply::Granted(lease) } else { AcquireReply::Repeated(lease) })
    }

    /// Answers that another holds the lock, or that the effect is unknown, and withdraws.
    fn refuse(
        self,
        decision: AcquireDecision,
        tally: &mut Tally,
        round: Round<LockReport>,
    ) -> Result<AcquireReply, StoreError> {
        let is_held = matches!(decision, AcquireDecision::Held | AcquireDecision::Contended);
        let reply = if is_held && !self.has_proposed {
            let holding = tally.holder(&self.attempt.name).map(Holding::by_one);
            Ok(AcquireReply::Busy(Contention { holding, ahead: 0, first: None }))
        } else {
            // What an earlier round may have got counts as well.
            let had_quorum = self.maybe_granted.len() >= self.nodes.quorum;
            Err(tally.error(self.has_proposed || had_quorum))
        };
        self.withdraw(round);
        reply
    }

    /// Withdraws in the background, from every node that may have given the lock. A node that has
    /// not replied may give it yet, and is sent the withdrawal behind the acquire.
    fn withdraw(self, round: Round<LockReport>) {
        let Self { nodes, attempt, maybe_granted, .. } = self;
        if maybe_granted.is_empty() && round.unanswered().is_empty() {
            return;
        }
        let withdrawal =
            ReleaseCommand::Withdraw(attempt.name.clone(), attempt.token, attempt.attempt);
        let (nodes, limit) = (Arc::clone(nodes), attempt.ttl.get());
        let known = Arc::clone(&nodes).withdraw(
            maybe_granted.iter().copied().collect(),
            withdrawal.clone(),
            limit,
        );
        let spawner = Arc::clone(&nodes);
        let late = async move {
            let mut rest = Tally::new(nodes.all.len(), nodes.quorum);
            let deadline = round.deadline();
            let mut round = round.close(deadline);
            while let Some((node, reply)) = round.next().await {
                rest.add(node, reply);
            }
            rest.maybe_granted.extend(round.unanswered());
            let late = rest.maybe_granted.difference(&maybe_granted).copied().collect();
            nodes.withdraw(late, withdrawal, limit).await;
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
    let proposer = getrandom::u64().unwrap_or_default();
    let mut last = Ballot::NONE;
    let mut maybe_renewed = false;
    for _ in 0..MAX_ROUNDS {
        let ballot = Ballot::above(last, proposer);
        let command = NodeCommand::Renew(name.clone(), *token, ttl, ballot);
        let mut round = nodes.send_to_all(&command, node_time);
        let tally = nodes.tally(&mut round, |tally| tally.decides_proposal(ballot)).await;
        nodes.finish(round);
        // A renewal on some nodes, in this round or an earlier one, changes how long the lease lasts
        // there.
        maybe_renewed |= !tally.maybe_granted.is_empty();
        if tally.own_count() < nodes.quorum {
            return not_renewed(&tally, nodes, maybe_renewed);
        }
        last = tally.highest_promise().unwrap_or(ballot).max(ballot);
        let phase = AcceptPhase { nodes, name, token, ballot, node_time };
        match phase.carry_on(Promises(tally.promises())).await {
            Ok(accepted) => return Ok(RenewReply::Renewed(accepted.lease(nodes)?)),
            Err(ProposalFailure::NeverProposed) => return Ok(RenewReply::Lost(LockLoss::NotHeld)),
            Err(ProposalFailure::HigherBallot) => sleep(random_pause(node_time)).await,
        }
    }
    Err(no_quorum(nodes.all.len(), nodes.all.len(), true, None))
}

/// What a renewal comes to whose token has no quorum of nodes.
fn not_renewed(
    tally: &Tally,
    nodes: &Nodes,
    maybe_renewed: bool,
) -> Result<RenewReply, StoreError> {
    if tally.strongest_competitor().len() >= nodes.quorum {
        return Ok(RenewReply::Lost(LockLoss::Mismatch));
    }
    // Neither this token nor another one can have a quorum with the nodes that did not vote.
    let may_be_own = tally.own_count() + tally.missing() >= nodes.quorum;
    if !may_be_own && tally.decision() == Decision::NotHeld {
        return Ok(RenewReply::Lost(LockLoss::NotHeld));
    }
    Err(no_quorum(tally.reports.len(), nodes.all.len(), maybe_renewed, None))
}

/// The promises of the nodes where one token has the lock.
struct Promises(BTreeMap<usize, Promise>);

impl Promises {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn grants(&self) -> impl Iterator<Item = &NodeGrant> {
        self.0.values().map(|promise| &promise.grant)
    }

    fn retain(&mut self, is_wanted: impl Fn(&NodeGrant) -> bool) {
        self.0.retain(|_, promise| is_wanted(&promise.grant));
    }

    /// The chosen proposal, if these promises show one: a quorum accepted it under the same ballot.
    fn chosen(&self, quorum: usize) -> Option<Proposal> {
        let accepted = with_same_accept(self.grants());
        Some(accepted.first().filter(|_| accepted.len() >= quorum)?.proposal())
    }

    /// What a node accepted under the highest ballot.
    fn latest_accepted(&self) -> Option<&NodeGrant> {
        let accepted = self.grants().filter(|grant| grant.fencing_token > FencingToken::NONE);
        accepted.max_by_key(|grant| grant.accepted)
    }

    /// The proposal that a quorum may have accepted under a lower ballot, which has to be proposed
    /// again. These are the promises of one ballot, of `nodes` in all.
    ///
    /// "A grant has one fencing token": if F is chosen, the latest accepted fencing token is F (steps
    /// 1 to 3), and the nodes that report F and those that did not promise are together a quorum (step
    /// 4). If they are fewer, no fencing token is chosen, and the attempt may propose its own.
    fn carried_on(&self, nodes: usize, quorum: usize) -> Option<Proposal> {
        let latest = self.latest_accepted()?;
        let same =
            self.grants().filter(|grant| grant.fencing_token == latest.fencing_token).count();
        let may_be_chosen = same + nodes - self.len() >= quorum;
        may_be_chosen.then(|| latest.proposal())
    }

    /// A fencing token above the counter of each of these nodes, and not below any of their clocks.
    fn next_fencing_token(&self) -> FencingToken {
        let counter = self.0.values().map(|promise| promise.counter).max().unwrap_or_default();
        let clock = self.0.values().map(|promise| promise.clock_micros).max().unwrap_or_default();
        counter.next(clock)
    }
}

/// A proposal that a quorum accepted: it is chosen.
struct ChosenProposal {
    /// The promises of the nodes that accepted it.
    promises: Promises,
    proposal: Proposal,
}

/// Why no quorum accepted the proposal of a renewal.
enum ProposalFailure {
    /// A quorum has the grant, and no node has a fencing token: no attempt was ever granted the lock.
    NeverProposed,
    /// Another attempt with the same token has a higher ballot.
    HigherBallot,
}

impl ChosenProposal {
    /// The lease that a quorum of these nodes guarantees ("a lease is exclusive", step 2).
    fn lease(&self, nodes: &Nodes) -> Result<Lease, StoreError> {
        let grants = || self.promises.grants();
        let expires_in = time_at_quorum(nodes.quorum, grants().map(|grant| grant.expires_in));
        let with_time = |time: Duration| grants().find(|grant| grant.expires_in == time);
        match expires_in.and_then(with_time) {
            Some(NodeGrant { ttl, expires_in, .. }) => {
                let Proposal { fencing_token, owner, .. } = self.proposal.clone();
                Ok(Lease::exclusive(fencing_token, owner, *ttl, *expires_in))
            }
            None => Err(no_quorum(self.promises.len(), nodes.all.len(), true, None)),
        }
    }
}

/// Phase 2 of one ballot.
struct AcceptPhase<'a> {
    nodes: &'a Arc<Nodes>,
    name: &'a LockName,
    token: &'a TokenHash,
    ballot: Ballot,
    node_time: Duration,
}

impl AcceptPhase<'_> {
    /// Has a quorum accept the fencing token that the grant already has.
    async fn carry_on(&self, mut promises: Promises) -> Result<ChosenProposal, ProposalFailure> {
        let Some(proposal) = promises.latest_accepted().map(NodeGrant::proposal) else {
            return Err(ProposalFailure::NeverProposed);
        };
        if let Some(proposal) = promises.chosen(self.nodes.quorum) {
            promises.retain(|grant| grant.fencing_token == proposal.fencing_token);
            return Ok(ChosenProposal { promises, proposal });
        }
        promises.retain(|grant| grant.promised == self.ballot);
        if promises.len() < self.nodes.quorum {
            return Err(ProposalFailure::HigherBallot);
        }
        self.run(promises, proposal).await.ok_or(ProposalFailure::HigherBallot)
    }

    /// Proposes to the nodes that promised the ballot. `None` if fewer than a quorum accept.
    async fn run(&self, mut promises: Promises, proposal: Proposal) -> Option<ChosenProposal> {
        let some: Vec<_> = promises.0.keys().copied().collect();
        let mut round = self.nodes.send_to(some, &self.command(&proposal), self.node_time);
        let is_accepted = |grant: &NodeGrant| {
            grant.accepted == self.ballot && grant.fencing_token == proposal.fencing_token
        };
        let mut accepted = BTreeMap::new();
        while accepted.len() < self.nodes.quorum {
            let Some((node, reply)) = round.next().await else { break };
            let accepts = reply
                .is_ok_and(|reply| reply.votes && reply.value.own_grant().is_some_and(is_accepted));
            if accepts && let Some(promise) = promises.0.remove(&node) {
                accepted.insert(node, promise);
            }
        }
        self.nodes.finish(round);
        let is_chosen = accepted.len() >= self.nodes.quorum;
        is_chosen.then_some(ChosenProposal { promises: Promises(accepted), proposal })
    }

    fn command(&self, proposal: &Proposal) -> NodeCommand {
        NodeCommand::Accept(self.name.clone(), *self.token, self.ballot, proposal.clone())
    }
}

/// A random time, so that contenders do not meet again.
fn random_pause(longest: Duration) -> Duration {
    random_part_of(longest.min(PAUSE_MAX)).max(Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use super::super::command::testing::{ReportedGrant, report};
    use super::*;

    /// The promises of nodes 0, 1, … which accepted these fencing tokens under these ballots.
    fn promises<const N: usize>(accepted: [(u64, u64); N]) -> Promises {
        let grants = accepted.map(|(fencing_token, ballot)| ReportedGrant {
            fencing_token,
            ballot,
            by: fencing_token,
        });
        let promises = grants.map(|grant| report("own", "one", &grant).promise().unwrap());
        Promises(promises.into_iter().enumerate().collect())
    }

    fn fencing_token(proposal: Option<Proposal>) -> Option<u64> {
        proposal.map(|proposal| proposal.fencing_token.get())
    }

    #[test]
    fn fencing_token_of_a_quorum_under_one_ballot_is_chosen() {
        assert_eq!(fencing_token(promises([(7, 1), (7, 1), (7, 1)]).chosen(3)), Some(7));
        assert_eq!(fencing_token(promises([(7, 1), (7, 1), (7, 2)]).chosen(3)), None);
        assert_eq!(fencing_token(promises([(7, 1), (7, 1), (0, 0)]).chosen(3)), None);
    }

    #[test]
    fn fencing_token_that_may_be_chosen_is_carried_on() {
        // One of three reports 7, and two more of five may have accepted it.
        assert_eq!(fencing_token(promises([(7, 1), (0, 0), (0, 0)]).carried_on(5, 3)), Some(7));
        // 9 has the higher ballot, so 7 was not chosen before.
        assert_eq!(fencing_token(promises([(7, 1), (9, 2), (0, 0)]).carried_on(5, 3)), Some(9));
    }

    #[test]
    fn fencing_token_that_no_quorum_can_have_is_replaced() {
        // Of four promises one reports 7, and only one node more may have accepted it.
        let promises = promises([(7, 1), (0, 0), (0, 0), (0, 0)]);
        assert_eq!(fencing_token(promises.carried_on(5, 3)), None);
        assert_eq!(promises.next_fencing_token().get(), 1001, "above every counter");
    }
}
