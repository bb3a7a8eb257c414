//! Counts and measures the steps of a store.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::metrics::{Metrics, StoreOperation, StoreOutcome};
use keylatch_core::idempotency::{
    Abandonment, Begin, Begun, Complete, Completion, Extension, RecordKey, RecordStore, Resolution,
    Resolve, View,
};
use keylatch_core::lock::{
    Acquire, Acquisition, Attempt, Changes, Holder, ListLocks, LockName, LockStore, Page, Release,
    Renewal, StoreError, StoreHealth, TokenHash, Ttl, Turn,
};

/// Any store, with a count and a duration of each of its steps.
///
/// It keeps no deadline: [`LockService`](keylatch_core::lock::LockService) does, because a step that came
/// too late has to be brought to its end.
#[derive(Debug)]
pub(crate) struct Observed<S: ?Sized> {
    inner: Arc<S>,
    metrics: Arc<Metrics>,
}

impl<S: ?Sized> Observed<S> {
    /// `inner`, observed.
    pub(crate) fn new(inner: Arc<S>, metrics: Arc<Metrics>) -> Self {
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
impl<S: LockStore + ?Sized> LockStore for Observed<S> {
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

    fn max_ttl(&self) -> Ttl {
        self.inner.max_ttl()
    }

    fn turn(&self, name: &LockName, token: &TokenHash) -> Turn {
        self.inner.turn(name, token)
    }

    fn changes(&self, name: &LockName) -> Changes {
        self.inner.changes(name)
    }

    async fn ping(&self) -> Result<StoreHealth, StoreError> {
        self.step(StoreOperation::Ping, self.inner.ping(), |_| StoreOutcome::Done).await
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        self.step(StoreOperation::Sweep, self.inner.sweep(), |()| StoreOutcome::Done).await
    }
}

#[async_trait]
impl<S: RecordStore + ?Sized> RecordStore for Observed<S> {
    async fn begin(&self, ask: &Begin) -> Result<Begun, StoreError> {
        self.step(StoreOperation::Begin, self.inner.begin(ask), |found| match found {
            Begun::Started(_) => StoreOutcome::Done,
            Begun::Again(_) => StoreOutcome::Repeated,
            Begun::Found(_) => StoreOutcome::Found,
            Begun::Reused(_) => StoreOutcome::Reused,
        })
        .await
    }

    async fn extend(&self, key: &RecordKey, token: &TokenHash) -> Result<Extension, StoreError> {
        let step = self.inner.extend(key, token);
        self.step(StoreOperation::Extend, step, |found| match found {
            Extension::Extended => StoreOutcome::Done,
            Extension::Lost => StoreOutcome::Mismatch,
        })
        .await
    }

    async fn complete(&self, ask: &Complete) -> Result<Completion, StoreError> {
        self.step(StoreOperation::Complete, self.inner.complete(ask), |found| match found {
            Completion::Kept(_) => StoreOutcome::Done,
            Completion::Refused(_) => StoreOutcome::Mismatch,
            Completion::Absent => StoreOutcome::NotHeld,
        })
        .await
    }

    async fn abandon(&self, key: &RecordKey, token: &TokenHash) -> Result<Abandonment, StoreError> {
        let step = self.inner.abandon(key, token);
        self.step(StoreOperation::Abandon, step, |found| match found {
            Abandonment::Abandoned => StoreOutcome::Done,
            Abandonment::Refused(_) => StoreOutcome::Mismatch,
            Abandonment::Absent => StoreOutcome::NotHeld,
        })
        .await
    }

    async fn resolve(&self, ask: &Resolve) -> Result<Resolution, StoreError> {
        self.step(StoreOperation::Resolve, self.inner.resolve(ask), |found| match found {
            Resolution::Completed(_) | Resolution::Freed => StoreOutcome::Done,
            Resolution::Refused(_) => StoreOutcome::Mismatch,
            Resolution::Absent => StoreOutcome::NotHeld,
        })
        .await
    }

    async fn find(&self, key: &RecordKey) -> Result<Option<View>, StoreError> {
        self.step(StoreOperation::Find, self.inner.find(key), |found| match found {
            Some(_) => StoreOutcome::Found,
            None => StoreOutcome::NotHeld,
        })
        .await
    }

    async fn forget_expired(&self) -> Result<(), StoreError> {
        let step = self.inner.forget_expired();
        self.step(StoreOperation::ForgetExpired, step, |()| StoreOutcome::Done).await
    }
}
