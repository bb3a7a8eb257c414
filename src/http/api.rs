//! What every handler of the API shares.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::problem::{Code, Problem};
use super::streams::Streams;
use crate::metrics::Metrics;
use keylatch_axum::BodyLimits;
use keylatch_core::idempotency::IdempotencyService;
use keylatch_core::lock::LockService;

/// What the handlers need.
#[derive(Debug)]
pub struct Api {
    /// The locks.
    pub locks: Arc<LockService>,
    /// The records of idempotency keys, if the store keeps any.
    pub records: Option<Arc<IdempotencyService>>,
    /// The counters behind `/metrics`.
    pub metrics: Arc<Metrics>,
    /// The kind of store, as in its URL's scheme.
    pub store_kind: &'static str,
    /// What the body of a request may be.
    pub body_limits: BodyLimits,
    /// How long a client may wait in line.
    pub max_wait: Duration,
    /// How long a connection may hold a lock.
    pub max_hold: Duration,
    /// The streams of events that are open.
    pub streams: Streams,
    /// Cancelled when the service begins to shut down.
    pub closing: CancellationToken,
}

impl Api {
    /// The records of idempotency keys, or that the store keeps none.
    pub(super) fn records(&self) -> Result<&IdempotencyService, Problem> {
        let detail = "The store keeps no records of idempotency keys. Nothing was done.";
        self.records.as_deref().ok_or_else(|| Problem::new(Code::NotSupported, detail))
    }
}
