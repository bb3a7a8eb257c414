//! Hints about watched locks, within one process.
//!
//! A watcher that is slow misses hints, and reads that it did. Where no lock is watched, a change
//! costs one atomic read.

use futures_util::stream;
use tokio::sync::broadcast::{self, Receiver, Sender, error::RecvError};

use keylatch_core::lock::LockName;
use keylatch_core::store::{Change, Hint, Hints};
use keylatch_core::waiters::{WaiterGuard, WaiterRegistry};

/// How many hints about a lock wait for a watcher that is slow.
const BACKLOG: usize = 64;

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
            let hint = match watcher.receiver.recv().await {
                Ok(hint) => hint,
                Err(RecvError::Lagged(_)) => Hint::Missed,
                Err(RecvError::Closed) => return None,
            };
            Some((hint, watcher))
        }))
    }

    /// Whether any lock is watched.
    pub(crate) fn any(&self) -> bool {
        !self.watchers.is_empty()
    }

    /// Reports a change of `name` to its watchers.
    pub(crate) fn report(&self, name: &LockName, change: Change) {
        if let Some(watchers) = self.watchers.get(name) {
            // A watcher that is just leaving reads nothing more.
            let _ = watchers.send(Hint::Changed(change));
        }
    }

    /// All locks that are watched.
    #[cfg(feature = "redis")]
    pub(crate) fn names(&self) -> Vec<LockName> {
        self.watchers.keys()
    }

    /// Reports to all watchers that hints may have been lost.
    #[cfg(feature = "redis")]
    pub(crate) fn report_missed(&self) {
        for watchers in self.watchers.values() {
            let _ = watchers.send(Hint::Missed);
        }
    }
}
