//! Work on a long body, off the workers of the runtime.
//!
//! A long body takes milliseconds to read, for which a worker would answer no other client. So it
//! is read on a thread for such work. Tested in `fingerprint`.

use futures_util::future::Either;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

/// From this length on a body is read on a thread of its own.
pub(crate) const LONG: usize = 64 * 1024;

/// Works on a body of this length, off the workers of the runtime if it is long.
pub(crate) fn off_worker<T: Send + 'static>(
    length: usize,
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send {
    if length < LONG { Either::Left(work) } else { Either::Right(Box::pin(on_thread(work))) }
}

async fn on_thread<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let handle = Handle::current();
    match spawn_blocking(move || handle.block_on(work)).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is ending, and this task with it.
            Err(_) => std::future::pending().await,
        },
    }
}
