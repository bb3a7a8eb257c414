//! Acquiring a lock, or several at once: one call that asks until the wait is over.
//!
//! A long wait is made of several requests with one token, each shorter than what proxies let a
//! silent connection live for; the token keeps the place in the queue between them. The validity
//! of a grant counts from the sending of the request that got it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, Response};
use keylatch_wire::{self as wire, BreakLockRequest, Code, HeldLock, LockBreak};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::builder::Builder;
use crate::clock::BootInstant;
use crate::connection::{Call, Connection, REQUEST_WAIT, pause};
use crate::error::{not_keylatch, not_of_this_request};
use crate::session::{Claim, Session};
use crate::target::{Grant, Target, lock_path};
use crate::transport::Body;
use crate::watchdog::RenewalError;
use crate::{AcquireOptions, Error, Guard, LockGuard, SetGuard};

/// Below this, a service that refuses to let the client wait is polled instead.
const MIN_REQUEST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait that the clock can count: some hundred years.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A keylatch service, for any number of locks. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) connection: Arc<Connection>,
}

impl Builder {
    /// A client that is not connected yet.
    ///
    /// # Errors
    ///
    /// A text is not a URL with `http`, `https` or `unix`, or that of a proxy not one with `http`;
    /// the API key has characters that no key has; a file or the system's certificates cannot be
    /// read.
    pub fn build(self) -> Result<Client, Error> {
        Ok(Client { connection: Connection::open(self)? })
    }
}

impl Client {
    /// A client of the service at `url`, such as `http://127.0.0.1:7070`, or
    /// `unix:/run/keylatch.sock` where it listens on a Unix socket. It does not connect yet.
    ///
    /// # Errors
    ///
    /// The text is not a URL with `http`, `https` or `unix`, or the system's certificates cannot be
    /// read.
    pub fn new(url: &str) -> Result<Self, Error> {
        Self::builder(url).build()
    }

    /// A client of the service at `url`, with more to say. Several URLs of one service have commas
    /// between them.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    /// A client of the service that the environment names: [`Builder::from_env`].
    ///
    /// # Errors
    ///
    /// As [`Builder::from_env`] and [`Builder::build`].
    pub fn from_env() -> Result<Self, Error> {
        Builder::from_env()?.build()
    }

    /// Gets a lock, and waits for it as long as `options` say.
    ///
    /// Within that time, and for 5 s in any case, the request is repeated, with the same token,
    /// when the service cannot be reached or does not know the outcome. When this future is
    /// dropped, the client releases what it may have got.
    ///
    /// Where the token of `options` holds the lock together with others and asks for it with a
    /// smaller limit, the service lets it not wait, and [`Error::Held`] comes at once.
    ///
    /// # Errors
    ///
    /// [`Error::Held`] if others held it until the wait was over. The service gave no response, or
    /// refuses the request.
    pub async fn lock(
        &self,
        name: impl Into<String>,
        options: &AcquireOptions,
    ) -> Result<LockGuard, Error> {
        let target = Target::lock(name.into(), options.entry.clone());
        let (session, grant, until) = self.acquire(target, options).await?;
        let lock = grant.locks.into_iter().next().ok_or_else(not_keylatch)?;
        Ok(Guard::start(session, options.ttl, lock, until))
    }

    /// The same, with `None` in place of [`Error::Held`].
    ///
    /// # Errors
    ///
    /// The service gave no response, or refuses the request.
    pub async fn try_lock(
        &self,
        name: impl Into<String>,
        options: &AcquireOptions,
    ) -> Result<Option<LockGuard>, Error> {
        match self.lock(name, options).await {
            Err(Error::Held(_)) => Ok(None),
            guard => guard.map(Some),
        }
    }

    /// Gets all of several locks, and waits for them as long as `options` say. It holds none of
    /// them until it gets all, so the order of their names has no meaning.
    ///
    /// It repeats and releases as [`lock`](Self::lock) does. A token of `options` that holds one
    /// of the locks already does not wait for the others.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock); the store cannot take several locks in one step; or `options` have
    /// an `entry`, which sets do not.
    pub async fn lock_all<N: Into<String>>(
        &self,
        names: impl IntoIterator<Item = N>,
        options: &AcquireOptions,
    ) -> Result<SetGuard, Error> {
        if options.entry.is_some() {
            return Err(Error::Options("have an entry, and a set has none"));
        }
        let names = names.into_iter().map(Into::into).collect();
        let target = Target { names, is_set: true, entry: None };
        let (session, grant, until) = self.acquire(target, options).await?;
        Ok(Guard::start(session, options.ttl, grant.locks, until))
    }

    async fn acquire(
        &self,
        target: Target,
        options: &AcquireOptions,
    ) -> Result<(Session, Grant, BootInstant), Error> {
        let mut session = Session::new(&self.connection, target, options)?;
        let (start, timeout) = (self.connection.now(), self.connection.settings.timeout);
        let end = start + options.wait.min(MAX_WAIT);
        // Waiting for a holder and outlasting a hiccup are two things.
        let (patience, deadline) = (end.max(start + timeout), end + timeout);
        let mut longest = REQUEST_WAIT;
        loop {
            let (sent, wait) = (self.connection.now(), whole_millis(end.left().min(longest)));
            let limit = (wait + timeout).min(deadline.left());
            let failed = |error| (error, patience, pause(None));
            let (error, until, pause) = match session.create(options, wait, limit).await {
                Ok(Ok(body)) => match granted(&session.claim, options.ttl, sent, &body).await {
                    Ok((grant, until)) => return Ok((session, grant, until)),
                    Err(error) => failed(error),
                },
                Ok(Err(refusal)) if refusal.is_of_wait() && !wait.is_zero() => {
                    let shorter = longest / 4;
                    longest = if shorter < MIN_REQUEST_WAIT { Duration::ZERO } else { shorter };
                    continue;
                }
                Ok(Err(refusal)) => {
                    let until = match refusal.status.as_u16() {
                        _ if !refusal.is_passing() || refusal.is_final(wait) => sent,
                        502..=504 => patience,
                        _ => end,
                    };
                    let pause = refusal.pause_after(sent, wait);
                    (session.claim.refused(refusal), until, pause)
                }
                Err(error) => failed(error),
            };
            let pause = pause.min(until.left());
            // A try that has no time would say less than this one.
            if until.left().is_zero() || deadline.left() < pause + timeout / 5 {
                return Err(if session.open { error.in_doubt() } else { error });
            }
            event!(debug, why = %error, "an acquire is tried again");
            tokio::time::sleep(pause).await;
        }
    }

    /// Who holds a lock; `None` where it is free.
    ///
    /// # Errors
    ///
    /// The service gave no response, or refuses the request.
    pub async fn show(&self, name: &str) -> Result<Option<HeldLock>, Error> {
        let lock = match self.ask(&Call::new(Method::GET, lock_path(name))).await {
            Err(Error::Problem(problem)) if problem.is(Code::LockNotHeld) => return Ok(None),
            lock => lock?,
        };
        let (HeldLock::Exclusive(wire::PublicLock { name: of, .. })
        | HeldLock::Shared(wire::SharedLock { name: of, .. })) = &lock;
        if of == name { Ok(Some(lock)) } else { Err(not_of_this_request()) }
    }

    /// Ends the lease of another client, of the grant with the `fencing_token` of `order`: its
    /// holder reads the `reason`, and `by` whom. Gives in how long the lease has ended at the
    /// latest.
    ///
    /// # Errors
    ///
    /// The service gave no response, or refuses the request: another grant holds the lock now, or
    /// no client may break.
    pub async fn break_lock(
        &self,
        name: &str,
        order: &BreakLockRequest,
    ) -> Result<Duration, Error> {
        let call = Call::new(Method::POST, lock_path(name) + "/break").with_body(&json!(order));
        let broken: LockBreak = self.ask(&call).await?;
        Ok(Duration::from_millis(broken.ends_in_ms))
    }

    async fn ask<T: DeserializeOwned>(&self, call: &Call) -> Result<T, Error> {
        let answer = self.connection.ask(call, Duration::ZERO).await?.answer?;
        serde_json::from_slice(&answer).map_err(|_| not_keylatch())
    }

    /// Sends a request of the API that this crate has no method for, with the client's key. Its URI
    /// is a path such as `/v1/locks`. The caller reads the response's body, within a limit of its
    /// own, and gives up in time.
    ///
    /// # Errors
    ///
    /// The service gave no response. Whether it carried the request out is unknown then.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, Error> {
        self.connection.forward(request.map(Full::new)).await
    }

    /// Waits until what guards and runs that were dropped held is ended, or the time for that is
    /// over.
    pub async fn close(&self) {
        self.connection.endings.close();
        self.connection.endings.wait().await;
    }
}

/// The validity of a grant counts from the sending of the request. Where little of it is left,
/// since the response was slow or an earlier one was lost, the lease is renewed before it is used.
async fn granted(
    claim: &Claim,
    ttl: Duration,
    sent: BootInstant,
    answer: &[u8],
) -> Result<(Grant, BootInstant), Error> {
    let grant = claim.grant(answer)?;
    let until = sent + grant.valid_from_sending;
    if until.left() >= ttl / 2 {
        return Ok((grant, until));
    }
    let sent = sent.now();
    let renewed = claim.renew(ttl, claim.connection.settings.timeout).await;
    let grant = renewed.map_err(|failure| match failure {
        RenewalError::Failed { error, .. } => error,
        RenewalError::Lost(_) => {
            Error::Unavailable("the lease was over before it could be used".to_owned())
        }
    })?;
    let until = sent + grant.valid_from_sending;
    Ok((grant, until))
}

pub(crate) fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(wire::millis(duration))
}
