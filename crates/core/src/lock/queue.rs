//! The waiters of one lock, first come, first served.
//!
//! An entry lasts for a span and is kept by acquiring again with the same token. Its label is what
//! the last request says that kept it; the moment at which the waiter joined stays. A queue is
//! copied with the state of its lock, so it is shared until it changes, and an empty queue takes no
//! memory.
//!
//! A client whose connection died asks again with its token while its old request still keeps the
//! place. So the newest request of a token owns its entry together with every older one that still
//! renews it. The last of them to end removes the entry. Invariants: a token has at most one entry;
//! a request that leaves takes no place that another one keeps. The conformance tests of queues
//! hold every store to it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::history::{Break, EndCause, GrantEnd};
use super::{AcquireCommand, Attempt, FencingToken, Limit, Moment, Owner, TokenHash, Waiter};
use crate::snapshot::deserialize_time;

/// Up to how many requests that renew one entry the queue remembers by themselves.
const KEEPERS_MAX: usize = 8;

/// The waiters of a lock in the order in which they came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WaitQueue {
    entries: Option<Arc<Vec<QueueEntry>>>,
}

/// The place of one waiter in a [`WaitQueue`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueEntry {
    /// The waiter.
    pub token: TokenHash,
    /// The last attempts of the requests that keep the entry. Each withdraws its own, and the last
    /// of them the entry. None where more keep it than are counted: then it ends when no request
    /// has kept it for its span.
    pub attempts: Vec<Attempt>,
    /// When the waiter last asked, on the store's monotonic clock.
    #[serde(deserialize_with = "deserialize_time")]
    pub since: Duration,
    /// How long the entry lasts from then.
    #[serde(deserialize_with = "deserialize_time")]
    pub lasts: Duration,
    /// How many may hold the lock together with the waiter, once it holds it.
    pub limit: Limit,
    /// The waiter's label.
    pub owner: Option<Owner>,
    /// When the waiter joined the queue, on the same clock as `since`. For people to read; no rule
    /// asks for it.
    #[serde(deserialize_with = "deserialize_time")]
    pub joined: Duration,
    /// Which wait it is, for those that may not see its token: the number of the request that
    /// joined.
    pub number: u64,
}

impl QueueEntry {
    /// The entry of a waiter that asks for the lock at `now` for the first time.
    pub(super) fn of(command: &AcquireCommand, lasts: Duration, now: Duration) -> Self {
        let AcquireCommand { token, attempt, limit, .. } = *command;
        let owner = command.owner.clone();
        let (attempts, number) = (vec![attempt], attempt.request());
        Self { token, attempts, since: now, lasts, limit, owner, joined: now, number }
    }

    /// The waiter as any client may see it.
    pub(super) fn public(&self, now: Duration) -> Waiter {
        let waited = now.saturating_sub(self.joined);
        Waiter { owner: self.owner.clone(), waited, limit: self.limit, number: self.number }
    }

    /// The attempts that keep the place after `attempt` has asked for it too.
    fn attempts_with(&self, attempt: Attempt) -> Vec<Attempt> {
        if !attempt.keeps_entry() {
            return vec![attempt];
        }
        let others = self.attempts.iter().filter(|other| !other.is_of_request_of(attempt));
        let mut attempts: Vec<_> = others.copied().collect();
        if self.attempts.is_empty() || attempts.len() >= KEEPERS_MAX {
            return Vec::new();
        }
        attempts.push(attempt);
        attempts
    }

    pub(super) fn expires(&self) -> Duration {
        self.since + self.lasts
    }

    fn has_expired(&self, now: Duration) -> bool {
        self.expires() <= now
    }
}

impl WaitQueue {
    /// How many are before `token`: all, if it has no entry.
    pub(super) fn ahead_of(&self, token: &TokenHash) -> u64 {
        self.position(token).unwrap_or(self.entries().len()) as u64
    }

    /// Keeps an entry: in the place of the one that its token has, or at the end.
    pub(super) fn join(&mut self, entry: QueueEntry) {
        let position = self.position(&entry.token);
        let entries = Arc::make_mut(self.entries.get_or_insert_default());
        match position {
            Some(position) => {
                let before = &mut entries[position];
                let attempts = entry.attempts.first().map(|attempt| before.attempts_with(*attempt));
                let attempts = attempts.unwrap_or_default();
                let QueueEntry { joined, number, .. } = *before;
                *before = QueueEntry { attempts, joined, number, ..entry };
            }
            None => entries.push(entry),
        }
    }

    /// Removes the entry of `token`: in any case, or if no attempt keeps it but this one, which
    /// keeps it no more.
    pub(super) fn leave(&mut self, token: &TokenHash, attempt: Option<Attempt>) {
        let Some(left) = self.position(token) else { return };
        if let Some(attempt) = attempt {
            let attempts = &self.entries()[left].attempts;
            if !attempts.contains(&attempt) {
                return;
            }
            if attempts.len() > 1 {
                let entries = Arc::make_mut(self.entries.get_or_insert_default());
                return entries[left].attempts.retain(|other| *other != attempt);
            }
        }
        let rest = self.entries().iter().enumerate().filter(|(position, _)| *position != left);
        *self = rest.map(|(_, entry)| entry.clone()).collect();
    }

    /// Removes the entry with this number, and gives the end of its wait.
    pub(super) fn end_wait(
        &mut self,
        number: FencingToken,
        why: Arc<Break>,
        moment: &Moment,
    ) -> Option<GrantEnd> {
        let entry = self.entries().iter().find(|entry| entry.number == number.get())?;
        let end = GrantEnd {
            token: entry.token,
            fencing_token: number,
            owner: entry.owner.clone(),
            acquired_at_millis: moment.date_of(entry.joined),
            ended_at_millis: why.at_millis,
            cause: EndCause::WaitEnd { why, since: moment.now },
        };
        self.leave(&end.token, None);
        Some(end)
    }

    /// The attempt that may withdraw what `attempt` gets for the place of `token`.
    pub(super) fn sole_attempt(&self, token: &TokenHash, attempt: Attempt) -> Option<Attempt> {
        let Some(entry) = self.find(token) else { return Some(attempt) };
        Some(attempt).filter(|attempt| entry.attempts_with(*attempt) == [*attempt])
    }

    /// The entry of `token`.
    pub(super) fn find(&self, token: &TokenHash) -> Option<&QueueEntry> {
        self.position(token).map(|position| &self.entries()[position])
    }

    pub(super) fn len(&self) -> u64 {
        self.entries().len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }

    /// Takes away the entries that have expired at `now`.
    pub(super) fn settle(&mut self, now: Duration) {
        if self.is_stale(now) {
            let live = self.entries().iter().filter(|entry| !entry.has_expired(now));
            *self = live.cloned().collect();
        }
    }

    /// Whether an entry has expired at `now`.
    pub(super) fn is_stale(&self, now: Duration) -> bool {
        self.entries().iter().any(|entry| entry.has_expired(now))
    }

    /// The waiters as any client may see them at `now`, first come first.
    pub(super) fn public(&self, now: Duration) -> Vec<Waiter> {
        self.entries().iter().map(|entry| entry.public(now)).collect()
    }

    /// The entries, first come first.
    pub fn entries(&self) -> &[QueueEntry] {
        self.entries.as_deref().map_or(&[], Vec::as_slice)
    }

    fn position(&self, token: &TokenHash) -> Option<usize> {
        self.entries().iter().position(|entry| entry.token == *token)
    }
}

impl FromIterator<QueueEntry> for WaitQueue {
    fn from_iter<I: IntoIterator<Item = QueueEntry>>(entries: I) -> Self {
        let entries: Vec<_> = entries.into_iter().collect();
        Self { entries: (!entries.is_empty()).then(|| Arc::new(entries)) }
    }
}
