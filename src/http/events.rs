use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{Stream, StreamExt as _};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::{Code, Problem};
use crate::metrics::{GaugeGuard, Metrics, StreamKind};
use keylatch_core::store::Effect;

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

    /// A place for one more stream.
    pub(super) fn open(&self, kind: StreamKind) -> Result<StreamPermit, Problem> {
        let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() else {
            self.metrics.shed.inc();
            return Err(overloaded("The service has too many streams of events."));
        };
        let counted = self.metrics.stream(kind);
        Ok(StreamPermit { heartbeat: self.heartbeat, _counted: counted, _permit: permit })
    }
}

/// One of the streams that may be open.
#[derive(Debug)]
pub(super) struct StreamPermit {
    heartbeat: Duration,
    _counted: GaugeGuard,
    _permit: OwnedSemaphorePermit,
}

impl StreamPermit {
    /// The answer that tells these events. They are dropped when the connection ends.
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

/// An event whose data is `data` as JSON.
pub(super) fn event(name: &str, data: &impl Serialize) -> Result<Event, axum::Error> {
    Event::default().event(name).json_data(data)
}

/// The service cannot take the request, and did nothing.
pub(super) fn overloaded(detail: &'static str) -> Problem {
    Problem::new(Code::Overloaded, detail)
        .with_outcome(Effect::NotExecuted)
        .with_retry_after(Duration::from_secs(1))
}
