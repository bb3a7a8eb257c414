use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::stream;
use tokio::sync::broadcast::{self, Receiver, Sender, error::RecvError};

use keylatch_core::lock::{Change, Changes, LockName};

/// How many changes of a lock wait for whoever watches it.
const CHANGES: usize = 64;

/// The locks that are watched in this process.
#[derive(Debug, Clone, Default)]
pub(super) struct Watched(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// How many there are, to find without the lock that there are none.
    count: AtomicUsize,
    names: Mutex<HashMap<LockName, Sender<Change>>>,
}

impl Watched {
    /// What is told of `name` from now on.
    pub(super) fn changes(&self, name: &LockName) -> Changes {
        let mut names = self.names();
        let known = names.entry(name.clone());
        let receiver = known.or_insert_with(|| broadcast::channel(CHANGES).0).subscribe();
        self.0.count.store(names.len(), Ordering::Release);
        drop(names);
        let seat = Seat { watched: self.clone(), name: name.clone(), receiver: Some(receiver) };
        Box::pin(stream::unfold(seat, async |mut seat| {
            let change = match seat.receiver.as_mut()?.recv().await {
                Ok(change) => change,
                Err(RecvError::Lagged(_)) => Change::Missed,
                Err(RecvError::Closed) => return None,
            };
            Some((change, seat))
        }))
    }

    /// All locks that are watched.
    pub(super) fn watched(&self) -> Vec<LockName> {
        self.names().keys().cloned().collect()
    }

    /// Whether any lock is watched.
    pub(super) fn any(&self) -> bool {
        self.0.count.load(Ordering::Acquire) > 0
    }

    /// Tells those who watch `name`.
    pub(super) fn tell(&self, name: &LockName, change: Change) {
        if let Some(sender) = self.names().get(name) {
            // Whoever watched it is gone, and is about to say so.
            let _ = sender.send(change);
        }
    }

    fn names(&self) -> MutexGuard<'_, HashMap<LockName, Sender<Change>>> {
        self.0.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who watches; the last one of a name clears it.
struct Seat {
    watched: Watched,
    name: LockName,
    receiver: Option<Receiver<Change>>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut names = self.watched.names();
        self.receiver = None;
        if names.get(&self.name).is_some_and(|sender| sender.receiver_count() == 0) {
            names.remove(&self.name);
        }
        self.watched.0.count.store(names.len(), Ordering::Release);
    }
}
