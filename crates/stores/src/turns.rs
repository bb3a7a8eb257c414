use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use keylatch_core::lock::{LockName, TokenHash, Turn};

/// Who in this process waits for their turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    waiters: Arc<Mutex<Waiters>>,
}

type Waiters = HashMap<(LockName, TokenHash), Weak<Notify>>;

impl Turns {
    /// Resolves when it is said to be `token`'s turn, from now on.
    pub(super) fn wait(&self, name: &LockName, token: &TokenHash) -> Turn {
        let key = (name.clone(), *token);
        let mut waiters = lock(&self.waiters);
        let known = waiters.get(&key).and_then(Weak::upgrade);
        let notify = known.unwrap_or_else(|| {
            let notify = Arc::new(Notify::new());
            waiters.insert(key.clone(), Arc::downgrade(&notify));
            notify
        });
        let seat = Seat { waiters: Arc::clone(&self.waiters), key, notify };
        // A notice that comes before this is polled is kept for it.
        Box::pin(async move { seat.notify.notified().await })
    }

    /// Says that it is `token`'s turn.
    pub(super) fn call(&self, name: &LockName, token: &TokenHash) {
        let waiter = lock(&self.waiters).get(&(name.clone(), *token)).and_then(Weak::upgrade);
        if let Some(notify) = waiter {
            notify.notify_one();
        }
    }

    /// Has everybody look whether it is their turn.
    pub(super) fn call_all(&self) {
        let all: Vec<_> = lock(&self.waiters).values().filter_map(Weak::upgrade).collect();
        for notify in all {
            notify.notify_one();
        }
    }
}

/// One who waits; the last one under a key clears it.
struct Seat {
    waiters: Arc<Mutex<Waiters>>,
    key: (LockName, TokenHash),
    notify: Arc<Notify>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut waiters = lock(&self.waiters);
        if Arc::strong_count(&self.notify) == 1 {
            waiters.remove(&self.key);
        }
    }
}

fn lock(waiters: &Mutex<Waiters>) -> MutexGuard<'_, Waiters> {
    waiters.lock().unwrap_or_else(PoisonError::into_inner)
}
