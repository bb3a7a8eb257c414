//! A claim to a lock, proved by a token, and its end.
//!
//! A session may hold a lock, or a place in its queue, from its first request that was sent until
//! the service has answered that it holds nothing. Dropped in between, it releases what it may
//! hold, in a task of the client: a program that stops waiting, or forgets a guard, leaves nothing
//! behind but for as long as the service cannot be reached.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use keylatch_core::lock::{LockName, Owner, ReleaseReply, Token, Ttl};
use keylatch_wire::{Code, CreateLockRequest, Lease, RenewLockRequest, millis};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::TaskTracker;

use crate::Error;
use crate::connection::{Answer, Connection, NoReply};

/// How long an answer may take, beyond what the service was asked to wait.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before a request is repeated, unless the service asks for a longer one.
pub(crate) const PAUSE: Duration = Duration::from_millis(250);

/// A claim that is released when it is dropped.
#[derive(Debug)]
pub(crate) struct Session {
    claim: Arc<Claim>,
    /// The releases of dropped sessions.
    releases: TaskTracker,
    /// Whether the service may hold something for the token.
    open: bool,
}

impl Session {
    /// A session under a new token, for which the service holds nothing yet.
    pub(crate) fn new(
        connection: Arc<Connection>,
        releases: TaskTracker,
        name: LockName,
    ) -> Result<Self, Error> {
        let claim = Arc::new(Claim { connection, name, token: Token::generate()? });
        Ok(Self { claim, releases, open: false })
    }

    /// The claim, for the task that renews it.
    pub(crate) fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    /// Asks for the lock, and waits for it at the service for `wait`.
    pub(crate) async fn create(
        &mut self,
        ttl: Ttl,
        owner: Option<&Owner>,
        wait: Duration,
    ) -> Result<Answer, NoReply> {
        let before = std::mem::replace(&mut self.open, true);
        let answer = self.claim.create(ttl, owner, wait).await;
        let nothing_left = match &answer {
            // A client whose wait is over keeps its place in the queue for a moment longer.
            Ok(Answer::Refusal(refusal)) if refusal.is(Code::LockHeld) => wait.is_zero(),
            Ok(Answer::Refusal(refusal)) => refusal.status.is_client_error(),
            Err(NoReply::Unsent(_)) => true,
            _ => false,
        };
        if nothing_left {
            self.open = before;
        }
        answer
    }

    /// Releases the lock, and repeats that until the service has answered or the time for an answer
    /// is over.
    pub(crate) async fn close(mut self) -> Result<ReleaseReply, Error> {
        let released = self.claim.release().await;
        self.open = false;
        released
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        // Without a runtime the lease ends by itself.
        if let Ok(runtime) = Handle::try_current() {
            let claim = Arc::clone(&self.claim);
            let releasing = async move {
                // The caller is gone, so no caller reads an error.
                let _ = claim.release().await;
            };
            self.releases.spawn_on(releasing, &runtime);
        }
    }
}

/// What proves a session to the service: the lock and the token.
#[derive(Debug)]
pub(crate) struct Claim {
    connection: Arc<Connection>,
    name: LockName,
    token: Token,
}

/// Why a lease was not renewed.
#[derive(Debug)]
pub(crate) enum RenewalError {
    /// No client holds the lock.
    NotHeld,
    /// Another client holds it.
    TakenOver,
    /// It may be tried again, after some time if the service says so.
    Failed { after: Option<Duration>, error: Error },
}

impl Claim {
    /// The lock.
    pub(crate) fn name(&self) -> &LockName {
        &self.name
    }

    /// Starts the TTL of the lease again, unless the answer takes longer than `limit`.
    pub(crate) async fn renew(
        &self,
        ttl: Ttl,
        limit: Duration,
    ) -> Result<Lease<'static>, RenewalError> {
        let body = RenewLockRequest { ttl_ms: Some(ttl.as_millis()) };
        match self.send(Method::PUT, &body, limit).await {
            Ok(Answer::Lease(lease)) => Ok(lease),
            Ok(Answer::Refusal(refusal)) if refusal.is(Code::LockNotHeld) => {
                Err(RenewalError::NotHeld)
            }
            Ok(Answer::Refusal(refusal)) if refusal.is(Code::TokenMismatch) => {
                Err(RenewalError::TakenOver)
            }
            Ok(Answer::Refusal(refusal)) => {
                Err(RenewalError::Failed { after: refusal.retry_after, error: refusal.into() })
            }
            Ok(Answer::Done) => Err(RenewalError::Failed { after: None, error: not_keylatch() }),
            Err(no_reply) => Err(RenewalError::Failed { after: None, error: no_reply.into() }),
        }
    }

    async fn create(
        &self,
        ttl: Ttl,
        owner: Option<&Owner>,
        wait: Duration,
    ) -> Result<Answer, NoReply> {
        let body = CreateLockRequest {
            ttl_ms: Some(ttl.as_millis()),
            owner: owner.map(|owner| owner.as_str().to_owned()),
            wait_ms: Some(millis(wait)),
        };
        self.send(Method::POST, &body, wait + ANSWER_TIMEOUT).await
    }

    async fn release(&self) -> Result<ReleaseReply, Error> {
        let end = Instant::now() + ANSWER_TIMEOUT;
        let mut failure = Error::Unreachable("no answer came in time".to_owned());
        let trying = async {
            let mut may_be_done = false;
            loop {
                let sent = self.connection.send(
                    Method::DELETE,
                    &self.name,
                    &self.token,
                    Vec::new(),
                    ANSWER_TIMEOUT,
                );
                let answer = sent.await;
                let in_doubt = match &answer {
                    Ok(Answer::Refusal(refusal)) => refusal.is_passing(),
                    Ok(_) => false,
                    Err(no_reply) => matches!(no_reply, NoReply::Unknown(_)),
                };
                match released(answer) {
                    Err(error @ Error::Refused(_)) => return Err(error),
                    Err(error) => failure = error,
                    // The try whose answer was lost has released what is gone now.
                    Ok(_) if may_be_done => return Ok(ReleaseReply::Released),
                    Ok(released) => return Ok(released),
                }
                may_be_done |= in_doubt;
                sleep(PAUSE).await;
            }
        };
        let tried = timeout_at(end, trying).await;
        tried.unwrap_or(Err(failure))
    }

    async fn send(
        &self,
        method: Method,
        body: &impl Serialize,
        limit: Duration,
    ) -> Result<Answer, NoReply> {
        let body = serde_json::to_vec(body).map_err(|error| NoReply::Unsent(error.to_string()))?;
        self.connection.send(method, &self.name, &self.token, body, limit).await
    }
}

fn released(answer: Result<Answer, NoReply>) -> Result<ReleaseReply, Error> {
    match answer? {
        Answer::Done => Ok(ReleaseReply::Released),
        Answer::Refusal(refusal) if refusal.is(Code::LockNotHeld) => Ok(ReleaseReply::NotHeld),
        Answer::Refusal(refusal) if refusal.is(Code::TokenMismatch) => Ok(ReleaseReply::Mismatch),
        Answer::Refusal(refusal) => Err(refusal.into()),
        Answer::Lease(_) => Err(not_keylatch()),
    }
}

/// The answer has a status that keylatch does not give to such a request.
pub(crate) fn not_keylatch() -> Error {
    Error::Refused("the answer is not one of keylatch".to_owned())
}
