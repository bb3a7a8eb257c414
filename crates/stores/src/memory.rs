//! The store that keeps nothing: locks and records in the memory of one process.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::table::{Entry, Table};
use keylatch_core::idempotency::{
    self, Abandon, Abandonment, Begin, Begun, Complete, Completion, Extend, Extension, Find,
    RecordKey, RecordState, RecordStore, Resolution, Resolve, View,
};
use keylatch_core::lock::{
    self, Acquire, Acquisition, Attempt, Changes, FencingToken, Holder, ListLocks, LockName,
    LockState, LockStore, Page, Peek, Release, Renew, Renewal, Return, StoreError, StoreHealth,
    Tier, TokenHash, Ttl, Turn, Withdraw,
};

/// A [`LockStore`] and [`RecordStore`] in memory.
#[derive(Debug)]
pub struct MemoryStore {
    table: Table,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self { table: Table::new(FencingToken::NONE) }
    }

    fn lock<C: lock::Command>(&self, name: &LockName, command: &C) -> C::Outcome {
        self.table.run(name, |state: &LockState, moment| state.apply(command, moment))
    }

    fn record<C: idempotency::Command>(&self, key: &RecordKey, command: &C) -> C::Outcome {
        self.table.run(key, |state: &RecordState, moment| state.apply(command, moment))
    }

    /// Forgets what has expired, with room for others in between.
    async fn forget<E: Entry>(&self) {
        for bucket in 0..=u8::MAX {
            self.table.forget_expired::<E>(bucket);
            tokio::task::yield_now().await;
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl LockStore for MemoryStore {
    async fn acquire(&self, ask: &Acquire) -> Result<Acquisition, StoreError> {
        Ok(self.lock(&ask.name, ask))
    }

    async fn withdraw(
        &self,
        name: &LockName,
        token: &TokenHash,
        attempt: Attempt,
    ) -> Result<(), StoreError> {
        self.lock(name, &Withdraw { token: *token, attempt });
        Ok(())
    }

    async fn renew(
        &self,
        name: &LockName,
        token: &TokenHash,
        ttl: Ttl,
    ) -> Result<Renewal, StoreError> {
        Ok(self.lock(name, &Renew { token: *token, ttl }))
    }

    async fn release(&self, name: &LockName, token: &TokenHash) -> Result<Release, StoreError> {
        Ok(self.lock(name, &Return { token: *token }))
    }

    async fn get(&self, name: &LockName) -> Result<Option<Holder>, StoreError> {
        Ok(self.lock(name, &Peek { name: name.clone() }))
    }

    async fn list(&self, query: &ListLocks) -> Result<Option<Page>, StoreError> {
        Ok(self.table.list(query))
    }

    fn max_ttl(&self) -> Ttl {
        Ttl::MAX
    }

    fn turn(&self, name: &LockName, token: &TokenHash) -> Turn {
        self.table.turn(name, token)
    }

    fn changes(&self, name: &LockName) -> Changes {
        self.table.changes(name)
    }

    async fn ping(&self) -> Result<StoreHealth, StoreError> {
        Ok(StoreHealth { tier: Tier::Process, facts: BTreeMap::new() })
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        self.forget::<LockState>().await;
        Ok(())
    }
}

#[async_trait]
impl RecordStore for MemoryStore {
    async fn begin(&self, ask: &Begin) -> Result<Begun, StoreError> {
        Ok(self.record(&ask.key, ask))
    }

    async fn extend(&self, key: &RecordKey, token: &TokenHash) -> Result<Extension, StoreError> {
        Ok(self.record(key, &Extend { token: *token }))
    }

    async fn complete(&self, ask: &Complete) -> Result<Completion, StoreError> {
        Ok(self.record(&ask.key, ask))
    }

    async fn abandon(&self, key: &RecordKey, token: &TokenHash) -> Result<Abandonment, StoreError> {
        Ok(self.record(key, &Abandon { token: *token }))
    }

    async fn resolve(&self, ask: &Resolve) -> Result<Resolution, StoreError> {
        Ok(self.record(&ask.key, ask))
    }

    async fn find(&self, key: &RecordKey) -> Result<Option<View>, StoreError> {
        Ok(self.record(key, &Find))
    }

    async fn forget_expired(&self) -> Result<(), StoreError> {
        self.forget::<RecordState>().await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sweep_forgets_expired_locks_and_keeps_the_rest() {
        let store = MemoryStore::new();
        for (name, millis) in [("short", 1000), ("long", 60_000)] {
            let ask = Acquire {
                name: LockName::parse(name).unwrap(),
                token: lock::Token::generate().unwrap().hash(),
                ttl: Ttl::from_millis(millis).unwrap(),
                owner: None,
                attempt: Attempt::new(1),
                place: None,
            };
            store.acquire(&ask).await.unwrap();
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(store.table.len(), 2);
        store.sweep().await.unwrap();
        assert_eq!(store.table.len(), 1);
    }
}
