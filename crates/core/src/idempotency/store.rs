use std::fmt;

use async_trait::async_trait;

use super::{
    Abandonment, Begin, Begun, Complete, Completion, Extension, RecordKey, Resolution, Resolve,
    View,
};
use crate::lock::{StoreError, TokenHash};

/// Where the records of idempotency keys are kept.
///
/// # Contract
///
/// - Every method is **one atomic step**, and **safe to repeat** with the same token.
/// - What was found is a value; `Err` means that the store could not find out, and
///   [`StoreError::outcome`] says whether the step may have been taken all the same.
/// - A run is ended, extended or abandoned **only by the token that began it, and only while its
///   lease lasts** by the store's clock, judged at the moment of the step. A run whose lease is
///   over has an unknown outcome, or may be run again, as its `Begin` said.
/// - **Fencing tokens rise** with every run of a key, as those of a lock do.
/// - What is **unknown is kept for 30 days** for somebody to resolve it, from the end of its lease or
///   from when it was said to be. What is done is kept for its retention, counted from its end, and
///   what may be run again for its retention, counted from the end of its lease.
///
/// The rules are those of [`RecordState`](super::RecordState); the conformance tests hold every
/// store to them.
#[async_trait]
pub trait RecordStore: fmt::Debug + Send + Sync + 'static {
    /// Starts a run, or says what became of an earlier one.
    async fn begin(&self, ask: &Begin) -> Result<Begun, StoreError>;

    /// Lets the lease of a run last its full time from now.
    async fn extend(&self, key: &RecordKey, token: &TokenHash) -> Result<Extension, StoreError>;

    /// Ends a run and keeps what it came to.
    async fn complete(&self, ask: &Complete) -> Result<Completion, StoreError>;

    /// Forgets a run under which nothing was done, so that the key is free.
    async fn abandon(&self, key: &RecordKey, token: &TokenHash) -> Result<Abandonment, StoreError>;

    /// Settles an outcome that nobody knew.
    async fn resolve(&self, ask: &Resolve) -> Result<Resolution, StoreError>;

    /// Looks at a record.
    async fn find(&self, key: &RecordKey) -> Result<Option<View>, StoreError>;

    /// Forgets what was kept for long enough, to give its space back. A store whose engine does
    /// this by itself has nothing to do.
    async fn forget_expired(&self) -> Result<(), StoreError>;
}
