//! What the service says on a stream: holds and watches, by server-sent events (WHATWG HTML,
//! section 9.2).
//!
//! A hold is a guard whose watchdog sends nothing: it reads the stream, whose events say how long
//! the lease is valid, and gives the lease up where none comes in time. A watch connects again by
//! itself when its stream ends, and begins with a snapshot then. Invariant: an event above 1 MiB
//! ends the stream, so that no service fills the memory of a client. Tested in
//! `tests/api/rust_client.rs` and `tests/api/rust_client_ends.rs`.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::{Method, StatusCode};
use keylatch_wire::{LossEvent, ProblemDocument, RenewalEvent};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::clock::BootInstant;
use crate::connection::{Call, Connection, Failure, MAX_WAIT, read};
use crate::session::Parting;
use crate::target::{Claim, Grant, lock_path, loss_of};
use crate::transport::Body;
use crate::{AcquireOptions, Client, Error, Guard, Lease, LockGuard, LossReason, Result};

const MAX_EVENT: usize = 1024 * 1024;

/// What the service says on a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// A word such as `acquired`.
    pub kind: String,
    /// What belongs to it.
    pub data: Value,
}

#[derive(Debug)]
struct EventStream {
    body: Body,
    /// Those that are no event yet.
    bytes: Vec<u8>,
}

impl Connection {
    async fn stream(&self, call: &Call) -> Result<EventStream, Failure> {
        let response = self.forward(call.request(Duration::ZERO)?).await?;
        if response.status() == StatusCode::OK {
            return Ok(EventStream { body: response.into_body(), bytes: Vec::new() });
        }
        let refusal = timeout(self.settings.timeout, read(response)).await;
        let refusal = refusal.unwrap_or_else(|_| Err(Error::late().into()));
        Err(refusal.err().unwrap_or_else(|| Error::not_keylatch().into()))
    }
}

impl EventStream {
    /// The next event, on a stream on which something comes at least that often, be it a comment;
    /// `None` when it has ended. Dropped in between, it loses nothing.
    async fn next(&mut self, silence: Duration) -> Result<Option<Event>> {
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

impl Client {
    /// Watches a lock; it connects with the first [`Watch::next`].
    #[must_use]
    pub fn watch(&self, name: &str) -> Watch {
        let call = Call::new(Method::GET, lock_path(name) + "/events");
        Watch { client: self.clone(), call, stream: None }
    }

    /// Holds a lock by a connection, and waits for it as long as `options` say. The service renews
    /// the lock, and frees it as soon as this process is gone.
    ///
    /// What fails on the way is retried as by [`lock`](Self::lock), but with a new token after a
    /// lost response, and not with a token of `options`.
    ///
    /// # Errors
    ///
    /// [`Error::Held`] if others held it until the wait was over. The service gave no response, or
    /// refuses the request.
    pub async fn hold(
        &self,
        name: impl Into<String>,
        options: &AcquireOptions,
    ) -> Result<LockGuard> {
        let names = vec![name.into()];
        let claimed = || Claim::new(&self.connection, names.clone(), false, options);
        let (mut claim, mut parting) = (claimed()?, Parting::new(&self.connection));
        let mut tries = self.connection.tries(options.wait, Duration::ZERO);
        let (stream, grant, sent) = loop {
            // When the service ends a stream that is lost, it releases what the token holds, also
            // by another stream.
            if tries.in_doubt {
                (claim, parting) = (claimed()?, Parting::new(&self.connection));
            }
            let (sent, (wait, limit)) = (self.connection.now(), tries.next());
            let opened = parting.venture(claim.undo(), wait, claim.hold(wait, sent));
            match timeout(limit, opened).await.unwrap_or_else(|_| Err(Error::late().into())) {
                Ok((stream, grant)) => break (stream, grant, sent),
                Err(failure) => {
                    let is_last = options.token.is_some() && failure.error.may_be_done();
                    // No caller has so much time.
                    let retry_after = if is_last { Some(MAX_WAIT) } else { failure.retry_after };
                    let next = tries.failed(Failure { retry_after, ..failure }).await;
                    next.map_err(|error| claim.refused(error))?;
                }
            }
        };
        let lock = grant.first.clone();
        Ok(Guard::watched(claim, parting, &grant, lock, |lease| follow(stream, sent, lease)))
    }
}

impl Claim {
    async fn hold(
        &self,
        wait: Duration,
        sent: BootInstant,
    ) -> Result<(EventStream, Grant), Failure> {
        let mut stream = self.connection.stream(&self.creation("/hold", wait)).await?;
        let silence = self.connection.settings.silence;
        while let Some(Event { kind, data }) = stream.next(silence).await? {
            if kind == "acquired" {
                let grant = self.grant(data.to_string().as_bytes(), sent)?;
                return Ok((stream, grant));
            } else if kind == "refused" {
                let problem = serde_json::from_value::<ProblemDocument>(data);
                let problem = problem.map_err(|_| Error::not_keylatch())?;
                return Err(Error::Problem(Box::new(problem)).into());
            }
        }
        Err(Error::Unanswered("the stream has ended".to_owned()).into())
    }
}

/// Follows the stream until its end. The service frees the lock with the stream, so after a loss it
/// is open until the validity is over: the program has until then to stop.
async fn follow(mut stream: EventStream, sent: BootInstant, lease: Lease) {
    let lost = loop {
        let until = if lease.loss().is_none() { lease.give_up() } else { lease.until() };
        let event = tokio::select! {
            event = stream.next(Duration::MAX) => event,
            () = until.reached() => {
                lease.lose(LossReason::Unrenewed("no event came in time".to_owned()));
                if lease.until().left().is_zero() {
                    return;
                }
                continue;
            }
        };
        match event {
            Ok(Some(Event { kind, data })) if kind == "renewed" => {
                if let Ok(renewal) = serde_json::from_value::<RenewalEvent>(data) {
                    let valid = renewal.waited_ms.saturating_add(renewal.valid_for_ms);
                    lease.renewed(sent + Duration::from_millis(valid));
                }
            }
            Ok(Some(Event { kind, data })) if kind == "lost" => lease.lose(loss(data)),
            Ok(Some(_)) => {}
            Ok(None) => break "the stream has ended".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    lease.lose(LossReason::Unrenewed(lost));
}

/// Why the service ended the hold, by the code of a problem or a word.
fn loss(data: Value) -> LossReason {
    let Ok(LossEvent { reason, detail, broken }) = serde_json::from_value(data) else {
        return LossReason::Unrenewed("the stream has ended".to_owned());
    };
    loss_of(&reason, broken).unwrap_or_else(|| LossReason::Unrenewed(detail.into_owned()))
}
