//! Doing a thing once, under an idempotency key.
//!
//! A run that is dropped, or whose work panics, has failed: its outcome is unknown at once, for a
//! person to settle, or its key is free with [`OnCrash::Rerun`]. Tested in
//! `tests/api/rust_client_ends.rs` and by `clients/conformance`.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::{Method, Response};
use keylatch_core::lock::{FencingToken, Token};
use keylatch_wire::{Code, DescribedRequest, IdempotencyRecord, OnCrash, ProblemDocument, millis};
use serde_json::json;

use crate::clock::BootInstant;
use crate::connection::{Call, Connection, Failure, escape};
use crate::guard::{Watchdog, keep, watchdog};
use crate::session::Parting;
use crate::{BoxError, Client, Error, Lease, LossReason, Result};

const MAX_REASON: usize = 256;
/// For how long the end of a run is tried, where its lease lasts so long.
const END_TIME: Duration = Duration::from_secs(30);

/// How to do a thing once.
#[derive(Debug, Clone)]
pub struct OnceOptions {
    /// Tells two things apart that have the same key by mistake.
    pub fingerprint: Option<String>,
    /// The HTTP request that the key stands for. The service makes the fingerprint of it, as a
    /// guard does.
    pub request: Option<DescribedRequest>,
    /// How long the run may go unrenewed before its outcome is unknown.
    pub lease: Duration,
    /// How long to wait for the same thing under way elsewhere.
    pub wait: Duration,
    /// For how long repeats are given the response; `None` leaves it to the service.
    pub retention: Option<Duration>,
    /// What a run leaves behind that does not end: whether a failure frees the key.
    pub on_crash: OnCrash,
    /// Of which guarded route the key is; by default it is one of this API's own.
    pub scope: Scope,
    /// The token, if it is to be one of the caller's own; `None` makes one.
    pub token: Option<Token>,
}

/// Of which guarded route and of whom a key is. Its `source` is where the route has the key from,
/// if that is not `Idempotency-Key`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Scope {
    pub method: Option<String>,
    pub path: Option<String>,
    pub principal: Option<String>,
    pub source: Option<String>,
}

impl Default for OnceOptions {
    /// No fingerprint, a lease of 30 s, without waiting.
    fn default() -> Self {
        Self {
            fingerprint: None,
            request: None,
            lease: Duration::from_secs(30),
            wait: Duration::ZERO,
            retention: None,
            on_crash: OnCrash::Unknown,
            scope: Scope::default(),
            token: None,
        }
    }
}

/// Nothing was done: returned by the work of [`Client::once`], as it is or as the source of its
/// error, it frees the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nothing was done")]
pub struct NothingDone;

/// What came of beginning.
#[derive(Debug)]
pub enum BeginReply {
    /// It is to be done now, and then to be ended.
    Begun(Run),
    /// It was done before, and came to this; `None` where the body was not kept.
    Done(Response<Option<Bytes>>),
}

/// What a thing came to that is done once.
#[derive(Debug)]
pub struct Once {
    /// The response.
    pub response: Response<Bytes>,
    /// Whether it is that of an earlier run.
    pub replayed: bool,
}

/// A thing that is being done, renewed in the background. Dropped without an end, it has failed.
#[derive(Debug)]
pub struct Run {
    // The fields are dropped in this order: the watchdog does not renew what has ended.
    _watchdog: Watchdog,
    /// What it says of itself if the program does not.
    parting: Parting,
    /// Its path and token are those of the others.
    begin: Call,
    on_crash: OnCrash,
    lease: Lease,
}

impl Client {
    /// Asks whether to do a thing now.
    ///
    /// # Errors
    ///
    /// The service gave no response, or refuses the key: its outcome is unknown, it was used for
    /// another thing, or the same is under way after the wait (`request-in-progress`).
    pub async fn begin(&self, key: &str, options: &OnceOptions) -> Result<BeginReply> {
        let token = options.token.clone().map_or_else(Token::generate, Ok)?;
        let begin = begin_call(key, options, &token);
        // Nothing was done before the client knows that it has begun. By a token of the caller's
        // own another run may be under way.
        let undo = options.token.is_none().then(|| begin.then(Method::DELETE, ""));
        let mut parting = Parting::new(&self.connection);
        let mut tries = self.connection.tries(options.wait, Duration::ZERO);
        let (record, until) = loop {
            let (sent, (wait, limit)) = (self.connection.now(), tries.next());
            let step = async {
                let answer = self.connection.send(&begin, wait, limit).await?;
                self.begun(&answer, &begin, &token, options.lease, sent).await
            };
            match parting.venture(undo.clone(), wait, step).await {
                Ok(run) => break run,
                Err(failure) => tries.failed(failure).await?,
            }
        };
        if record.state == "done" {
            parting.call = None;
            return Ok(BeginReply::Done(response_of(record)?));
        }
        let (what, fence) =
            (format!("the run of `{key}`"), FencingToken::new(record.fencing_token));
        let lease = Lease::new(what, fence, options.lease, until);
        Ok(BeginReply::Begun(Run::start(parting, begin, options, lease)))
    }

    /// A record that answers a begin which was sent then, and until when its run is valid. A run
    /// that began at the end of a long wait, or by an earlier try, is renewed before it is used.
    async fn begun(
        &self,
        answer: &[u8],
        begin: &Call,
        token: &Token,
        lease: Duration,
        sent: BootInstant,
    ) -> Result<(IdempotencyRecord, BootInstant), Failure> {
        let record = serde_json::from_slice::<IdempotencyRecord>(answer);
        let record = record.map_err(|_| Error::not_keylatch())?;
        let left = record.lease_expires_in_ms.map_or(lease, Duration::from_millis);
        let until = sent + left.min(lease);
        let is_done = record.state == "done";
        if !is_done && record.token.as_ref().is_none_or(|of| of.expose() != token.expose()) {
            return Err(Error::not_of_this_request().into());
        }
        if is_done || until.left() >= lease / 2 {
            return Ok((record, until));
        }
        let until = renew(&self.connection, begin, lease, self.connection.settings.timeout).await?;
        Ok((record, until))
    }

    /// Does a thing once: runs `work` and keeps its response, or gives the response that an earlier
    /// run came to.
    ///
    /// Work that fails, panics or is cancelled leaves an unknown outcome for a person to settle.
    /// [`NothingDone`] frees the key, and so does any failure with [`OnCrash::Rerun`].
    ///
    /// # Errors
    ///
    /// [`Error::Work`] has the work's own error. Otherwise as [`begin`](Self::begin) and
    /// [`Run::complete`].
    pub async fn once<B, E>(
        &self,
        key: &str,
        options: &OnceOptions,
        work: impl AsyncFnOnce(Lease) -> Result<Response<B>, E>,
    ) -> Result<Once>
    where
        B: Into<Bytes>,
        E: Into<BoxError>,
    {
        let run = match self.begin(key, options).await? {
            BeginReply::Begun(run) => run,
            BeginReply::Done(response) => {
                let (head, body) = response.into_parts();
                let body = body.ok_or_else(|| Error::Refused("no answer was kept".to_owned()))?;
                return Ok(Once { response: Response::from_parts(head, body), replayed: true });
            }
        };
        match work(run.lease.clone()).await {
            Ok(response) => {
                let response = response.map(Into::into);
                run.complete(response.clone()).await?;
                Ok(Once { response, replayed: false })
            }
            Err(error) => {
                let error = error.into();
                // The work's own error says more than that the run could not be ended.
                let _ = if is_nothing_done(&*error) {
                    run.abandon().await
                } else {
                    run.fail(&error.to_string()).await
                };
                Err(Error::Work(error))
            }
        }
    }
}

fn begin_call(key: &str, options: &OnceOptions, token: &Token) -> Call {
    let begin = Call::new(Method::POST, format!("/v1/idempotency/{}", escape(key)));
    begin.with_query(options.scope.query()).with_token(token).with_body(&json!({
        "fingerprint": options.fingerprint,
        "request": options.request,
        "lease_ms": millis(options.lease),
        "retention_ms": options.retention.map(millis),
        "on_crash": options.on_crash,
    }))
}

/// The caller said that a rerun is safe, or else a person finds out.
fn failure(begin: &Call, on_crash: OnCrash, reason: &str) -> Call {
    if on_crash == OnCrash::Rerun {
        return begin.then(Method::DELETE, "");
    }
    let plain: String = reason.chars().filter(|it| !it.is_control()).collect();
    let mut ends = (0..=MAX_REASON.min(plain.len())).rev();
    let reason = ends.find_map(|end| plain.get(..end)).filter(|it| !it.is_empty());
    begin.then(Method::POST, "/fail").with_body(&json!({"reason": reason}))
}

impl Run {
    fn start(mut parting: Parting, begin: Call, options: &OnceOptions, lease: Lease) -> Self {
        let (ttl, on_crash) = (options.lease, options.on_crash);
        parting.call = Some(failure(&begin, on_crash, "the work panicked or was cancelled"));
        let (connection, renewed) = (Arc::clone(&parting.connection), begin.clone());
        let kept = lease.clone();
        let watchdog = watchdog(&lease, async move {
            let renew = async |limit| renew(&connection, &renewed, ttl, limit).await;
            let is_loss = |problem: &ProblemDocument| problem.is(Code::TokenMismatch);
            keep(kept, renew, |it| is_loss(it).then_some(LossReason::NotHeld)).await;
        });
        Self { _watchdog: watchdog, parting, begin, on_crash, lease }
    }

    /// Keeps a response for every repeat, of text or of bytes, with its status and headers.
    ///
    /// # Errors
    ///
    /// The service gave no response, or the run is no longer this client's.
    pub async fn complete(self, response: Response<impl Into<Bytes>>) -> Result<()> {
        let (head, body) = response.into_parts();
        let mut headers = BTreeMap::<_, Vec<_>>::new();
        for (name, value) in &head.headers {
            let value = String::from_utf8_lossy(value.as_bytes());
            headers.entry(name.as_str()).or_default().push(value);
        }
        let mut answer = json!({"status": head.status.as_u16(), "headers": headers});
        match String::from_utf8(body.into().into()) {
            Ok(text) => answer["body"] = text.into(),
            Err(error) => answer["body_base64"] = STANDARD.encode(error.into_bytes()).into(),
        }
        let call = self.begin.then(Method::PUT, "").with_body(&answer);
        self.end(call).await
    }

    /// Says that nothing was done, so that a repeat runs.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete).
    pub async fn abandon(self) -> Result<()> {
        let call = self.begin.then(Method::DELETE, "");
        self.end(call).await
    }

    /// Says that it failed half way: its outcome is unknown now, for a person to settle. With
    /// [`OnCrash::Rerun`] a repeat runs.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete).
    pub async fn fail(self, reason: &str) -> Result<()> {
        let call = failure(&self.begin, self.on_crash, reason);
        self.end(call).await
    }

    /// Stops renewing the run and ends it in no way: what is to come of it when its lease is over
    /// is up to `on_crash`.
    pub fn leave(mut self) {
        self.parting.call = None;
    }

    async fn end(mut self, call: Call) -> Result<()> {
        self.parting.call = Some(call.clone());
        self.lease.closing().cancel();
        // No other client can run it before the lease is over, so there is time to outlast a
        // restart of the service.
        let patience = self.lease.until().left().min(END_TIME);
        let reply = self.parting.connection.done(&call, patience).await;
        self.parting.call = None;
        reply.map(drop)
    }
}

impl Deref for Run {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl Scope {
    fn query(&self) -> impl Iterator<Item = (&str, &str)> {
        let members = [
            ("method", &self.method),
            ("path", &self.path),
            ("principal", &self.principal),
            ("source", &self.source),
        ];
        members.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)))
    }
}

/// What a record says of the response: all of it, or its status and what was kept of its headers.
fn response_of(record: IdempotencyRecord) -> Result<Response<Option<Bytes>>> {
    let status = record.status.ok_or_else(Error::not_keylatch)?;
    let (headers, body) = match record.answer {
        None => (record.headers.unwrap_or_default(), None),
        Some(answer) => (
            answer.headers,
            Some(match (answer.body, answer.body_base64) {
                (Some(text), _) => text.into_bytes(),
                (None, Some(bytes)) => STANDARD.decode(bytes).map_err(|_| Error::not_keylatch())?,
                (None, None) => Vec::new(),
            }),
        ),
    };
    let mut response = Response::builder().status(status);
    for (name, values) in &headers {
        response = values.iter().fold(response, |response, value| response.header(name, value));
    }
    response.body(body.map(Bytes::from)).map_err(|_| Error::not_keylatch())
}

fn is_nothing_done(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(<dyn std::error::Error>::is::<NothingDone>)
}

async fn renew(
    connection: &Connection,
    begin: &Call,
    lease: Duration,
    limit: Duration,
) -> Result<BootInstant, Failure> {
    let sent = connection.now();
    connection.send(&begin.then(Method::POST, "/renew"), Duration::ZERO, limit).await?;
    Ok(sent + lease)
}
