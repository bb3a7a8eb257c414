//! Acquiring a lock, or several at once: one call that asks until the wait is over.
//!
//! A long wait is made of several requests with one token, each shorter than what proxies let a
//! silent connection live for; the token keeps the place in the queue between them. The validity
//! of a grant counts from the sending of the request that got it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};
use keylatch_core::lock::{FencingToken, LockName, LockSet, Ttl};
use keylatch_wire::{self as wire, Code, ProblemDocument};
use tokio_util::task::TaskTracker;

use crate::api_key::ApiKey;
use crate::clock::BootInstant;
use crate::connection::{ANSWER_TIMEOUT, Answer, Connection, PAUSE, Refusal};
use crate::error::not_keylatch;
use crate::security::Security;
use crate::session::Session;
use crate::target::{Grant, Target};
use crate::watchdog::RenewalError;
use crate::{AcquireOptions, Error, Guard, LockGuard, SetGuard};

/// How long one request waits at the service. The next request keeps the place in the queue.
const REQUEST_WAIT: Duration = Duration::from_secs(50);
/// Below this, a service that refuses to let the client wait is polled instead.
const MIN_REQUEST_WAIT: Duration = Duration::from_secs(1);
/// For how long nothing may come of a watch, where the program does not say.
const SILENCE: Duration = Duration::from_secs(90);
/// The longest wait that the clock can count: some hundred years.
const MAX_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A keylatch service, for any number of locks. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    connection: Arc<Connection>,
    /// The releases of guards and waits that were dropped.
    releases: TaskTracker,
    /// For how long nothing may come of a watch.
    silence: Duration,
}

/// What became of an acquire.
#[derive(Debug)]
pub enum AcquireReply {
    /// The lock is the client's for as long as the guard lives and is not lost.
    Granted(LockGuard),
    /// Others held the lock until the wait was over: the one whose lease ends first. `None` where the lock
    /// was free then, for a waiter that was before.
    Held(Option<Holder>),
}

/// What became of an acquire of several locks.
#[derive(Debug)]
pub enum AcquireSetReply {
    /// All locks are the client's for as long as the guard lives and is not lost.
    Granted(SetGuard),
    /// The client has none of them, because this one was not to be had until the wait was over.
    Held {
        /// The first lock that was not.
        name: LockName,
        /// Its holder, as in [`AcquireReply::Held`].
        holder: Option<Holder>,
    },
}

/// Who holds a lock that was not acquired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The holder's label.
    pub owner: Option<String>,
    /// The holder's fencing token.
    pub fencing_token: FencingToken,
    /// How long the holder's lease lasts unless it is renewed.
    pub expires_in: Duration,
}

impl Client {
    /// A client of the service at `url`, such as `http://127.0.0.1:7070`, or `unix:/run/keylatch.sock` where it
    /// listens on a Unix socket. It does not connect yet.
    ///
    /// # Errors
    ///
    /// The text is not a URL with `http`, `https` or `unix`, or the system's certificates cannot be read.
    pub fn new(url: &str) -> Result<Self, Error> {
        Self::with_security(url, Security::default())
    }

    /// The same for a service that asks who the client is.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_api_key(url: &str, key: &ApiKey) -> Result<Self, Error> {
        Self::with_security(url, Security { api_key: Some(key.clone()), ..Security::default() })
    }

    /// The same for a service behind TLS whose authority the system does not know.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), or the file of authorities cannot be read.
    pub fn with_security(url: &str, security: Security) -> Result<Self, Error> {
        let connection = Arc::new(Connection::new(url, security)?);
        Ok(Self { connection, releases: TaskTracker::new(), silence: SILENCE })
    }

    /// The same client, whose requests carry the `traceparent` that `of` gives for each (W3C Trace Context).
    /// A value that is no header is left out.
    #[must_use]
    pub fn with_traceparent(self, of: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        let connection = Arc::new(self.connection.with_traceparent(of));
        Self { connection, ..self }
    }

    /// The same client, which opens a watch again on which nothing comes for so long, not even a comment: 90 s unless
    /// this is called. The service sends a comment every 15 s unless it is configured otherwise.
    #[must_use]
    pub fn with_silence(self, silence: Duration) -> Self {
        Self { silence, ..self }
    }

    /// Asks for a lock and waits for it as long as `options` say.
    ///
    /// Within that time the request is repeated, with the same token, when the service cannot be
    /// reached or does not know the outcome. When this future is dropped, a task of the client
    /// releases what it may have got.
    ///
    /// Where the token of `options` holds the lock together with others and asks for it with a smaller
    /// limit, the service lets it not wait, and [`AcquireReply::Held`] comes at once.
    ///
    /// # Errors
    ///
    /// The service gave no answer until the wait was over, or refuses the request.
    pub async fn acquire(
        &self,
        name: &LockName,
        options: &AcquireOptions,
    ) -> Result<AcquireReply, Error> {
        let target = Target::Lock(name.clone(), options.entry.clone());
        match self.acquire_target(target, options).await? {
            Acquisition::Granted(session, grant, until) => {
                let lock = grant.locks.into_iter().next().ok_or_else(not_keylatch)?;
                Ok(AcquireReply::Granted(Guard::start(session, options.ttl, lock, until)))
            }
            Acquisition::Held(contention) => Ok(AcquireReply::Held(contention.holder)),
        }
    }

    /// Asks for several locks and waits for all of them as long as `options` say. It holds none of
    /// them until it gets all, so the order of their names has no meaning.
    ///
    /// It repeats and releases as [`acquire`](Self::acquire) does. A token of `options` that holds one
    /// of the locks already does not wait for the others.
    ///
    /// # Errors
    ///
    /// The service gave no answer until the wait was over, or refuses the request; its store cannot
    /// take several locks in one step; or `options` have an `entry`, which sets do not.
    pub async fn acquire_set(
        &self,
        set: &LockSet,
        options: &AcquireOptions,
    ) -> Result<AcquireSetReply, Error> {
        if options.entry.is_some() {
            return Err(Error::Options("have an entry, and a set has none"));
        }
        match self.acquire_target(Target::Set(set.clone()), options).await? {
            Acquisition::Granted(session, grant, until) => {
                let guard = Guard::start(session, options.ttl, grant.locks, until);
                Ok(AcquireSetReply::Granted(guard))
            }
            Acquisition::Held(Contention { name, holder }) => {
                let name = name.ok_or_else(not_keylatch)?;
                Ok(AcquireSetReply::Held { name, holder })
            }
        }
    }

    async fn acquire_target(
        &self,
        target: Target,
        options: &AcquireOptions,
    ) -> Result<Acquisition, Error> {
        let connection = Arc::clone(&self.connection);
        let mut session = Session::new(connection, self.releases.clone(), target, options)?;
        let end = BootInstant::now() + options.wait.min(MAX_WAIT);
        let mut longest = REQUEST_WAIT;
        loop {
            let wait = whole_millis(end.left().min(longest));
            let (reply, pause) = match try_acquire(&mut session, options, wait).await {
                AcquireStep::Granted(grant, until) => {
                    return Ok(Acquisition::Granted(session, grant, until));
                }
                AcquireStep::NotAlone(contention) => return Ok(Acquisition::Held(contention)),
                AcquireStep::WaitRefused => {
                    let shorter = longest / 4;
                    longest = if shorter < MIN_REQUEST_WAIT { Duration::ZERO } else { shorter };
                    continue;
                }
                AcquireStep::Ended(reply, pause) => (reply, pause),
            };
            let left = end.left();
            if reply.as_ref().is_err_and(Error::is_refusal) || left.is_zero() {
                return reply.map(Acquisition::Held);
            }
            tokio::time::sleep(pause.min(left)).await;
        }
    }

    /// Sends a request of the API that this crate has no method for, with the client's key. Its URI is a path such as
    /// `/v1/locks`. The caller reads the answer's body, within a limit of its own, and gives up in time.
    ///
    /// # Errors
    ///
    /// The service gave no answer. Whether it carried the request out is unknown then.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Incoming>, Error> {
        Ok(self.connection.forward(request.map(Full::new)).await?)
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }

    /// What releases the sessions that are dropped.
    pub(crate) fn releases(&self) -> TaskTracker {
        self.releases.clone()
    }

    /// Waits until the locks whose guards were dropped are released, or the time for that is over.
    pub async fn close(&self) {
        self.releases.close();
        self.releases.wait().await;
    }
}

/// What became of all requests for a target.
enum Acquisition {
    /// It is the client's until then.
    Granted(Session, Grant, BootInstant),
    /// The wait is over, or there is nothing to wait for.
    Held(Contention),
}

/// Why a target was not to be had.
struct Contention {
    /// Of a set: the first lock that was not.
    name: Option<LockName>,
    holder: Option<Holder>,
}

/// What came of one request for a target.
enum AcquireStep {
    /// It is the client's until then.
    Granted(Grant, BootInstant),
    /// The service does not let a client wait for so long.
    WaitRefused,
    /// The service does not let this token wait at all, because of what it holds already.
    NotAlone(Contention),
    /// What to return, unless there is time to try again after a pause.
    Ended(Result<Contention, Error>, Duration),
}

async fn try_acquire(
    session: &mut Session,
    options: &AcquireOptions,
    wait: Duration,
) -> AcquireStep {
    let sent = BootInstant::now();
    let refusal = match session.create(options, wait).await {
        Ok(Answer::Content(body)) => return granted(session, options.ttl, sent, &body).await,
        Ok(Answer::Done) => return AcquireStep::Ended(Err(not_keylatch()), Duration::ZERO),
        Ok(Answer::Refusal(refusal)) => refusal,
        Err(no_reply) => return AcquireStep::Ended(Err(no_reply.into()), PAUSE),
    };
    if refuses_wait(&refusal) && !wait.is_zero() {
        return AcquireStep::WaitRefused;
    }
    if !refusal.is(Code::LockHeld) {
        let pause = refusal.retry_after.unwrap_or_default().max(PAUSE);
        return AcquireStep::Ended(Err(refusal.into()), pause);
    }
    let is_final = refusal.is_final(wait);
    let contention = contention(session.claim().target(), refusal);
    if is_final {
        return AcquireStep::NotAlone(contention);
    }
    // A wait that was granted is over, and the next one begins at once.
    let has_waited = sent + wait <= BootInstant::now() && !wait.is_zero();
    let pause = if has_waited { Duration::ZERO } else { PAUSE };
    AcquireStep::Ended(Ok(contention), pause)
}

fn contention(target: &Target, refusal: Refusal) -> Contention {
    let problem = refusal.problem;
    let name = problem.as_ref().and_then(|problem| target.member(problem.name.as_deref()?));
    Contention { name, holder: problem.and_then(|problem| held_by(*problem)) }
}

/// The holder that a problem names, or of several the one whose lease ends first.
pub(crate) fn held_by(problem: ProblemDocument) -> Option<Holder> {
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
async fn granted(session: &Session, ttl: Ttl, sent: BootInstant, answer: &[u8]) -> AcquireStep {
    let grant = match session.claim().target().grant(answer) {
        Ok(grant) => grant,
        Err(error) => return AcquireStep::Ended(Err(error), Duration::ZERO),
    };
    let until = sent + grant.valid_from_sending;
    if until.left() >= ttl.get() / 2 {
        return AcquireStep::Granted(grant, until);
    }
    let sent = BootInstant::now();
    match session.claim().renew(ttl, ANSWER_TIMEOUT).await {
        Ok(grant) => {
            let until = sent + grant.valid_from_sending;
            AcquireStep::Granted(grant, until)
        }
        Err(RenewalError::Failed { error, .. }) => AcquireStep::Ended(Err(error), PAUSE),
        Err(RenewalError::Lost(_)) => {
            let error = "the lease was over before it could be used".to_owned();
            AcquireStep::Ended(Err(Error::Unavailable(error)), Duration::ZERO)
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
