//! What ends a claim or a run, under way or granted, where the program forgets it.
//!
//! A claim may hold its locks, or places in their queues, from its first request that was sent
//! until the service has answered that it holds nothing. Dropped in between, it releases what it
//! may hold, in a task of the client. A runtime that ends drops its tasks, as at the end of `main`,
//! and then a thread of its own sends the request, on a connection of its own, before the process
//! is gone. Tested in `tests/api/rust_client_ends.rs`.

use std::mem::replace;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::time::timeout;

use crate::Result;
use crate::connection::{Call, Connection, Failure};

/// How long the end of a runtime may wait for it.
const LAST_MOMENT: Duration = Duration::from_secs(2);

/// What ends a claim unless the program has: sent where it is dropped.
#[derive(Debug)]
pub(crate) struct Parting {
    pub(crate) connection: Arc<Connection>,
    pub(crate) call: Option<Call>,
    /// Whether the task that sends it is the owner.
    is_sent: bool,
}

impl Parting {
    pub(crate) fn new(connection: &Arc<Connection>) -> Self {
        Self { connection: Arc::clone(connection), call: None, is_sent: false }
    }

    /// Takes a step that `undo` takes back where it is dropped, unless the service says that it
    /// left nothing behind.
    pub(crate) async fn venture<T>(
        &mut self,
        undo: Option<Call>,
        wait: Duration,
        step: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let before = replace(&mut self.call, undo);
        let done = step.await;
        if done.as_ref().is_err_and(|failure| failure.error.leaves_nothing(wait)) {
            self.call = before;
        }
        done
    }
}

impl Drop for Parting {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        match Handle::try_current() {
            Ok(runtime) if !self.is_sent => {
                let connection = Arc::clone(&self.connection);
                let mut sending = Self { connection, call: Some(call.clone()), is_sent: true };
                let task = async move {
                    // The caller is gone, so no caller reads an error.
                    let _ = sending.connection.done(&call, Duration::ZERO).await;
                    drop(sending.call.take());
                };
                drop(self.connection.endings.spawn_on(task, &runtime));
            }
            _ => send_at_last(&self.connection, call),
        }
    }
}

fn send_at_last(connection: &Connection, call: Call) {
    let settings = connection.settings.clone();
    let given_up = Arc::clone(&settings.given_up);
    if given_up.load(Ordering::Relaxed) {
        return;
    }
    let send = move || {
        let runtime = Builder::new_current_thread().enable_all().build();
        // The connections of before are those of the runtime that ends.
        let (Ok(runtime), Ok(connection)) = (runtime, Connection::open(settings)) else { return };
        let sent = async { timeout(LAST_MOMENT, connection.done(&call, Duration::ZERO)).await };
        given_up.store(runtime.block_on(sent).is_err(), Ordering::Relaxed);
        // A lookup of a name may hang.
        runtime.shutdown_background();
    };
    if let Ok(thread) = thread::Builder::new().spawn(send) {
        // A panic there is no reason for one here.
        let _ = thread.join();
    }
}
