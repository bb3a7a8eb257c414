//! Consensus on a grant's fencing token: Paxos, with one instance for each grant.
//!
//! In phase 1 an attempt asks all nodes for the lock and for a promise; in phase 2 it proposes a
//! fencing token to the nodes that promised, and is granted the lock once a quorum has accepted it.
//! A renewal does the same with the grant's own fencing token, and needs phase 2 only where not all
//! of a quorum has accepted that yet.
//!
//! Why one token serves: internals/redlock.md proves in numbered steps that a lease is
//! exclusive, that fencing tokens rise, that a grant has one fencing token, and that there is at
//! most one 201. The comments here name the steps. Invariant of this file: once a fencing token is
//! proposed, another attempt with the same token may carry it on, so the attempt is granted or
//! unknown, never "held". Tested over real nodes with arranged grants, and under contention by the
//! lock campaign.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::messages::{Ballot, Message, NodeGrant, Proposal, Request};
use super::round::{Nodes, Round};
use super::votes::{AcquireDecision, Decision, Votes, no_quorum};
use crate::redis::script;
use keylatch_core::entry::Few;
use keylatch_core::lock::{
    AcquireCommand, AcquireReply, Contention, Holding, LockLoss, LockName, RenewReply, TokenHash,
    Ttl,
};
use keylatch_core::retry::random_part_of;
use keylatch_core::store::StoreError;

/// How many rounds of promises there are at most: contenders give way, and an attempt that lost to
/// a higher ballot with the same token takes a higher one.
const MAX_ROUNDS: usize = 6;
/// The longest pause between two rounds.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Acquires a lock on a quorum of nodes with one fencing token, or withdraws what the attempt got.
pub(super) async fn acquire(
    nodes: &Arc<Nodes>,
    name: LockName,
    command: AcquireCommand,
) -> Result<AcquireReply, StoreError> {
    let hash = script::token(&command.token);
    let mut acquire = Acquire {
        proposer: Proposer::new(nodes, name, (command.token, command.ttl), command.attempt.get()),
        command,
        has_proposed: false,
        has_proposed_own: false,
    };
    let mut rounds_left = MAX_ROUNDS;
    loop {
        rounds_left -= 1;
        let (votes, round) = acquire.collect_promises().await;
        let decision = votes.acquire_decision(&hash);
        if decision == AcquireDecision::Granted
            && let Some((accepted, granted)) = acquire.choose(&votes).await
        {
            return Ok(acquire.grant(&accepted, &granted, round));
        }
        let is_final = matches!(decision, AcquireDecision::Held | AcquireDecision::NoQuorum);
        if is_final || rounds_left == 0 {
            return acquire.refuse(decision, votes, round);
        }
        acquire.proposer.maybe_done.extend(round.unanswered());
        drop(round);
        sleep(acquire.proposer.pause()).await;
    }
}

/// Lets a lease last `ttl` from now, or its own TTL, on all nodes that have it, if a quorum does.
pub(super) async fn renew(
    nodes: &Arc<Nodes>,
    name: LockName,
    token: TokenHash,
    ttl: Option<Ttl>,
) -> Result<RenewReply, StoreError> {
    let number = getrandom::u64().unwrap_or_default();
    let mut proposer = Proposer::new(nodes, name, (token, ttl.unwrap_or(Ttl::DEFAULT)), number);
    for _ in 0..MAX_ROUNDS {
        let message = |ballot| Message::Renew { token, ttl, ballot };
        let (votes, round) = proposer.ask(message, Votes::decides_proposal).await;
        nodes.finish(round);
        if votes.own_count() < nodes.quorum {
            return not_renewed(&votes, &proposer);
        }
        // Without one, no attempt was ever granted the lock.
        let Some(latest) = votes.latest_accepted() else {
            return Ok(RenewReply::lost(&proposer.name, LockLoss::NotHeld));
        };
        if let Some((_, granted)) = proposer.choose(&votes, |_| latest).await {
            return Ok(RenewReply::Renewed(Few::from_buf([granted.lease()])));
        }
        sleep(proposer.pause()).await;
    }
    Err(no_quorum(nodes.all.len(), nodes.all.len(), true, None))
}

/// What a renewal comes to whose token has no quorum of nodes.
fn not_renewed(votes: &Votes, proposer: &Proposer<'_>) -> Result<RenewReply, StoreError> {
    let (nodes, name) = (proposer.nodes, &proposer.name);
    if votes.strongest_competitor().len() >= nodes.quorum {
        return Ok(RenewReply::lost(name, LockLoss::Mismatch));
    }
    // Neither this token nor another one can have a quorum with the nodes that did not vote.
    let may_be_own = votes.own_count() + votes.missing() >= nodes.quorum;
    if !may_be_own && votes.decision() == Decision::NotHeld {
        return Ok(RenewReply::lost(name, LockLoss::NotHeld));
    }
    let maybe_renewed = !proposer.maybe_done.is_empty();
    Err(no_quorum(votes.reports.len(), nodes.all.len(), maybe_renewed, None))
}

/// One attempt of a token to have a lock, or to keep it, over all its rounds.
struct Proposer<'a> {
    nodes: &'a Arc<Nodes>,
    name: LockName,
    token: TokenHash,
    node_time: Duration,
    begun: Instant,
    /// The proposer's own number, which makes its ballots its own.
    number: u64,
    /// The ballot of this round, and the highest one that is known.
    ballot: Ballot,
    highest: Ballot,
    /// The nodes where the token may have the lock by this attempt.
    maybe_done: BTreeSet<usize>,
}

impl<'a> Proposer<'a> {
    fn new(
        nodes: &'a Arc<Nodes>,
        name: LockName,
        (token, ttl): (TokenHash, Ttl),
        number: u64,
    ) -> Self {
        Self {
            nodes,
            name,
            token,
            node_time: nodes.node_time(ttl),
            begun: Instant::now(),
            number,
            ballot: Ballot::NONE,
            highest: Ballot::NONE,
            maybe_done: BTreeSet::new(),
        }
    }

    /// Phase 1: asks all nodes for a promise of a new, higher ballot.
    async fn ask(
        &mut self,
        message: impl FnOnce(Ballot) -> Message,
        is_decided: impl Fn(&Votes, Ballot) -> bool,
    ) -> (Votes, Round) {
        let ballot = Ballot::above(self.highest, self.number);
        self.ballot = ballot;
        let request = self.request(message(ballot));
        let all = 0..self.nodes.all.len();
        let (votes, round) = self.send(all, request, |votes| is_decided(votes, ballot)).await;
        self.maybe_done.extend(&votes.maybe_done);
        self.highest = votes.highest_promise().unwrap_or(ballot).max(ballot);
        (votes, round)
    }

    /// Phase 2, unless phase 1 shows that a fencing token is chosen: the nodes that accepted it, and
    /// the grant that they guarantee. `None` if an attempt with a higher ballot came between.
    async fn choose(
        &self,
        votes: &Votes,
        propose: impl FnOnce(&Votes) -> Proposal,
    ) -> Option<(Votes, NodeGrant)> {
        let mut promises = votes.promises();
        if let Some(proposal) = promises.chosen() {
            promises.retain(|grant| grant.fencing_token == proposal.fencing_token);
            return promises.guaranteed().map(|granted| (promises, granted));
        }
        promises.retain(|grant| grant.promised == self.ballot);
        if promises.own_count() < self.nodes.quorum {
            return None;
        }
        let proposal = propose(&promises);
        let accepts = |grant: &NodeGrant| {
            grant.accepted == self.ballot && grant.fencing_token == proposal.fencing_token
        };
        let some = promises.reports.into_keys();
        let is_chosen = |votes: &Votes| {
            votes.own_grants().filter(|grant| accepts(grant)).count() >= self.nodes.quorum
        };
        let (mut accepted, round) = self.send(some, self.accept(&proposal), is_chosen).await;
        self.nodes.finish(round);
        accepted.retain(accepts);
        accepted.guaranteed().map(|granted| (accepted, granted))
    }

    /// Sends a request to some nodes, and counts their replies until they decide.
    async fn send(
        &self,
        some: impl IntoIterator<Item = usize>,
        request: Request,
        is_decided: impl Fn(&Votes) -> bool,
    ) -> (Votes, Round) {
        let since = self.begun.elapsed();
        let mut round = self.nodes.send_to(some, request, self.node_time);
        let mut votes = self.nodes.count(&mut round, is_decided).await;
        // A remaining time counts from the first request of the attempt, and a node that replies to
        // a later one has already taken off what the earlier ones took.
        for grant in votes.reports.values_mut().filter_map(|report| report.grant.as_mut()) {
            grant.expires_in = (grant.expires_in + since).min(grant.ttl);
        }
        (votes, round)
    }

    fn accept(&self, proposal: &Proposal) -> Request {
        let (token, ballot, proposal) = (self.token, self.ballot, proposal.clone());
        self.request(Message::Accept { token, ballot, proposal })
    }

    fn request(&self, message: Message) -> Request {
        Request { name: self.name.clone(), message }
    }

    /// A random time, so that contenders do not meet again.
    fn pause(&self) -> Duration {
        random_part_of(self.node_time.min(PAUSE_MAX)).max(Duration::from_millis(1))
    }
}

/// An attempt to acquire.
struct Acquire<'a> {
    proposer: Proposer<'a>,
    command: AcquireCommand,
    /// Whether a fencing token was proposed, so that another attempt may carry it on.
    has_proposed: bool,
    /// Whether this attempt proposed its own fencing token.
    has_proposed_own: bool,
}

impl Acquire<'_> {
    /// Phase 1: asks all nodes for the lock as well.
    async fn collect_promises(&mut self) -> (Votes, Round) {
        let has_proposed = self.has_proposed;
        let AcquireCommand { token, ttl, attempt, .. } = self.command;
        let message = |ballot| Message::Acquire { token, ttl, attempt, ballot };
        // Where the first quorum could not agree, all reports together may.
        let is_decided = |votes: &Votes, ballot| {
            if has_proposed { votes.decides_chosen() } else { votes.decides_proposal(ballot) }
        };
        self.proposer.ask(message, is_decided).await
    }

    /// Phase 2, with the fencing token that may be chosen, or one of its own.
    async fn choose(&mut self, votes: &Votes) -> Option<(Votes, NodeGrant)> {
        let attempt = self.command.attempt.get();
        let propose = |promises: &Votes| {
            self.has_proposed = true;
            promises.carried_on().unwrap_or_else(|| {
                self.has_proposed_own = true;
                let (fencing_token, owner) =
                    (promises.next_fencing_token(), self.command.owner.clone());
                Proposal { fencing_token, owner, attempt }
            })
        };
        self.proposer.choose(votes, propose).await
    }

    /// Answers with the grant, and lets the other nodes accept its fencing token as well.
    fn grant(self, accepted: &Votes, granted: &NodeGrant, round: Round) -> AcquireReply {
        let (nodes, chosen, lease) = (self.proposer.nodes, granted.proposal(), granted.lease());
        let has_accepted = |node: &&usize| accepted.reports.contains_key(*node);
        let rest = self.proposer.maybe_done.iter().filter(|node| !has_accepted(node)).copied();
        nodes.finish_grant(round, rest.collect(), self.proposer.accept(&chosen));
        // "At most one 201", step 3: only the attempt that first proposed the chosen fencing token
        // is granted the lock, all others repeat it.
        let is_first = self.has_proposed_own && chosen.attempt == self.command.attempt.get();
        let leases = Few::from_buf([lease]);
        if is_first { AcquireReply::Granted(leases) } else { AcquireReply::Repeated(leases) }
    }

    /// Answers that another holds the lock, or that the effect is unknown, and withdraws.
    fn refuse(
        self,
        decision: AcquireDecision,
        votes: Votes,
        round: Round,
    ) -> Result<AcquireReply, StoreError> {
        let is_held = matches!(decision, AcquireDecision::Held | AcquireDecision::Contended);
        let reply = if is_held && !self.has_proposed {
            let name = self.proposer.name.clone();
            let holding = votes.holder(&name).map(Holding::by_one);
            let (ahead, first, most_ahead) = (0, None, 0);
            Ok(AcquireReply::Busy(Contention { name, holding, ahead, first, most_ahead }))
        } else {
            // What an earlier round may have got counts as well.
            let had_quorum = self.proposer.maybe_done.len() >= self.proposer.nodes.quorum;
            Err(votes.error(self.has_proposed || had_quorum))
        };
        self.withdraw(round);
        reply
    }

    /// Withdraws in the background, from every node that may have given the lock, or gives it yet.
    fn withdraw(self, round: Round) {
        let Self { proposer, command, .. } = self;
        let (token, attempt) = (command.token, Some(command.attempt));
        let withdrawal = proposer.request(Message::End { token, attempt });
        proposer.nodes.withdraw(round, proposer.maybe_done, withdrawal, command.ttl.get());
    }
}
