//! The waiters of one lock, first come, first served.
//!
//! An entry lasts for a span and is kept by acquiring again with the same token. A queue is copied
//! with the state of its lock, so it is shared until it changes, and an empty queue takes no memory.
//! Invariant: a token has at most one entry. The conformance tests of queues hold every store to it.

use std::sync::Arc;
use std::time::Duration;

use super::{AcquireCommand, Attempt, Limit, TokenHash};

/// The waiters of a lock in the order in which they came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WaitQueue {
    entries: Option<Arc<Vec<QueueEntry>>>,
}

/// The place of one waiter in a [`WaitQueue`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueEntry {
    /// The waiter.
    pub token: TokenHash,
    /// The last attempt that asked for the entry: that one may withdraw it.
    pub attempt: Attempt,
    /// When the waiter last asked, on the store's monotonic clock.
    pub since: Duration,
    /// How long the entry lasts from then.
    pub lasts: Duration,
    /// How many may hold the lock together with the waiter, once it holds it.
    pub limit: Limit,
}

impl QueueEntry {
    /// The entry of a waiter that asks for the lock at `now`.
    pub(super) fn of(command: &AcquireCommand, lasts: Duration, now: Duration) -> Self {
        let AcquireCommand { token, attempt, limit, .. } = *command;
        Self { token, attempt, since: now, lasts, limit }
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
            Some(position) => entries[position] = entry,
            None => entries.push(entry),
        }
    }

    /// Removes the entry of `token`, if `attempt` was the last to ask for it, or in any case.
    pub(super) fn leave(&mut self, token: &TokenHash, attempt: Option<Attempt>) {
        let Some(left) = self.position(token) else { return };
        if attempt.is_none_or(|attempt| attempt == self.entries()[left].attempt) {
            let rest = self.entries().iter().enumerate().filter(|(position, _)| *position != left);
            *self = rest.map(|(_, entry)| entry.clone()).collect();
        }
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

    /// The queue without the entries that have expired at `now`.
    pub(super) fn live(&self, now: Duration) -> Self {
        if self.is_stale(now) {
            self.entries().iter().filter(|entry| !entry.has_expired(now)).cloned().collect()
        } else {
            self.clone()
        }
    }

    /// Whether an entry has expired at `now`.
    pub(super) fn is_stale(&self, now: Duration) -> bool {
        self.entries().iter().any(|entry| entry.has_expired(now))
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
