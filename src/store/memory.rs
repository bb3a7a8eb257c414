//! The store that keeps nothing: locks in the memory of one process.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::table::Table;
use crate::lock::{
    Acquire, Acquisition, Attempt, FencingToken, Holder, ListLocks, LockName, LockStore, Page,
    Peek, Release, Renew, Renewal, Return, StoreError, StoreHealth, Tier, TokenHash, Ttl, Withdraw,
};

/// A [`LockStore`] in memory.
#[derive(Debug)]
pub struct MemoryStore {
    table: Table,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self { table: Table::new(FencingToken::NONE) }
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
        Ok(self.table.run(&ask.name, ask))
    }

    async fn withdraw(
        &self,
        name: &LockName,
        token: &TokenHash,
        attempt: Attempt,
    ) -> Result<(), StoreError> {
        self.table.run(name, &Withdraw { token: *token, attempt });
        Ok(())
    }

    async fn renew(
        &self,
        name: &LockName,
        token: &TokenHash,
        ttl: Ttl,
    ) -> Result<Renewal, StoreError> {
        Ok(self.table.run(name, &Renew { token: *token, ttl }))
    }

    async fn release(&self, name: &LockName, token: &TokenHash) -> Result<Release, StoreError> {
        Ok(self.table.run(name, &Return { token: *token }))
    }

    async fn get(&self, name: &LockName) -> Result<Option<Holder>, StoreError> {
        Ok(self.table.run(name, &Peek { name: name.clone() }))
    }

    async fn list(&self, query: &ListLocks) -> Result<Option<Page>, StoreError> {
        Ok(self.table.list(query))
    }

    async fn ping(&self) -> Result<StoreHealth, StoreError> {
        Ok(StoreHealth { tier: Tier::Process, facts: BTreeMap::new() })
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        for bucket in 0..=u8::MAX {
            self.table.forget_expired(bucket);
            tokio::task::yield_now().await;
        }
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
                token: crate::lock::Token::generate().unwrap().hash(),
                ttl: Ttl::from_millis(millis).unwrap(),
                owner: None,
                attempt: Attempt::new(1),
            };
            store.acquire(&ask).await.unwrap();
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(store.table.len(), 2);
        store.sweep().await.unwrap();
        assert_eq!(store.table.len(), 1);
    }
}
