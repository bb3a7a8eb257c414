//! What wakes the waiters and the watchers of this process.
//!
//! Several requests with one token share a turn, and a wakeup reaches all of them: the client of
//! one may be gone. A waiter that subscribes before it acquires misses no wakeup, because its
//! receiver keeps one that comes before the waiter listens. A watcher that is slow misses hints,
//! and reads that it did. Where no lock is watched, a change costs one atomic read.
//!
//! Invariant: a hint that comes after a subscription reaches its reader, or the reader reads that
//! it missed one. Tested below, by the conformance tests of queues and by the tests of watches.

use std::time::Duration;

use futures_util::stream;
use tokio::sync::broadcast::{self, Receiver, Sender, error::RecvError};
use tokio::sync::watch;

use keylatch_core::entry::Entry;
use keylatch_core::idempotency::RecordState;
use keylatch_core::lock::{Change, GrantEnd, LockName, LockState, TokenHash};
use keylatch_core::store::{Hint, Hints};
use keylatch_core::waiters::{WaiterGuard, WaiterRegistry};

/// How many hints about a lock wait for a watcher that is slow.
const BACKLOG: usize = 64;
/// How many ends of grants, of all locks, wait for a listener that is slow.
const ENDS_BACKLOG: usize = 4096;

/// An entry whose changes wake waiters and are told to watchers, if it has any.
pub(crate) trait HintedEntry: Entry {
    /// The waiters that the change from `before` wakes. Those that the lock was free for are not
    /// among them: one that waits for other locks as well keeps its entry with every round, and
    /// would wake itself.
    fn new_wakeups(_: &Self::Key, _before: &Self, _: &Self) -> Vec<(LockName, TokenHash)> {
        Vec::new()
    }
    /// Reports to its watchers how it changed when it became `after`.
    fn report(&self, _: &Self::Key, _after: &Self, _now: Duration, _: &ChangeWatchers) {}
    /// Reports which grants ended unreleased when it became `after`.
    fn report_ends(&self, _: &Self::Key, _after: &Self, _: &EndListeners) {}
}

impl HintedEntry for LockState {
    fn new_wakeups(name: &LockName, before: &Self, state: &Self) -> Vec<(LockName, TokenHash)> {
        let is_new = |token: &&TokenHash| before.next_waiters().all(|earlier| earlier != *token);
        state.next_waiters().filter(is_new).map(|token| (name.clone(), *token)).collect()
    }

    fn report(&self, name: &LockName, after: &Self, now: Duration, changes: &ChangeWatchers) {
        for change in self.changes(after, name, now) {
            changes.report(name, change);
        }
    }

    fn report_ends(&self, name: &LockName, after: &Self, ends: &EndListeners) {
        for end in after.history().ends_after(self.history()) {
            ends.report(name, end);
        }
    }
}

/// Nobody waits for a record at the store, and nobody watches one.
impl HintedEntry for RecordState {}

/// The waiters of this process, by lock and token.
#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    waiters: WaiterRegistry<(LockName, TokenHash), watch::Sender<()>>,
}

impl Wakeups {
    /// A hint for each time that it may be the turn of `token` from now on.
    pub(crate) fn subscribe(&self, name: LockName, token: TokenHash) -> Hints {
        let waiter = self.waiters.join((name, token), || watch::Sender::new(()));
        let turns = waiter.subscribe();
        Box::pin(stream::unfold((waiter, turns), async |(waiter, mut turns)| {
            turns.changed().await.ok().map(|()| (Hint::Wakeup, (waiter, turns)))
        }))
    }

    /// Whether there is a waiter with this token.
    #[cfg(feature = "conditional")]
    pub(crate) fn has_waiter(&self, name: &LockName, token: &TokenHash) -> bool {
        !self.waiters.is_empty() && self.waiters.get(&(name.clone(), *token)).is_some()
    }

    /// Wakes the waiters with this token.
    pub(crate) fn wake(&self, name: &LockName, token: &TokenHash) {
        if self.waiters.is_empty() {
            return;
        }
        if let Some(waiter) = self.waiters.get(&(name.clone(), *token)) {
            waiter.send_replace(());
        }
    }

    /// Wakes all waiters, after hints may have been lost.
    #[cfg(feature = "conditional")]
    pub(crate) fn wake_all(&self) {
        for waiter in self.waiters.values() {
            waiter.send_replace(());
        }
    }
}

/// The watchers of this process, by lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChangeWatchers {
    watchers: WaiterRegistry<LockName, Sender<Hint>>,
}

/// One watcher of a lock.
struct Watcher {
    receiver: Receiver<Hint>,
    /// Keeps the sender.
    _guard: WaiterGuard<LockName, Sender<Hint>>,
}

impl ChangeWatchers {
    /// The changes of `name` from now on.
    pub(crate) fn subscribe(&self, name: LockName) -> Hints {
        let guard = self.watchers.join(name, || broadcast::channel(BACKLOG).0);
        let watcher = Watcher { receiver: guard.subscribe(), _guard: guard };
        Box::pin(stream::unfold(watcher, async |mut watcher| {
            next_of(&mut watcher.receiver).await.map(|hint| (hint, watcher))
        }))
    }

    /// Whether any lock is watched.
    pub(crate) fn any(&self) -> bool {
        !self.watchers.is_empty()
    }

    /// Whether `name` is watched.
    #[cfg(feature = "conditional")]
    pub(crate) fn is_watched(&self, name: &LockName) -> bool {
        self.any() && self.watchers.get(name).is_some()
    }

    /// Reports a change of `name` to its watchers.
    pub(crate) fn report(&self, name: &LockName, change: Change) {
        if let Some(watchers) = self.watchers.get(name) {
            // A watcher that is just leaving reads nothing more.
            let _ = watchers.send(Hint::Changed(change));
        }
    }

    /// Reports to the watchers of `name` that hints may have been lost.
    #[cfg(feature = "conditional")]
    pub(crate) fn report_missed_of(&self, name: &LockName) {
        if let Some(watchers) = self.watchers.get(name) {
            let _ = watchers.send(Hint::Missed);
        }
    }

    /// Reports to all watchers that hints may have been lost.
    #[cfg(feature = "conditional")]
    pub(crate) fn report_missed(&self) {
        for watchers in self.watchers.values() {
            let _ = watchers.send(Hint::Missed);
        }
    }
}

/// Those that listen in this process for how grants end.
#[derive(Debug)]
pub(crate) struct EndListeners(Sender<Hint>);

impl Default for EndListeners {
    fn default() -> Self {
        Self(broadcast::channel(ENDS_BACKLOG).0)
    }
}

impl EndListeners {
    /// The ends from now on.
    pub(crate) fn subscribe(&self) -> Hints {
        let ends = self.0.subscribe();
        Box::pin(stream::unfold(ends, async |mut ends| {
            next_of(&mut ends).await.map(|hint| (hint, ends))
        }))
    }

    /// Reports that a grant ended.
    pub(crate) fn report(&self, name: &LockName, end: &GrantEnd) {
        // A listener that is just leaving reads nothing more.
        let _ = self.0.send(Hint::Ended(name.clone(), end.clone()));
    }
}

/// The next hint, or that some were missed; `None` after the last.
async fn next_of(hints: &mut Receiver<Hint>) -> Option<Hint> {
    match hints.recv().await {
        Ok(hint) => Some(hint),
        Err(RecvError::Lagged(_)) => Some(Hint::Missed),
        Err(RecvError::Closed) => None,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};
    use keylatch_core::lock::Token;

    use super::*;

    #[test]
    fn wakeup_reaches_every_waiter_with_the_token_and_is_kept_for_it() {
        let wakeups = Wakeups::default();
        let name = LockName::parse("deploy").expect("a name");
        let [token, other] = ["the-token-that-they-share", "the-token-of-another-one"]
            .map(|token| Token::parse(token).expect("a token").hash());
        let subscribe = |token| wakeups.subscribe(name.clone(), token);
        let (mut first, mut second, mut third) =
            (subscribe(token), subscribe(token), subscribe(other));
        assert!(first.next().now_or_never().is_none(), "it is not its turn yet");
        wakeups.wake(&name, &token);
        for waiter in [&mut first, &mut second] {
            assert_eq!(waiter.next().now_or_never().flatten(), Some(Hint::Wakeup));
            assert!(waiter.next().now_or_never().is_none(), "one wakeup came twice");
        }
        assert!(third.next().now_or_never().is_none(), "another token was woken");
    }
}
