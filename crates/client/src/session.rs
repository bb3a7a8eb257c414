//! A claim to a lock, proved by a token, and its end.
//!
//! A session may hold a lock, or a place in its queue, from its first request that was sent until
//! the service has answered that it holds nothing. Dropped in between, it releases what it may
//! hold, in a task of the client: a program that stops waiting, or forgets a guard, leaves nothing
//! behind but for as long as the service cannot be reached.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use keylatch_core::lock::{EntryName, Limit, LockName, Owner, ReleaseReply, Token, Ttl};
use keylatch_wire::{Code, CreateLockRequest, Lease, LockMode, RenewLockRequest, millis};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::TaskTracker;

use crate::connection::{Answer, Connection, NoReply};
use crate::{AcquireOptions, Error};

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
        options: &AcquireOptions,
    ) -> Result<Self, Error> {
        let token = options.token.clone().map_or_else(Token::generate, Ok)?;
        let (limit, entry) = (options.limit, options.entry.clone());
        let claim = Arc::new(Claim { connection, name, token, limit, entry });
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
    limit: Limit,
    /// The entry that the release ends; `None` ends all.
    entry: Option<EntryName>,
}

/// Why a lease was not renewed.
#[derive(Debug)]
pub(crate) enum RenewalError {
    /// No client holds the lock.
    NotHeld,
    /// Another client holds it.
    TakenOver,
    /// The lease was broken, for this reason.
    Broken(String),
    /// It may be tried again, after some time if the service says so.
    Failed { after: Option<Duration>, error: Error },
}

impl Claim {
    /// The lock.
    pub(crate) fn name(&self) -> &LockName {
        &self.name
    }

    /// The token.
    pub(crate) fn token(&self) -> &Token {
        &self.token
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
            Ok(Answer::Refusal(refusal)) if refusal.is(Code::LockBroken) => {
                let broken = refusal.problem.and_then(|problem| problem.broken);
                Err(RenewalError::Broken(broken.map(|broken| broken.reason).unwrap_or_default()))
            }
            Ok(Answer::Refusal(refusal)) => {
                Err(RenewalError::Failed { after: refusal.retry_after, error: refusal.into() })
            }
            Ok(Answer::Done | Answer::Entered) => {
                Err(RenewalError::Failed { after: None, error: not_keylatch() })
            }
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
            mode: self.limit.is_shared().then_some(LockMode::Shared),
            limit: match self.limit {
                Limit::Counted(slots) => Some(slots.get().into()),
                Limit::Exclusive | Limit::Shared => None,
            },
            entry: self.entry.as_ref().map(|entry| entry.as_str().to_owned()),
        };
        self.send(Method::POST, &body, wait + ANSWER_TIMEOUT).await
    }

    async fn release(&self) -> Result<ReleaseReply, Error> {
        let end = Instant::now() + ANSWER_TIMEOUT;
        let mut failure = Error::Unreachable("no answer came in time".to_owned());
        let trying = async {
            let mut may_be_done = false;
            loop {
                let answer = self.send_release().await;
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

    async fn send_release(&self) -> Result<Answer, NoReply> {
        let Self { connection, name, token, entry, .. } = self;
        match entry {
            Some(entry) => connection.leave(name, entry, token, ANSWER_TIMEOUT).await,
            None => connection.send(Method::DELETE, name, token, Vec::new(), ANSWER_TIMEOUT).await,
        }
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
        Answer::Done | Answer::Entered => Ok(ReleaseReply::Released),
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
