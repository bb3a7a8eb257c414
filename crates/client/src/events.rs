//! Server-sent events of a hold or a watch (WHATWG HTML, section 9.2), from the body of a response.
//!
//! Invariant: an event above 1 MiB ends the stream, so that no service fills the memory of a
//! client. A watch connects again by itself when its stream ends, and begins with a snapshot then.
//! Tested in `tests/api/rust_client.rs` and `tests/api/rust_client_ends.rs`.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::Method;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::connection::{Call, Failure};
use crate::target::lock_path;
use crate::transport::Body;
use crate::{Client, Error, Result};

/// The longest event that is read, in bytes.
const MAX_EVENT: usize = 1024 * 1024;

/// What the service says on a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// A word such as `acquired`.
    pub kind: String,
    /// What belongs to it.
    pub data: Value,
}

/// The events to come of a response.
#[derive(Debug)]
pub(crate) struct EventStream {
    body: Body,
    /// Those that are no event yet.
    bytes: Vec<u8>,
}

impl EventStream {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, bytes: Vec::new() }
    }

    /// The next event, on a stream on which something comes at least that often, be it a comment;
    /// `None` when it has ended. Dropped in between, it loses nothing.
    pub(crate) async fn next(&mut self, silence: Duration) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.read() {
                return Ok(Some(event));
            }
            let frame = timeout(silence, self.body.frame()).await.map_err(|_| Error::late())?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|error| Error::Unanswered(error.to_string()))?;
            self.bytes.extend(frame.data_ref().into_iter().flatten());
            if self.bytes.len() > MAX_EVENT {
                return Err(Error::Refused("an event is too long".to_owned()));
            }
        }
    }

    /// Takes the first whole event, and passes over comments.
    fn read(&mut self) -> Option<Event> {
        loop {
            let end = self.bytes.windows(2).position(|pair| pair == b"\n\n")?;
            let block: Vec<u8> = self.bytes.drain(..end + 2).collect();
            let block = String::from_utf8_lossy(&block);
            let member = |name: &str| {
                let lines = block.lines().filter_map(|line| line.strip_prefix(name));
                lines.map(str::trim).collect::<String>()
            };
            let (kind, data) = (member("event:"), member("data:"));
            if !kind.is_empty() {
                return Some(Event { kind, data: serde_json::from_str(&data).unwrap_or_default() });
            }
        }
    }
}

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
    pub async fn next(&mut self) -> Result<Event> {
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
