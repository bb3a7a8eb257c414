//! Load shedding: how many requests are served at once, and what the others are answered.
//!
//! A request beyond the limit is answered 503 before any work, because a queue of requests that no
//! client waits for any more would only grow.

use std::sync::Arc;
use std::time::Duration;

use crate::http::problem::{Code, Problem};
use crate::metrics::Metrics;
use keylatch_core::store::Effect;

/// Counts the requests that are being served, up to a limit.
#[derive(Debug)]
pub(super) struct LoadLimit {
    metrics: Arc<Metrics>,
    max_requests: i64,
}

/// A request that is being served, counted until this is dropped.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Metrics>);

impl LoadLimit {
    pub(super) fn new(metrics: Arc<Metrics>, max_requests: usize) -> Self {
        Self { metrics, max_requests: i64::try_from(max_requests).unwrap_or(i64::MAX) }
    }

    /// Counts a request at `route`; the problem with which it is refused where the service is full.
    pub(super) fn admit(&self, route: Option<&str>) -> (InFlight, Result<(), Problem>) {
        let before = self.metrics.in_flight.inc();
        let in_flight = InFlight(Arc::clone(&self.metrics));
        // A full service is alive, and restarting it would not make it less full.
        if before < self.max_requests || route == Some("/livez") {
            return (in_flight, Ok(()));
        }
        self.metrics.shed.inc();
        (in_flight, Err(overloaded()))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.dec();
    }
}

fn overloaded() -> Problem {
    Problem::new(Code::Overloaded, "The service has too many requests to answer.")
        .with_outcome(Effect::NotExecuted)
        .with_retry_after(Duration::from_secs(1))
}
