//! The store that keeps nothing: locks and records in the memory of one process.
//!
//! A step of the [`Table`] is one short critical section.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::task::yield_now;
use tokio_util::task::AbortOnDropHandle;

use super::sweeper::{self, Sweeper};
use super::table::{Sweep, Table};
use crate::error::OpenError;
use crate::settings::Settings;
use keylatch_core::idempotency::{RecordState, RecordSummary};
use keylatch_core::lock::{FencingToken, Holding, LockState, Token};
use keylatch_core::store::{
    Command, EntryLimits, Hints, ListLocks, ListRecords, Page, Reply, Store, StoreError,
    StoreGauges, StoreHealth, StoreProfile, Tier, Topic,
};

/// An empty store in memory; it has to be called within a tokio runtime.
pub fn memory() -> Arc<dyn Store> {
    let table = Arc::new(Table::new(FencingToken::NONE));
    let id = Token::generate().ok().map(|token| token.expose().to_owned());
    Arc::new(Memory { id, _sweeper: sweeper::start(Arc::clone(&table)), table })
}

pub(crate) async fn open(url: &str, settings: Settings<'_>) -> Result<Arc<dyn Store>, OpenError> {
    check(url, settings).map(|()| memory())
}

/// Checks that there is nothing after the colon.
pub(crate) fn check(url: &str, _: Settings<'_>) -> Result<(), OpenError> {
    if url == "memory:" { Ok(()) } else { Err(OpenError::MemoryWithPath) }
}

#[derive(Debug)]
struct Memory {
    /// Which store it is, as this process has none of another one's.
    id: Option<String>,
    table: Arc<Table>,
    /// Sweeps for as long as the store lives.
    _sweeper: AbortOnDropHandle<()>,
}

impl Sweeper for Arc<Table> {
    async fn sweep(&mut self, records: bool) -> Result<usize, StoreError> {
        // Other tasks come in between.
        let mut locks = Sweep::<LockState>::default();
        while self.forget_expired(&mut locks) {
            yield_now().await;
        }
        let mut of_records = Sweep::<RecordState>::default();
        while records && self.forget_expired(&mut of_records) {
            yield_now().await;
        }
        Ok(locks.looks() + of_records.looks())
    }
}

#[async_trait]
impl Store for Memory {
    async fn execute(&self, command: Command) -> Result<Reply, StoreError> {
        Ok(self.table.step(&command))
    }

    async fn list_locks(&self, query: &ListLocks) -> Result<Option<Page<Holding>>, StoreError> {
        Ok(self.table.list(query))
    }

    async fn list_records(
        &self,
        query: &ListRecords,
    ) -> Result<Option<Page<RecordSummary>>, StoreError> {
        Ok(self.table.list_records(query))
    }

    fn subscribe(&self, topic: Topic) -> Hints {
        self.table.subscribe(topic)
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        let facts = BTreeMap::from([("instances", "1".to_owned())]);
        let (id, advice) = (self.id.clone(), Vec::new());
        Ok(StoreHealth { id, tier: Tier::Process, facts, advice, is_full: false })
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("memory", EntryLimits::NONE)
    }

    fn gauges(&self) -> StoreGauges {
        self.table.gauges()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use futures_util::FutureExt as _;

    use super::*;
    use keylatch_core::lock::{AcquireCommand, Attempt, LockCommand, LockName, TokenHash, Ttl};

    #[tokio::test(start_paused = true)]
    async fn sweep_lets_others_in_among_the_expired_locks_of_one_shard() {
        const COUNT: usize = 1200;
        let mut table = Arc::new(Table::new(FencingToken::NONE));
        let names = (0..).map(|number| LockName::parse(&format!("lock-{number}")).unwrap());
        for name in names.filter(|name| name.bucket() == 0).take(COUNT) {
            let (token, ttl) = (TokenHash::from_bytes([1; 32]), Ttl::from_millis(1000).unwrap());
            let acquire = AcquireCommand::new(token, ttl, Attempt::new(1));
            table.step(&Command::Lock(name.into(), LockCommand::Acquire(acquire)));
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        let entries = Arc::clone(&table);
        let mut sweep = pin!(table.sweep(false));
        assert!(sweep.as_mut().now_or_never().is_none(), "the sweep let no other task in");
        let left = entries.len();
        assert!((1..COUNT).contains(&left), "{left} locks are left when others are let in");
        sweep.await.unwrap();
        assert_eq!(entries.len(), 0);
    }
}
