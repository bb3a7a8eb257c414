//! The lock service: everything about locks that has to do with time.
//!
//! A store runs one step and judges expiry; the service adds deadlines, validity, waiting and the
//! cleaning up after callers that went away. Invariant: a grant that no client reads is withdrawn
//! or expires, and a client reads "unknown" whenever the store may have executed what it was not
//! told of. Over HTTP the tests of locks, waiting and leaving hold it; the campaigns do so under
//! faults.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::withdrawal::{self, PendingAttempt};
use super::{
    AcquireCommand, AcquireReply, Attempt, Break, BreakCommand, BreakReply, Contention, EntryName,
    GrantEnd, Holding, Lease, Limit, LockName, LockSet, LostLock, Owner, ReleaseReply, RenewReply,
    Token, Ttl, Waiter,
};
use crate::entry::Few;
use crate::store::{Backup, ListLocks, Page, Store, StoreError, StoreHealth};
use crate::task::{BoxFuture, DetachOnDrop, with_deadline};
use crate::waiters::WaiterLimit;

/// How many grants that no client reads may be on their way back before new ones are refused.
const PENDING_MAX: usize = 10_000;

/// What a client sends to acquire a lock or several.
#[derive(Debug, Clone)]
pub struct AcquireRequest {
    /// The locks to acquire. A lock exists once a client holds it or waits for it.
    pub names: LockSet,
    /// The client's own token, or none for the service to make one. It is that of all locks.
    pub token: Option<Token>,
    /// How long the lease is to last.
    pub ttl: Ttl,
    /// A label for people.
    pub owner: Option<Owner>,
    /// How long to wait for the lock.
    pub wait: Duration,
    /// Behind how many it would wait at most; `None` for any number.
    pub max_ahead: Option<u64>,
    /// How many may hold the lock together with the client.
    pub limit: Limit,
    /// The name of the entry; `None` for the unnamed one. A set has no other.
    pub entry: Option<EntryName>,
}

impl AcquireRequest {
    /// A request for the locks alone, under a new token, without a label and without waiting.
    pub fn new(names: impl Into<LockSet>, ttl: Ttl) -> Self {
        let (names, wait, limit) = (names.into(), Duration::ZERO, Limit::Exclusive);
        Self { names, token: None, ttl, owner: None, wait, max_ahead: None, limit, entry: None }
    }
}

/// What a client reads that asked for one lock or several.
#[derive(Debug)]
pub enum Acquisition {
    /// The locks are the client's.
    New(Grant),
    /// The locks were the client's already.
    Again(Grant),
    /// Another client holds one, or others were before, for as long as the client would wait.
    Held {
        /// Why the lock is not to be had.
        contention: Contention,
        /// How long the client has waited.
        waited: Duration,
    },
    /// The client would have to wait behind more than it said. It does not wait.
    Crowded(Contention),
    /// The client holds one already, and would have to hold it alone for what it asks, or would
    /// wait for others.
    NotAlone(Contention),
    /// As many hold a lock as may, or the client entered it as often as it may.
    Full,
}

/// A grant with what its holder needs to use it.
#[derive(Debug)]
pub struct Grant {
    /// The proof.
    pub token: Token,
    /// The leases, at least one, in the order of the names.
    pub leases: Few<Lease>,
    /// Until when all of them are exclusive.
    pub validity: Validity,
}

impl Grant {
    /// The lease of the first lock, or of the only one.
    pub fn lease(&self) -> &Lease {
        &self.leases[0]
    }
}

/// The moment until which a lease is exclusive. The response states it as two spans, `waited` and
/// `valid_for`.
///
/// The service's clock and the client's are never compared. The client adds both spans to the
/// moment at which it sent its request, and reaches this end or an earlier moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// When the request arrived.
    pub arrived: Instant,
    /// When the lease stops being exclusive, the drift margin taken off.
    pub until: Instant,
}

impl Validity {
    /// How long ago the request arrived.
    pub fn waited(&self) -> Duration {
        self.arrived.elapsed()
    }

    /// What is left of the lease now. It is never above the TTL.
    pub fn valid_for(&self) -> Duration {
        self.spans().1
    }

    /// How long ago the request arrived, and what is left of the lease, at the same moment.
    pub fn spans(&self) -> (Duration, Duration) {
        let now = Instant::now();
        let since = |from, to: Instant| to.saturating_duration_since(from);
        (since(self.arrived, now), since(now, self.until))
    }
}

/// What became of a renewal of one lock or several.
#[derive(Debug)]
pub enum Renewal {
    /// The leases last a full TTL from now.
    Renewed {
        /// The leases, at least one, in the order of the names.
        leases: Few<Lease>,
        /// Until when all of them are exclusive.
        validity: Validity,
    },
    /// The token does not hold these, or cannot renew them.
    Lost(Few<LostLock>),
}

/// Why the service has no response.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The store could not find out.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store took so long that nothing was left of the lease. A new grant is withdrawn.
    #[error("the lease was over before it could be answered")]
    TooLate,
    /// The operating system gave no random bytes for a token.
    #[error("no random bytes for a token")]
    Random(#[from] getrandom::Error),
    /// As many wait as may.
    #[error("too many wait")]
    TooManyWaiters,
    /// Another client ended the wait.
    #[error("the wait was ended")]
    WaitEnded(Arc<Break>),
    /// The service shuts down, and the lock was not to be had before.
    #[error("the service shuts down")]
    Leaving,
}

/// What the locks of this process come to, for an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockCounts {
    /// Requests that wait for a lock now.
    pub waiters: usize,
    /// Locks that are held, where the store has them in this process.
    pub held: Option<u64>,
    /// Grants that no client read and the service withdrew, since the process started.
    pub withdrawn_grants: u64,
    /// Writes of this process that met one of another process, and were decided again.
    pub store_conflicts: u64,
}

/// How many may wait.
#[derive(Debug, Clone, Copy)]
pub struct WaiterLimits {
    /// For one lock; the store may take fewer.
    pub each: u64,
    /// In this process, for all locks and whatever shares the [`LockService::waiter_room`].
    pub all: usize,
}

/// How many watchers take up changes at once for each core. A thousand of one lock would keep every
/// other request waiting.
const WATCH_TURNS_PER_CORE: usize = 2;

/// A permit for each watcher that may take up changes now.
fn watch_turns() -> Arc<Semaphore> {
    let cores = available_parallelism().map_or(1, NonZero::get);
    Arc::new(Semaphore::new(WATCH_TURNS_PER_CORE * cores))
}

/// The reply to the last round of an acquire.
pub(super) struct LastReply {
    pub(super) reply: AcquireReply,
    pub(super) attempt: Arc<PendingAttempt>,
    /// When the round was sent to the store.
    pub(super) sent: Instant,
}

/// Locks with everything that has to do with time: deadlines, validity, cleaning up.
#[derive(Debug)]
pub struct LockService {
    pub(super) store: Arc<dyn Store>,
    pub(super) deadline: Duration,
    /// Since when waiters keep their entries.
    pub(super) started: Instant,
    pub(super) limits: WaiterLimits,
    max_ttl: Ttl,
    /// How many requests for locks there were, from a random number on. In a box: each request
    /// counts it on, which would take the fields beside it from the other cores.
    requests: Box<AtomicU64>,
    /// Each request that waits has a token of it.
    pub(super) waiters: TaskTracker,
    pub(super) waiter_room: WaiterLimit,
    withdrawn_grants: Arc<AtomicU64>,
    tasks: TaskTracker,
    /// Those that hold or watch a lock for a connection, or keep a queue entry for a retry.
    pub(super) streams: TaskTracker,
    /// A permit for each watcher that takes up changes now.
    pub(super) watch_turns: Arc<Semaphore>,
    /// From when on no request waits any more.
    pub(super) leaving: CancellationToken,
    closing: CancellationToken,
}

/// Where a method says nothing of its errors, the store could not find out.
impl LockService {
    /// A service over `store` that waits for each of its answers at most for `deadline`.
    ///
    /// # Errors
    ///
    /// The operating system has no random bytes to give.
    pub fn start(
        store: Arc<dyn Store>,
        deadline: Duration,
        limits: WaiterLimits,
    ) -> Result<Self, getrandom::Error> {
        let profile = store.profile();
        let (each, max_ttl) = (limits.each.min(profile.limits.waiters), profile.max_ttl);
        Ok(Self {
            store,
            deadline,
            started: Instant::now(),
            limits: WaiterLimits { each, ..limits },
            max_ttl,
            requests: Box::new(AtomicU64::new(getrandom::u64()?)),
            waiters: TaskTracker::new(),
            waiter_room: WaiterLimit::new(limits.all),
            withdrawn_grants: Arc::default(),
            tasks: TaskTracker::new(),
            streams: TaskTracker::new(),
            watch_turns: watch_turns(),
            leaving: CancellationToken::new(),
            closing: CancellationToken::new(),
        })
    }

    /// Acquires all locks or none, and waits for them as long as the request says.
    ///
    /// When the caller drops this future, or the store's answer takes too long, a task of the
    /// service brings the store's step to its end and withdraws what it granted.
    ///
    /// # Errors
    ///
    /// The store could not find out, found out too late, or takes no such step.
    pub async fn acquire(&self, request: AcquireRequest) -> Result<Acquisition, LockError> {
        self.acquire_and_report(request, |_| ()).await
    }

    /// Acquires, and calls `on_busy` each time the locks are not to be had yet.
    pub(super) async fn acquire_and_report(
        &self,
        request: AcquireRequest,
        on_busy: impl FnMut(&Contention),
    ) -> Result<Acquisition, LockError> {
        let may_return = request.token.is_some();
        let token = request.token.map_or_else(Token::generate, Ok)?;
        let command = AcquireCommand {
            owner: request.owner,
            max_ahead: request.max_ahead,
            limit: request.limit,
            entry: request.entry,
            ..AcquireCommand::new(token.hash(), request.ttl, self.next_attempt())
        };
        let attempt = PendingAttempt { names: request.names, command };
        self.obtain(attempt, token, (request.wait, may_return), on_busy).await
    }

    /// Acquires, and waits as long as `wait`, by a client that may return or not.
    async fn obtain(
        &self,
        attempt: PendingAttempt,
        token: Token,
        (wait, may_return): (Duration, bool),
        on_busy: impl FnMut(&Contention),
    ) -> Result<Acquisition, LockError> {
        let arrived = Instant::now();
        let LastReply { reply, attempt, sent } = if wait.is_zero() {
            let attempt = Arc::new(attempt);
            LastReply { reply: self.attempt(&attempt).await?, attempt, sent: arrived }
        } else {
            let limit = WaitLimit { until: arrived + wait, may_return };
            // In a box, so that a request that does not wait keeps no room for it.
            Box::pin(self.wait(attempt, limit, on_busy)).await?
        };
        let is_new = matches!(reply, AcquireReply::Granted(_));
        let grant = |leases: Few<Lease>| {
            let Some(validity) = validity(&leases, arrived, sent) else {
                self.withdraw_grant(&attempt, is_new);
                return Err(LockError::TooLate);
            };
            Ok(Grant { token, leases, validity })
        };
        Ok(match reply {
            AcquireReply::Granted(leases) => Acquisition::New(grant(leases)?),
            AcquireReply::Repeated(leases) => Acquisition::Again(grant(leases)?),
            AcquireReply::Busy(contention) => {
                Acquisition::Held { contention, waited: arrived.elapsed() }
            }
            AcquireReply::Crowded(contention) => Acquisition::Crowded(contention),
            AcquireReply::NotAlone(contention) => Acquisition::NotAlone(contention),
            AcquireReply::WaitEnded(why) => return Err(LockError::WaitEnded(why)),
            AcquireReply::Full => Acquisition::Full,
        })
    }

    /// Lets all leases of a token last `ttl` from now, or none; without it each lasts its own TTL.
    ///
    /// # Errors
    ///
    /// As of [`LockService::acquire`].
    pub async fn renew(
        &self,
        names: impl Into<LockSet>,
        token: &Token,
        ttl: impl Into<Option<Ttl>>,
    ) -> Result<Renewal, LockError> {
        let (sent, token) = (Instant::now(), token.hash());
        let reply = with_deadline(self.deadline, self.store.renew(names, &token, ttl)).await?;
        Ok(match reply {
            RenewReply::Renewed(leases) => {
                let validity = validity(&leases, sent, sent).ok_or(LockError::TooLate)?;
                Renewal::Renewed { leases, validity }
            }
            RenewReply::Lost(lost) => Renewal::Lost(lost),
        })
    }

    /// Ends the leases of a token, or one entry of each; a lease ends with its last entry. Gives
    /// what became of each lock, in the order of the names, and which grant ended.
    pub async fn leave(
        &self,
        names: impl Into<LockSet>,
        token: &Token,
        entry: Option<EntryName>,
    ) -> Result<Few<(ReleaseReply, Option<GrantEnd>)>, StoreError> {
        with_deadline(self.deadline, self.store.leave(names, &token.hash(), entry)).await
    }

    /// Ends the lease of another client, which cannot renew it any more.
    pub async fn break_lease(
        &self,
        name: &LockName,
        command: BreakCommand,
    ) -> Result<BreakReply, StoreError> {
        with_deadline(self.deadline, self.store.break_lease(name, command)).await
    }

    /// The holders of a lock.
    pub async fn look(&self, name: &LockName) -> Result<Option<Holding>, StoreError> {
        with_deadline(self.deadline, self.store.look(name)).await
    }

    /// The waiters of a lock, at whatever instance, in the order of the queue.
    pub async fn look_at_queue(&self, name: &LockName) -> Result<Vec<Waiter>, StoreError> {
        with_deadline(self.deadline, self.store.look_at_queue(name)).await
    }

    /// How earlier grants of a lock ended that were not released, oldest first.
    pub async fn recall(&self, name: &LockName) -> Result<Vec<GrantEnd>, StoreError> {
        with_deadline(self.deadline, self.store.recall(name)).await
    }

    /// A page of held locks, without keylatch's own; `None` when the cursor is not one that the
    /// store gave.
    pub async fn list(&self, query: &ListLocks) -> Result<Option<Page<Holding>>, StoreError> {
        let mut page = with_deadline(self.deadline, self.store.list_locks(query)).await?;
        if let Some(page) = &mut page {
            page.entries.retain(|lock| !lock.first.name.is_reserved());
        }
        Ok(page)
    }

    /// The room for all requests that wait, for those that wait for something else to share it.
    pub fn waiter_room(&self) -> WaiterLimit {
        self.waiter_room.clone()
    }

    /// What the locks of this process come to now. It asks no store.
    pub fn counts(&self) -> LockCounts {
        let gauges = self.store.gauges();
        LockCounts {
            waiters: self.waiters.len(),
            held: gauges.entries.map(|entries| entries.held_locks),
            store_conflicts: gauges.conflicts,
            withdrawn_grants: self.withdrawn_grants.load(Ordering::Relaxed),
        }
    }

    /// The longest TTL that a client may ask for.
    pub fn max_ttl(&self) -> Ttl {
        self.max_ttl
    }

    /// Whether the part of the store that is in this process works.
    pub fn is_alive(&self) -> bool {
        self.store.gauges().is_alive
    }

    /// Whether the store can do its work, and what it is.
    pub async fn health(&self) -> Result<StoreHealth, StoreError> {
        with_deadline(self.deadline, self.store.health()).await
    }

    /// A copy of all that the store keeps, locks and records.
    ///
    /// # Errors
    ///
    /// The store could not, is being copied already, or has no copies to give.
    pub async fn back_up(&self) -> Result<Backup, StoreError> {
        with_deadline(self.deadline, self.store.back_up()).await
    }

    /// Sends away the requests that wait, and lets no other wait: another instance may serve them.
    pub fn stop_waiting(&self) {
        self.leaving.cancel();
    }

    /// Ends the service's own tasks: waits for the withdrawals that are under way, for as long as
    /// the caller likes. Holds end when their connections do.
    pub async fn close(&self) {
        self.closing.cancel();
        self.streams.close();
        self.streams.wait().await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn next_attempt(&self) -> Attempt {
        Attempt::first_of(self.requests.fetch_add(1, Ordering::Relaxed))
    }

    /// Withdraws a grant that no client reads; counts it if it is a new one.
    fn withdraw_grant(&self, attempt: &Arc<PendingAttempt>, is_new: bool) {
        if !is_new {
            return self.withdraw(attempt);
        }
        let (store, withdrawn) = (Arc::clone(&self.store), Arc::clone(&self.withdrawn_grants));
        self.tasks.spawn(withdrawal::withdraw_grant(store, Arc::clone(attempt), withdrawn));
    }

    /// Withdraws what an attempt may have got, in a task of the service.
    pub(super) fn withdraw(&self, attempt: &Arc<PendingAttempt>) {
        self.tasks.spawn(withdrawal::withdraw(Arc::clone(&self.store), Arc::clone(attempt)));
    }

    /// Like [`LockService::withdraw`] after a pause, which ends early when the service is closed.
    pub(super) fn withdraw_after(&self, pause: Duration, attempt: Arc<PendingAttempt>) {
        let (store, closing) = (Arc::clone(&self.store), self.closing.clone());
        self.streams.spawn(async move {
            closing.run_until_cancelled(tokio::time::sleep(pause)).await;
            withdrawal::withdraw(store, attempt).await;
        });
    }

    /// One acquire that is finished in any case, and withdrawn if no caller is left to read it.
    pub(super) async fn attempt(
        &self,
        attempt: &Arc<PendingAttempt>,
    ) -> Result<AcquireReply, StoreError> {
        if self.tasks.len() > PENDING_MAX {
            let why = "too many grants that no client reads are being withdrawn";
            return Err(StoreError::Refused(why.into()));
        }
        let step: BoxFuture<_> = {
            let (store, attempt) = (Arc::clone(&self.store), Arc::clone(attempt));
            Box::pin(async move { store.acquire(&attempt.names, attempt.command.clone()).await })
        };
        // It clones only when it is called: a clone changes a count that all cores share.
        let undo = |step| {
            let (store, attempt) = (Arc::clone(&self.store), Arc::clone(attempt));
            withdrawal::finish(store, attempt, step, Arc::clone(&self.withdrawn_grants))
        };
        let answer = with_deadline(self.deadline, DetachOnDrop::new(&self.tasks, step, undo)).await;
        if let Err(StoreError::Lost(_) | StoreError::Full(_)) = &answer {
            let (store, attempt) = (Arc::clone(&self.store), Arc::clone(attempt));
            self.tasks.spawn(withdrawal::withdraw_lost(store, attempt));
        }
        answer
    }
}

impl Drop for LockService {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// Until when leases are exclusive, all of them, whose step was sent to the store at `sent`: the
/// drift margin of 1 % + 2 ms goes off. `None` when nothing is left.
fn validity(leases: &[Lease], arrived: Instant, sent: Instant) -> Option<Validity> {
    let valid_for = leases.iter().map(|lease| {
        let drift = lease.ttl / 100 + Duration::from_millis(2);
        lease.expires_in.saturating_sub(drift)
    });
    let validity = Validity { arrived, until: sent + valid_for.min()? };
    (validity.valid_for().as_millis() > 0).then_some(validity)
}

/// How long a request waits, and what becomes of its queue entry then.
pub(super) struct WaitLimit {
    pub(super) until: Instant,
    /// The token is the client's own, so that the client may acquire again and keep its entry.
    pub(super) may_return: bool,
}
