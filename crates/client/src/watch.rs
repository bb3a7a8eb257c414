//! Watching a lock: what happens to it, as it happens.
//!
//! A watch connects again by itself when its stream ends, and the service then begins with a
//! snapshot, so a caller learns the present state and may miss what happened in between. Tested in
//! `tests/api/rust_client.rs`.

use hyper::Method;
use tokio::time::{sleep, timeout};

use crate::connection::{Call, Failure};
use crate::events::{Event, EventStream};
use crate::target::lock_path;
use crate::{Client, Error};

/// What happens to a lock. Dropped, it ends.
#[derive(Debug)]
pub struct Watch {
    client: Client,
    call: Call,
    stream: Option<EventStream>,
}

impl Client {
    /// Watches a lock; it connects with the first [`Watch::next`].
    pub fn watch(&self, name: &str) -> Watch {
        let call = Call::new(Method::GET, lock_path(name) + "/events");
        Watch { client: self.clone(), call, stream: None }
    }
}

impl Watch {
    /// The next event. The first is a `snapshot`, and so is the first after a lost connection,
    /// since other events may be missing then. Dropped in between, it loses nothing.
    ///
    /// # Errors
    ///
    /// The service refuses the watch.
    pub async fn next(&mut self) -> Result<Event, Error> {
        let connection = &self.client.connection;
        loop {
            if let Some(stream) = &mut self.stream {
                if let Ok(Some(event)) = stream.next(connection.settings.silence).await {
                    return Ok(event);
                }
                self.stream = None;
                sleep(connection.pause(None)).await;
            }
            let opened = timeout(connection.settings.timeout, connection.stream(&self.call)).await;
            match opened {
                Ok(Ok(stream)) => self.stream = Some(stream),
                Ok(Err(Failure { error, .. })) if !error.is_passing() => return Err(error),
                _ => sleep(connection.pause(None)).await,
            }
        }
    }
}
