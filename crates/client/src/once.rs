//! Doing a thing once, under an idempotency key.
//!
//! Begin, complete and abandon carry a token of the client's own, so each is repeated where its answer is lost. A run
//! that is dropped is not renewed any more: its outcome is unknown when its lease is over, and a person settles it.
//! The [watchdog](crate::watchdog) of a run is that of a lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use keylatch_core::lock::{FencingToken, Token};
use keylatch_wire::{
    BeginRecordRequest, Code, CompleteRecordRequest, IdempotencyAnswer, IdempotencyRecord, millis,
};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::BootInstant;
use crate::connection::{ANSWER_TIMEOUT, Answer, Connection, PAUSE};
use crate::error::not_keylatch;
use crate::target::plain;
use crate::watchdog::{LeaseReport, LeaseView, RenewalError, keep};
use crate::{Client, Error, LeaseStatus, LossReason};

/// How to do a thing once.
#[derive(Debug, Clone)]
pub struct OnceOptions {
    /// Tells two things apart that have the same key by mistake.
    pub fingerprint: Option<String>,
    /// How long the run may go unrenewed before its outcome is unknown.
    pub lease: Duration,
    /// How long to wait for the same thing under way elsewhere.
    pub wait: Duration,
}

impl Default for OnceOptions {
    /// No fingerprint, a lease of 30 s, without waiting.
    fn default() -> Self {
        Self { fingerprint: None, lease: Duration::from_secs(30), wait: Duration::ZERO }
    }
}

/// What came of beginning.
#[derive(Debug)]
pub enum BeginReply {
    /// It is to be done now, and then to be completed or abandoned.
    Begun(Run),
    /// It was done before, and came to this; `None` where the answer was not kept.
    Done(Option<IdempotencyAnswer>),
}

/// A thing that is being done, renewed in the background.
pub struct Run {
    client: Client,
    path: String,
    token: Token,
    fencing_token: FencingToken,
    watchdog: AbortOnDropHandle<()>,
    view: LeaseView,
}

impl Client {
    /// Asks whether to do a thing now. Where the same thing is under way elsewhere the error is a problem with the
    /// code `request-in-progress`, once the wait of `options` is over.
    ///
    /// # Errors
    ///
    /// The service gave no answer, or refuses the key: its outcome is unknown, or it was used for another thing.
    pub async fn begin(&self, key: &str, options: &OnceOptions) -> Result<BeginReply, Error> {
        let (path, token) = (format!("/v1/idempotency/{}", plain(key)), Token::generate()?);
        let body = BeginRecordRequest {
            fingerprint: options.fingerprint.clone(),
            lease_ms: Some(millis(options.lease)),
            ..BeginRecordRequest::default()
        };
        let body = serde_json::to_vec(&body).map_err(|_| not_keylatch())?;
        let (answer, sent) = self.ask(Method::POST, &path, &token, body, options.wait).await?;
        let record: IdempotencyRecord =
            serde_json::from_slice(&answer).map_err(|_| not_keylatch())?;
        if record.state == "done" {
            return Ok(BeginReply::Done(record.answer));
        }
        let fencing_token = FencingToken::new(record.fencing_token);
        let (report, view) = LeaseReport::new(sent + options.lease);
        let (connection, run) = (Arc::clone(self.connection()), (path.clone(), token.clone()));
        let lease = options.lease;
        let watchdog = AbortOnDropHandle::new(tokio::spawn(async move {
            let (path, token) = (format!("{}/renew", run.0), run.1);
            let renew =
                async |limit| renew(&connection, &path, &token, limit).await.map(|()| lease);
            keep(report, lease, renew).await;
        }));
        let client = self.clone();
        Ok(BeginReply::Begun(Run { client, path, token, fencing_token, watchdog, view }))
    }

    /// The answer to a request that is safe to repeat, also where earlier ones were lost, and when the one that is
    /// answered was sent.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        token: &Token,
        body: Vec<u8>,
        wait: Duration,
    ) -> Result<(Bytes, BootInstant), Error> {
        let end = Instant::now() + wait.max(ANSWER_TIMEOUT);
        loop {
            let since = BootInstant::now();
            let sent =
                self.connection().send(method.clone(), path, token, body.clone(), ANSWER_TIMEOUT);
            let (error, pause) = match sent.await {
                Ok(Answer::Content(body)) => return Ok((body, since)),
                Ok(Answer::Done) => return Ok((Bytes::new(), since)),
                Ok(Answer::Refusal(refusal)) => {
                    let is_under_way = refusal.is(Code::RequestInProgress);
                    if !refusal.is_passing() || is_under_way && wait.is_zero() {
                        return Err(refusal.into_problem());
                    }
                    let pause = refusal.retry_after.unwrap_or_default().max(PAUSE);
                    (refusal.into_problem(), pause)
                }
                Err(no_reply) => (no_reply.into(), PAUSE),
            };
            if Instant::now() + pause >= end {
                return Err(error);
            }
            sleep(pause).await;
        }
    }
}

impl Run {
    /// Larger than that of every earlier run of the key.
    pub fn fencing_token(&self) -> FencingToken {
        self.fencing_token
    }

    /// Is cancelled when the run is no longer this client's, or is about to end unrenewed: its outcome is unknown then
    /// unless it is completed in time.
    pub fn lost(&self) -> CancellationToken {
        self.view.lost.clone()
    }

    /// Whether the run is still this client's, and why not.
    pub fn status(&self) -> LeaseStatus {
        self.view.status.borrow().clone()
    }

    /// Keeps an answer for every repeat.
    ///
    /// # Errors
    ///
    /// The service gave no answer, or the run is no longer this client's.
    pub async fn complete(self, status: StatusCode, body: &str) -> Result<(), Error> {
        let answer = CompleteRecordRequest {
            status: Some(status.as_u16()),
            body: Some(body.to_owned()),
            ..CompleteRecordRequest::default()
        };
        let answer = serde_json::to_vec(&answer).map_err(|_| not_keylatch())?;
        self.end(Method::PUT, answer).await
    }

    /// Says that nothing was done, so that a repeat runs.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete).
    pub async fn abandon(self) -> Result<(), Error> {
        self.end(Method::DELETE, Vec::new()).await
    }

    async fn end(self, method: Method, body: Vec<u8>) -> Result<(), Error> {
        self.view.closing.cancel();
        self.watchdog.abort();
        self.client.ask(method, &self.path, &self.token, body, Duration::ZERO).await.map(drop)
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("fencing_token", &self.fencing_token).finish_non_exhaustive()
    }
}

/// Keeps a run from being over while the program carries it out.
async fn renew(
    connection: &Connection,
    path: &str,
    token: &Token,
    limit: Duration,
) -> Result<(), RenewalError> {
    let failed = |after, error| Err(RenewalError::Failed { after, error });
    match connection.send(Method::POST, path, token, Vec::new(), limit).await {
        Ok(Answer::Content(_) | Answer::Done) => Ok(()),
        Ok(Answer::Refusal(refusal)) if !refusal.is_passing() => {
            Err(RenewalError::Lost(LossReason::NotHeld))
        }
        Ok(Answer::Refusal(refusal)) => failed(refusal.retry_after, refusal.into()),
        Err(no_reply) => failed(None, no_reply.into()),
    }
}
