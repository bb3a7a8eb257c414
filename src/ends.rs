//! The ends of grants that no client sent a release for: what the store says of them is counted.
//!
//! An expiry is the store's own affair, and no request is answered when it comes. An instance sees it when a step
//! of its own, or its sweep, is the first to write down that the lease is over; so each expiry is counted by
//! one instance at most. Redlock says nothing of them. Tested in `tests/api/metrics_page.rs`.

use std::sync::Arc;

use futures_util::StreamExt as _;
use keylatch_core::lock::{EndCause, GrantEnd};
use keylatch_core::store::{Hint, Hints, Store, Topic};

use crate::metrics::Metrics;

/// Counts how grants end, for as long as it is followed.
pub(crate) struct EndCounter {
    hints: Hints,
    metrics: Arc<Metrics>,
}

impl EndCounter {
    /// A counter of the ends in `store` from now on.
    pub(crate) fn new(store: &dyn Store, metrics: Arc<Metrics>) -> Self {
        Self { hints: store.subscribe(Topic::Ends), metrics }
    }

    /// Counts until the store is dropped.
    pub(crate) async fn follow(mut self) {
        while let Some(hint) = self.hints.next().await {
            if let Hint::Ended(_, end) = hint {
                self.count(&end);
            }
        }
    }

    fn count(&self, end: &GrantEnd) {
        self.metrics.held(end.held_for());
        if end.cause == EndCause::Expiry {
            self.metrics.expiries.inc();
        }
    }
}
