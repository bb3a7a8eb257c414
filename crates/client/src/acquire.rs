use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use crate::Error;
use crate::claim::{Claim, PAUSE, Unrenewed, renew};
use crate::clock::Moment;
use crate::guard::Guard;
use crate::wire::{Answer, HolderBody, Lease, Wire};
use keylatch_core::lock::{FencingToken, LockName, Owner, Ttl};

/// How long one request waits at the service: shorter than what proxies let a silent connection
/// live for. The next request keeps the place in the line.
const SLICE: Duration = Duration::from_secs(50);
/// Below this a service that refuses to let the client wait is asked again and again.
const MIN_SLICE: Duration = Duration::from_secs(1);
/// How long an answer is waited for, unless told otherwise.
const LIMIT: Duration = Duration::from_secs(5);
/// The longest wait that the clock can count: some hundred years.
const MAX_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A keylatch service, for any number of locks. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

/// What the locks of a client have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) wire: Wire,
    /// How long an answer is waited for, beyond what the service was asked to wait.
    pub(crate) limit: Duration,
    /// Locks that are given back although nobody waits for it.
    pub(crate) releasing: TaskTracker,
}

/// How a lock is wanted.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long the lease lasts unless it is renewed.
    pub ttl: Ttl,
    /// How long to wait for the lock. An answer that is on its way is still read.
    pub wait: Duration,
    /// A label that says who holds the lock.
    pub owner: Option<Owner>,
}

impl Default for Options {
    /// 30 s, without waiting, without a label.
    fn default() -> Self {
        Self { ttl: Ttl::DEFAULT, wait: Duration::ZERO, owner: None }
    }
}

/// What became of an acquire.
#[derive(Debug)]
pub enum Acquired {
    /// The lock is the client's for as long as the guard lives and is not lost.
    Granted(Guard),
    /// Somebody else held the lock until the wait was over; `None` where it was free then for those
    /// who were in line before.
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
        let wire = Wire::new(url)?;
        let shared = Shared { wire, limit: LIMIT, releasing: TaskTracker::new() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Asks for a lock and waits for it as long as `options` say.
    ///
    /// Within that time the request is repeated, with the same token, when the service cannot be
    /// reached or does not know the outcome. When this future is dropped, what it may have got is
    /// given back in a task of the client.
    ///
    /// # Errors
    ///
    /// The service could not be asked until the wait was over, or refuses the request.
    pub async fn acquire(&self, name: &LockName, options: &Options) -> Result<Acquired, Error> {
        let mut claim = Claim::new(Arc::clone(&self.shared), name.clone())?;
        let end = Moment::now() + options.wait.min(MAX_WAIT);
        let mut slice = SLICE;
        loop {
            let wait = whole_millis(end.left().min(slice));
            let (answer, pause) = match ask(&mut claim, options, wait).await {
                Next::Granted(lease, until) => {
                    let fence = FencingToken::new(lease.fencing_token);
                    return Ok(Acquired::Granted(Guard::start(claim, options.ttl, fence, until)));
                }
                Next::WaitLess => {
                    let shorter = slice / 4;
                    slice = if shorter < MIN_SLICE { Duration::ZERO } else { shorter };
                    continue;
                }
                Next::Answer(answer, pause) => (answer, pause),
            };
            let left = end.left();
            if matches!(answer, Err(Error::Refused(_))) || left.is_zero() {
                return answer.map(Acquired::Held);
            }
            tokio::time::sleep(pause.min(left)).await;
        }
    }

    /// Waits until the locks whose guards were dropped are given back, or the time for that is
    /// over.
    pub async fn close(&self) {
        self.shared.releasing.close();
        self.shared.releasing.wait().await;
    }
}

/// What follows from one answer.
enum Next {
    /// The lock is the client's until then.
    Granted(Lease, Moment),
    /// The service does not let a client wait for so long.
    WaitLess,
    /// What to answer, unless there is time to ask again after a pause.
    Answer(Result<Option<Holder>, Error>, Duration),
}

async fn ask(claim: &mut Claim, options: &Options, wait: Duration) -> Next {
    let sent = Moment::now();
    let problem = match claim.create(options, wait).await {
        Ok(Answer::Lease(lease)) => return granted(claim, options.ttl, sent, lease).await,
        Ok(Answer::Done) => {
            let error = Error::Refused("the answer is not one of keylatch".to_owned());
            return Next::Answer(Err(error), Duration::ZERO);
        }
        Ok(Answer::Problem(problem)) => problem,
        Err(silence) => return Next::Answer(Err(silence.into()), PAUSE),
    };
    if problem.body.field.as_deref() == Some("wait_ms") && !wait.is_zero() {
        return Next::WaitLess;
    }
    if !problem.is("lock-held") {
        let pause = problem.retry_after.unwrap_or_default().max(PAUSE);
        return Next::Answer(Err(problem.into()), pause);
    }
    // Who was let wait has done so, and goes on waiting at once.
    let has_waited = sent + wait <= Moment::now() && !wait.is_zero();
    let pause = if has_waited { Duration::ZERO } else { PAUSE };
    Next::Answer(Ok(problem.body.holder.map(Holder::from)), pause)
}

/// The validity of a grant counts from the sending of the request. Where little of it is left, since
/// the answer was slow or an earlier one was lost, the lease is renewed before it is used.
async fn granted(claim: &Claim, ttl: Ttl, sent: Moment, lease: Lease) -> Next {
    let until = sent + lease.valid_from_sending();
    if until.left() >= ttl.get() / 2 {
        return Next::Granted(lease, until);
    }
    let sent = Moment::now();
    match renew(claim.shared(), claim.key(), ttl, claim.shared().limit).await {
        Ok(lease) => {
            let until = sent + lease.valid_from_sending();
            Next::Granted(lease, until)
        }
        Err(Unrenewed::Failed { error, .. }) => Next::Answer(Err(error), PAUSE),
        Err(Unrenewed::NotHeld | Unrenewed::TakenOver) => {
            let error = "the lease was over before it could be used".to_owned();
            Next::Answer(Err(Error::Unavailable(error)), Duration::ZERO)
        }
    }
}

fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

impl From<HolderBody> for Holder {
    fn from(holder: HolderBody) -> Self {
        Self {
            owner: holder.owner,
            fencing_token: FencingToken::new(holder.fencing_token),
            expires_in: Duration::from_millis(holder.expires_in_ms),
        }
    }
}
