use async_trait::async_trait;

use super::EmbeddedStore;
use keylatch_core::idempotency::{
    Abandon, Abandonment, Begin, Begun, Command, Complete, Completion, Extend, Extension, Find,
    RecordKey, RecordState, RecordStore, Resolution, Resolve, View,
};
use keylatch_core::lock::{StoreError, TokenHash};

#[async_trait]
impl RecordStore for EmbeddedStore {
    async fn begin(&self, ask: &Begin) -> Result<Begun, StoreError> {
        self.record(&ask.key, ask.clone()).await
    }

    async fn extend(&self, key: &RecordKey, token: &TokenHash) -> Result<Extension, StoreError> {
        self.record(key, Extend { token: *token }).await
    }

    async fn complete(&self, ask: &Complete) -> Result<Completion, StoreError> {
        self.record(&ask.key, ask.clone()).await
    }

    async fn abandon(&self, key: &RecordKey, token: &TokenHash) -> Result<Abandonment, StoreError> {
        // Always behind the beginning that it gives up, which may still be on its way.
        let abandon = Abandon { token: *token };
        self.writer
            .run(*key, move |state: &RecordState, moment| state.apply(&abandon, moment))
            .await
    }

    async fn resolve(&self, ask: &Resolve) -> Result<Resolution, StoreError> {
        self.record(&ask.key, ask.clone()).await
    }

    async fn find(&self, key: &RecordKey) -> Result<Option<View>, StoreError> {
        self.record(key, Find).await
    }

    async fn forget_expired(&self) -> Result<(), StoreError> {
        self.forget::<RecordState>().await
    }
}

impl EmbeddedStore {
    async fn record<C>(&self, key: &RecordKey, command: C) -> Result<C::Outcome, StoreError>
    where
        C: Command<Outcome: Send> + Send + 'static,
    {
        self.run(key, move |state: &RecordState, moment| state.apply(&command, moment)).await
    }
}
