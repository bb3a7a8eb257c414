//! What ends a claim in the background: the release of a guard that is dropped, the end of a run.
//!
//! It is a task of the runtime. A runtime that ends drops its tasks, as at the end of `main`, and
//! then a thread of its own sends the request, on a connection of its own, before the process is
//! gone. Tested in `tests/api/rust_client_ends.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::time::timeout;

use crate::connection::{Call, Connection};

/// How long the end of a runtime may wait for it.
const LAST_MOMENT: Duration = Duration::from_secs(2);

/// What ends a claim unless the program has: sent where it is dropped.
pub(crate) struct Parting {
    pub(crate) connection: Arc<Connection>,
    /// `None` where nothing is left to end.
    pub(crate) call: Option<Call>,
}

impl Drop for Parting {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            send_in_background(&self.connection, call);
        }
    }
}

/// Sends what ends a claim, in a task that the connection tracks. The caller is gone, so no caller
/// reads an error.
pub(crate) fn send_in_background(connection: &Arc<Connection>, call: Call) {
    let mut ending = Ending { connection: Arc::clone(connection), call: Some(call) };
    let task = async move {
        if let Some(call) = &ending.call {
            let _ = ending.connection.ask(call, Duration::ZERO).await;
        }
        drop(ending.call.take());
    };
    match Handle::try_current() {
        Ok(runtime) => drop(connection.endings.spawn_on(task, &runtime)),
        Err(_) => drop(task),
    }
}

/// Sends it where it is dropped before it was sent.
struct Ending {
    connection: Arc<Connection>,
    call: Option<Call>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let settings = self.connection.settings.clone();
        let given_up = Arc::clone(&settings.given_up);
        let Some(call) = self.call.take().filter(|_| !given_up.load(Ordering::Relaxed)) else {
            return;
        };
        let send = move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            // The connections of before are those of the runtime that ends.
            let (Ok(runtime), Ok(connection)) = (runtime, Connection::open(settings)) else {
                return;
            };
            let asked = async { timeout(LAST_MOMENT, connection.ask(&call, Duration::ZERO)).await };
            given_up.store(runtime.block_on(asked).is_err(), Ordering::Relaxed);
            // A lookup of a name may hang.
            runtime.shutdown_background();
        };
        if let Ok(thread) = thread::Builder::new().spawn(send) {
            // A panic there is no reason for one here.
            let _ = thread.join();
        }
    }
}
