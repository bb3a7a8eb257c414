//! What is kept under a key, as the executors of the rules see it: a lock or a record.
//!
//! The rules are those of the core; this is their common face, so that the table, the writer of the
//! embedded store and the adapter over conditional writes are each written once for both kinds.

use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use keylatch_core::idempotency::{RecordCommand, RecordKey, RecordReply, RecordState};
use keylatch_core::lock::{
    FencingToken, LockCommand, LockName, LockReply, LockState, Moment, TokenHash,
};

use crate::hints::{ChangeWatchers, EndListeners};

/// What is kept under a key: a lock under its name, a record under its own.
pub(crate) trait Entry:
    Clone + Default + PartialEq + fmt::Debug + Send + Sync + 'static
{
    type Key: Clone + fmt::Debug + Hash + Ord + Send + Sync + 'static;
    type Command: Clone + fmt::Debug + Send + Sync + 'static;
    type Reply: fmt::Debug + Send + 'static;

    /// The rules.
    fn apply(
        &self,
        key: &Self::Key,
        command: &Self::Command,
        moment: &Moment,
    ) -> (Self, Self::Reply);
    fn bucket(key: &Self::Key) -> u8;
    /// What it still says at `moment`.
    fn live(&self, moment: &Moment) -> Self;
    /// Whether that differs from what it said when it was written.
    fn is_stale(&self, moment: &Moment) -> bool;
    /// Whether something in it has ended by itself, be it to be written down or not.
    fn has_lapsed(&self, moment: &Moment) -> bool {
        self.is_stale(moment)
    }
    /// The times at which something in it ends by itself.
    fn ends(&self) -> impl Iterator<Item = Duration>;
    /// The last fencing token that it gave.
    fn fencing_token(&self) -> Option<FencingToken>;
    /// Whether there is nothing to keep, be it expired or not.
    fn is_empty(&self) -> bool;
    /// The waiters that the change from `before` wakes. Those that the lock was free for are not among
    /// them: one that waits for other locks as well keeps its entry with every round, and would wake itself.
    fn new_wakeups(key: &Self::Key, before: &Self, state: &Self) -> Vec<(LockName, TokenHash)>;
    /// Reports to its watchers how it changed when it became `after`.
    fn report(&self, key: &Self::Key, after: &Self, now: Duration, changes: &ChangeWatchers);
    /// Reports which grants ended unreleased when it became `after`.
    fn report_ends(&self, key: &Self::Key, after: &Self, ends: &EndListeners);
}

/// The rules that both kinds have under the same names in the core.
macro_rules! same_rules {
    () => {
        fn bucket(key: &Self::Key) -> u8 {
            key.bucket()
        }

        fn live(&self, moment: &Moment) -> Self {
            self.live(moment)
        }

        fn is_stale(&self, moment: &Moment) -> bool {
            self.is_stale(moment)
        }

        fn ends(&self) -> impl Iterator<Item = Duration> {
            self.ends()
        }

        fn fencing_token(&self) -> Option<FencingToken> {
            self.fencing_token()
        }

        fn is_empty(&self) -> bool {
            self.is_empty()
        }
    };
}

impl Entry for LockState {
    type Key = LockName;
    type Command = LockCommand;
    type Reply = LockReply;

    same_rules!();

    fn apply(&self, name: &LockName, command: &LockCommand, moment: &Moment) -> (Self, LockReply) {
        self.apply(name, command, moment)
    }

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

impl Entry for RecordState {
    type Key = RecordKey;
    type Command = RecordCommand;
    type Reply = RecordReply;

    same_rules!();

    fn apply(
        &self,
        _: &RecordKey,
        command: &RecordCommand,
        moment: &Moment,
    ) -> (Self, RecordReply) {
        self.apply(command, moment)
    }

    fn has_lapsed(&self, moment: &Moment) -> bool {
        self.is_stale(moment) || self.is_interrupted(moment)
    }

    fn new_wakeups(_: &RecordKey, _: &Self, _: &Self) -> Vec<(LockName, TokenHash)> {
        Vec::new()
    }

    fn report(&self, _: &RecordKey, _: &Self, _: Duration, _: &ChangeWatchers) {}

    fn report_ends(&self, _: &RecordKey, _: &Self, _: &EndListeners) {}
}
