//! What wakes the waiters of this process, and what its watchers and listeners hear.
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
use keylatch_core::lock::{LockName, LockState, TokenHash};
use keylatch_core::store::{Hint, Hints, Topic};
use keylatch_core::waiters::WaiterRegistry;

/// How many hints about a lock wait for a watcher that is slow.
const BACKLOG: usize = 64;
/// How many ends of grants, of all locks, wait for a listener that is slow.
const ENDS_BACKLOG: usize = 4096;

/// Whose turn it is: some bits of the hash of a waiter's token, from which nothing follows about
/// the token. Two tokens that share them are woken together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TurnMark(pub u32);

impl TurnMark {
    /// The mark of the waiter with this token.
    pub fn of(token: &TokenHash) -> Self {
        let [a, b, c, d, ..] = *token.as_bytes();
        Self(u32::from_be_bytes([a, b, c, d]))
    }
}

/// An entry, which may be a lock. Nobody waits for a record at the store, and nobody watches one.
pub(crate) trait HintedEntry: Entry {
    /// The lock that has this key, if it is one.
    fn lock_name(_: &Self::Key) -> Option<&LockName> {
        None
    }
    /// The lock, if it is one.
    fn as_lock(&self) -> Option<&LockState> {
        None
    }
}

impl HintedEntry for LockState {
    fn lock_name(name: &LockName) -> Option<&LockName> {
        Some(name)
    }

    fn as_lock(&self) -> Option<&LockState> {
        Some(self)
    }
}

impl HintedEntry for RecordState {}

/// The waiters whose turn comes by the change from `before`. Those that the lock was free for are
/// not among them: one that waits for other locks as well keeps its entry with every round, and
/// would wake itself.
pub(crate) fn new_turns<E: HintedEntry>(before: &E, after: &E) -> Vec<TurnMark> {
    let Some((before, after)) = before.as_lock().zip(after.as_lock()) else { return Vec::new() };
    let is_new = |token: &&TokenHash| before.next_waiters().all(|earlier| earlier != *token);
    after.next_waiters().filter(is_new).map(TurnMark::of).collect()
}

/// The waiters, watchers and listeners of this process.
#[derive(Debug)]
pub(crate) struct LocalHints {
    turns: WaiterRegistry<(LockName, TurnMark), watch::Sender<()>>,
    changes: WaiterRegistry<LockName, Sender<Hint>>,
    ends: Sender<Hint>,
    /// The locks that something here waits for or watches.
    interest: WaiterRegistry<LockName, ()>,
}

impl Default for LocalHints {
    fn default() -> Self {
        Self {
            turns: WaiterRegistry::default(),
            changes: WaiterRegistry::default(),
            ends: broadcast::channel(ENDS_BACKLOG).0,
            interest: WaiterRegistry::default(),
        }
    }
}

impl LocalHints {
    /// Hints from now on: for each time that it may be the turn of a token, of the changes of a
    /// lock, or of how grants end. The stream keeps its place in the registries.
    pub(crate) fn subscribe(&self, topic: Topic) -> Hints {
        match topic {
            Topic::Turn(name, token) => {
                let interest = self.interest.join(name.clone(), || ());
                let turn = (name, TurnMark::of(&token));
                let waiter = self.turns.join(turn, || watch::Sender::new(()));
                let turns = waiter.subscribe();
                let state = (turns, waiter, interest);
                Box::pin(stream::unfold(state, async |mut state| {
                    state.0.changed().await.ok().map(|()| (Hint::Wakeup, state))
                }))
            }
            Topic::Changes(name) => {
                let interest = self.interest.join(name.clone(), || ());
                let watchers = self.changes.join(name, || broadcast::channel(BACKLOG).0);
                told(watchers.subscribe(), (watchers, interest))
            }
            Topic::Ends => told(self.ends.subscribe(), ()),
        }
    }

    /// Wakes the waiters that the lock is free for, and was not when the entry was as `before`.
    pub(crate) fn wake<E: HintedEntry>(&self, key: &E::Key, before: &E, after: &E) {
        let Some(name) = E::lock_name(key).filter(|_| !self.turns.is_empty()) else { return };
        for turn in new_turns(before, after) {
            self.wake_turn(name, turn);
        }
    }

    fn wake_turn(&self, name: &LockName, turn: TurnMark) {
        if let Some(waiter) = self.turns.get(&(name.clone(), turn)) {
            waiter.send_replace(());
        }
    }

    /// Reports to its watchers how an entry changed when it became `after`.
    pub(crate) fn report<E: HintedEntry>(
        &self,
        key: &E::Key,
        before: &E,
        after: &E,
        now: Duration,
    ) {
        let Some(name) = E::lock_name(key).filter(|_| !self.changes.is_empty()) else { return };
        if let Some((watchers, (before, after))) =
            self.changes.get(name).zip(before.as_lock().zip(after.as_lock()))
        {
            for change in before.changes(after, name, now) {
                // A watcher that is just leaving reads nothing more.
                let _ = watchers.send(Hint::Changed(change));
            }
        }
    }

    /// Reports to the listeners which grants ended unreleased when an entry became `after`.
    pub(crate) fn report_ends<E: HintedEntry>(&self, key: &E::Key, before: &E, after: &E) {
        let states = before.as_lock().zip(after.as_lock());
        if let Some((name, (before, after))) = E::lock_name(key).zip(states) {
            for end in after.history().ends_after(before.history()) {
                // A listener that is just leaving reads nothing more.
                let _ = self.ends.send(Hint::Ended(name.clone(), end.clone()));
            }
        }
    }
}

/// What a store needs that hears of other processes: a notice of one costs a read only where
/// something here waits for the lock or watches it.
#[cfg(feature = "conditional")]
impl LocalHints {
    /// Whether something here waits for the lock or watches it.
    pub(crate) fn is_of_interest(&self, name: &LockName) -> bool {
        self.interest.get(name).is_some()
    }

    /// Whether something here watches the lock, or waits for it and has one of these turns.
    pub(crate) fn is_for_one_here(&self, name: &LockName, turns: &[TurnMark]) -> bool {
        self.changes.get(name).is_some() || self.is_waiting(name, turns)
    }

    /// Whether a waiter of this process is among those that [`Self::wake`] would wake.
    pub(crate) fn waits_for_turn<E: HintedEntry>(
        &self,
        key: &E::Key,
        before: &E,
        after: &E,
    ) -> bool {
        let name = E::lock_name(key).filter(|_| !self.turns.is_empty());
        name.is_some_and(|name| self.is_waiting(name, &new_turns(before, after)))
    }

    fn is_waiting(&self, name: &LockName, turns: &[TurnMark]) -> bool {
        let is_here = |turn: &TurnMark| self.turns.get(&(name.clone(), *turn)).is_some();
        !self.turns.is_empty() && turns.iter().any(is_here)
    }

    /// Reports to the watchers of a lock that hints may have been lost.
    pub(crate) fn report_missed_of(&self, name: &LockName) {
        if let Some(watchers) = self.changes.get(name) {
            let _ = watchers.send(Hint::Missed);
        }
    }

    /// Wakes all waiters and tells all watchers, after hints may have been lost.
    pub(crate) fn miss(&self) {
        for waiter in self.turns.values() {
            waiter.send_replace(());
        }
        for watchers in self.changes.values() {
            let _ = watchers.send(Hint::Missed);
        }
    }
}

/// The hints that are broadcast. A receiver that is too slow gets [`Hint::Missed`] for those that
/// it lost. The stream keeps `guards` until it is dropped.
fn told(hints: Receiver<Hint>, guards: impl Send + 'static) -> Hints {
    Box::pin(stream::unfold((hints, guards), async |(mut hints, guards)| {
        let hint = match hints.recv().await {
            Ok(hint) => hint,
            Err(RecvError::Lagged(_)) => Hint::Missed,
            Err(RecvError::Closed) => return None,
        };
        Some((hint, (hints, guards)))
    }))
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};
    use keylatch_core::lock::Token;

    use super::*;

    #[test]
    fn wakeup_reaches_every_waiter_with_the_token_and_is_kept_for_it() {
        let hints = LocalHints::default();
        let name = LockName::parse("deploy").expect("a name");
        let [token, other] = ["the-token-that-they-share", "the-token-of-another-one"]
            .map(|token| Token::parse(token).expect("a token").hash());
        let subscribe = |token| hints.subscribe(Topic::Turn(name.clone(), token));
        let (mut first, mut second, mut third) =
            (subscribe(token), subscribe(token), subscribe(other));
        assert!(first.next().now_or_never().is_none(), "it is not its turn yet");
        hints.wake_turn(&name, TurnMark::of(&token));
        for waiter in [&mut first, &mut second] {
            assert_eq!(waiter.next().now_or_never().flatten(), Some(Hint::Wakeup));
            assert!(waiter.next().now_or_never().is_none(), "one wakeup came twice");
        }
        assert!(third.next().now_or_never().is_none(), "another token was woken");
    }
}
