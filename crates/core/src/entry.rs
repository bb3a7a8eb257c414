//! What is kept under a key: a lock under its name, a record under its own.
//!
//! [`LockState`](crate::lock::LockState) and [`RecordState`](crate::idempotency::RecordState) have
//! their rules under the same names, so that whoever runs rules is written once for both. A step is
//! on a slice of entries, and on one entry it is on a slice of one. Invariant: what a step makes of
//! the entries, and its reply, depend on nothing but the entries, the command and the moments. The
//! differential tests hold every store to the rules, and `tests/snapshots` holds the bytes.

use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use smallvec::SmallVec;

use crate::lock::{FencingToken, Moment};
use crate::snapshot::SnapshotError;

/// As a rule one, which takes no list then.
pub type Few<T> = SmallVec<[T; 1]>;

/// An entry as a step finds it. The clock shows the same in all moments of a step; the last fencing
/// token is that of the entry's own bucket.
#[derive(Debug)]
pub struct Found<'a, E: Entry> {
    /// What the entry is kept under.
    pub key: &'a E::Key,
    /// What the store remembers of it. The step changes it in place.
    pub state: &'a mut E,
    /// When the step is.
    pub moment: Moment,
}

/// The state of what is kept under a key, and the rules by which it changes.
pub trait Entry: Clone + Default + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// What it is kept under.
    type Key: Clone + fmt::Debug + Hash + Ord + Send + Sync + 'static;
    /// What can be done to it.
    type Command: Clone + fmt::Debug + Send + Sync + 'static;
    /// What a command found.
    type Reply: fmt::Debug + Send + 'static;

    /// The bucket of the key, which has a counter of fencing tokens.
    fn bucket(key: &Self::Key) -> u8;

    /// Whether a command undoes another, which may still be on its way.
    fn is_undo(command: &Self::Command) -> bool;

    /// Takes one step on all of `found`, and gives what the command found. A refusal takes from the
    /// entries what has ended by itself, and changes nothing else.
    ///
    /// A grant or a run takes its fencing token from the moment; the store has to keep it as the
    /// bucket's last.
    fn step(found: &mut [Found<'_, Self>], command: &Self::Command) -> Self::Reply;

    /// The state after a step on this entry alone.
    #[must_use]
    fn apply(
        &self,
        key: &Self::Key,
        command: &Self::Command,
        moment: &Moment,
    ) -> (Self, Self::Reply) {
        let mut state = self.clone();
        let found = Found { key, state: &mut state, moment: *moment };
        let reply = Self::step(&mut [found], command);
        (state, reply)
    }

    /// Takes from the state what has ended by itself at `moment`.
    fn settle(&mut self, moment: &Moment);

    /// What the state still says at `moment`.
    #[must_use]
    fn live(&self, moment: &Moment) -> Self {
        let mut state = self.clone();
        state.settle(moment);
        state
    }

    /// Whether [`settle`](Entry::settle) changes the state at `moment`.
    fn is_stale(&self, moment: &Moment) -> bool;

    /// Whether something in it has ended by itself, be it to be written down or not.
    fn has_lapsed(&self, moment: &Moment) -> bool {
        self.is_stale(moment)
    }

    /// The times at which something in the state ends by itself: a decision on the state holds
    /// between the last of them before it and the first after it.
    fn ends(&self) -> impl Iterator<Item = Duration>;

    /// Until when there is anything to keep of the state, if no command comes; `None` if there is
    /// nothing.
    fn kept_until(&self) -> Option<Duration> {
        self.ends().max()
    }

    /// The state with each of its times on another clock.
    fn map_times(&self, on_other: impl FnMut(Duration) -> Duration) -> Self;

    /// The largest fencing token that the state still knows.
    fn fencing_token(&self) -> Option<FencingToken>;

    /// Whether there is nothing to keep. What has expired counts as well.
    fn is_empty(&self) -> bool;

    /// The state as bytes.
    ///
    /// # Errors
    ///
    /// The codec failed, which it does on no state that the rules reach.
    fn encode(&self) -> Result<Vec<u8>, SnapshotError>;

    /// The state that [`encode`](Entry::encode) wrote.
    ///
    /// # Errors
    ///
    /// The bytes are no snapshot, or one of another format.
    fn decode(bytes: &[u8]) -> Result<Self, SnapshotError>;
}
