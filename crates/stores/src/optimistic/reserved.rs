//! The locks that a step on several of them has ahead of steps on each alone, within a process.
//!
//! A step on a set is lost whenever one of its rows changes between its read and its write, and the
//! rows of busy locks change all the time. So the task of the sets reserves the locks of a step
//! that was lost: the task of the single locks begins no call on them until that is over.
//! Invariant: every reservation is released, at the latest after a few tries. Tested in
//! `tests/stores/contention.rs`.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use keylatch_core::lock::LockName;
use tokio::sync::Notify;

/// The locks that are reserved now.
#[derive(Debug, Default)]
pub(super) struct ReservedLocks {
    names: Mutex<BTreeSet<LockName>>,
    released: Notify,
}

impl ReservedLocks {
    /// Reserves locks, besides those that are.
    pub(super) fn reserve<'a>(&self, names: impl IntoIterator<Item = &'a LockName>) {
        self.names().extend(names.into_iter().cloned());
    }

    /// Releases all of them.
    pub(super) fn release(&self) {
        if !std::mem::take(&mut *self.names()).is_empty() {
            self.released.notify_one();
        }
    }

    /// Resolves after a release.
    pub(super) async fn released(&self) {
        self.released.notified().await;
    }

    /// Those that are reserved now.
    pub(super) fn names(&self) -> MutexGuard<'_, BTreeSet<LockName>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
