//! What a store that hears of other processes tells the waiters and watchers of this one.
//!
//! The worker of the locks reports what it wrote and what it read. A notice of another process
//! costs a read only where something here waits for the lock or watches it.

use std::time::Duration;

use futures_util::stream::StreamExt as _;
use keylatch_core::lock::LockName;
use keylatch_core::store::{Hints, Topic};
use keylatch_core::waiters::WaiterRegistry;

use super::conditional::TurnMark;
use crate::hints::{ChangeWatchers, EndListeners, HintedEntry, Wakeups};

/// The waiters and watchers of this process.
#[derive(Debug, Default)]
pub(super) struct LocalHints {
    wakeups: Wakeups,
    changes: ChangeWatchers,
    ends: EndListeners,
    /// The locks that something here waits for or watches.
    interest: WaiterRegistry<LockName, ()>,
    /// The waiters among them, as notices name them.
    turns: WaiterRegistry<(LockName, TurnMark), ()>,
}

impl LocalHints {
    /// Hints about an entry from now on.
    pub(super) fn subscribe(&self, topic: Topic) -> Hints {
        let (name, mark, hints) = match topic {
            Topic::Turn(name, token) => {
                let mark = TurnMark::of(&token);
                (name.clone(), Some(mark), self.wakeups.subscribe(name, token))
            }
            Topic::Changes(name) => (name.clone(), None, self.changes.subscribe(name)),
            Topic::Ends => return self.ends.subscribe(),
        };
        let turn = mark.map(|mark| self.turns.join((name.clone(), mark), || ()));
        let guards = (self.interest.join(name, || ()), turn);
        Box::pin(hints.inspect(move |_| {
            // The stream keeps the guards.
            let _ = &guards;
        }))
    }

    /// Whether something here waits for the lock or watches it.
    pub(super) fn is_of_interest(&self, name: &LockName) -> bool {
        !self.interest.is_empty() && self.interest.get(name).is_some()
    }

    /// Whether something here watches the lock, or waits for it and has one of these turns.
    pub(super) fn is_for_one_here(&self, name: &LockName, turns: &[TurnMark]) -> bool {
        let is_here = |mark: &TurnMark| self.turns.get(&(name.clone(), *mark)).is_some();
        self.changes.is_watched(name) || !self.turns.is_empty() && turns.iter().any(is_here)
    }

    /// Wakes the waiters that the lock is free for, and was not when the entry was as `before`.
    pub(super) fn wake<E: HintedEntry>(&self, key: &E::Key, before: &E, live: &E) {
        for (name, token) in E::new_wakeups(key, before, live) {
            self.wakeups.wake(&name, &token);
        }
    }

    /// Whether a waiter of this process is among those that [`Self::wake`] would wake.
    pub(super) fn waits_for_turn<E: HintedEntry>(
        &self,
        key: &E::Key,
        before: &E,
        live: &E,
    ) -> bool {
        if self.turns.is_empty() {
            return false;
        }
        let mut turns = E::new_wakeups(key, before, live).into_iter();
        turns.any(|(name, token)| self.wakeups.has_waiter(&name, &token))
    }

    /// Reports to its watchers how an entry changed.
    pub(super) fn report<E: HintedEntry>(
        &self,
        key: &E::Key,
        before: &E,
        after: &E,
        now: Duration,
    ) {
        if self.changes.any() {
            before.report(key, after, now, &self.changes);
        }
    }

    /// Reports which grants ended unreleased by a change of this process.
    pub(super) fn report_ends<E: HintedEntry>(&self, key: &E::Key, before: &E, after: &E) {
        before.report_ends(key, after, &self.ends);
    }

    /// Reports to the watchers of a lock that hints may have been lost.
    pub(super) fn report_missed_of(&self, name: &LockName) {
        self.changes.report_missed_of(name);
    }

    /// Wakes all waiters and tells all watchers, after hints may have been lost.
    pub(super) fn miss(&self) {
        self.wakeups.wake_all();
        self.changes.report_missed();
    }
}
