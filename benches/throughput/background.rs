//! Clients on a thread of their own, which do something beside what is measured.
//!
//! A thread of their own, because the load generator's has all the time it can get.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};

use tokio::runtime::Builder;

use crate::Result;

/// Runs until it is ended, and then has a result.
pub(crate) struct Background<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<T>>,
}

impl<T: Send + 'static> Background<T> {
    /// `work` returns soon after the flag is set.
    pub(crate) fn start<F: Future<Output = Result<T>>>(
        work: impl FnOnce(Arc<AtomicBool>) -> F + Send + 'static,
    ) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let run =
            move || Builder::new_current_thread().enable_all().build()?.block_on(work(stopped));
        Self { stop, thread: spawn(run) }
    }

    /// Whether it has ended by itself, which is a failure.
    pub(crate) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    pub(crate) fn end(self) -> Result<T> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "clients panicked")?
    }
}
