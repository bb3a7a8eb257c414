//! What ends a claim in the background: the release of a guard that is dropped, the end of a run.
//!
//! It is a task of the runtime. A runtime that ends drops its tasks, as at the end of `main`, and then a thread of its own
//! sends the request, on a connection of its own, before the process is gone. Tested in `tests/api/rust_client_ends.rs`.

use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::connection::Connection;

/// How long the end of a runtime may wait for it.
const LAST_MOMENT: Duration = Duration::from_secs(2);

/// Sends what ends a claim, over these connections.
pub(crate) type SendEnd = dyn Fn(Arc<Connection>) -> Sent + Send;
pub(crate) type Sent = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sends what ends a claim, in a task that `tasks` tracks.
pub(crate) fn send_in_background(
    connection: Arc<Connection>,
    tasks: &TaskTracker,
    send: Box<SendEnd>,
) {
    let mut ending = Ending { connection, send: Some(send) };
    let task = async move {
        let sent = ending.send.as_ref().map(|send| send(Arc::clone(&ending.connection)));
        if let Some(sent) = sent {
            sent.await;
        }
        drop(ending.send.take());
    };
    match Handle::try_current() {
        Ok(runtime) => drop(tasks.spawn_on(task, &runtime)),
        Err(_) => drop(task),
    }
}

/// Sends it where it is dropped before it was sent.
struct Ending {
    connection: Arc<Connection>,
    send: Option<Box<SendEnd>>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(send) = self.send.take() else { return };
        // The connections of before are those of the runtime that ends.
        let Some(connection) = self.connection.last_resort() else { return };
        let sending = move || {
            let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
            let sent = async { timeout(LAST_MOMENT, send(Arc::clone(&connection))).await };
            if runtime.block_on(sent).is_err() {
                connection.give_up();
            }
            // A lookup of a name may hang.
            runtime.shutdown_background();
        };
        if let Ok(thread) = thread::Builder::new().spawn(sending) {
            // A panic there is no reason for one here.
            let _ = thread.join();
        }
    }
}
