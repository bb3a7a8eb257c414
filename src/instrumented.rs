//! Any store, with a count, a duration and a span of each of its steps, and with a count of its
//! grants and of their ends. Steps on keylatch's own locks are none of a client, and count nowhere.
//!
//! The labels are the stable, snake_case names of `docs/operating.md`. The decorator keeps no
//! deadline: the services do, because a step that came too late has to be brought to its end.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use keylatch_core::idempotency::{
    AbandonReply, BeginReply, CompleteReply, EraseReply, RecordCommand, RecordReply, RecordStatus,
    RecordSummary, ResolveReply, RunRenewal,
};
use keylatch_core::lock::{
    AcquireReply, BreakReply, EndCause, GrantEnd, Holding, Lease, LockCommand, LockLoss, LockName,
    LockReply, LockSet, RenewReply,
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

    /// Counts the ends of grants. `released` has the locks of a release.
    fn count_end(&self, released: Option<&LockSet>, reply: &Reply) {
        match reply {
            Reply::Lock(LockReply::Release(replies)) => {
                let names = released.into_iter().flat_map(LockSet::names);
                for (name, (_, end)) in names.zip(replies) {
                    end.iter().for_each(|end| self.count_release(name, end));
                }
            }
            Reply::Lock(LockReply::Break(BreakReply::Broken { .. })) => {
                self.metrics.breaks.inc();
            }
            _ => {}
        }
    }

    /// Counts the end of a grant, unless its lease was broken: the store tells that end itself.
    fn count_release(&self, name: &LockName, end: &GrantEnd) {
        if end.cause == EndCause::Release {
            self.metrics.held(end.held_for());
            self.past_grants.add(name, end.clone());
        }
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
        if matches!(&command, Command::Lock(names, _) if is_reserved(names)) {
            return self.inner.execute(command);
        }
        let (operation, released) = (operation(&command), released(&command));
        let is_internal = match &command {
            Command::Record(_, RecordCommand::Begin(begin)) => begin.scope.is_internal(),
            _ => false,
        };
        Box::pin(self.measure(operation, self.inner.execute(command), move |reply| {
            granted(reply).iter().for_each(|lease| self.metrics.grant(lease.limit));
            if !is_internal {
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
        Command::Lock(names, command) => match (command, names.names().len() > 1) {
            (LockCommand::Acquire(_), false) => StoreOperation::Acquire,
            (LockCommand::Acquire(_), true) => StoreOperation::AcquireSet,
            (LockCommand::Withdraw { .. }, false) => StoreOperation::Withdraw,
            (LockCommand::Withdraw { .. }, true) => StoreOperation::WithdrawSet,
            (LockCommand::Renew { .. }, false) => StoreOperation::Renew,
            (LockCommand::Renew { .. }, true) => StoreOperation::RenewSet,
            (LockCommand::Release { .. }, false) => StoreOperation::Release,
            (LockCommand::Release { .. }, true) => StoreOperation::ReleaseSet,
            (LockCommand::Break(_), _) => StoreOperation::Break,
            (LockCommand::Look, _) => StoreOperation::Look,
            (LockCommand::LookAtQueue, _) => StoreOperation::LookAtQueue,
            (LockCommand::Recall, _) => StoreOperation::Recall,
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

/// Whether the locks are keylatch's own.
fn is_reserved(names: &LockSet) -> bool {
    names.names().iter().all(LockName::is_reserved)
}

/// The locks that the command releases.
fn released(command: &Command) -> Option<LockSet> {
    match command {
        Command::Lock(names, LockCommand::Release { .. }) => Some(names.clone()),
        _ => None,
    }
}

/// The leases that the reply grants for the first time.
fn granted(reply: &Reply) -> &[Lease] {
    match reply {
        Reply::Lock(LockReply::Acquire(AcquireReply::Granted(leases))) => leases,
        _ => &[],
    }
}

fn outcome(reply: &Reply) -> StoreOutcome {
    match reply {
        Reply::Lock(reply) => lock_outcome(reply),
        Reply::Record(reply) => record_outcome(reply),
    }
}

/// Where several locks are lost, the first of them counts.
fn lock_outcome(reply: &LockReply) -> StoreOutcome {
    match reply {
        LockReply::Acquire(AcquireReply::Repeated(_)) => StoreOutcome::Repeated,
        LockReply::Acquire(AcquireReply::Granted(_)) => StoreOutcome::Done,
        LockReply::Acquire(_) => StoreOutcome::Held,
        LockReply::Renew(RenewReply::Lost(lost)) => {
            loss_outcome(lost.first().map(|lost| &lost.loss))
        }
        LockReply::Release(replies) => {
            loss_outcome(replies.iter().find_map(|(reply, _)| reply.loss()).as_ref())
        }
        LockReply::Break(BreakReply::NotHeld) | LockReply::Look(None) => StoreOutcome::NotHeld,
        LockReply::Break(BreakReply::Mismatch(_)) => StoreOutcome::Mismatch,
        LockReply::Withdraw
        | LockReply::Renew(RenewReply::Renewed(_))
        | LockReply::Break(BreakReply::Broken { .. })
        | LockReply::Look(Some(_))
        | LockReply::LookAtQueue(_)
        | LockReply::Recall(_) => StoreOutcome::Done,
    }
}

fn loss_outcome(loss: Option<&LockLoss>) -> StoreOutcome {
    match loss {
        None => StoreOutcome::Done,
        Some(LockLoss::Broken(_)) => StoreOutcome::Broken,
        Some(LockLoss::NotHeld) => StoreOutcome::NotHeld,
        Some(LockLoss::Mismatch) => StoreOutcome::Mismatch,
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
