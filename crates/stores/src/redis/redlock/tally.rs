//! The count of the replies in a round, and the decision that follows from it.
//!
//! Only the nodes that may vote count, and a decision falls once further replies could not change it.
//! A node that did not reply, or whose reply was lost, may have executed its command: it is among
//! those that [may have granted](Tally::maybe_granted) the lock.
//!
//! Invariant: what others see of a lock needs a quorum with the same fencing token, and "not held"
//! needs that no quorum can have one (docs/internals/redlock.md, "What others see"). Tested over real
//! nodes with arranged grants, by the tests of Redlock's agreement.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::time::Duration;

use super::command::ReleaseReport;
use super::command::{Ballot, LockReport, NodeGrant, Promise};
use super::node::NodeResult;
use keylatch_core::lock::{FencingToken, Holder, LockName, ReleaseReply};
use keylatch_core::store::{Effect, StoreError};

/// The count of the nodes' reports in one round.
#[derive(Debug)]
pub(super) struct Tally {
    nodes: usize,
    quorum: usize,
    /// The reports of the nodes that may vote.
    pub(super) reports: BTreeMap<usize, LockReport>,
    /// The nodes where the command's token may have the lock now, whether they vote or not.
    pub(super) maybe_granted: BTreeSet<usize>,
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
    /// Too few nodes voted.
    NoQuorum,
}

impl Tally {
    /// A tally without a reply.
    pub(super) fn new(nodes: usize, quorum: usize) -> Self {
        let (reports, maybe_granted) = (BTreeMap::new(), BTreeSet::new());
        Self { nodes, quorum, reports, maybe_granted, last_error: None }
    }

    /// Counts a reply.
    pub(super) fn add(&mut self, node: usize, reply: NodeResult<LockReport>) {
        match reply {
            Ok(reply) => {
                if reply.value.own_grant().is_some() {
                    self.maybe_granted.insert(node);
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
                    self.maybe_granted.insert(node);
                }
                self.last_error = Some(error);
            }
        }
    }

    fn own_grants(&self) -> impl Iterator<Item = &NodeGrant> {
        self.reports.values().filter_map(LockReport::own_grant)
    }

    fn competing_grants(&self) -> impl Iterator<Item = &NodeGrant> {
        self.reports.values().filter_map(LockReport::competing_grant)
    }

    /// The promises of the nodes where the own token has the lock.
    pub(super) fn promises(&self) -> BTreeMap<usize, Promise> {
        let promises = self.reports.iter().map(|(node, report)| (*node, report.promise()));
        promises.filter_map(|(node, promise)| Some((node, promise?))).collect()
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

    /// Whether further replies would change neither which token has the lock, nor the proposal under
    /// this ballot.
    pub(super) fn decides_proposal(&self, ballot: Ballot) -> bool {
        let promises = self.own_grants().filter(|grant| grant.promised == ballot).count();
        promises >= self.quorum || self.decides_chosen() || self.is_with_competitor()
    }

    /// Whether a fencing token is chosen for the own token, or another token holds the lock.
    pub(super) fn decides_chosen(&self) -> bool {
        with_same_accept(self.own_grants()).len() >= self.quorum
            || self.decision() == Decision::Held
    }

    fn is_with_competitor(&self) -> bool {
        self.strongest_competitor().len() >= self.quorum && self.decision() != Decision::Undecided
    }

    /// The highest ballot that a node promised to an attempt with the own token.
    pub(super) fn highest_promise(&self) -> Option<Ballot> {
        self.own_grants().map(|grant| grant.promised).max()
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

    /// The holder and its remaining time, if a quorum has the same fencing token.
    pub(super) fn holder(&self, name: &LockName) -> Option<Holder> {
        let held = self.held_grants();
        let latest = held.iter().max_by_key(|grant| grant.accepted)?;
        let expires_in = time_at_quorum(self.quorum, held.iter().map(|grant| grant.expires_in))?;
        let acquired = held.iter().map(|grant| grant.acquired_at_millis).min();
        Some(Holder {
            expires_in,
            acquired_at_millis: acquired.unwrap_or(latest.acquired_at_millis),
            ..latest.holder(name)
        })
    }

    /// Why there is no quorum. Its effect is unknown if an earlier round `may_have_granted` the lock,
    /// or if so many nodes may have given it in this one that they would be a quorum. With fewer, no
    /// other client can see the lock as held.
    pub(super) fn error(&mut self, may_have_granted: bool) -> StoreError {
        let maybe_done = may_have_granted || self.maybe_granted.len() >= self.quorum;
        no_quorum(self.reports.len(), self.nodes, maybe_done, self.last_error.take())
    }
}

/// The grants with the same token and fencing token, of the one that most nodes have; of two the
/// higher one.
fn with_same_fencing_token<'a>(grants: impl Iterator<Item = &'a NodeGrant>) -> Vec<&'a NodeGrant> {
    largest_group(grants, |grant| (grant.fencing_token, &*grant.token))
}

/// The grants whose fencing token was accepted under the same ballot, of the one that most nodes
/// have. If they are a quorum, it is chosen.
pub(super) fn with_same_accept<'a>(
    grants: impl Iterator<Item = &'a NodeGrant>,
) -> Vec<&'a NodeGrant> {
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

/// The count of the nodes' replies to a release.
#[derive(Debug)]
pub(super) struct ReleaseTally {
    nodes: usize,
    quorum: usize,
    released: usize,
    mismatched: usize,
    free: usize,
    /// Whether a node may have released the lock.
    maybe_released: bool,
    last_error: Option<StoreError>,
}

impl ReleaseTally {
    /// A tally without a reply.
    pub(super) fn new(nodes: usize, quorum: usize) -> Self {
        Self {
            nodes,
            quorum,
            released: 0,
            mismatched: 0,
            free: 0,
            maybe_released: false,
            last_error: None,
        }
    }

    /// Counts a reply.
    pub(super) fn add(&mut self, reply: NodeResult<ReleaseReport>) {
        match reply {
            Ok(reply) => {
                let released = reply.value.0 == "released";
                self.maybe_released |= released;
                match reply.value.0.as_str() {
                    _ if !reply.votes => {}
                    _ if released => self.released += 1,
                    "mismatch" => self.mismatched += 1,
                    _ => self.free += 1,
                }
            }
            Err(error) => {
                self.maybe_released |= error.effect() == Effect::Unknown;
                self.last_error = Some(error);
            }
        }
    }

    /// What the release comes to, once further replies could not change it.
    pub(super) fn decision(&self) -> Option<ReleaseReply> {
        let missing = self.nodes - self.votes();
        if self.released >= self.quorum {
            Some(ReleaseReply::Released)
        } else if self.mismatched >= self.quorum {
            Some(ReleaseReply::Mismatch)
        } else if self.released.max(self.mismatched) + missing < self.quorum {
            Some(ReleaseReply::NotHeld)
        } else {
            None
        }
    }

    fn votes(&self) -> usize {
        self.released + self.mismatched + self.free
    }

    /// Why there is no quorum. A repeat may reach the rest of the nodes, so its effect is unknown as
    /// soon as one node may have released the lock, or `is_unanswered`.
    pub(super) fn error(self, is_unanswered: bool) -> StoreError {
        let maybe_released = self.maybe_released || is_unanswered;
        no_quorum(self.votes(), self.nodes, maybe_released, self.last_error)
    }
}

/// Too few nodes voted.
pub(super) fn no_quorum(
    votes: usize,
    nodes: usize,
    maybe_done: bool,
    last: Option<StoreError>,
) -> StoreError {
    let why = last.and_then(|error| error.source().map(ToString::to_string));
    let why = why.unwrap_or_else(|| "the others gave no answer in time".to_owned());
    let cause = format!("{votes} of {nodes} nodes voted, which decides nothing: {why}").into();
    if maybe_done { StoreError::Lost(cause) } else { StoreError::Unreachable(cause) }
}

/// The time that a quorum of `times` reaches.
pub(super) fn time_at_quorum(
    quorum: usize,
    times: impl Iterator<Item = Duration>,
) -> Option<Duration> {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable_by(|a, b| b.cmp(a));
    times.get(quorum - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::super::command::testing::{ReportedGrant, report};
    use super::super::node::NodeReply;
    use super::*;

    /// A tally of five nodes with a quorum of three, of these: (found, token, fencing token).
    fn tally<const N: usize>(reports: [(&str, &str, u64); N]) -> Tally {
        let mut tally = Tally::new(5, 3);
        for (node, (found, token, fencing_token)) in reports.into_iter().enumerate() {
            let value = report(
                found,
                token,
                &ReportedGrant { fencing_token, ballot: fencing_token, by: 1 },
            );
            tally.add(node, Ok(NodeReply { value, votes: true }));
        }
        tally
    }

    #[test]
    fn lock_is_held_if_a_quorum_has_the_same_fencing_token() {
        let other = |fencing_token| ("competing", "b", fencing_token);
        let decision = |fences: [u64; 4]| tally(fences.map(other)).decision();
        assert_eq!(decision([7, 7, 7, 0]), Decision::Held);
        assert_eq!(decision([7, 7, 0, 0]), Decision::Undecided, "the fifth decides");
        assert_eq!(decision([7, 9, 0, 0]), Decision::NotHeld);
        assert_eq!(decision([0; 4]), Decision::NotHeld, "nothing was accepted");
    }

    #[test]
    fn contender_with_fewer_nodes_or_the_larger_hash_gives_way() {
        let (own, other) = (("own", "m", 0), ("competing", "a", 0));
        let after = ("competing", "z", 0);
        let decision = |reports: [_; 5]| tally(reports).acquire_decision("m");
        assert_eq!(decision([own, own, own, other, other]), AcquireDecision::Granted);
        assert_eq!(decision([own, own, other, after, after]), AcquireDecision::Contended);
        assert_eq!(decision([own, own, other, other, after]), AcquireDecision::Held);
        assert_eq!(decision([own, other, other, after, after]), AcquireDecision::Held);
    }

    #[test]
    fn acquire_without_a_quorum_of_votes_is_undecided() {
        let (own, other) = (("own", "m", 0), ("competing", "a", 0));
        assert_eq!(tally([own, own]).acquire_decision("m"), AcquireDecision::NoQuorum);
        assert_eq!(tally([own, other]).acquire_decision("m"), AcquireDecision::NoQuorum);
        let accepted = tally([("own", "m", 7), ("competing", "a", 0), ("competing", "a", 0)]);
        assert_eq!(accepted.acquire_decision("m"), AcquireDecision::Undecided, "two may have 7");
    }

    #[test]
    fn node_in_quarantine_does_not_vote_but_may_have_granted() {
        let mut tally = tally([("own", "m", 0), ("own", "m", 0)]);
        let value = report("granted", "m", &ReportedGrant { fencing_token: 0, ballot: 0, by: 0 });
        tally.add(2, Ok(NodeReply { value, votes: false }));
        assert_eq!(tally.acquire_decision("m"), AcquireDecision::NoQuorum);
        assert_eq!(tally.maybe_granted.len(), 3);
        assert_eq!(tally.error(false).effect(), Effect::Unknown, "three nodes may have granted it");
    }

    #[test]
    fn quorum_of_times_is_the_least_that_a_quorum_has() {
        let times = [1, 9, 5, 7].map(Duration::from_secs);
        assert_eq!(time_at_quorum(3, times.into_iter()), Some(Duration::from_secs(5)));
        assert_eq!(time_at_quorum(5, times.into_iter()), None);
    }
}
