use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::lock::{
    Acquire, Acquisition, Attempt, Holder, ListLocks, LockName, LockStore, Page, Release, Renewal,
    StoreError, StoreHealth, TokenHash, Ttl,
};
use crate::metrics::{Metrics, StoreOperation, StoreOutcome};

/// Any store, with a count and a duration of each of its steps.
///
/// It keeps no deadline: [`LockService`](crate::lock::LockService) does, because a step that came
/// too late has to be brought to its end.
#[derive(Debug)]
pub struct Observed<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S> Observed<S> {
    /// `inner`, observed.
    pub fn new(inner: S, metrics: Arc<Metrics>) -> Self {
        Self { inner, metrics }
    }

    async fn step<T>(
        &self,
        operation: StoreOperation,
        step: impl Future<Output = Result<T, StoreError>>,
        outcome: impl FnOnce(&T) -> StoreOutcome,
    ) -> Result<T, StoreError> {
        let started = Instant::now();
        let result = step.await;
        let outcome = result.as_ref().map_or(StoreOutcome::Error, outcome);
        self.metrics.store_step(operation, outcome, started.elapsed());
        result
    }
}

#[async_trait]
impl<S: LockStore> LockStore for Observed<S> {
    async fn acquire(&self, ask: &Acquire) -> Result<Acquisition, StoreError> {
        self.step(StoreOperation::Acquire, self.inner.acquire(ask), |found| match found {
            Acquisition::Granted(_) => StoreOutcome::Done,
            Acquisition::Repeated(_) => StoreOutcome::Repeated,
            Acquisition::Held(_) => StoreOutcome::Held,
        })
        .await
    }

    async fn withdraw(
        &self,
        name: &LockName,
        token: &TokenHash,
        attempt: Attempt,
    ) -> Result<(), StoreError> {
        let step = self.inner.withdraw(name, token, attempt);
        self.step(StoreOperation::Withdraw, step, |()| StoreOutcome::Done).await
    }

    async fn renew(
        &self,
        name: &LockName,
        token: &TokenHash,
        ttl: Ttl,
    ) -> Result<Renewal, StoreError> {
        let step = self.inner.renew(name, token, ttl);
        self.step(StoreOperation::Renew, step, |found| match found {
            Renewal::Renewed(_) => StoreOutcome::Done,
            Renewal::NotHeld => StoreOutcome::NotHeld,
            Renewal::Mismatch => StoreOutcome::Mismatch,
        })
        .await
    }

    async fn release(&self, name: &LockName, token: &TokenHash) -> Result<Release, StoreError> {
        let step = self.inner.release(name, token);
        self.step(StoreOperation::Release, step, |found| match found {
            Release::Released => StoreOutcome::Done,
            Release::NotHeld => StoreOutcome::NotHeld,
            Release::Mismatch => StoreOutcome::Mismatch,
        })
        .await
    }

    async fn get(&self, name: &LockName) -> Result<Option<Holder>, StoreError> {
        self.step(StoreOperation::Get, self.inner.get(name), |found| match found {
            Some(_) => StoreOutcome::Done,
            None => StoreOutcome::NotHeld,
        })
        .await
    }

    async fn list(&self, query: &ListLocks) -> Result<Option<Page>, StoreError> {
        let step = self.inner.list(query);
        self.step(StoreOperation::List, step, |_| StoreOutcome::Done).await
    }

    async fn ping(&self) -> Result<StoreHealth, StoreError> {
        self.step(StoreOperation::Ping, self.inner.ping(), |_| StoreOutcome::Done).await
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        self.step(StoreOperation::Sweep, self.inner.sweep(), |()| StoreOutcome::Done).await
    }
}
