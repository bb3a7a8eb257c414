//! The end of a run, for the waiters in this process.

use tokio::sync::{Mutex, Notify};

/// What the waiters of one run share, in the service's registry of waiters.
#[derive(Debug, Default)]
pub(super) struct RunWaiters {
    /// Notified when the run may have ended.
    pub(super) ended: Notify,
    /// Held by the one waiter that looks at the store for all of them: an end in another process
    /// wakes no waiter of this one.
    pub(super) polling: Mutex<()>,
}
