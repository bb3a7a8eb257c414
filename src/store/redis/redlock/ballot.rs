use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::round::Answer;
use super::vote::{Grant, Vote};
use crate::lock::{FencingToken, Holder, LockName, Outcome, StoreError};

/// The answers of a round, counted.
#[derive(Debug)]
pub(super) struct Ballot {
    nodes: usize,
    quorum: usize,
    /// What was said by those who may vote.
    pub(super) votes: BTreeMap<usize, Vote>,
    /// Where the lock may now be with whoever asked, be it that it does not count or that nobody knows.
    pub(super) suspects: BTreeSet<usize>,
    last_error: Option<StoreError>,
}

/// What an acquire came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A quorum gave the lock to whoever asked.
    Won,
    /// Another has a quorum, or at least more of the nodes.
    Held,
    /// Several contend, nobody has a quorum, and whoever asked has the best right to go on.
    Tied,
    /// Too few nodes voted.
    Silent,
}

impl Ballot {
    pub(super) fn new(nodes: usize, quorum: usize) -> Self {
        let (votes, suspects) = (BTreeMap::new(), BTreeSet::new());
        Self { nodes, quorum, votes, suspects, last_error: None }
    }

    pub(super) fn add(&mut self, node: usize, answer: Answer<Vote>) {
        match answer {
            Ok(said) => {
                if said.what.mine().is_some() {
                    self.suspects.insert(node);
                }
                if said.votes {
                    self.votes.insert(node, said.what);
                } else {
                    let why = "a node came up lately and does not vote yet";
                    self.last_error = Some(StoreError::Refused(why.into()));
                }
            }
            Err(error) => {
                if error.outcome() == Outcome::Unknown {
                    self.suspects.insert(node);
                }
                self.last_error = Some(error);
            }
        }
    }

    /// How many have the lock with whoever asked.
    pub(super) fn mine(&self) -> usize {
        self.votes.values().filter(|vote| vote.mine().is_some()).count()
    }

    /// How many did not vote.
    pub(super) fn missing(&self) -> usize {
        self.nodes - self.votes.len()
    }

    /// The grants of that other token which most have, and of two the one whose hash is less.
    pub(super) fn other(&self) -> Vec<&Grant> {
        let mut grants: BTreeMap<&str, Vec<&Grant>> = BTreeMap::new();
        for grant in self.votes.values().filter_map(Vote::other) {
            grants.entry(&grant.token).or_default().push(grant);
        }
        let most = grants.into_iter().rev().max_by_key(|(_, grants)| grants.len());
        most.map(|(_, grants)| grants).unwrap_or_default()
    }

    /// Whether more votes would not change who has the lock.
    pub(super) fn is_decided(&self) -> bool {
        self.mine() >= self.quorum || self.other().len() >= self.quorum
    }

    /// What an acquire with this token hash came to.
    ///
    /// Of two who contend the one with more nodes goes on, or the one whose hash is less, and the other
    /// takes back what it got: they see the same nodes, so they agree.
    pub(super) fn verdict(&self, token: &str) -> Verdict {
        let (mine, other) = (self.mine(), self.other());
        if mine >= self.quorum {
            return Verdict::Won;
        }
        let Some(first) = other.first() else { return Verdict::Silent };
        if other.len() < self.quorum && self.votes.len() < self.quorum {
            return Verdict::Silent;
        }
        let first_comes = other.len() > mine || other.len() == mine && *first.token < *token;
        if first_comes { Verdict::Held } else { Verdict::Tied }
    }

    /// Who has the lock, as far as it is known: for how long a quorum has it, where there is one.
    pub(super) fn holder(&self, name: &LockName) -> Option<Holder> {
        let other = self.other();
        let latest = other.iter().max_by_key(|grant| grant.fence)?;
        let expires_in = guaranteed(self.quorum, other.iter().map(|grant| grant.expires_in));
        let acquired = other.iter().map(|grant| grant.acquired_at_millis).min();
        Some(Holder {
            expires_in: expires_in.unwrap_or(latest.expires_in),
            acquired_at_millis: acquired.unwrap_or(latest.acquired_at_millis),
            ..latest.holder(name)
        })
    }

    /// Why there is no quorum. Whoever asked may be seen to have the lock if so many nodes may have given
    /// it to him that they would be a quorum; with fewer, nothing was done.
    pub(super) fn error(&mut self) -> StoreError {
        let maybe_done = self.suspects.len() >= self.quorum;
        no_quorum(self.votes.len(), self.nodes, maybe_done, self.last_error.take())
    }
}

/// Too few nodes voted.
pub(super) fn no_quorum(
    votes: usize,
    nodes: usize,
    maybe_done: bool,
    last: Option<StoreError>,
) -> StoreError {
    let why = last.and_then(|error| std::error::Error::source(&error).map(ToString::to_string));
    let why = why.unwrap_or_else(|| "the others gave no answer in time".to_owned());
    let cause = format!("{votes} of {nodes} nodes voted, which decides nothing: {why}").into();
    if maybe_done { StoreError::Lost(cause) } else { StoreError::Unreachable(cause) }
}

/// What a quorum of `times` reaches.
pub(super) fn guaranteed(quorum: usize, times: impl Iterator<Item = Duration>) -> Option<Duration> {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable_by(|a, b| b.cmp(a));
    times.get(quorum - 1).copied()
}

/// The fencing token of a grant, from what its nodes say: the one that it was given before, if a quorum
/// takes or has that one, and else one above every counter and not below any of the clocks.
pub(super) fn next_fence(votes: &BTreeMap<usize, Vote>, quorum: usize) -> FencingToken {
    let grants = || votes.values().filter_map(Vote::mine);
    let given = grants().map(|grant| grant.fence).max().unwrap_or_default();
    let takes = |grant: &&Grant| grant.fence == given || grant.floor < given;
    if given > FencingToken::NONE && grants().filter(takes).count() >= quorum {
        return given;
    }
    let last = votes.values().map(|vote| vote.counter).max().unwrap_or_default();
    last.next(votes.values().map(|vote| vote.micros).max().unwrap_or_default())
}
