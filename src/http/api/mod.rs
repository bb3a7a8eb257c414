//! What the handlers of the API share: the services, the limits, and the streams of events that are
//! open.
//!
//! Invariant: a stream has its permit for as long as its connection lasts. Tested in
//! `tests/api/hold.rs`, `watch.rs` and `slow_readers.rs`.

pub(super) mod backup;
pub(super) mod body;
pub(super) mod breaks;
pub(super) mod issued_keys;
pub(super) mod locks;
pub(super) mod record_counts;
pub(super) mod record_list;
pub(super) mod records;
pub(super) mod sets;
pub(super) mod streams;
pub(super) mod system;

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{Stream, StreamExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use self::record_counts::RecordCounter;
use super::problem::{Code, Problem, overloaded};
use crate::access::{Authenticator, QuotaPermit};
use crate::audit::AuditLog;
use crate::guard_comparison::GuardComparison;
use crate::metrics::{GaugeGuard, Metrics, StreamKind};
use crate::past_grants::PastGrants;
use keylatch_axum::gateway::holds;
use keylatch_axum::{BodyLimits, Guard, IssuedKeys};
use keylatch_core::idempotency::{IdempotencyService, RecordKey, RecordView};
use keylatch_core::lock::LockService;

/// What the handlers need.
#[derive(Debug)]
pub struct Api {
    /// The locks.
    pub locks: Arc<LockService>,
    /// The records of idempotency keys, if the store keeps any.
    pub records: Option<Arc<IdempotencyService>>,
    /// What signs the keys that are issued here, if anything.
    pub issued_keys: Option<IssuedKeys>,
    /// The guarded routes of the configuration.
    pub guard_settings: Vec<Guard>,
    /// How many records there are, for consoles and scrapes.
    pub record_counter: RecordCounter,
    /// Which guards other instances have otherwise.
    pub(crate) guards: Arc<GuardComparison>,
    /// The counters behind `/metrics`.
    pub metrics: Arc<Metrics>,
    /// How the latest grants of locks ended, for the consoles.
    pub(crate) past_grants: Arc<PastGrants>,
    /// The kind of store, as in its URL's scheme.
    pub store_kind: &'static str,
    /// What the body of a request may be.
    pub body_limits: BodyLimits,
    /// The most bytes that a record keeps of a response that a client completes with.
    pub response_limit_bytes: usize,
    /// Who clients may be; where there are none, clients do not say who they are.
    pub authenticator: Option<Arc<Authenticator>>,
    /// Where what clients do to the work of others is written, if anywhere.
    pub audit: Option<Arc<AuditLog>>,
    /// Whether a client may break the lease of another, where its permissions say so too.
    pub breaks: bool,
    /// How clients may copy the store, where their permissions say so too; `None` where none may.
    pub backups: Option<Backups>,
    /// How long a client may wait in the queue.
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

    /// The guard of requests with this method and path.
    pub(super) fn guard_of(&self, method: &str, path: &str) -> Option<&Guard> {
        let guards = self.guard_settings.iter().filter(|guard| holds(&guard.path, path));
        let guard = guards.max_by_key(|guard| guard.path.len());
        guard.filter(|guard| guard.methods.iter().any(|guarded| guarded == method))
    }

    /// The most bytes that a record keeps of a response.
    pub(super) fn response_limit(&self) -> Result<usize, Problem> {
        Ok(self.response_limit_bytes.min(self.records()?.answer_limit()))
    }

    /// Has the quota that counts a record count what became of it, whoever did it; `None` where its
    /// key is free again.
    pub(super) fn count_record(&self, key: &RecordKey, view: Option<&RecordView>) {
        let Some(authenticator) = &self.authenticator else { return };
        for meter in authenticator.identities().iter().flat_map(|identity| identity.meters()) {
            meter.see_record(key, view);
        }
    }
}

/// The one place of a copy, and how long a copy may have it.
#[derive(Debug)]
pub struct Backups {
    place: Arc<Semaphore>,
    pub(super) limit: Duration,
}

impl Backups {
    /// Copies of at most so many milliseconds.
    pub fn new(limit_ms: u64) -> Self {
        Self { place: Arc::new(Semaphore::new(1)), limit: Duration::from_millis(limit_ms) }
    }

    pub(super) fn enter(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.place).try_acquire_owned().map_err(|_| {
            let detail = "Another client is reading a copy. Nothing was done.";
            let problem = Problem::new(Code::CopyUnderWay, detail).with_retry();
            problem.with_retry_after(Duration::from_secs(1))
        })
    }
}

/// Has nginx pass each event on when it comes.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The streams of events that are open, of which there may be so many.
#[derive(Debug)]
pub struct Streams {
    places: Arc<Semaphore>,
    heartbeat: Duration,
    metrics: Arc<Metrics>,
}

impl Streams {
    /// Up to `max` streams, on which a comment is sent whenever nothing happened for `heartbeat`.
    pub fn new(max: usize, heartbeat: Duration, metrics: Arc<Metrics>) -> Self {
        let places = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        Self { places, heartbeat, metrics }
    }

    /// A permit for one more stream, which has one of its client's quota already.
    pub(super) fn open(
        &self,
        kind: StreamKind,
        of_quota: QuotaPermit,
    ) -> Result<StreamPermit, Problem> {
        let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() else {
            self.metrics.shed.inc();
            return Err(overloaded("The service has too many streams of events."));
        };
        let counted = self.metrics.stream(kind);
        Ok(StreamPermit {
            heartbeat: self.heartbeat,
            _counted: counted,
            _of_quota: of_quota,
            _permit: permit,
        })
    }
}

/// One of the streams that may be open.
#[derive(Debug)]
pub(super) struct StreamPermit {
    heartbeat: Duration,
    _counted: GaugeGuard,
    _of_quota: QuotaPermit,
    _permit: OwnedSemaphorePermit,
}

impl StreamPermit {
    /// The response that tells these events. They are dropped when the connection ends.
    pub(super) fn respond<S>(self, events: S) -> Response
    where
        S: Stream<Item = Result<Event, axum::Error>> + Send + 'static,
    {
        let heartbeat = KeepAlive::new().interval(self.heartbeat);
        let events = events.inspect(move |_| {
            // The place is taken for as long as there are events to come.
            let _ = &self;
        });
        let mut response = Sse::new(events).keep_alive(heartbeat).into_response();
        response.headers_mut().insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
        response
    }
}
