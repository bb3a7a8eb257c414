use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::waiting::{Asked, WaiterLimits};
use super::{
    Acquire, Acquisition, Attempt, Busy, Holder, Lease, ListLocks, LockName, LockStore, Outcome,
    Owner, Page, Release, Renewal, StoreError, StoreHealth, Token, Ttl,
};
use crate::task::{BoxFuture, DetachOnDrop, with_deadline};

/// How long a store's answer to an acquire that nobody waits for is awaited.
const ORPHAN_LIMIT: Duration = Duration::from_secs(60);
/// How often taking a lost grant back is tried again while the store is away.
const WITHDRAW_PAUSE: Duration = Duration::from_millis(250);
/// How long one try of taking a grant back may take.
const WITHDRAW_LIMIT: Duration = Duration::from_secs(5);
/// When a grant whose answer was lost is taken back again: the acquire itself may still be on its
/// way to the store, behind the first withdrawal.
const AFTER_LOST: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// How many grants that nobody reads may be on their way back before new ones are refused.
const MAX_ORPHANS: usize = 10_000;
/// How often expired locks are swept out of the store.
const SWEEP_PERIOD: Duration = Duration::from_secs(5);

/// What a client sends to acquire a lock.
#[derive(Debug)]
pub struct Request {
    /// The lock.
    pub name: LockName,
    /// The client's own token, or none to be given one.
    pub token: Option<Token>,
    /// For how long.
    pub ttl: Ttl,
    /// A label for people.
    pub owner: Option<Owner>,
    /// How long to wait for it.
    pub wait: Duration,
}

/// What a client reads.
#[derive(Debug)]
pub enum Acquired {
    /// The lock is the client's.
    New(Grant),
    /// The lock was the client's already.
    Again(Grant),
    /// It is somebody else's, or others were before, for as long as the client would wait.
    Held(Busy),
}

/// A grant with what its holder needs to use it.
#[derive(Debug)]
pub struct Grant {
    /// The proof.
    pub token: Token,
    /// The lease.
    pub lease: Lease,
    /// For how long the grant is exclusive, counted from the moment the client sent its request.
    pub valid_for: Duration,
}

/// What became of a renewal.
#[derive(Debug)]
pub enum Renewed {
    /// The lease goes on.
    Renewed {
        /// The lease.
        lease: Lease,
        /// For how long it is exclusive, counted from the sending of the request.
        valid_for: Duration,
    },
    /// Nobody holds the lock.
    NotHeld,
    /// Another token holds it.
    Mismatch,
}

/// Why the service has no answer.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The store could not find out.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store took so long that nothing was left of the lease. A new grant is given back.
    #[error("the lease was over before it could be answered")]
    TooLate,
    /// The operating system gave no random bytes for a token.
    #[error("no random bytes for a token")]
    Random(#[from] getrandom::Error),
    /// As many wait as may.
    #[error("too many wait")]
    TooManyWaiters,
}

/// Locks with everything that has to do with time: deadlines, validity, cleaning up.
#[derive(Debug)]
pub struct LockService {
    pub(super) store: Arc<dyn LockStore>,
    deadline: Duration,
    pub(super) limits: WaiterLimits,
    attempts: AtomicU64,
    pub(super) waiters: AtomicUsize,
    tasks: TaskTracker,
    /// Those that hold or watch a lock for a connection, or keep a place for one that may come.
    pub(super) streams: TaskTracker,
    closing: CancellationToken,
}

impl LockService {
    /// A service over `store` that waits for each of its answers at most for `deadline`.
    ///
    /// It sweeps expired locks in a task of its own until [`LockService::close`].
    ///
    /// # Errors
    ///
    /// The operating system has no random bytes to give.
    pub fn start(
        store: Arc<dyn LockStore>,
        deadline: Duration,
        limits: WaiterLimits,
    ) -> Result<Self, getrandom::Error> {
        let service = Self {
            store,
            deadline,
            limits,
            attempts: AtomicU64::new(getrandom::u64()?),
            waiters: AtomicUsize::new(0),
            tasks: TaskTracker::new(),
            streams: TaskTracker::new(),
            closing: CancellationToken::new(),
        };
        let sweeping = sweep(Arc::clone(&service.store));
        let closing = service.closing.clone();
        service.tasks.spawn(async move { closing.run_until_cancelled(sweeping).await });
        Ok(service)
    }

    /// Asks for a lock.
    ///
    /// When the caller drops this future, or the store's answer takes too long, the store's step
    /// is still brought to its end, and what it granted is given back.
    ///
    /// # Errors
    ///
    /// The store could not find out, or found out too late.
    pub async fn acquire(&self, request: Request) -> Result<Acquired, LockError> {
        self.acquire_telling(request, |_| ()).await
    }

    /// The same, and tells who is before each time that the lock is not to be had yet.
    pub(super) async fn acquire_telling(
        &self,
        request: Request,
        tell: impl FnMut(&Busy),
    ) -> Result<Acquired, LockError> {
        let started = Instant::now();
        let token = request.token.map_or_else(Token::generate, Ok)?;
        let ask = Acquire {
            name: request.name,
            token: token.hash(),
            ttl: request.ttl,
            owner: request.owner,
            attempt: self.next_attempt(),
            place: None,
        };
        let Asked { found, ask, asked } = if request.wait.is_zero() {
            let ask = Arc::new(ask);
            Asked { found: self.ask(&ask).await?, ask, asked: started }
        } else {
            self.wait(ask, started + request.wait, tell).await?
        };
        let grant = |lease: Lease| {
            // What was waited before the store was asked took nothing of the lease.
            let waited = asked - started;
            let Some(valid_for) = valid_for(&lease, asked.elapsed()) else {
                self.take_back(&ask);
                return Err(LockError::TooLate);
            };
            Ok(Grant { token, lease, valid_for: valid_for + waited })
        };
        Ok(match found {
            Acquisition::Granted(lease) => Acquired::New(grant(lease)?),
            Acquisition::Repeated(lease) => Acquired::Again(grant(lease)?),
            Acquisition::Held(busy) => Acquired::Held(busy),
        })
    }

    /// Lets a lease go on for `ttl`.
    ///
    /// # Errors
    ///
    /// The store could not find out, or found out too late.
    pub async fn renew(
        &self,
        name: &LockName,
        token: &Token,
        ttl: Ttl,
    ) -> Result<Renewed, LockError> {
        let started = Instant::now();
        let token = token.hash();
        Ok(match with_deadline(self.deadline, self.store.renew(name, &token, ttl)).await? {
            Renewal::Renewed(lease) => {
                let valid_for = valid_for(&lease, started.elapsed()).ok_or(LockError::TooLate)?;
                Renewed::Renewed { lease, valid_for }
            }
            Renewal::NotHeld => Renewed::NotHeld,
            Renewal::Mismatch => Renewed::Mismatch,
        })
    }

    /// Gives a lock back.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn release(&self, name: &LockName, token: &Token) -> Result<Release, StoreError> {
        with_deadline(self.deadline, self.store.release(name, &token.hash())).await
    }

    /// Who holds a lock.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn get(&self, name: &LockName) -> Result<Option<Holder>, StoreError> {
        with_deadline(self.deadline, self.store.get(name)).await
    }

    /// A page of held locks; `None` when the cursor is not one that the store gave.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn list(&self, query: &ListLocks) -> Result<Option<Page>, StoreError> {
        with_deadline(self.deadline, self.store.list(query)).await
    }

    /// The longest TTL that may be asked for.
    pub fn max_ttl(&self) -> Ttl {
        self.store.max_ttl()
    }

    /// Whether the store can do its work, and what it is.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn ping(&self) -> Result<StoreHealth, StoreError> {
        with_deadline(self.deadline, self.store.ping()).await
    }

    /// Ends the service's own tasks: sweeping stops, and what is still being given back is waited
    /// for as long as the caller likes. Holds end when their connections do.
    pub async fn close(&self) {
        self.closing.cancel();
        self.streams.close();
        self.streams.wait().await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    pub(super) fn next_attempt(&self) -> Attempt {
        Attempt::new(self.attempts.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes back what an attempt may have got, in a task of the service.
    pub(super) fn take_back(&self, ask: &Arc<Acquire>) {
        self.tasks.spawn(withdraw(Arc::clone(&self.store), Arc::clone(ask)));
    }

    /// The same after a pause, which ends early when the service is closed.
    pub(super) fn take_back_after(&self, pause: Duration, ask: Arc<Acquire>) {
        let (store, closing) = (Arc::clone(&self.store), self.closing.clone());
        self.streams.spawn(async move {
            closing.run_until_cancelled(sleep(pause)).await;
            withdraw(store, ask).await;
        });
    }

    /// One acquire that is finished in any case, and undone if nobody is there to read it.
    pub(super) async fn ask(&self, ask: &Arc<Acquire>) -> Result<Acquisition, StoreError> {
        if self.tasks.len() > MAX_ORPHANS {
            let why = "too many grants that nobody reads are on their way back";
            return Err(StoreError::Refused(why.into()));
        }
        let call: BoxFuture<_> = {
            let (store, ask) = (Arc::clone(&self.store), Arc::clone(ask));
            Box::pin(async move { store.acquire(&ask).await })
        };
        let orphaned = {
            let (store, ask) = (Arc::clone(&self.store), Arc::clone(ask));
            |call| give_back(store, ask, call)
        };
        let answer =
            with_deadline(self.deadline, DetachOnDrop::new(&self.tasks, call, orphaned)).await;
        if let Err(StoreError::Lost(_)) = &answer {
            self.tasks.spawn(withdraw_lost(Arc::clone(&self.store), Arc::clone(ask)));
        }
        answer
    }
}

impl Drop for LockService {
    /// The sweep ends with the service, also when nobody closed it.
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// What is left of a lease for its holder: the time that the service spent and a drift margin of
/// 1 % + 2 ms go off. `None` when that is nothing.
fn valid_for(lease: &Lease, spent: Duration) -> Option<Duration> {
    let drift = lease.ttl / 100 + Duration::from_millis(2);
    lease.expires_in.checked_sub(spent + drift).filter(|left| left.as_millis() > 0)
}

/// Waits for an acquire whose client has gone, and takes back what it got.
async fn give_back(
    store: Arc<dyn LockStore>,
    ask: Arc<Acquire>,
    call: BoxFuture<Result<Acquisition, StoreError>>,
) {
    let nothing_got = match timeout(ORPHAN_LIMIT, call).await {
        Ok(Ok(Acquisition::Repeated(_))) => true,
        Ok(Ok(Acquisition::Held(_))) => ask.place.is_none(),
        Ok(Ok(Acquisition::Granted(_))) | Err(_) => false,
        Ok(Err(error)) => error.outcome() == Outcome::NotExecuted,
    };
    if !nothing_got {
        withdraw(store, ask).await;
    }
}

/// Takes back what an attempt may have got, trying until the lease is over by itself.
async fn withdraw(store: Arc<dyn LockStore>, ask: Arc<Acquire>) {
    let trying = async {
        loop {
            let withdrawal = store.withdraw(&ask.name, &ask.token, ask.attempt);
            match timeout(WITHDRAW_LIMIT, withdrawal).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => tracing::debug!(%error, "a lost grant is not yet taken back"),
                Err(_) => tracing::debug!("taking a lost grant back is not answered"),
            }
            sleep(WITHDRAW_PAUSE).await;
        }
    };
    if timeout(ask.ttl.get(), trying).await.is_err() {
        tracing::warn!("a lost grant could not be taken back and was left to expire");
    }
}

/// The same for an acquire of which only the answer is known to be lost.
async fn withdraw_lost(store: Arc<dyn LockStore>, ask: Arc<Acquire>) {
    withdraw(Arc::clone(&store), Arc::clone(&ask)).await;
    for pause in AFTER_LOST {
        sleep(pause).await;
        withdraw(Arc::clone(&store), Arc::clone(&ask)).await;
    }
}

async fn sweep(store: Arc<dyn LockStore>) {
    loop {
        sleep(SWEEP_PERIOD).await;
        if let Err(error) = store.sweep().await {
            tracing::warn!(%error, "expired locks could not be swept out");
        }
    }
}
