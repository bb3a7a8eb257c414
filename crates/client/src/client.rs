//! Acquiring a lock: one call that asks until the wait is over.
//!
//! A long wait is made of several requests with one token, each shorter than what proxies let a
//! silent connection live for; the token keeps the place in the queue between them. The validity
//! of a grant counts from the sending of the request that got it.

use std::sync::Arc;
use std::time::Duration;

use keylatch_core::lock::{EntryName, FencingToken, Limit, LockName, Owner, Token, Ttl};
use keylatch_wire::{self as wire, Code, Lease, ProblemDocument};
use tokio_util::task::TaskTracker;

use crate::clock::BootInstant;
use crate::connection::{Answer, Connection, Refusal};
use crate::session::{ANSWER_TIMEOUT, PAUSE, RenewalError, Session, not_keylatch};
use crate::{Error, LockGuard};

/// How long one request waits at the service. The next request keeps the place in the queue.
const REQUEST_WAIT: Duration = Duration::from_secs(50);
/// Below this, a service that refuses to let the client wait is polled instead.
const MIN_REQUEST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait that the clock can count: some hundred years.
const MAX_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A keylatch service, for any number of locks. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    connection: Arc<Connection>,
    /// The releases of guards and waits that were dropped.
    releases: TaskTracker,
}

/// How a lock is wanted.
#[derive(Debug, Clone)]
pub struct AcquireOptions {
    /// How long the lease lasts unless it is renewed.
    pub ttl: Ttl,
    /// How long to wait for the lock. An answer that is on its way is still read.
    pub wait: Duration,
    /// A label that says who holds the lock.
    pub owner: Option<Owner>,
    /// How many may hold the lock together with this client.
    pub limit: Limit,
    /// The token, if it is to be one that holds the lock already; `None` makes one.
    pub token: Option<Token>,
    /// The name under which to enter the lock. With a name the guard's end leaves that entry, and else the
    /// lock.
    pub entry: Option<EntryName>,
}

impl Default for AcquireOptions {
    /// 30 s, without waiting, without a label, exclusively.
    fn default() -> Self {
        Self {
            ttl: Ttl::DEFAULT,
            wait: Duration::ZERO,
            owner: None,
            limit: Limit::Exclusive,
            token: None,
            entry: None,
        }
    }
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
    /// A client of the service at `url`, such as `http://127.0.0.1:7070`. It does not connect yet.
    ///
    /// # Errors
    ///
    /// The text is not a URL with `http` or `https`, or the system's certificates cannot be read.
    pub fn new(url: &str) -> Result<Self, Error> {
        let connection = Arc::new(Connection::new(url)?);
        Ok(Self { connection, releases: TaskTracker::new() })
    }

    /// Asks for a lock and waits for it as long as `options` say.
    ///
    /// Within that time the request is repeated, with the same token, when the service cannot be
    /// reached or does not know the outcome. When this future is dropped, a task of the client
    /// releases what it may have got.
    ///
    /// # Errors
    ///
    /// The service gave no answer until the wait was over, or refuses the request.
    pub async fn acquire(
        &self,
        name: &LockName,
        options: &AcquireOptions,
    ) -> Result<AcquireReply, Error> {
        let connection = Arc::clone(&self.connection);
        let mut session = Session::new(connection, self.releases.clone(), name.clone(), options)?;
        let end = BootInstant::now() + options.wait.min(MAX_WAIT);
        let mut longest = REQUEST_WAIT;
        loop {
            let wait = whole_millis(end.left().min(longest));
            let (reply, pause) = match try_acquire(&mut session, options, wait).await {
                AcquireStep::Granted(lease, until) => {
                    let guard = LockGuard::start(session, options.ttl, &lease, until);
                    return Ok(AcquireReply::Granted(guard));
                }
                AcquireStep::WaitRefused => {
                    let shorter = longest / 4;
                    longest = if shorter < MIN_REQUEST_WAIT { Duration::ZERO } else { shorter };
                    continue;
                }
                AcquireStep::Ended(reply, pause) => (reply, pause),
            };
            let left = end.left();
            if matches!(reply, Err(Error::Refused(_))) || left.is_zero() {
                return reply.map(AcquireReply::Held);
            }
            tokio::time::sleep(pause.min(left)).await;
        }
    }

    /// Waits until the locks whose guards were dropped are released, or the time for that is over.
    pub async fn close(&self) {
        self.releases.close();
        self.releases.wait().await;
    }
}

/// What came of one request for the lock.
enum AcquireStep {
    /// The lock is the client's until then.
    Granted(Lease<'static>, BootInstant),
    /// The service does not let a client wait for so long.
    WaitRefused,
    /// What to return, unless there is time to try again after a pause.
    Ended(Result<Option<Holder>, Error>, Duration),
}

async fn try_acquire(
    session: &mut Session,
    options: &AcquireOptions,
    wait: Duration,
) -> AcquireStep {
    let sent = BootInstant::now();
    let refusal = match session.create(options.ttl, options.owner.as_ref(), wait).await {
        Ok(Answer::Lease(lease)) => return granted(session, options.ttl, sent, lease).await,
        Ok(Answer::Done | Answer::Entered) => {
            return AcquireStep::Ended(Err(not_keylatch()), Duration::ZERO);
        }
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
    // A wait that was granted is over, and the next one begins at once.
    let has_waited = sent + wait <= BootInstant::now() && !wait.is_zero();
    let pause = if has_waited { Duration::ZERO } else { PAUSE };
    AcquireStep::Ended(Ok(refusal.problem.and_then(|problem| holder_of(*problem))), pause)
}

/// The holder that a problem names, or of several the one whose lease ends first.
fn holder_of(problem: ProblemDocument) -> Option<Holder> {
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
    ttl: Ttl,
    sent: BootInstant,
    lease: Lease<'static>,
) -> AcquireStep {
    let until = sent + lease.valid_from_sending();
    if until.left() >= ttl.get() / 2 {
        return AcquireStep::Granted(lease, until);
    }
    let sent = BootInstant::now();
    match session.claim().renew(ttl, ANSWER_TIMEOUT).await {
        Ok(lease) => {
            let until = sent + lease.valid_from_sending();
            AcquireStep::Granted(lease, until)
        }
        Err(RenewalError::Failed { error, .. }) => AcquireStep::Ended(Err(error), PAUSE),
        Err(RenewalError::NotHeld | RenewalError::TakenOver | RenewalError::Broken(_)) => {
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
