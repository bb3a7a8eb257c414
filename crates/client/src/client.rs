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
use keylatch_core::lock::FencingToken;
use keylatch_wire::{self as wire, BreakLockRequest, Code, HeldLock, LockBreak, ProblemDocument};
use serde::de::DeserializeOwned;
use tokio_util::task::TaskTracker;

use crate::clock::BootInstant;
use crate::connection::{Answer, Body, Call, Connection, REQUEST_WAIT, Refusal, pause};
use crate::error::{not_keylatch, not_of_this_request};
use crate::session::Session;
use crate::target::{Grant, Target, lock_path};
use crate::watchdog::RenewalError;
use crate::{AcquireOptions, Builder, Error, Guard, Held, Holder, LockGuard, SetGuard};

/// Below this, a service that refuses to let the client wait is polled instead.
const MIN_REQUEST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait that the clock can count: some hundred years.
const MAX_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A keylatch service, for any number of locks. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    connection: Arc<Connection>,
    /// What ends guards, waits and runs that were dropped.
    endings: TaskTracker,
}

impl Client {
    /// A client of the service at `url`, such as `http://127.0.0.1:7070`, or `unix:/run/keylatch.sock` where it
    /// listens on a Unix socket. It does not connect yet.
    ///
    /// # Errors
    ///
    /// The text is not a URL with `http`, `https` or `unix`, or the system's certificates cannot be read.
    pub fn new(url: &str) -> Result<Self, Error> {
        Self::builder(url).build()
    }

    /// A client of the service at `url`, with more to say. Several URLs of one service have commas between them.
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

    pub(crate) fn over(connection: Connection) -> Self {
        Self { connection: Arc::new(connection), endings: TaskTracker::new() }
    }

    /// Gets a lock, and waits for it as long as `options` say.
    ///
    /// Within that time, and for 5 s in any case, the request is repeated, with the same token, when the service cannot be
    /// reached or does not know the outcome. When this future is dropped, the client
    /// releases what it may have got.
    ///
    /// Where the token of `options` holds the lock together with others and asks for it with a smaller
    /// limit, the service lets it not wait, and [`Error::Held`] comes at once.
    ///
    /// # Errors
    ///
    /// [`Error::Held`] if others held it until the wait was over. The service gave no answer, or refuses the request.
    pub async fn lock(
        &self,
        name: impl Into<String>,
        options: &AcquireOptions,
    ) -> Result<LockGuard, Error> {
        let target = Target::Lock(name.into(), options.entry.clone());
        let (session, grant, until) = self.acquire(target, options).await?;
        let lock = grant.locks.into_iter().next().ok_or_else(not_keylatch)?;
        Ok(Guard::start(session, options.ttl, lock, until))
    }

    /// The same, with `None` in place of [`Error::Held`].
    ///
    /// # Errors
    ///
    /// The service gave no answer, or refuses the request.
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
    /// As [`lock`](Self::lock); the store cannot take several locks in one step; or `options` have an `entry`, which sets do
    /// not.
    pub async fn lock_all<N: Into<String>>(
        &self,
        names: impl IntoIterator<Item = N>,
        options: &AcquireOptions,
    ) -> Result<SetGuard, Error> {
        if options.entry.is_some() {
            return Err(Error::Options("have an entry, and a set has none"));
        }
        let target = Target::Set(names.into_iter().map(Into::into).collect());
        let (session, grant, until) = self.acquire(target, options).await?;
        Ok(Guard::start(session, options.ttl, grant.locks, until))
    }

    async fn acquire(
        &self,
        target: Target,
        options: &AcquireOptions,
    ) -> Result<(Session, Grant, BootInstant), Error> {
        let (connection, endings) = (Arc::clone(&self.connection), self.endings.clone());
        let mut session = Session::new(connection, endings, target, options)?;
        let end = self.connection.now() + options.wait.min(MAX_WAIT);
        // Waiting for a holder and outlasting a hiccup are two things.
        let patience = end.max(self.connection.now() + self.connection.settings().timeout);
        let mut longest = REQUEST_WAIT;
        loop {
            let wait = whole_millis(end.left().min(longest));
            let failure = match try_acquire(&mut session, options, wait).await {
                AcquireStep::Granted(grant, until) => return Ok((session, grant, until)),
                AcquireStep::WaitRefused => {
                    let shorter = longest / 4;
                    longest = if shorter < MIN_REQUEST_WAIT { Duration::ZERO } else { shorter };
                    continue;
                }
                AcquireStep::Failed(failure) => failure,
            };
            let left = if failure.is_hiccup { patience.left() } else { end.left() };
            match failure.pause {
                Some(pause) if !left.is_zero() => tokio::time::sleep(pause.min(left)).await,
                _ => return Err(failure.error),
            }
        }
    }

    /// Who holds a lock; `None` where it is free.
    ///
    /// # Errors
    ///
    /// The service gave no answer, or refuses the request.
    pub async fn show(&self, name: &str) -> Result<Option<HeldLock>, Error> {
        let lock = match self.ask(&Call::new(Method::GET, lock_path(name))).await {
            Err(Error::Problem(problem)) if problem.is(Code::LockNotHeld) => return Ok(None),
            lock => lock?,
        };
        let (HeldLock::Exclusive(wire::PublicLock { name: of, .. })
        | HeldLock::Shared(wire::SharedLock { name: of, .. })) = &lock;
        if of == name { Ok(Some(lock)) } else { Err(not_of_this_request()) }
    }

    /// Ends the lease of another client; its holder reads the reason, and by whom. Gives in how long the lease has ended at
    /// the latest.
    ///
    /// # Errors
    ///
    /// The service gave no answer, or refuses the request: another grant holds the lock now, or no client may break.
    pub async fn break_lock(&self, name: &str, order: &BreakOrder) -> Result<Duration, Error> {
        let call = Call::new(Method::POST, lock_path(name) + "/break");
        let request = BreakLockRequest {
            reason: Some(order.reason.clone()),
            fencing_token: Some(order.fencing_token.get()),
            slot: order.slot,
            by: order.by.clone(),
            grace_ms: order.grace.map(wire::millis),
        };
        let broken: LockBreak = self.ask(&call.with_json(&request)?).await?;
        Ok(Duration::from_millis(broken.ends_in_ms))
    }

    async fn ask<T: DeserializeOwned>(&self, call: &Call) -> Result<T, Error> {
        match self.connection.ask(call, Duration::ZERO).await?.answer {
            Answer::Content(body) => serde_json::from_slice(&body).map_err(|_| not_keylatch()),
            Answer::Done => Err(not_keylatch()),
            Answer::Refusal(refusal) => Err(refusal.into()),
        }
    }

    /// Sends a request of the API that this crate has no method for, with the client's key. Its URI is a path such as
    /// `/v1/locks`. The caller reads the answer's body, within a limit of its own, and gives up in time.
    ///
    /// # Errors
    ///
    /// The service gave no answer. Whether it carried the request out is unknown then.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, Error> {
        Ok(self.connection.forward(request.map(Full::new)).await?)
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// What ends the sessions and runs that are dropped.
    pub(crate) fn endings(&self) -> &TaskTracker {
        &self.endings
    }

    /// Waits until what guards and runs that were dropped held is ended, or the time for that is over.
    pub async fn close(&self) {
        self.endings.close();
        self.endings.wait().await;
    }
}

/// Whose lease to break, and why.
#[derive(Debug, Clone)]
pub struct BreakOrder {
    /// Why, for the holder and for the history.
    pub reason: String,
    /// The fencing token of the grant to break, so that no later grant is broken in its place.
    pub fencing_token: FencingToken,
    /// The slot of the holder; all that share the fencing token where it is `None`.
    pub slot: Option<u32>,
    /// A label that says who breaks it.
    pub by: Option<String>,
    /// Lets the lease end so soon, be that before its holder's validity ends; `None` waits for that.
    pub grace: Option<Duration>,
}

impl BreakOrder {
    /// Breaks the grant with this fencing token, for this reason.
    pub fn new(fencing_token: FencingToken, reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), fencing_token, slot: None, by: None, grace: None }
    }
}

/// What came of one request for a target.
enum AcquireStep {
    /// It is the client's until then.
    Granted(Grant, BootInstant),
    /// The service does not let a client wait for so long.
    WaitRefused,
    /// It did not succeed.
    Failed(AcquireFailure),
}

/// Why a request did not succeed.
struct AcquireFailure {
    /// What to return, unless there is time to try again.
    error: Error,
    /// After which pause that may succeed; `None` where it cannot.
    pause: Option<Duration>,
    /// Whether the service did not say anything of the lock, which may pass in a moment.
    is_hiccup: bool,
}

impl AcquireFailure {
    fn hiccup(error: Error) -> AcquireStep {
        AcquireStep::Failed(Self { error, pause: Some(pause(None)), is_hiccup: true })
    }
}

async fn try_acquire(
    session: &mut Session,
    options: &AcquireOptions,
    wait: Duration,
) -> AcquireStep {
    let sent = session.claim().connection().now();
    let refusal = match session.create(options, wait).await {
        Ok(Answer::Content(body)) => return granted(session, options.ttl, sent, &body).await,
        Ok(Answer::Done) => return AcquireFailure::hiccup(not_of_this_request()),
        Ok(Answer::Refusal(refusal)) => refusal,
        Err(no_reply) => return AcquireFailure::hiccup(no_reply.into()),
    };
    if refuses_wait(&refusal) && !wait.is_zero() {
        return AcquireStep::WaitRefused;
    }
    if !refusal.is(Code::LockHeld) {
        let pause = refusal.is_passing().then(|| pause(refusal.retry_after));
        let is_hiccup = (502..=504).contains(&refusal.status.as_u16());
        return AcquireStep::Failed(AcquireFailure { error: refusal.into(), pause, is_hiccup });
    }
    let is_final = refusal.is_final(wait);
    let error = Error::Held(Box::new(held(session.claim().target(), refusal)));
    // A wait that was granted is over, and the next one begins at once.
    let has_waited = (sent + wait).left().is_zero() && !wait.is_zero();
    let pause = if has_waited { Duration::ZERO } else { pause(None) };
    let pause = (!is_final).then_some(pause);
    AcquireStep::Failed(AcquireFailure { error, pause, is_hiccup: false })
}

pub(crate) fn held(target: &Target, refusal: Refusal) -> Held {
    let problem = refusal.problem;
    let name = problem.as_ref().and_then(|problem| target.member(problem.name.as_deref()?));
    let name = name.or_else(|| target.first().cloned()).unwrap_or_default();
    Held { name, holder: problem.and_then(|problem| held_by(*problem)) }
}

/// The holder that a problem names, or of several the one whose lease ends first.
fn held_by(problem: ProblemDocument) -> Option<Holder> {
    let of_several = |holder: wire::PublicHolder| Holder {
        owner: holder.owner,
        fencing_token: FencingToken::new(holder.fencing_token),
        expires_in: Duration::from_millis(holder.expires_in_ms),
    };
    let first = problem.holders.into_iter().min_by_key(|holder| holder.expires_in_ms);
    problem.holder.map(Holder::from).or(first.map(of_several))
}

fn refuses_wait(refusal: &Refusal) -> bool {
    refusal.problem.as_ref().is_some_and(|problem| problem.field.as_deref() == Some("wait_ms"))
}

/// The validity of a grant counts from the sending of the request. Where little of it is left, since
/// the answer was slow or an earlier one was lost, the lease is renewed before it is used.
async fn granted(
    session: &Session,
    ttl: Duration,
    sent: BootInstant,
    answer: &[u8],
) -> AcquireStep {
    let grant = match session.claim().grant(answer) {
        Ok(grant) => grant,
        Err(error) => return AcquireFailure::hiccup(error),
    };
    let until = sent + grant.valid_from_sending;
    if until.left() >= ttl / 2 {
        return AcquireStep::Granted(grant, until);
    }
    let sent = sent.now();
    match session.claim().renew(ttl, session.claim().connection().settings().timeout).await {
        Ok(grant) => {
            let until = sent + grant.valid_from_sending;
            AcquireStep::Granted(grant, until)
        }
        Err(RenewalError::Failed { error, .. }) => AcquireFailure::hiccup(error),
        Err(RenewalError::Lost(_)) => {
            let error = "the lease was over before it could be used".to_owned();
            AcquireFailure::hiccup(Error::Unavailable(error))
        }
    }
}

fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(wire::millis(duration))
}

impl From<wire::Holder> for Holder {
    fn from(holder: wire::Holder) -> Self {
        Self {
            owner: holder.owner,
            fencing_token: FencingToken::new(holder.fencing_token),
            expires_in: Duration::from_millis(holder.expires_in_ms),
        }
    }
}
