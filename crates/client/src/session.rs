//! A claim to a lock or to several, proved by a token, and its end.
//!
//! A session may hold its locks, or places in their queues, from its first request that was sent
//! until the service has answered that it holds nothing. Dropped in between, it releases what it
//! may hold, in a task of the client: a program that stops waiting, or forgets a guard, leaves
//! nothing behind but for as long as the service cannot be reached.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use keylatch_core::lock::{ReleaseReply, Token};
use keylatch_wire::Code;

use crate::connection::{Answer, Call, Connection, Refusal};
use crate::ending::send_in_background;
use crate::error::not_keylatch;
use crate::target::{Grant, Target};
use crate::watchdog::RenewalError;
use crate::{AcquireOptions, Error};

/// A claim that is released when it is dropped.
#[derive(Debug)]
pub(crate) struct Session {
    /// What the task that renews it shares.
    pub(crate) claim: Arc<Claim>,
    /// Whether the service may hold something for the token.
    pub(crate) open: bool,
    /// Whether the token keeps what it holds at the end.
    keep: bool,
}

impl Session {
    /// A session under a new token, for which the service holds nothing yet, or under that of the
    /// options.
    pub(crate) fn new(
        connection: &Arc<Connection>,
        target: Target,
        options: &AcquireOptions,
    ) -> Result<Self, Error> {
        let token = options.token.clone().map_or_else(Token::generate, Ok)?;
        let claim = Arc::new(Claim { connection: Arc::clone(connection), target, token });
        Ok(Self { claim, open: false, keep: options.keep })
    }

    /// Asks for the locks, and waits for them at the service for `wait`.
    pub(crate) async fn create(
        &mut self,
        options: &AcquireOptions,
        wait: Duration,
        limit: Duration,
    ) -> Result<Answer, Error> {
        let before = std::mem::replace(&mut self.open, true);
        let call = self.claim.creation("", options, wait);
        let answer = self.claim.connection.send(&call, limit).await;
        let nothing_left = match &answer {
            // A client whose wait is over keeps its place in the queue for a moment longer.
            Ok(Err(refusal)) if refusal.is(Code::LockHeld) => {
                wait.is_zero() || refusal.is_final(wait)
            }
            Ok(Err(refusal)) => refusal.is_without_effect(),
            answer => answer.as_ref().is_err_and(Error::is_unsent),
        };
        if nothing_left {
            self.open = before;
        }
        answer
    }

    /// Releases the locks, and repeats that until the service has answered or the time for a
    /// response is over. A session that keeps them does nothing.
    pub(crate) async fn close(mut self) -> Result<ReleaseReply, Error> {
        if self.keep {
            return Ok(ReleaseReply::Released);
        }
        let released = self.claim.release().await;
        self.open = false;
        released
    }

    /// Lets the locks last `ttl` from now, and leaves them. Repeats that while they are held for
    /// `left`.
    pub(crate) async fn leave_for(
        mut self,
        ttl: Duration,
        left: Duration,
    ) -> Result<(), RenewalError> {
        self.open = false;
        let call = self.claim.renewal_call(ttl);
        let reply = self.claim.connection.ask_for(&call, Duration::ZERO, left).await;
        self.claim.renewed(reply.map(|reply| reply.answer)).map(drop)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.open && !self.keep {
            send_in_background(&self.claim.connection, self.claim.release_call());
        }
    }
}

/// What proves a session to the service: the target and the token.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) connection: Arc<Connection>,
    pub(crate) target: Target,
    pub(crate) token: Token,
}

impl Claim {
    /// A refusal as an error: who holds what is claimed, or why it is not to be had.
    pub(crate) fn refused(&self, refusal: Refusal) -> Error {
        if !refusal.is(Code::LockHeld) {
            return refusal.into();
        }
        Error::Held(Box::new(self.target.held(refusal.problem.map(|problem| *problem))))
    }

    /// What a response grants to this claim.
    pub(crate) fn grant(&self, response: &[u8]) -> Result<Grant, Error> {
        self.target.grant(&self.token, response)
    }

    /// Starts the TTL of the lease again, unless the response takes longer than `limit`.
    pub(crate) async fn renew(
        &self,
        ttl: Duration,
        limit: Duration,
    ) -> Result<Grant, RenewalError> {
        self.renewed(self.connection.send(&self.renewal_call(ttl), limit).await)
    }

    fn renewal_call(&self, ttl: Duration) -> Call {
        let call = Call::new(Method::PUT, self.target.path()).with_token(&self.token);
        call.with_body(&self.target.renewal(ttl))
    }

    /// What the response to a renewal says.
    fn renewed(&self, answer: Result<Answer, Error>) -> Result<Grant, RenewalError> {
        let failed = |error| RenewalError::Failed { after: None, error };
        match answer {
            Ok(Ok(body)) => self.grant(&body).map_err(failed),
            Ok(Err(refusal)) => {
                let problem = refusal.problem.as_deref();
                if let Some(reason) = problem.and_then(|problem| self.target.loss(problem)) {
                    return Err(RenewalError::Lost(reason));
                }
                let after = refusal.retry_after;
                Err(RenewalError::Failed { after, error: refusal.into() })
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The request that asks for the locks, by this step of their path.
    pub(crate) fn creation(&self, step: &str, options: &AcquireOptions, wait: Duration) -> Call {
        let path = self.target.path() + step;
        let owner = self.connection.settings.owner.as_deref();
        let body = self.target.creation(options, owner, wait);
        Call::new(Method::POST, path).with_token(&self.token).with_body(&body)
    }

    fn release_call(&self) -> Call {
        let call = Call::new(Method::DELETE, self.target.path()).with_token(&self.token);
        call.with_query(self.target.release_query())
    }

    async fn release(&self) -> Result<ReleaseReply, Error> {
        let reply = self.connection.ask(&self.release_call(), Duration::ZERO).await?;
        let released = match reply.answer {
            Ok(body) if self.target.is_released(&body) => ReleaseReply::Released,
            Ok(_) => return Err(not_keylatch()),
            Err(refusal) if refusal.is(Code::LockNotHeld) => ReleaseReply::NotHeld,
            Err(refusal) if refusal.is(Code::TokenMismatch) => ReleaseReply::Mismatch,
            Err(refusal) => return Err(refusal.into()),
        };
        // The try whose response was lost has released what is gone now.
        Ok(if reply.in_doubt { ReleaseReply::Released } else { released })
    }
}
