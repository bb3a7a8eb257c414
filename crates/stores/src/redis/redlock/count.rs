use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::agree;
use super::ballot::Ballot;
use super::round::Answer;
use super::vote::{Grant, Vote};
use keylatch_core::lock::{Holder, LockName};
use keylatch_core::store::{Effect, StoreError};

/// The answers of a round, counted.
#[derive(Debug)]
pub(super) struct Count {
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
    /// Another may hold it, or whoever asked, or nobody.
    Unclear,
    /// Several contend, nobody has a quorum, and whoever asked has the best right to go on.
    Tied,
    /// Too few nodes voted.
    Silent,
}

/// What the nodes show of a lock to others than its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// A quorum agrees on a grant with its fencing token.
    Held,
    /// No quorum does, so nobody was told that the lock is theirs and has it still.
    Nobody,
    /// Those who did not vote decide it.
    Unclear,
}

impl Count {
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
                if error.effect() == Effect::Unknown {
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

    /// The others' grants that most nodes agree on.
    pub(super) fn held(&self) -> Vec<&Grant> {
        agree::agreed(self.votes.values().filter_map(Vote::other))
    }

    /// The grants of whoever asked that most nodes agree on.
    fn own(&self) -> Vec<&Grant> {
        agree::agreed(self.votes.values().filter_map(Vote::mine))
    }

    /// What these votes show of the lock.
    pub(super) fn look(&self) -> Look {
        let held = self.held().len();
        if held >= self.quorum {
            Look::Held
        } else if held + self.missing() < self.quorum {
            Look::Nobody
        } else {
            Look::Unclear
        }
    }

    /// Whether more votes would not change who has the lock, nor what it is to be settled with under this
    /// ballot.
    pub(super) fn is_decided(&self, ballot: Ballot) -> bool {
        let promises = self.mine_as(|grant| grant.promised == ballot);
        promises >= self.quorum || self.is_settled() || self.is_others()
    }

    /// Whether the lock is another's, or a quorum agrees already on the grant of whoever asked.
    pub(super) fn is_settled(&self) -> bool {
        let mine = agree::taken(self.votes.values().filter_map(Vote::mine));
        mine.len() >= self.quorum || self.look() == Look::Held
    }

    fn is_others(&self) -> bool {
        self.other().len() >= self.quorum && self.look() != Look::Unclear
    }

    fn mine_as(&self, is: impl Fn(&Grant) -> bool) -> usize {
        self.votes.values().filter_map(Vote::mine).filter(|grant| is(grant)).count()
    }

    /// The highest ballot that a node promised to an attempt with the same token.
    pub(super) fn highest_promise(&self) -> Option<Ballot> {
        self.votes.values().filter_map(Vote::mine).map(|grant| grant.promised).max()
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
        if self.votes.len() < self.quorum {
            return Verdict::Silent;
        }
        let first_comes = other.len() > mine || other.len() == mine && *first.token < *token;
        match self.look() {
            Look::Held => Verdict::Held,
            // Whoever asked may have it himself, on nodes that did not vote.
            _ if self.own().len() + self.missing() >= self.quorum => Verdict::Unclear,
            Look::Unclear => Verdict::Unclear,
            Look::Nobody if first_comes => Verdict::Held,
            Look::Nobody => Verdict::Tied,
        }
    }

    /// Who has the lock, if a quorum agrees on it, and for how long it does.
    pub(super) fn holder(&self, name: &LockName) -> Option<Holder> {
        let held = self.held();
        let latest = held.iter().max_by_key(|grant| grant.accepted)?;
        let expires_in = guaranteed(self.quorum, held.iter().map(|grant| grant.expires_in))?;
        let acquired = held.iter().map(|grant| grant.acquired_at_millis).min();
        Some(Holder {
            expires_in,
            acquired_at_millis: acquired.unwrap_or(latest.acquired_at_millis),
            ..latest.holder(name)
        })
    }

    /// Why there is no quorum. Whoever asked may be seen to have the lock if that `may_be` by what was
    /// done before, or so many nodes may have given it that they would be a quorum; with fewer, nothing
    /// was done.
    pub(super) fn error(&mut self, may_be: bool) -> StoreError {
        let maybe_done = may_be || self.suspects.len() >= self.quorum;
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
