//! Watching a lock: what happens to it, as it happens.
//!
//! A watch connects again by itself when its stream ends, and the service then begins with a
//! snapshot, so a caller learns the present state and may miss what happened in between. Tested in
//! `tests/api/rust_client.rs`.

use std::time::Duration;

use hyper::Method;
use tokio::time::{sleep, timeout};

use crate::connection::{Call, pause, refusal_of};
use crate::events::{Event, EventStream};
use crate::target::lock_path;
use crate::{Client, Error};

/// What happens to a lock. Dropped, it ends.
#[derive(Debug)]
pub struct Watch {
    client: Client,
    path: String,
    stream: Option<EventStream>,
}

impl Client {
    /// Watches a lock; it connects with the first [`Watch::next`].
    pub fn watch(&self, name: &str) -> Watch {
        Watch { client: self.clone(), path: format!("{}/events", lock_path(name)), stream: None }
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
        loop {
            if let Some(stream) = &mut self.stream {
                let silence = self.client.connection.settings.silence;
                if let Ok(Some(event)) = stream.next(silence).await {
                    return Ok(event);
                }
                self.stream = None;
                sleep(pause(None)).await;
            }
            match self.open().await {
                Ok(stream) => self.stream = Some(stream),
                Err(error) if error.is_refusal() => return Err(error),
                Err(_) => sleep(pause(None)).await,
            }
        }
    }

    async fn open(&self) -> Result<EventStream, Error> {
        let connection = &self.client.connection;
        let request = Call::new(Method::GET, &self.path).request(Duration::ZERO)?;
        let answer = timeout(connection.settings.timeout, connection.forward(request)).await;
        let answer = answer.map_err(|_| Error::late())??;
        if answer.status() != 200 {
            return Err(refusal_of(answer).await?.into());
        }
        Ok(EventStream::new(answer.into_body()))
    }
}
