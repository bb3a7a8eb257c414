//! The idempotency service: everything about records that has to do with time.
//!
//! [`IdempotencyService::once`] takes the work as a function and runs it under a lease that a
//! watchdog renews. From its first step on, everything is one future that a task of the service
//! finishes when the caller goes away, so the work ends and its result is stored whether its caller
//! listens or not. [`IdempotencyService::drain`] is the end of a process: it awaits every run, and
//! leaves one that takes longer with an unknown outcome in the store. Invariant: work is not begun
//! when the store could not say that it is new. The tests of the layer and of the shutdown, and the
//! campaign of keys, hold it.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::room::{NoRoom, RecordRoom, RoomLimits, TakenRoom};
use super::run::{self, RunEnding, RunWaiters};
use super::{
    AbandonReply, BeginCommand, BeginReply, CompleteReply, EraseReply, IdempotencyError, OnCrash,
    OnceRun, RecordKey, RecordScope, RecordStatus, RecordSummary, RecordView, ResolveCommand,
    ResolveReply, Run, RunEnd, RunRenewal, RunRequest, RunResult, StoredResponse, UnknownReason,
};
use crate::lock::{FencingToken, Token, TokenHash};
use crate::store::{ListRecords, Page, Store, StoreError};
use crate::task::{BoxFuture, DetachOnDrop, with_deadline};
use crate::waiters::{WaiterGuard, WaiterLimit, WaiterPlace, WaiterRegistry};
use crate::watchdog::LeaseSchedule;

/// How many runs and endings that no client waits for may be under way before new runs are refused.
const PENDING_MAX: usize = 10_000;
/// How often one of the waiters looks whether a run has ended in another process.
const POLL_PERIOD: Duration = Duration::from_millis(50);

/// How much of this process the records may take.
#[derive(Debug, Clone)]
pub struct RecordLimits {
    /// The bytes of records that the store keeps in this process.
    pub kept_bytes: u64,
    /// The records of a guard whose outcome is unknown or to come, where the store keeps them in
    /// this process.
    pub unknown: u64,
    /// Room for requests that wait for the end of a run.
    pub waiters: WaiterLimit,
}

/// Does things once, by the records of a store.
#[derive(Debug)]
pub struct IdempotencyService {
    store: Arc<dyn Store>,
    deadline: Duration,
    answer_limit: usize,
    waiters: WaiterRegistry<RecordKey, RunWaiters>,
    waiter_room: WaiterLimit,
    tasks: TaskTracker,
    /// The runs that are under way, whether a caller waits for them or a task has them.
    runs: TaskTracker,
    /// What the store keeps in this process; an engine keeps records elsewhere, and has a bound of
    /// its own.
    room: Option<Arc<RecordRoom>>,
    room_limits: RoomLimits,
    /// From when on no request waits any more.
    leaving: CancellationToken,
    /// From when on no run lasts any longer, and none begins.
    interrupted: CancellationToken,
}

/// Where a method says nothing of its errors, the store could not find out.
impl IdempotencyService {
    /// A service over `store` that waits for each of its answers at most for `deadline`.
    pub fn start(store: Arc<dyn Store>, deadline: Duration) -> Arc<Self> {
        let (kept_bytes, unknown, waiters) = (u64::MAX, u64::MAX, WaiterLimit::new(usize::MAX));
        Self::start_within(store, deadline, RecordLimits { kept_bytes, unknown, waiters })
    }

    /// The same within limits.
    pub fn start_within(
        store: Arc<dyn Store>,
        deadline: Duration,
        limits: RecordLimits,
    ) -> Arc<Self> {
        let (waiters, tasks, runs, leaving, interrupted) = Default::default();
        let (limits_of_store, room) = (store.profile().limits, store.gauges().room);
        Arc::new(Self {
            store,
            deadline,
            answer_limit: limits_of_store.answer_bytes,
            waiters,
            waiter_room: limits.waiters,
            tasks,
            runs,
            room,
            room_limits: RoomLimits { bytes: limits.kept_bytes, unknown: limits.unknown },
            leaving,
            interrupted,
        })
    }

    /// The most bytes of a response that the store keeps.
    pub fn answer_limit(&self) -> usize {
        self.answer_limit
    }

    /// How many bytes of records the store keeps in this process; `None` of an engine.
    pub fn kept_bytes(&self) -> Option<u64> {
        self.room.as_ref().map(|room| room.bytes())
    }

    /// How many records are done; `None` where the store does not have them in this process.
    pub fn done_records(&self) -> Option<u64> {
        self.store.gauges().entries.map(|entries| entries.done_records)
    }

    /// Room for a response of so many bytes, until it is dropped; of an engine none is taken.
    ///
    /// # Errors
    ///
    /// There is none for a run in this scope.
    pub fn take_room(
        &self,
        scope: &RecordScope,
        bytes: usize,
    ) -> Result<Option<TakenRoom>, NoRoom> {
        let Some(room) = &self.room else { return Ok(None) };
        room.take(scope.share(), bytes as u64, self.room_limits).map(Some)
    }

    /// Whether so much of the room for records in this scope is used that a response should have
    /// less.
    pub fn is_room_short(&self, scope: &RecordScope) -> bool {
        let is_short = |room: &Arc<RecordRoom>| room.is_short(scope.share(), self.room_limits);
        self.room.as_ref().is_some_and(is_short)
    }

    /// Runs `work` unless it was run before under this key, and keeps what it came to.
    ///
    /// What was begun is brought to its end also when the caller drops this future. While it runs,
    /// its lease is renewed. A panic of the work is passed on when its outcome is kept. Where there
    /// is no room for one more that waits for a run, it waits for none.
    ///
    /// # Errors
    ///
    /// The store could not find out. Nothing was run.
    pub async fn once<T, W, F>(
        self: &Arc<Self>,
        ask: RunRequest,
        work: W,
    ) -> Result<OnceRun<T>, IdempotencyError>
    where
        T: Send + 'static,
        W: FnOnce(Run) -> F + Send + 'static,
        F: Future<Output = RunResult<T>> + Send + 'static,
    {
        let until = Instant::now() + ask.wait;
        let ask = Arc::new(ask);
        let (mut work, mut place, mut has_waited) = (work, None, false);
        loop {
            // Taken before asking, or an end in between would go unheard.
            let waiter =
                (!ask.wait.is_zero()).then(|| self.waiters.join(ask.key, RunWaiters::default));
            let ended = waiter.as_ref().map(|waiter| waiter.ended.notified());
            let attempt = self.attempt(Arc::clone(&ask), work).await;
            let (view, again) = match attempt.map_err(|error| error.after_a_wait(has_waited))? {
                Attempt::Over(once) => return Ok(once),
                Attempt::InFlight(view, work) => (view, work),
            };
            let (Some(waiter), Some(ended)) = (&waiter, ended) else {
                return Ok(OnceRun::Found(view));
            };
            // In a box, so that a run keeps no room for a wait.
            if !Box::pin(self.wait_for_end(waiter, &ask.key, ended, &mut place, until)).await {
                return Ok(OnceRun::Found(view));
            }
            (work, has_waited) = (again, true);
        }
    }

    /// Starts a run that the caller will end, or says what became of an earlier one.
    ///
    /// When the caller goes away before the response, the service abandons the run, unless the
    /// token is the caller's `own`: then the caller can ask again, and gets the same run.
    pub async fn begin(&self, ask: BeginCommand, own: bool) -> Result<BeginReply, StoreError> {
        let ask = Arc::new(ask);
        let call: BoxFuture<_> = {
            let (store, ask) = (Arc::clone(&self.store), Arc::clone(&ask));
            Box::pin(async move { store.begin(&ask).await })
        };
        // It clones only when it is called: a clone changes a count that all cores share.
        let orphaned = |call| {
            let (store, ask) = (Arc::clone(&self.store), Arc::clone(&ask));
            async move {
                if !own {
                    run::finish(store, ask, call).await;
                }
            }
        };
        let answer =
            with_deadline(self.deadline, DetachOnDrop::new(&self.tasks, call, orphaned)).await;
        if let (Err(StoreError::Lost(_) | StoreError::Full(_)), false) = (&answer, own) {
            self.tasks.spawn(run::abandon_lost(Arc::clone(&self.store), ask));
        }
        answer
    }

    /// [`begin`](Self::begin) with room for a response of so many bytes. While another run is under
    /// way, this waits for its end for at most `wait` and then begins as if it had come afterwards.
    /// Where there is no room for one more that waits, it waits for none.
    pub async fn begin_or_wait(
        &self,
        ask: &BeginCommand,
        own: bool,
        answer_bytes: usize,
        wait: Duration,
    ) -> Result<BeginReply, StoreError> {
        let (until, mut place) = (Instant::now() + wait, None);
        loop {
            // Taken before asking, or an end in between would go unheard.
            let waiter = (!wait.is_zero()).then(|| self.waiters.join(ask.key, RunWaiters::default));
            let ended = waiter.as_ref().map(|waiter| waiter.ended.notified());
            let room = self.take_room(&ask.scope, answer_bytes);
            let again = BeginCommand { has_room: room.is_ok(), ..ask.clone() };
            let reply = self.begin(again, own).await?;
            drop(room);
            let is_under_way = matches!(&reply, BeginReply::Found(view) if is_running(view));
            let (Some(waiter), Some(ended), true) = (&waiter, ended, is_under_way) else {
                return Ok(reply);
            };
            if !self.wait_for_end(waiter, &ask.key, ended, &mut place, until).await {
                return Ok(reply);
            }
        }
    }

    /// Ends a run.
    pub async fn complete(
        &self,
        key: &RecordKey,
        token: &TokenHash,
        end: RunEnd,
    ) -> Result<CompleteReply, StoreError> {
        let step = self.store.complete(key, token, end);
        let completion = with_deadline(self.deadline, step).await;
        self.wake_waiters(key);
        completion
    }

    /// Ends a run with a response for which it took less room than it needs: with the whole of it
    /// where there is room now, and else with the short form.
    pub async fn complete_long(
        &self,
        (key, scope): (&RecordKey, &RecordScope),
        token: &TokenHash,
        [whole, short]: [StoredResponse; 2],
    ) -> Result<CompleteReply, StoreError> {
        let take = |room: &Arc<RecordRoom>| {
            room.take_bytes(scope.share(), whole.kept_bytes(), self.room_limits)
        };
        // Until the answer is among what is kept.
        let room = self.room.as_ref().map(take).transpose();
        let [first, other] = if room.is_ok() { [whole, short] } else { [short, whole] };
        match self.complete(key, token, RunEnd::Done(first)).await? {
            // An earlier try, whose response was lost, may have found room, or none.
            CompleteReply::Refused(_) => self.complete(key, token, RunEnd::Done(other)).await,
            reply => Ok(reply),
        }
    }

    /// Forgets a run under which nothing was done.
    pub async fn abandon(
        &self,
        key: &RecordKey,
        token: &TokenHash,
    ) -> Result<AbandonReply, StoreError> {
        let abandonment = with_deadline(self.deadline, self.store.abandon(key, token)).await;
        self.wake_waiters(key);
        abandonment
    }

    /// Lets the lease of a run last its full time from now.
    pub async fn extend(
        &self,
        key: &RecordKey,
        token: &TokenHash,
    ) -> Result<RunRenewal, StoreError> {
        with_deadline(self.deadline, self.store.extend(key, token)).await
    }

    /// Settles an outcome that was unknown.
    pub async fn resolve(&self, ask: &ResolveCommand) -> Result<ResolveReply, StoreError> {
        with_deadline(self.deadline, self.store.resolve(ask)).await
    }

    /// Removes what is kept of a response, but its status. The key stays used until its retention
    /// ends.
    pub async fn erase(&self, key: &RecordKey) -> Result<EraseReply, StoreError> {
        with_deadline(self.deadline, self.store.erase(key)).await
    }

    /// Looks at a record.
    pub async fn find(&self, key: &RecordKey) -> Result<Option<RecordView>, StoreError> {
        with_deadline(self.deadline, self.store.find(key)).await
    }

    /// A page of records; `None` when the cursor is not one that the store gave.
    pub async fn list(
        &self,
        query: &ListRecords,
    ) -> Result<Option<Page<RecordSummary>>, StoreError> {
        with_deadline(self.deadline, self.store.list_records(query)).await
    }

    /// Runs what belongs to a run and outlives its request, such as the rest of a stream.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let interrupted = self.interrupted.clone();
        self.tasks.spawn(self.runs.track_future(interrupted.run_until_cancelled_owned(task)));
    }

    /// Runs what is of no request and ends when the service begins to drain.
    pub fn spawn_until_drain(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.leaving.clone().run_until_cancelled_owned(task));
    }

    /// Sends away the requests that wait for the end of a run, and lets no other wait.
    pub fn stop_waiting(&self) {
        self.leaving.cancel();
    }

    /// Resolves when no run is under way, with a caller or without.
    pub async fn quiet(&self) {
        self.runs.close();
        self.runs.wait().await;
    }

    /// Awaits the runs that are under way for at most `limit`, with a caller or without, and leaves
    /// those that take longer: their work is dropped, their outcome is unknown in the store when
    /// this returns, and their callers get [`OnceRun::Interrupted`]. A run that a crash lets begin
    /// again keeps its lease instead. No run begins afterwards.
    pub async fn drain(&self, limit: Duration) {
        self.stop_waiting();
        // Whether all have ended or not, it is over.
        let _ = timeout(limit, self.quiet()).await;
        self.interrupted.cancel();
        self.quiet().await;
    }

    /// Ends the service's own tasks: waits for runs and endings that are under way, for as long as
    /// the caller likes.
    pub async fn close(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// One try, brought to its end in any case.
    async fn attempt<T, W, F>(
        self: &Arc<Self>,
        ask: Arc<RunRequest>,
        work: W,
    ) -> Result<Attempt<T, W>, IdempotencyError>
    where
        T: Send + 'static,
        W: FnOnce(Run) -> F + Send + 'static,
        F: Future<Output = RunResult<T>> + Send + 'static,
    {
        if self.interrupted.is_cancelled() {
            return Err(StoreError::Refused("the service is shutting down".into()).into());
        }
        if self.tasks.len() > PENDING_MAX {
            let why = "too many runs without a waiting caller are under way";
            return Err(StoreError::Refused(why.into()).into());
        }
        let service = Arc::clone(self);
        // Boxed here, because a future keeps room for what it moves into a box: the futures of all
        // callers up to the connection would have room for the run as well.
        let call: BoxFuture<_> = Box::pin(self.runs.track_future(async move {
            // It ends when the answer is among what is kept, or there is none.
            let room = service.take_room(&ask.scope, ask.answer_bytes);
            service.begin_and_run(&ask, work, room.as_ref().err().copied()).await
        }));
        DetachOnDrop::new(&self.tasks, call, |call| async move { drop(call.await) }).await
    }

    async fn begin_and_run<T, W, F>(
        &self,
        ask: &RunRequest,
        work: W,
        no_room: Option<NoRoom>,
    ) -> Result<Attempt<T, W>, IdempotencyError>
    where
        W: FnOnce(Run) -> F,
        F: Future<Output = RunResult<T>>,
    {
        let asked = Instant::now();
        let token = Token::generate()?.hash();
        let key = ask.key;
        let begun = self.begin(ask.begin(token, no_room.is_none()), false);
        let begun = match ask.step_limit {
            Some(limit) => with_deadline(limit, begun).await?,
            None => begun.await?,
        };
        let run = match begun {
            BeginReply::Started(run) | BeginReply::Again(run) => run,
            BeginReply::Reused(view) => return Ok(Attempt::Over(OnceRun::Reused(view))),
            BeginReply::Found(view) if is_running(&view) => {
                return Ok(Attempt::InFlight(view, work));
            }
            BeginReply::Found(view) => return Ok(Attempt::Over(OnceRun::Found(view))),
            BeginReply::NoRoom => return Err(no_room.unwrap_or(NoRoom::Bytes).into()),
        };
        if asked.elapsed() >= run.lease {
            // The beginning took longer than the lease, so another caller may have the run by now.
            let fencing_token = run.fencing_token;
            let ending = RunEnding { key, token, fencing_token, end: None };
            self.tasks.spawn(ending.finish(Arc::clone(&self.store), ask.lease));
            return Err(StoreError::Deadline(run.lease).into());
        }
        // A repeat has no room for the work, and the call itself may panic.
        let work = Box::pin(async { work(run).await });
        Ok(Attempt::Over(match self.run_alive(ask, &token, work).await {
            Some(worked) => self.keep_end(ask, token, &run, worked).await,
            None => self.interrupt(ask, token, run.fencing_token).await,
        }))
    }

    /// Keeps what the work of a run came to, and passes its panic on.
    async fn keep_end<T>(
        &self,
        ask: &RunRequest,
        token: TokenHash,
        run: &Run,
        worked: std::thread::Result<RunResult<T>>,
    ) -> OnceRun<T> {
        let (answer, end, late) = match worked {
            Ok(worked) => (Ok(worked.answer), worked.end, worked.late),
            Err(panic) if ask.panic_releases => (Err(panic), None, None),
            Err(panic) => (Err(panic), Some(RunEnd::Unknown(UnknownReason::Panicked)), None),
        };
        let (key, fencing_token) = (ask.key, run.fencing_token);
        let ended = self.end(RunEnding { key, token, fencing_token, end }, ask).await;
        if let Some(late) = late {
            self.spawn(late.settle(Arc::clone(&self.store), key, fencing_token));
        }
        let answer = answer.unwrap_or_else(|panic| resume_unwind(panic));
        match ended {
            // Another caller runs it now or has run it: every client reads that caller's answer.
            Some(CompleteReply::Refused(view))
                if is_running(&view) || matches!(view.phase, RecordStatus::Done { .. }) =>
            {
                OnceRun::Found(view)
            }
            Some(CompleteReply::Done(view)) => OnceRun::Ran { answer, kept: Some(view.expires_in) },
            _ => OnceRun::Ran { answer, kept: None },
        }
    }

    /// Runs the work, panics and all, under a lease that is renewed. `None` if it was interrupted.
    async fn run_alive<T>(
        &self,
        ask: &RunRequest,
        token: &TokenHash,
        work: impl Future<Output = T>,
    ) -> Option<std::thread::Result<T>> {
        let work = pin!(AssertUnwindSafe(work).catch_unwind());
        let watchdog = pin!(self.keep_alive(&ask.key, token, ask.lease));
        tokio::select! {
            biased;
            worked = work => Some(worked),
            () = self.interrupted.cancelled() => None,
            never = watchdog => match never {},
        }
    }

    /// Leaves a run whose work was dropped in the middle.
    async fn interrupt<T>(
        &self,
        ask: &RunRequest,
        token: TokenHash,
        fencing_token: FencingToken,
    ) -> OnceRun<T> {
        if ask.on_crash == OnCrash::Unknown {
            tracing::warn!("a run outlived the drain: its outcome is unknown");
            let end = Some(RunEnd::Unknown(UnknownReason::Interrupted));
            self.end(RunEnding { key: ask.key, token, fencing_token, end }, ask).await;
        }
        OnceRun::Interrupted
    }

    /// Keeps the end of a run, or frees its key. When the store cannot do that now, a task tries
    /// again behind the response.
    async fn end(&self, ending: RunEnding, ask: &RunRequest) -> Option<CompleteReply> {
        let limit = ask.step_limit.unwrap_or(self.deadline);
        let step = with_deadline(limit, ending.step(&*self.store)).await;
        self.wake_waiters(&ending.key);
        match step {
            Ok(ended) => {
                if !matches!(ended, None | Some(CompleteReply::Done(_))) {
                    tracing::warn!("an end came after the lease of its run and is not kept");
                }
                ended
            }
            Err(error) => {
                tracing::warn!(%error, "the end of a run is not yet kept");
                self.tasks.spawn(ending.finish(Arc::clone(&self.store), ask.lease));
                None
            }
        }
    }

    /// The watchdog: renews a lease by its schedule, for as long as it is polled. The work does not
    /// stop when its lease is lost: its late end is refused by the store.
    async fn keep_alive(&self, key: &RecordKey, token: &TokenHash, lease: Duration) -> Infallible {
        let begun = Instant::now();
        let mut schedule = LeaseSchedule::new(lease, lease);
        loop {
            tokio::time::sleep_until(begun + schedule.next_try()).await;
            let sent = begun.elapsed();
            // In a box, so that a run that ends before keeps no room for it.
            match Box::pin(self.extend(key, token)).await {
                Ok(RunRenewal::Extended) => schedule.renewed(sent, sent + lease),
                Ok(RunRenewal::Lost) => {
                    tracing::warn!("a run has lost its lease and continues under its old fence");
                    pending::<()>().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "a lease is not yet renewed");
                    schedule.failed(begun.elapsed(), Duration::ZERO);
                    if schedule.try_limit(begun.elapsed()).is_none() {
                        // The lease may still last by the store's clock.
                        schedule = LeaseSchedule::new(lease, begun.elapsed() + lease);
                    }
                }
            }
        }
    }

    /// Waits until the run under `key` may have ended, in a place that the caller keeps. Gives
    /// whether it may have: `false` where there is no place or no time left.
    async fn wait_for_end(
        &self,
        waiter: &WaiterGuard<RecordKey, RunWaiters>,
        key: &RecordKey,
        ended: impl Future<Output = ()>,
        place: &mut Option<WaiterPlace>,
        until: Instant,
    ) -> bool {
        *place = place.take().or_else(|| self.waiter_room.enter());
        if place.is_none() {
            return false;
        }
        let ended = timeout_at(until, self.ended(waiter, key, ended));
        matches!(self.leaving.run_until_cancelled(ended).await, Some(Ok(())))
    }

    /// Resolves when the run under `key` may have ended.
    async fn ended(
        &self,
        waiter: &WaiterGuard<RecordKey, RunWaiters>,
        key: &RecordKey,
        ended: impl Future<Output = ()>,
    ) {
        let mut ended = pin!(ended);
        tokio::select! {
            () = &mut ended => return,
            _polling = waiter.polling.lock() => loop {
                tokio::select! {
                    () = &mut ended => return,
                    () = tokio::time::sleep(POLL_PERIOD) => {}
                }
                match self.find(key).await {
                    Ok(Some(view)) if is_running(&view) => {}
                    Ok(_) => break,
                    Err(error) => tracing::debug!(%error, "it is not known whether a run ended"),
                }
            },
        }
        waiter.ended.notify_waiters();
    }

    /// Wakes those in this process that wait for the end of the run under `key`.
    fn wake_waiters(&self, key: &RecordKey) {
        if let Some(run) = self.waiters.get(key) {
            run.ended.notify_waiters();
        }
    }
}

/// What one try came to.
enum Attempt<T, W> {
    Over(OnceRun<T>),
    /// Another run is under way; the work is handed back.
    InFlight(RecordView, W),
}

/// Whether a run is under way that may still end it.
fn is_running(view: &RecordView) -> bool {
    matches!(view.phase, RecordStatus::InFlight { lease } if !lease.is_zero())
}
