//! A claim to a lock or to several, proved by a token, and its end.
//!
//! A session may hold its locks, or places in their queues, from its first request that was sent until
//! the service has answered that it holds nothing. Dropped in between, it releases what it may
//! hold, in a task of the client: a program that stops waiting, or forgets a guard, leaves nothing
//! behind but for as long as the service cannot be reached.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::Method;
use keylatch_core::lock::{ReleaseReply, Token, Ttl};
use keylatch_core::retry::Retry;
use keylatch_wire::Code;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::connection::{ANSWER_TIMEOUT, Answer, Connection, NoReply, PAUSE, Refusal};
use crate::error::not_keylatch;
use crate::target::{Grant, Target};
use crate::watchdog::RenewalError;
use crate::{AcquireOptions, Error, LossReason};

/// A claim that is released when it is dropped.
#[derive(Debug)]
pub(crate) struct Session {
    claim: Arc<Claim>,
    /// The releases of dropped sessions.
    releases: TaskTracker,
    /// Whether the service may hold something for the token that the session is to release.
    open: bool,
    /// Whether the token keeps what it holds at the end.
    keep: bool,
}

impl Session {
    /// A session under a new token, for which the service holds nothing yet, or under that of the
    /// options.
    pub(crate) fn new(
        connection: Arc<Connection>,
        releases: TaskTracker,
        target: Target,
        options: &AcquireOptions,
    ) -> Result<Self, Error> {
        let token = options.token.clone().map_or_else(Token::generate, Ok)?;
        let claim = Arc::new(Claim { connection, target, token });
        Ok(Self { claim, releases, open: false, keep: options.keep })
    }

    /// The claim, for the task that renews it.
    pub(crate) fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    /// Notes that the service may hold something from now on.
    pub(crate) fn opens(&mut self) {
        self.open = !self.keep;
    }

    /// Notes that the service has answered that it holds nothing.
    pub(crate) fn holds_nothing(&mut self) {
        self.open = false;
    }

    /// Asks for the locks, and waits for them at the service for `wait`.
    pub(crate) async fn create(
        &mut self,
        options: &AcquireOptions,
        wait: Duration,
    ) -> Result<Answer, NoReply> {
        let before = std::mem::replace(&mut self.open, !self.keep);
        let answer = self.claim.create(options, wait).await;
        let nothing_left = match &answer {
            // A client whose wait is over keeps its place in the queue for a moment longer.
            Ok(Answer::Refusal(refusal)) if refusal.is(Code::LockHeld) => {
                wait.is_zero() || refusal.is_final(wait)
            }
            Ok(Answer::Refusal(refusal)) => refusal.status.is_client_error(),
            Err(NoReply::Unsent(_)) => true,
            _ => false,
        };
        if nothing_left {
            self.open = before;
        }
        answer
    }

    /// Releases the locks, and repeats that until the service has answered or the time for an answer
    /// is over. A session that keeps them does nothing.
    pub(crate) async fn close(mut self) -> Result<ReleaseReply, Error> {
        if self.keep {
            return Ok(ReleaseReply::Released);
        }
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

/// What proves a session to the service: the target and the token.
#[derive(Debug)]
pub(crate) struct Claim {
    connection: Arc<Connection>,
    target: Target,
    token: Token,
}

impl Claim {
    /// What is claimed.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// The token.
    pub(crate) fn token(&self) -> &Token {
        &self.token
    }

    /// Starts the TTL of the lease again, unless the answer takes longer than `limit`.
    pub(crate) async fn renew(&self, ttl: Ttl, limit: Duration) -> Result<Grant, RenewalError> {
        let failed = |error| RenewalError::Failed { after: None, error };
        match self.send(Method::PUT, self.target.renewal(ttl), limit).await {
            Ok(Answer::Content(body)) => self.target.grant(&body).map_err(failed),
            Ok(Answer::Refusal(refusal)) => Err(match self.loss(&refusal) {
                Some(reason) => RenewalError::Lost(reason),
                None => RenewalError::Failed { after: refusal.retry_after, error: refusal.into() },
            }),
            Ok(Answer::Done) => Err(failed(not_keylatch())),
            Err(no_reply) => Err(failed(no_reply.into())),
        }
    }

    fn loss(&self, refusal: &Refusal) -> Option<LossReason> {
        self.target.loss(refusal.problem.as_deref()?)
    }

    async fn create(&self, options: &AcquireOptions, wait: Duration) -> Result<Answer, NoReply> {
        let body = self.target.creation(options, wait);
        self.send(Method::POST, body, wait + ANSWER_TIMEOUT).await
    }

    async fn release(&self) -> Result<ReleaseReply, Error> {
        let retry = Retry { try_limit: ANSWER_TIMEOUT, pause: PAUSE, limit: ANSWER_TIMEOUT };
        let failure = Mutex::new(Error::late());
        let may_be_done = AtomicBool::new(false);
        let step = async || {
            let answer = self.send_release().await;
            let in_doubt = match &answer {
                Ok(Answer::Refusal(refusal)) => refusal.is_passing(),
                Ok(_) => false,
                Err(no_reply) => matches!(no_reply, NoReply::Unknown(_)),
            };
            match self.released(answer) {
                Err(error) if !error.is_refusal() => {
                    may_be_done.fetch_or(in_doubt, Ordering::Relaxed);
                    let why = error.to_string();
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = error;
                    Err(why)
                }
                // The try whose answer was lost has released what is gone now.
                Ok(_) if may_be_done.load(Ordering::Relaxed) => Ok(Ok(ReleaseReply::Released)),
                done => Ok(done),
            }
        };
        let released = retry.run("the release of a lock", step).await;
        released
            .unwrap_or_else(|| Err(failure.into_inner().unwrap_or_else(PoisonError::into_inner)))
    }

    async fn send_release(&self) -> Result<Answer, NoReply> {
        let Self { connection, target, token } = self;
        let path = target.release_path();
        connection.send(Method::DELETE, &path, token, Vec::new(), ANSWER_TIMEOUT).await
    }

    async fn send(
        &self,
        method: Method,
        body: serde_json::Result<Vec<u8>>,
        limit: Duration,
    ) -> Result<Answer, NoReply> {
        let body = body.map_err(|error| NoReply::Unsent(error.to_string()))?;
        self.connection.send(method, &self.target.path(), &self.token, body, limit).await
    }

    fn released(&self, answer: Result<Answer, NoReply>) -> Result<ReleaseReply, Error> {
        match answer? {
            Answer::Done => Ok(ReleaseReply::Released),
            Answer::Content(body) if self.target.has_entries(&body) => Ok(ReleaseReply::Released),
            Answer::Content(_) => Err(not_keylatch()),
            Answer::Refusal(refusal) if refusal.is(Code::LockNotHeld) => Ok(ReleaseReply::NotHeld),
            Answer::Refusal(refusal) if refusal.is(Code::TokenMismatch) => {
                Ok(ReleaseReply::Mismatch)
            }
            Answer::Refusal(refusal) => Err(refusal.into()),
        }
    }
}
