use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use super::RecordKey;

/// Who in this process waits for the end of a run.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    keys: Mutex<HashMap<RecordKey, Weak<Ending>>>,
}

/// The end of a run that some wait for.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// Notified when the run may have ended.
    pub(super) ended: Notify,
    /// Held by the one who asks the store for all: an end in another process makes no noise here.
    pub(super) asking: tokio::sync::Mutex<()>,
}

impl Waiting {
    /// The end of the run under `key`, for one more who waits for it.
    pub(super) fn join(&self, key: RecordKey) -> Seat<'_> {
        let mut keys = self.lock();
        let known = keys.get(&key).and_then(Weak::upgrade);
        let ending = known.unwrap_or_else(|| {
            let ending = Arc::new(Ending::default());
            keys.insert(key, Arc::downgrade(&ending));
            ending
        });
        Seat { waiting: self, key, ending }
    }

    /// Wakes all who wait for the run under `key`.
    pub(super) fn end(&self, key: &RecordKey) {
        let ending = self.lock().get(key).and_then(Weak::upgrade);
        if let Some(ending) = ending {
            ending.ended.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RecordKey, Weak<Ending>>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among those who wait; the last one to leave clears the key.
#[derive(Debug)]
pub(super) struct Seat<'a> {
    waiting: &'a Waiting,
    key: RecordKey,
    pub(super) ending: Arc<Ending>,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut keys = self.waiting.lock();
        if Arc::strong_count(&self.ending) == 1 {
            keys.remove(&self.key);
        }
    }
}
