//! Any store, with a count, a duration and a span of each of its steps, and with a count of its grants and of their ends.
//! Steps on keylatch's own locks are none of a client, and count nowhere.
//!
//! The labels are the stable, snake_case names of `docs/operating.md`. The decorator keeps no deadline:
//! the services do, because a step that came too late has to be brought to its end.

use std::slice;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use keylatch_core::idempotency::{
    AbandonReply, BeginReply, CompleteReply, EraseReply, RecordCommand, RecordReply, RecordStatus,
    RecordSummary, ResolveReply, RunRenewal,
};
use keylatch_core::lock::{
    AcquireReply, BreakReply, Holding, Lease, LockCommand, LockLoss, LockName, LockReply, Release,
    ReleaseReply, RenewReply, SetCommand, SetRelease, SetRenewReply, SetReply,
};
use keylatch_core::store::{
    Backup, Command, Hints, ListLocks, ListRecords, Page, Reply, Store, StoreError, StoreGauges,
    StoreHealth, StoreProfile, Topic,
};
use tokio::time::Instant;

use crate::metrics::{Metrics, StoreOperation, StoreOutcome};
use crate::past_grants::PastGrants;
use crate::traces::StepSpan;

/// A [`Store`] whose steps are measured.
#[derive(Debug)]
pub(crate) struct InstrumentedStore {
    inner: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    past_grants: Arc<PastGrants>,
    /// The store as spans name it.
    kind: &'static str,
}

impl InstrumentedStore {
    pub(crate) fn new(
        inner: Arc<dyn Store>,
        metrics: &Arc<Metrics>,
        past_grants: &Arc<PastGrants>,
    ) -> Self {
        let (metrics, past_grants) = (Arc::clone(metrics), Arc::clone(past_grants));
        Self { kind: inner.profile().kind, inner, metrics, past_grants }
    }

    /// Counts a request that found its key used.
    fn count_repeat(&self, reply: &Reply) {
        let Reply::Record(RecordReply::Begin(reply)) = reply else { return };
        let counter = match reply {
            BeginReply::Found(record) => match record.phase {
                RecordStatus::Done { .. } => &self.metrics.replays,
                RecordStatus::Unknown { .. } => &self.metrics.unknowns,
                RecordStatus::InFlight { .. } => return,
            },
            BeginReply::Reused(_) => &self.metrics.mismatches,
            _ => return,
        };
        counter.inc();
    }

    /// Counts the ends of grants. `released` is the lock of a release.
    fn count_end(&self, released: Option<&LockName>, reply: &Reply) {
        match reply {
            Reply::Lock(LockReply::Release(_, release)) => {
                released.into_iter().for_each(|name| self.count_release(name, release));
            }
            Reply::Set(SetReply::Release(SetRelease { released, .. })) => {
                released.iter().for_each(|(name, release)| self.count_release(name, release));
            }
            Reply::Lock(LockReply::Break(BreakReply::Broken { .. })) => {
                self.metrics.breaks.inc();
            }
            _ => {}
        }
    }

    fn count_release(&self, name: &LockName, release: &Release) {
        if let Some(span) = release.span {
            self.metrics.held(span.held_for());
        }
        self.past_grants.add_release(name, release);
    }

    async fn measure<T>(
        &self,
        operation: StoreOperation,
        step: impl Future<Output = Result<T, StoreError>>,
        outcome: impl FnOnce(&T) -> StoreOutcome,
    ) -> Result<T, StoreError> {
        let span = StepSpan::start(operation, self.kind);
        let started = Instant::now();
        let result = step.await;
        let outcome = result.as_ref().map_or(StoreOutcome::Error, outcome);
        self.metrics.store_step(operation, outcome, started.elapsed());
        span.end(outcome, result.as_ref().err());
        result
    }
}

#[async_trait]
impl Store for InstrumentedStore {
    /// Not async itself, so that the command is moved once, into the inner store's future.
    fn execute<'store, 'step>(
        &'store self,
        command: Command,
    ) -> BoxFuture<'step, Result<Reply, StoreError>>
    where
        'store: 'step,
        Self: 'step,
    {
        if matches!(&command, Command::Lock(name, _) if name.is_reserved()) {
            return self.inner.execute(command);
        }
        let (operation, released) = (operation(&command), released(&command));
        let is_observed = match &command {
            Command::Record(_, RecordCommand::Begin(begin)) => begin.scope.is_observed(),
            _ => false,
        };
        Box::pin(self.measure(operation, self.inner.execute(command), move |reply| {
            granted(reply).iter().for_each(|lease| self.metrics.grant(lease.limit));
            if !is_observed {
                self.count_repeat(reply);
            }
            self.count_end(released.as_ref(), reply);
            outcome(reply)
        }))
    }

    async fn list_locks(&self, query: &ListLocks) -> Result<Option<Page<Holding>>, StoreError> {
        self.measure(StoreOperation::List, self.inner.list_locks(query), |_| StoreOutcome::Done)
            .await
    }

    async fn list_records(
        &self,
        query: &ListRecords,
    ) -> Result<Option<Page<RecordSummary>>, StoreError> {
        self.measure(StoreOperation::List, self.inner.list_records(query), |_| StoreOutcome::Done)
            .await
    }

    async fn back_up(&self) -> Result<Backup, StoreError> {
        self.measure(StoreOperation::List, self.inner.back_up(), |_| StoreOutcome::Done).await
    }

    fn subscribe(&self, topic: Topic) -> Hints {
        self.inner.subscribe(topic)
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.measure(StoreOperation::Health, self.inner.health(), |_| StoreOutcome::Done).await
    }

    fn profile(&self) -> StoreProfile {
        self.inner.profile()
    }

    fn gauges(&self) -> StoreGauges {
        self.inner.gauges()
    }
}

fn operation(command: &Command) -> StoreOperation {
    match command {
        Command::Lock(_, command) => match command {
            LockCommand::Acquire(_) => StoreOperation::Acquire,
            LockCommand::Withdraw { .. } => StoreOperation::Withdraw,
            LockCommand::Renew { .. } => StoreOperation::Renew,
            LockCommand::Release { .. } => StoreOperation::Release,
            LockCommand::Break(_) => StoreOperation::Break,
            LockCommand::Look => StoreOperation::Look,
            LockCommand::LookAtQueue => StoreOperation::LookAtQueue,
            LockCommand::Recall => StoreOperation::Recall,
        },
        Command::Set(_, command) => match command {
            SetCommand::Acquire(_) => StoreOperation::AcquireSet,
            SetCommand::Withdraw { .. } => StoreOperation::WithdrawSet,
            SetCommand::Renew { .. } => StoreOperation::RenewSet,
            SetCommand::Release { .. } => StoreOperation::ReleaseSet,
        },
        Command::Record(_, command) => match command {
            RecordCommand::Begin(_) => StoreOperation::BeginRecord,
            RecordCommand::Renew { .. } => StoreOperation::RenewRecord,
            RecordCommand::Complete { .. } => StoreOperation::CompleteRecord,
            RecordCommand::Abandon { .. } => StoreOperation::AbandonRecord,
            RecordCommand::Resolve(_) => StoreOperation::ResolveRecord,
            RecordCommand::Erase => StoreOperation::EraseRecord,
            RecordCommand::Look => StoreOperation::LookAtRecord,
        },
    }
}

/// The lock that the command releases.
fn released(command: &Command) -> Option<LockName> {
    match command {
        Command::Lock(name, LockCommand::Release { .. }) => Some(name.clone()),
        _ => None,
    }
}

/// The leases that the reply grants for the first time.
fn granted(reply: &Reply) -> &[Lease] {
    match reply {
        Reply::Lock(LockReply::Acquire(AcquireReply::Granted(lease))) => slice::from_ref(lease),
        Reply::Set(SetReply::Acquire(AcquireReply::Granted(leases))) => leases,
        _ => &[],
    }
}

fn outcome(reply: &Reply) -> StoreOutcome {
    match reply {
        Reply::Lock(reply) => lock_outcome(reply),
        Reply::Set(reply) => set_outcome(reply),
        Reply::Record(reply) => record_outcome(reply),
    }
}

fn lock_outcome(reply: &LockReply) -> StoreOutcome {
    match reply {
        LockReply::Acquire(AcquireReply::Repeated(_)) => StoreOutcome::Repeated,
        LockReply::Acquire(AcquireReply::Granted(_)) => StoreOutcome::Done,
        LockReply::Acquire(_) => StoreOutcome::Held,
        LockReply::Renew(RenewReply::Lost(loss)) => loss_outcome(loss),
        LockReply::Release(ReleaseReply::NotHeld, _)
        | LockReply::Break(BreakReply::NotHeld)
        | LockReply::Look(None) => StoreOutcome::NotHeld,
        LockReply::Release(ReleaseReply::Mismatch, _)
        | LockReply::Break(BreakReply::Mismatch(_)) => StoreOutcome::Mismatch,
        LockReply::Withdraw
        | LockReply::Renew(RenewReply::Renewed(_))
        | LockReply::Release(ReleaseReply::Released | ReleaseReply::Entered(_), _)
        | LockReply::Break(BreakReply::Broken { .. })
        | LockReply::Look(Some(_))
        | LockReply::LookAtQueue(_)
        | LockReply::Recall(_) => StoreOutcome::Done,
    }
}

fn loss_outcome(loss: &LockLoss) -> StoreOutcome {
    match loss {
        LockLoss::Broken(_) => StoreOutcome::Broken,
        LockLoss::NotHeld => StoreOutcome::NotHeld,
        LockLoss::Mismatch => StoreOutcome::Mismatch,
    }
}

/// Where locks of the set are lost, that of the first counts.
fn set_outcome(reply: &SetReply) -> StoreOutcome {
    match reply {
        SetReply::Acquire(AcquireReply::Repeated(_)) => StoreOutcome::Repeated,
        SetReply::Acquire(AcquireReply::Granted(_)) => StoreOutcome::Done,
        SetReply::Acquire(_) => StoreOutcome::Held,
        SetReply::Renew(SetRenewReply::Lost(lost)) | SetReply::Release(SetRelease { lost, .. }) => {
            lost.first().map_or(StoreOutcome::Done, |lost| loss_outcome(&lost.loss))
        }
        SetReply::Withdraw | SetReply::Renew(SetRenewReply::Renewed(_)) => StoreOutcome::Done,
    }
}

fn record_outcome(reply: &RecordReply) -> StoreOutcome {
    match reply {
        RecordReply::Begin(BeginReply::Again(_)) => StoreOutcome::Repeated,
        RecordReply::Begin(BeginReply::Reused(_)) => StoreOutcome::Reused,
        RecordReply::Begin(BeginReply::Found(_)) | RecordReply::Look(Some(_)) => {
            StoreOutcome::Found
        }
        RecordReply::Begin(BeginReply::NoRoom) => StoreOutcome::NoRoom,
        RecordReply::Renew(RunRenewal::Lost)
        | RecordReply::Complete(CompleteReply::Refused(_))
        | RecordReply::Abandon(AbandonReply::Refused(_))
        | RecordReply::Resolve(ResolveReply::Refused(_))
        | RecordReply::Erase(EraseReply::Refused(_)) => StoreOutcome::Mismatch,
        RecordReply::Complete(CompleteReply::Absent)
        | RecordReply::Abandon(AbandonReply::Absent)
        | RecordReply::Resolve(ResolveReply::Absent)
        | RecordReply::Erase(EraseReply::Absent)
        | RecordReply::Look(None) => StoreOutcome::NotHeld,
        RecordReply::Begin(BeginReply::Started(_))
        | RecordReply::Renew(RunRenewal::Extended)
        | RecordReply::Complete(CompleteReply::Done(_))
        | RecordReply::Abandon(AbandonReply::Done(()))
        | RecordReply::Resolve(ResolveReply::Completed(_) | ResolveReply::Freed(_))
        | RecordReply::Erase(EraseReply::Done(_)) => StoreOutcome::Done,
    }
}
