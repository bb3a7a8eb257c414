//! Server-sent events of a hold or a watch (WHATWG HTML, section 9.2), from the body of a response.
//!
//! A body ends when the service or a proxy ends it, which is an event of its own for the caller.
//! Invariant: an event above 1 MiB ends the stream, so that no service fills the memory of a
//! client. Tested in `tests/api/rust_client_ends.rs`.

use std::time::Duration;

use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::time::timeout;

use crate::Error;
use crate::transport::Body;

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
    pub(crate) async fn next(&mut self, silence: Duration) -> Result<Option<Event>, Error> {
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
