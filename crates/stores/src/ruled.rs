//! What every store that runs the rules in this process shares: hints, listing, and the task that
//! removes what has expired.
//!
//! The executors differ in what a step costs: the table steps in memory, the embedded store commits to
//! disk first, and the adapter over conditional writes asks another machine. Each implements
//! [`Executor`] and is a [`Store`] by [`Ruled`].

use std::fmt;
use std::future::ready;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use keylatch_core::idempotency::RecordSummary;
use keylatch_core::lock::Holding;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use keylatch_core::store::{
    Backup, Command, Hints, ListLocks, ListRecords, Page, Reply, Store, StoreError, StoreGauges,
    StoreHealth, StoreProfile, Topic,
};

/// The pause before expired locks are removed again, at the least.
const LOCK_SWEEP_PERIOD: Duration = Duration::from_secs(5);
/// The pause for each entry that was looked at: some forty times as long as the look takes, so that sweeps keep no more
/// than a fortieth of a core busy, however many entries there are.
const PAUSE_PER_LOOK: Duration = Duration::from_micros(10);
/// How many sweeps of the locks there are to one of the records.
const SWEEPS_PER_RECORD_SWEEP: u32 = 6;

/// What runs commands by the rules.
pub(crate) trait Executor: fmt::Debug + Send + Sync + 'static {
    /// Runs a command.
    fn run(&self, command: Command) -> impl Future<Output = Result<Reply, StoreError>> + Send;

    /// A page of the held locks; `None` for a cursor that no listing gave.
    fn list(
        &self,
        query: &ListLocks,
    ) -> impl Future<Output = Result<Option<Page<Holding>>, StoreError>> + Send;

    /// A page of records; `None` for a cursor that no listing gave.
    fn list_records(
        &self,
        query: &ListRecords,
    ) -> impl Future<Output = Result<Option<Page<RecordSummary>>, StoreError>> + Send;

    /// Hints about an entry from now on.
    fn subscribe(&self, topic: Topic) -> Hints;

    /// Removes expired locks, and expired records as well where that is due. Gives how many entries it looked at in
    /// this process.
    fn sweep(&self, records: bool) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Whether the executor can do its work.
    fn health(&self) -> impl Future<Output = Result<StoreHealth, StoreError>> + Send;

    /// A copy of all that the executor keeps; see [`Store::back_up`].
    fn back_up(&self) -> impl Future<Output = Result<Backup, StoreError>> + Send {
        ready(Err(StoreError::Unsupported))
    }

    /// What the executor can do.
    fn profile(&self) -> StoreProfile;

    /// What it comes to now.
    fn gauges(&self) -> StoreGauges;
}

/// A [`Store`] by the rules.
#[derive(Debug)]
pub(crate) struct Ruled<X> {
    executor: Arc<X>,
    /// Sweeps for as long as the store lives.
    _sweeper: Option<AbortOnDropHandle<()>>,
}

impl<X: Executor> Ruled<X> {
    /// A store on `executor`; it has to be called within a tokio runtime.
    pub(crate) fn start(executor: X) -> Self {
        let executor = Arc::new(executor);
        let sweeper = tokio::spawn(sweep_while_open(Arc::downgrade(&executor)));
        Self { executor, _sweeper: Some(AbortOnDropHandle::new(sweeper)) }
    }

    /// A store that removes nothing before its executor sweeps.
    #[cfg(feature = "test-medium")]
    pub(crate) fn unswept(executor: Arc<X>) -> Self {
        Self { executor, _sweeper: None }
    }
}

/// Sweeps until the store is dropped. It owns the executor for a sweep and no longer, because a store
/// that is dropped closes its file at once, and its task ends later.
async fn sweep_while_open<X: Executor>(executor: Weak<X>) {
    let mut pause = LOCK_SWEEP_PERIOD;
    for sweep in 1_u32.. {
        sleep(pause).await;
        let Some(executor) = executor.upgrade() else { return };
        let records = sweep.is_multiple_of(SWEEPS_PER_RECORD_SWEEP);
        let looks = executor.sweep(records).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "what has expired could not be removed");
            0
        });
        pause = pause_after(looks);
    }
}

/// The pause after a sweep that looked at so many entries.
fn pause_after(looks: usize) -> Duration {
    let looks = u32::try_from(looks).unwrap_or(u32::MAX);
    LOCK_SWEEP_PERIOD.max(PAUSE_PER_LOOK.saturating_mul(looks))
}

#[async_trait]
impl<X: Executor> Store for Ruled<X> {
    /// Not async itself, so that the executor's future is the one on the heap.
    fn execute<'store, 'step>(
        &'store self,
        command: Command,
    ) -> BoxFuture<'step, Result<Reply, StoreError>>
    where
        'store: 'step,
        Self: 'step,
    {
        Box::pin(self.executor.run(command))
    }

    async fn list_locks(&self, query: &ListLocks) -> Result<Option<Page<Holding>>, StoreError> {
        self.executor.list(query).await
    }

    async fn list_records(
        &self,
        query: &ListRecords,
    ) -> Result<Option<Page<RecordSummary>>, StoreError> {
        self.executor.list_records(query).await
    }

    async fn back_up(&self) -> Result<Backup, StoreError> {
        self.executor.back_up().await
    }

    fn subscribe(&self, topic: Topic) -> Hints {
        self.executor.subscribe(topic)
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.executor.health().await
    }

    fn profile(&self) -> StoreProfile {
        self.executor.profile()
    }

    fn gauges(&self) -> StoreGauges {
        self.executor.gauges()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeper_rests_for_longer_after_more_entries() {
        for (looks, seconds) in [(0, 5), (500_000, 5), (10_000_000, 100)] {
            assert_eq!(pause_after(looks).as_secs(), seconds, "after {looks}");
        }
    }
}
