//! The count of the nodes' reports in a round, and the decision that follows from it.
//!
//! Only the nodes that may vote count, and a decision falls once further replies could not change
//! it. A node that did not reply, or whose reply was lost, may have executed its message: it is
//! among those that [may have done it](Votes::maybe_done).
//!
//! Invariant: what others see of a lock needs a quorum with the same fencing token, and "not held"
//! needs that no quorum can have one (internals/redlock.md, "What others see"). Tested below,
//! and over real nodes with arranged grants, by the tests of Redlock's agreement.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;

use super::messages::{Ballot, Found, NodeGrant, Proposal, Report};
use super::node::NodeResult;
use keylatch_core::lock::{FencingToken, Holder, LockName, ReleaseReply};
use keylatch_core::store::{Effect, StoreError};

/// The reports of one round.
#[derive(Debug)]
pub(super) struct Votes {
    nodes: usize,
    quorum: usize,
    /// How many nodes replied, whether they vote or not.
    pub(super) answered: usize,
    /// The reports of the nodes that may vote.
    pub(super) reports: BTreeMap<usize, Report>,
    /// The nodes where the message may have given or ended a grant of its token, whether they vote
    /// or not.
    pub(super) maybe_done: BTreeSet<usize>,
    last_error: Option<StoreError>,
}

/// Whether the lock is held, as others see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// A quorum has a grant with the same fencing token.
    Held,
    /// No quorum can have one: no client is certain to hold the lock.
    NotHeld,
    /// The nodes that did not vote decide it.
    Undecided,
}

/// What an acquire comes to after the promises of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AcquireDecision {
    /// A quorum gave the lock to the own token.
    Granted,
    /// Another token has a quorum, or takes precedence.
    Held,
    /// Another token may hold it, or the own one, or none.
    Undecided,
    /// No token has a quorum, and the own one takes precedence among the contenders.
    Contended,
    NoQuorum,
}

impl Votes {
    pub(super) fn new(nodes: usize, quorum: usize) -> Self {
        let (reports, maybe_done) = (BTreeMap::new(), BTreeSet::new());
        Self { nodes, quorum, answered: 0, reports, maybe_done, last_error: None }
    }

    pub(super) fn add(&mut self, node: usize, reply: NodeResult<Report>) {
        match reply {
            Ok(reply) => {
                self.answered += 1;
                if matches!(reply.value.found, Found::Own | Found::Ended) {
                    self.maybe_done.insert(node);
                }
                if reply.votes {
                    self.reports.insert(node, reply.value);
                } else {
                    let why = "a node came up lately and does not vote yet";
                    self.last_error = Some(StoreError::Refused(why.into()));
                }
            }
            Err(error) => {
                if error.effect() == Effect::Unknown {
                    self.maybe_done.insert(node);
                }
                self.last_error = Some(error);
            }
        }
    }

    pub(super) fn own_grants(&self) -> impl Iterator<Item = &NodeGrant> {
        self.reports.values().filter_map(Report::own_grant)
    }

    fn competing_grants(&self) -> impl Iterator<Item = &NodeGrant> {
        self.reports.values().filter_map(Report::competing_grant)
    }

    /// The reports of the nodes where the own token has the lock, as promises to accept nothing
    /// under a lower ballot.
    pub(super) fn promises(&self) -> Self {
        let own = self.reports.iter().filter(|(_, report)| report.own_grant().is_some());
        let reports = own.map(|(node, report)| (*node, report.clone())).collect();
        Self { reports, ..Self::new(self.nodes, self.quorum) }
    }

    /// Keeps the promises of the wanted grants.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(&NodeGrant) -> bool) {
        self.reports.retain(|_, report| report.own_grant().is_some_and(&is_wanted));
    }

    /// How many nodes have the lock with the own token.
    pub(super) fn own_count(&self) -> usize {
        self.own_grants().count()
    }

    /// How many nodes did not vote.
    pub(super) fn missing(&self) -> usize {
        self.nodes - self.reports.len()
    }

    /// The grants of the strongest competitor: the other token that most nodes have, and of two the
    /// one with the smaller hash.
    pub(super) fn strongest_competitor(&self) -> Vec<&NodeGrant> {
        let mut by_token: BTreeMap<&str, Vec<&NodeGrant>> = BTreeMap::new();
        for grant in self.competing_grants() {
            by_token.entry(&grant.token).or_default().push(grant);
        }
        let most = by_token.into_iter().rev().max_by_key(|(_, grants)| grants.len());
        most.map(|(_, grants)| grants).unwrap_or_default()
    }

    /// The competing grants with the fencing token that most nodes have.
    pub(super) fn held_grants(&self) -> Vec<&NodeGrant> {
        with_same_fencing_token(self.competing_grants())
    }

    /// Whether the lock is held, as these replies show it.
    pub(super) fn decision(&self) -> Decision {
        let held = self.held_grants().len();
        if held >= self.quorum {
            Decision::Held
        } else if held + self.missing() < self.quorum {
            Decision::NotHeld
        } else {
            Decision::Undecided
        }
    }

    /// Whether further replies would change neither which token has the lock, nor the proposal
    /// under this ballot.
    pub(super) fn decides_proposal(&self, ballot: Ballot) -> bool {
        let promises = self.own_grants().filter(|grant| grant.promised == ballot).count();
        let is_with_competitor = self.strongest_competitor().len() >= self.quorum
            && self.decision() != Decision::Undecided;
        promises >= self.quorum || self.decides_chosen() || is_with_competitor
    }

    /// Whether a fencing token is chosen for the own token, or another token holds the lock.
    pub(super) fn decides_chosen(&self) -> bool {
        with_same_accept(self.own_grants()).len() >= self.quorum
            || self.decision() == Decision::Held
    }

    /// The highest ballot that a node promised to an attempt with the own token.
    pub(super) fn highest_promise(&self) -> Option<Ballot> {
        self.own_grants().map(|grant| grant.promised).max()
    }

    /// The chosen proposal, if these promises show one: a quorum accepted it under the same ballot.
    pub(super) fn chosen(&self) -> Option<Proposal> {
        let accepted = with_same_accept(self.own_grants());
        Some(accepted.first().filter(|_| accepted.len() >= self.quorum)?.proposal())
    }

    /// What a node accepted under the highest ballot.
    pub(super) fn latest_accepted(&self) -> Option<Proposal> {
        let accepted = self.own_grants().filter(|grant| grant.fencing_token > FencingToken::NONE);
        accepted.max_by_key(|grant| grant.accepted).map(NodeGrant::proposal)
    }

    /// The proposal that a quorum may have accepted under a lower ballot, which has to be proposed
    /// again. These are the promises of one ballot.
    ///
    /// "A grant has one fencing token": if F is chosen, the latest accepted fencing token is F
    /// (steps 1 to 3), and the nodes that report F and those that did not promise are together a
    /// quorum (step 4). If they are fewer, no fencing token is chosen, and the attempt may propose
    /// its own.
    pub(super) fn carried_on(&self) -> Option<Proposal> {
        let latest = self.latest_accepted()?;
        let same =
            self.own_grants().filter(|grant| grant.fencing_token == latest.fencing_token).count();
        (same + self.missing() >= self.quorum).then_some(latest)
    }

    /// A fencing token above the counter of each of these nodes, and not below any of their clocks.
    pub(super) fn next_fencing_token(&self) -> FencingToken {
        let counter = self.reports.values().map(|report| report.counter).max().unwrap_or_default();
        let clock = self.reports.values().map(|report| report.clock_micros).max();
        counter.next(clock.unwrap_or_default())
    }

    /// What an acquire with this token hash comes to.
    ///
    /// Of two contenders the one with more nodes continues, or of as many the one with the smaller
    /// hash, and the other withdraws. They see the same nodes, so they agree on it.
    pub(super) fn acquire_decision(&self, token: &str) -> AcquireDecision {
        let (own, competitor) = (self.own_count(), self.strongest_competitor());
        if own >= self.quorum {
            return AcquireDecision::Granted;
        }
        let Some(first) = competitor.first() else { return AcquireDecision::NoQuorum };
        if self.reports.len() < self.quorum {
            return AcquireDecision::NoQuorum;
        }
        let gives_way = competitor.len() > own || competitor.len() == own && *first.token < *token;
        match self.decision() {
            Decision::Held => AcquireDecision::Held,
            // With the nodes that did not vote, the own token may have a quorum.
            _ if with_same_fencing_token(self.own_grants()).len() + self.missing()
                >= self.quorum =>
            {
                AcquireDecision::Undecided
            }
            Decision::Undecided => AcquireDecision::Undecided,
            Decision::NotHeld if gives_way => AcquireDecision::Held,
            Decision::NotHeld => AcquireDecision::Contended,
        }
    }

    /// What a release comes to, once further replies could not change it.
    pub(super) fn release_reply(&self) -> Option<ReleaseReply> {
        let count = |found| self.reports.values().filter(|report| report.found == found).count();
        let (ended, competing) = (count(Found::Ended), count(Found::Competing));
        if ended >= self.quorum {
            Some(ReleaseReply::Released)
        } else if competing >= self.quorum {
            Some(ReleaseReply::Mismatch)
        } else if ended.max(competing) + self.missing() < self.quorum {
            Some(ReleaseReply::NotHeld)
        } else {
            None
        }
    }

    /// The holder and its remaining time, if a quorum has the same fencing token.
    pub(super) fn holder(&self, name: &LockName) -> Option<Holder> {
        let held = self.held_grants();
        let acquired_at_millis = held.iter().map(|grant| grant.acquired_at_millis).min()?;
        Some(Holder { acquired_at_millis, ..at_quorum(self.quorum, held)?.holder(name) })
    }

    /// The grant as a quorum of these nodes guarantees it ("a lease is exclusive", step 2), which
    /// accepted one fencing token; `None` where they are fewer.
    pub(super) fn guaranteed(&self) -> Option<NodeGrant> {
        at_quorum(self.quorum, self.own_grants().collect()).cloned()
    }

    /// Why there is no quorum. The effect is unknown if the caller says so, or if so many nodes may
    /// have given the lock in this round that they would be a quorum. With fewer, no other client
    /// can see the lock as held.
    pub(super) fn error(self, may_be_done: bool) -> StoreError {
        let may_be_done = may_be_done || self.maybe_done.len() >= self.quorum;
        no_quorum(self.reports.len(), self.nodes, may_be_done, self.last_error)
    }
}

/// The grants with the same token and fencing token, of the one that most nodes have; of two the
/// higher one.
fn with_same_fencing_token<'a>(grants: impl Iterator<Item = &'a NodeGrant>) -> Vec<&'a NodeGrant> {
    largest_group(grants, |grant| (grant.fencing_token, &*grant.token))
}

/// The grants whose fencing token was accepted under the same ballot, of the one that most nodes
/// have. If they are a quorum, it is chosen.
fn with_same_accept<'a>(grants: impl Iterator<Item = &'a NodeGrant>) -> Vec<&'a NodeGrant> {
    largest_group(grants, |grant| (grant.accepted, grant.fencing_token))
}

/// The largest group of the grants that have a fencing token; of two the one with the higher key.
fn largest_group<'a, K: Ord>(
    grants: impl Iterator<Item = &'a NodeGrant>,
    key: impl Fn(&'a NodeGrant) -> K,
) -> Vec<&'a NodeGrant> {
    let mut groups = BTreeMap::<K, Vec<_>>::new();
    for grant in grants.filter(|grant| grant.fencing_token > FencingToken::NONE) {
        groups.entry(key(grant)).or_default().push(grant);
    }
    groups.into_values().max_by_key(Vec::len).unwrap_or_default()
}

pub(super) fn no_quorum(
    votes: usize,
    nodes: usize,
    may_be_done: bool,
    last: Option<StoreError>,
) -> StoreError {
    let why = last.and_then(|error| error.source().map(ToString::to_string));
    let why = why.unwrap_or_else(|| "the others gave no answer in time".to_owned());
    let cause = format!("{votes} of {nodes} nodes voted, which decides nothing: {why}").into();
    if may_be_done { StoreError::Lost(cause) } else { StoreError::Unreachable(cause) }
}

/// Of these grants the one whose remaining time a quorum reaches.
fn at_quorum(quorum: usize, mut grants: Vec<&NodeGrant>) -> Option<&NodeGrant> {
    grants.sort_unstable_by_key(|grant| Reverse(grant.expires_in));
    grants.get(quorum - 1).copied()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::node::NodeReply;
    use super::*;

    /// The report of a node with a lease of 10 s, which accepted a fencing token under a ballot.
    fn report(found: Found, token: &str, fencing_token: u64, ballot: u64) -> Report {
        let ballot = Ballot::parse(&format!("{ballot:020}{:020}", 0)).unwrap();
        let grant = NodeGrant {
            token: token.to_owned(),
            fencing_token: FencingToken::new(fencing_token),
            proposed_by: fencing_token,
            promised: ballot,
            accepted: ballot,
            ttl: Duration::from_secs(60),
            expires_in: Duration::from_secs(10),
            owner: None,
            acquired_at_millis: 1,
        };
        let counter = FencingToken::new(1000);
        Report { found, counter, clock_micros: 500, grant: Some(grant) }
    }

    /// The votes of five nodes with a quorum of three, of these: (found, token, fencing token).
    fn votes<const N: usize>(reports: [(Found, &str, u64); N]) -> Votes {
        let mut votes = Votes::new(5, 3);
        for (node, (found, token, fencing_token)) in reports.into_iter().enumerate() {
            let value = report(found, token, fencing_token, fencing_token);
            votes.add(node, Ok(NodeReply { value, votes: true }));
        }
        votes
    }

    #[test]
    fn contender_with_fewer_nodes_or_the_larger_hash_gives_way() {
        let (own, other) = ((Found::Own, "m", 0), (Found::Competing, "a", 0));
        let after = (Found::Competing, "z", 0);
        let decision = |reports: [_; 5]| votes(reports).acquire_decision("m");
        assert_eq!(decision([own, own, own, other, other]), AcquireDecision::Granted);
        assert_eq!(decision([own, own, other, after, after]), AcquireDecision::Contended);
        assert_eq!(decision([own, own, other, other, after]), AcquireDecision::Held);
        assert_eq!(decision([own, other, other, after, after]), AcquireDecision::Held);
    }

    #[test]
    fn acquire_without_a_quorum_of_votes_is_undecided() {
        let (own, other) = ((Found::Own, "m", 0), (Found::Competing, "a", 0));
        assert_eq!(votes([own, own]).acquire_decision("m"), AcquireDecision::NoQuorum);
        assert_eq!(votes([own, other]).acquire_decision("m"), AcquireDecision::NoQuorum);
        let accepted =
            votes([(Found::Own, "m", 7), (Found::Competing, "a", 0), (Found::Competing, "a", 0)]);
        assert_eq!(accepted.acquire_decision("m"), AcquireDecision::Undecided, "two may have 7");
    }

    #[test]
    fn node_in_quarantine_does_not_vote_but_may_have_granted() {
        let mut votes = votes([(Found::Own, "m", 0), (Found::Own, "m", 0)]);
        let value = report(Found::Own, "m", 0, 0);
        votes.add(2, Ok(NodeReply { value, votes: false }));
        assert_eq!(votes.acquire_decision("m"), AcquireDecision::NoQuorum);
        assert_eq!(votes.error(false).effect(), Effect::Unknown, "three nodes may have granted it");
    }

    #[test]
    fn release_is_decided_by_what_a_quorum_found() {
        let (ended, competing, free) =
            ((Found::Ended, "a", 0), (Found::Competing, "b", 7), (Found::Free, "", 0));
        assert_eq!(votes([ended, ended, ended]).release_reply(), Some(ReleaseReply::Released));
        assert_eq!(votes([competing; 3]).release_reply(), Some(ReleaseReply::Mismatch));
        assert_eq!(votes([free, free, ended]).release_reply(), None, "two more may have it");
        assert_eq!(votes([free, free, free]).release_reply(), Some(ReleaseReply::NotHeld));
    }

    /// The promises of nodes 0, 1, … of five which accepted these fencing tokens under these
    /// ballots.
    fn promises<const N: usize>(accepted: [(u64, u64); N]) -> Votes {
        let mut votes = Votes::new(5, 3);
        for (node, (fencing_token, ballot)) in accepted.into_iter().enumerate() {
            votes.reports.insert(node, report(Found::Own, "one", fencing_token, ballot));
        }
        votes
    }

    fn fencing_token(proposal: Option<Proposal>) -> Option<u64> {
        proposal.map(|proposal| proposal.fencing_token.get())
    }

    #[test]
    fn fencing_token_of_a_quorum_under_one_ballot_is_chosen() {
        assert_eq!(fencing_token(promises([(7, 1), (7, 1), (7, 1)]).chosen()), Some(7));
        assert_eq!(fencing_token(promises([(7, 1), (7, 1), (7, 2)]).chosen()), None);
        assert_eq!(fencing_token(promises([(7, 1), (7, 1), (0, 0)]).chosen()), None);
    }

    #[test]
    fn fencing_token_that_may_be_chosen_is_carried_on() {
        // One of three reports 7, and two more of five may have accepted it.
        assert_eq!(fencing_token(promises([(7, 1), (0, 0), (0, 0)]).carried_on()), Some(7));
        // 9 has the higher ballot, so 7 was not chosen before.
        assert_eq!(fencing_token(promises([(7, 1), (9, 2), (0, 0)]).carried_on()), Some(9));
    }
}
