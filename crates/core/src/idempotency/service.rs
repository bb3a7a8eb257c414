use std::convert::Infallible;
use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ending::{Ending, give_up, give_up_lost, give_up_unheard, insist};
use super::waiting::{Seat, Waiting};
use super::{
    Abandonment, Ask, Begin, Begun, Complete, Completion, End, Extension, IdempotencyError, Once,
    Phase, Reason, RecordKey, RecordStore, Resolution, Resolve, Run, View, Worked,
};
use crate::lock::{StoreError, Token, TokenHash};
use crate::task::{BoxFuture, DetachOnDrop, with_deadline};

/// The pause after a renewal that got no answer.
const TRY_PAUSE: Duration = Duration::from_millis(250);
/// How many runs and endings that nobody waits for may be under way before new runs are refused.
const MAX_ORPHANS: usize = 10_000;
/// How often one of those who wait asks the store whether a run has ended in another process.
const ASK_PERIOD: Duration = Duration::from_millis(50);
/// How often what was kept for long enough is forgotten.
const SWEEP_PERIOD: Duration = Duration::from_secs(30);

/// Does things once, by the records of a store.
#[derive(Debug)]
pub struct Idempotency<S: ?Sized = dyn RecordStore> {
    store: Arc<S>,
    deadline: Duration,
    waiting: Waiting,
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl<S: RecordStore + ?Sized> Idempotency<S> {
    /// A service over `store` that waits for each of its answers at most for `deadline`; it has to
    /// be called within a tokio runtime.
    ///
    /// It forgets expired records in a task of its own until it is closed or dropped.
    pub fn start(store: Arc<S>, deadline: Duration) -> Arc<Self> {
        let (waiting, tasks, closing) = Default::default();
        let service = Self { store, deadline, waiting, tasks, closing };
        let sweeping = sweep(Arc::clone(&service.store));
        let closing = service.closing.clone();
        service.tasks.spawn(async move { closing.run_until_cancelled(sweeping).await });
        Arc::new(service)
    }

    /// Runs `work` unless it was run before under this key, and keeps what it came to.
    ///
    /// What was begun is brought to its end also when the caller drops this future. While it runs,
    /// its lease is renewed. A panic of the work is passed on when its outcome is kept.
    ///
    /// # Errors
    ///
    /// The store could not find out. Nothing was run.
    pub async fn once<T, W, F>(
        self: &Arc<Self>,
        ask: Ask,
        work: W,
    ) -> Result<Once<T>, IdempotencyError>
    where
        T: Send + 'static,
        W: FnOnce(Run) -> F + Send + 'static,
        F: Future<Output = Worked<T>> + Send + 'static,
    {
        let until = Instant::now() + ask.wait;
        let mut work = work;
        loop {
            // Taken before asking, or an end in between would go unheard.
            let seat = (!ask.wait.is_zero()).then(|| self.waiting.join(ask.key));
            let ended = seat.as_ref().map(|seat| seat.ending.ended.notified());
            let (view, again) = match self.attempt(ask, work).await? {
                Attempt::Over(once) => return Ok(once),
                Attempt::InFlight(view, work) => (view, work),
            };
            let (Some(seat), Some(ended)) = (&seat, ended) else { return Ok(Once::Found(view)) };
            if timeout_at(until, self.ended(seat, &ask.key, ended)).await.is_err() {
                return Ok(Once::Found(view));
            }
            work = again;
        }
    }

    /// Starts a run that the caller will end, or says what became of an earlier one.
    ///
    /// When nobody hears the answer, the run is given up, unless the token is the caller's `own`:
    /// then it can ask again, and is given the same run.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn begin(&self, ask: Begin, own: bool) -> Result<Begun, StoreError> {
        let ask = Arc::new(ask);
        let call: BoxFuture<_> = {
            let (store, ask) = (Arc::clone(&self.store), Arc::clone(&ask));
            Box::pin(async move { store.begin(&ask).await })
        };
        let orphaned = {
            let (store, ask) = (Arc::clone(&self.store), Arc::clone(&ask));
            move |call| async move {
                if !own {
                    give_up_unheard(store, ask, call).await;
                }
            }
        };
        let answer =
            with_deadline(self.deadline, DetachOnDrop::new(&self.tasks, call, orphaned)).await;
        if let (Err(StoreError::Lost(_)), false) = (&answer, own) {
            self.tasks.spawn(give_up_lost(Arc::clone(&self.store), ask));
        }
        answer
    }

    /// Ends a run.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn complete(&self, ask: &Complete) -> Result<Completion, StoreError> {
        let completion = with_deadline(self.deadline, self.store.complete(ask)).await;
        self.waiting.end(&ask.key);
        completion
    }

    /// Forgets a run under which nothing was done.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn abandon(
        &self,
        key: &RecordKey,
        token: &TokenHash,
    ) -> Result<Abandonment, StoreError> {
        let abandonment = with_deadline(self.deadline, self.store.abandon(key, token)).await;
        self.waiting.end(key);
        abandonment
    }

    /// Lets the lease of a run last its full time from now.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn extend(
        &self,
        key: &RecordKey,
        token: &TokenHash,
    ) -> Result<Extension, StoreError> {
        with_deadline(self.deadline, self.store.extend(key, token)).await
    }

    /// Settles an outcome that nobody knew.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn resolve(&self, ask: &Resolve) -> Result<Resolution, StoreError> {
        with_deadline(self.deadline, self.store.resolve(ask)).await
    }

    /// Looks at a record.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn find(&self, key: &RecordKey) -> Result<Option<View>, StoreError> {
        with_deadline(self.deadline, self.store.find(key)).await
    }

    /// Runs what belongs to a run and outlives its request, such as the rest of a stream.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Ends the service's own tasks: sweeping stops, and what is still being run or kept is waited
    /// for as long as the caller likes.
    pub async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// One try, brought to its end in any case.
    async fn attempt<T, W, F>(
        self: &Arc<Self>,
        ask: Ask,
        work: W,
    ) -> Result<Attempt<T, W>, IdempotencyError>
    where
        T: Send + 'static,
        W: FnOnce(Run) -> F + Send + 'static,
        F: Future<Output = Worked<T>> + Send + 'static,
    {
        if self.tasks.len() > MAX_ORPHANS {
            let why = "too many runs that nobody waits for are under way";
            return Err(StoreError::Refused(why.into()).into());
        }
        let service = Arc::clone(self);
        let call: BoxFuture<_> = Box::pin(async move { service.begin_and_run(ask, work).await });
        DetachOnDrop::new(&self.tasks, call, |call| async move { drop(call.await) }).await
    }

    async fn begin_and_run<T, W, F>(
        &self,
        ask: Ask,
        work: W,
    ) -> Result<Attempt<T, W>, IdempotencyError>
    where
        W: FnOnce(Run) -> F,
        F: Future<Output = Worked<T>>,
    {
        let asked = Instant::now();
        let token = Token::generate()?.hash();
        let Ask { key, fingerprint, lease, retention, on_crash, .. } = ask;
        let begin = Begin { key, token, fingerprint, lease, retention, on_crash };
        let run = match self.begin(begin.clone(), false).await? {
            Begun::Started(run) | Begun::Again(run) => run,
            Begun::Reused(view) => return Ok(Attempt::Over(Once::Reused(view))),
            Begun::Found(view) if is_running(&view) => return Ok(Attempt::InFlight(view, work)),
            Begun::Found(view) => return Ok(Attempt::Over(Once::Found(view))),
        };
        if asked.elapsed() >= run.lease {
            // Whatever it is that took so long, the run may be another's by now.
            self.tasks.spawn(give_up(Arc::clone(&self.store), Arc::new(begin)));
            return Err(StoreError::Deadline(run.lease).into());
        }
        let worked = self.run_alive(&ask, &token, async { work(run).await }).await;
        let (answer, end) = match worked {
            Ok(worked) => (Ok(worked.answer), worked.end),
            Err(panic) if ask.panic_releases => (Err(panic), None),
            Err(panic) => (Err(panic), Some(End::Unknown(Reason::Panicked))),
        };
        let ended = self.end(&ask, token, end).await;
        let answer = answer.unwrap_or_else(|panic| resume_unwind(panic));
        Ok(Attempt::Over(match ended {
            // Another one runs it meanwhile or has, and that one's answer is what all read.
            Some(Completion::Refused(view))
                if is_running(&view) || matches!(view.phase, Phase::Done { .. }) =>
            {
                Once::Found(view)
            }
            Some(Completion::Kept(view)) => Once::Ran { answer, kept: Some(view.expires_in) },
            _ => Once::Ran { answer, kept: None },
        }))
    }

    /// Runs the work, panics and all, under a lease that is renewed.
    async fn run_alive<T>(
        &self,
        ask: &Ask,
        token: &TokenHash,
        work: impl Future<Output = T>,
    ) -> std::thread::Result<T> {
        let work = pin!(AssertUnwindSafe(work).catch_unwind());
        let watchdog = pin!(self.keep_alive(&ask.key, token, ask.lease));
        tokio::select! {
            biased;
            worked = work => worked,
            never = watchdog => match never {},
        }
    }

    /// Keeps the end of a run, or gives its key back. A store that cannot do that now is asked
    /// again behind the answer.
    async fn end(&self, ask: &Ask, token: TokenHash, end: Option<End>) -> Option<Completion> {
        let key = ask.key;
        let Some(end) = end else {
            if let Err(error) = self.abandon(&key, &token).await {
                tracing::warn!(%error, "a key is not yet given back");
                let step = Ending::Abandon(key, token);
                self.tasks.spawn(insist(Arc::clone(&self.store), step, ask.lease));
            }
            return None;
        };
        let complete = Complete { key, token, end };
        match self.complete(&complete).await {
            Ok(completion) => {
                if !matches!(completion, Completion::Kept(_)) {
                    tracing::warn!("an answer came after its lease and is not kept");
                }
                Some(completion)
            }
            Err(error) => {
                tracing::warn!(%error, "an answer is not yet kept");
                let step = Ending::Complete(complete);
                self.tasks.spawn(insist(Arc::clone(&self.store), step, ask.lease));
                None
            }
        }
    }

    /// The watchdog: renews a lease at a third of its time, for as long as it is polled.
    async fn keep_alive(&self, key: &RecordKey, token: &TokenHash, lease: Duration) -> Infallible {
        let mut pause = lease / 3;
        loop {
            tokio::time::sleep(pause).await;
            match self.extend(key, token).await {
                Ok(Extension::Extended) => pause = lease / 3,
                Ok(Extension::Lost) => {
                    tracing::warn!("a run has lost its lease and goes on under its old fence");
                    pending::<()>().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "a lease is not yet renewed");
                    pause = (lease / 10).min(TRY_PAUSE);
                }
            }
        }
    }

    /// Resolves when the run under `key` may have ended.
    async fn ended(&self, seat: &Seat<'_>, key: &RecordKey, ended: impl Future<Output = ()>) {
        let mut ended = pin!(ended);
        tokio::select! {
            () = &mut ended => return,
            _asking = seat.ending.asking.lock() => loop {
                tokio::select! {
                    () = &mut ended => return,
                    () = tokio::time::sleep(ASK_PERIOD) => {}
                }
                match self.find(key).await {
                    Ok(Some(view)) if is_running(&view) => {}
                    Ok(_) => break,
                    Err(error) => tracing::debug!(%error, "it is not known whether a run ended"),
                }
            },
        }
        seat.ending.ended.notify_waiters();
    }
}

impl<S: ?Sized> Drop for Idempotency<S> {
    /// The sweep ends with the service, also when nobody closed it.
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// What one try came to.
enum Attempt<T, W> {
    Over(Once<T>),
    /// Somebody else is at it; the work is handed back.
    InFlight(View, W),
}

/// Whether somebody is at it who may still end it.
fn is_running(view: &View) -> bool {
    matches!(view.phase, Phase::InFlight { lease } if !lease.is_zero())
}

async fn sweep<S: RecordStore + ?Sized>(store: Arc<S>) {
    loop {
        tokio::time::sleep(SWEEP_PERIOD).await;
        if let Err(error) = store.forget_expired().await {
            tracing::warn!(%error, "expired records could not be forgotten");
        }
    }
}
