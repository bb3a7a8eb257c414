//! Waking the waiter whose turn it is, within one process.
//!
//! A wakeup that comes before its waiter listens is kept for it, so a waiter that subscribes before
//! it acquires misses none.

use futures_util::stream;
use tokio::sync::Notify;

use keylatch_core::lock::{LockName, TokenHash};
use keylatch_core::store::{Hint, Hints};
use keylatch_core::waiters::WaiterRegistry;

/// The waiters of this process, by lock and token.
#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    waiters: WaiterRegistry<(LockName, TokenHash), Notify>,
}

impl Wakeups {
    /// A hint for each time that it may be the turn of `token` from now on.
    pub(crate) fn subscribe(&self, name: LockName, token: TokenHash) -> Hints {
        let waiter = self.waiters.join((name, token), Notify::new);
        Box::pin(stream::unfold(waiter, async |waiter| {
            waiter.notified().await;
            Some((Hint::Wakeup, waiter))
        }))
    }

    /// Wakes the waiter with this token.
    pub(crate) fn wake(&self, name: &LockName, token: &TokenHash) {
        if self.waiters.is_empty() {
            return;
        }
        if let Some(waiter) = self.waiters.get(&(name.clone(), *token)) {
            waiter.notify_one();
        }
    }

    /// Wakes all waiters, after hints may have been lost.
    #[cfg(feature = "redis")]
    pub(crate) fn wake_all(&self) {
        for waiter in self.waiters.values() {
            waiter.notify_one();
        }
    }
}
