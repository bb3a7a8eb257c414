//! What the console shows at a glance: the store, what the instance does now and did in the last
//! minutes, and what the client may do, so that the page has the buttons that are for it.
//!
//! It asks the store for its health and for no lock, because a page repeats it every few seconds.
//! Tested in `tests/api/console.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use futures_util::future::join;
use serde::Serialize;

use crate::access::Permissions;
use crate::http::api::Api;
use crate::http::api::body::Json;
use crate::http::api::record_counts::MAX_COUNT;
use crate::http::api::system::store_info;
use crate::http::caller::Caller;
use crate::metrics::StreamKind;
use crate::rolling_stats::{SAMPLE, Sample};
use keylatch_wire::{ObservedGuard, StoreInfo, millis};

#[derive(Debug, Serialize)]
pub(super) struct Glance {
    version: &'static str,
    store: StoreInfo,
    /// Who asks, where there are identities.
    identity: Option<String>,
    permissions: Permissions,
    /// Whether a lease may be broken here at all.
    breaks: bool,
    /// How many records of idempotency keys there are; `None` where the store keeps none.
    records: Option<CountedRecords>,
    /// What enforcing would have changed today, in a sentence, for each guard that only observes.
    observed: BTreeMap<String, String>,
    waiters: usize,
    connections: i64,
    in_flight: i64,
    shed: u64,
    streams: OpenStreams,
    sample_ms: u64,
    samples: Vec<Sample>,
}

/// How many records of idempotency keys there are, of all instances; `None` where that is not
/// known.
#[derive(Debug, Serialize)]
struct CountedRecords {
    unknown: Option<usize>,
    in_flight: Option<usize>,
    done: Option<u64>,
    /// How many are counted at most: a count that is this large may be larger.
    counted_to: usize,
}

impl CountedRecords {
    async fn of(api: &Api) -> Option<Self> {
        let counts = api.record_counter.counts(api.records.as_deref()?).await;
        Some(Self {
            unknown: counts.unknown,
            in_flight: counts.in_flight,
            done: counts.done,
            counted_to: MAX_COUNT,
        })
    }
}

#[derive(Debug, Serialize)]
struct OpenStreams {
    hold: i64,
    watch: i64,
    console: i64,
}

pub(super) async fn glance(State(api): State<Arc<Api>>, caller: Caller) -> Json<Glance> {
    let metrics = &api.metrics;
    let observed = metrics.observed_guards.counts().into_iter();
    let observed =
        observed.map(|(guard, counts)| (guard, ObservedGuard::sentence(&counts.today) + " today"));
    let (health, records) = join(api.locks.health(), CountedRecords::of(&api)).await;
    Json(Glance {
        version: env!("CARGO_PKG_VERSION"),
        store: store_info(&api, health.ok()),
        identity: caller.identity().map(str::to_owned),
        permissions: caller.permissions(),
        breaks: api.breaks,
        records,
        observed: observed.collect(),
        waiters: api.locks.counts().waiters,
        connections: metrics.connections.get(),
        in_flight: metrics.in_flight.get(),
        shed: metrics.shed.get(),
        streams: OpenStreams {
            hold: metrics.open_streams(StreamKind::Hold),
            watch: metrics.open_streams(StreamKind::Watch),
            console: metrics.open_streams(StreamKind::Console),
        },
        sample_ms: millis(SAMPLE),
        samples: metrics.recent.samples(),
    })
}
