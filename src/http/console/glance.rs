//! What the console shows at a glance: the store, what the instance does now and did in the last
//! minutes, and what the client may do, so that the page has the buttons that are for it.
//!
//! It asks the store for its health and for no lock, because a page repeats it every few seconds.
//! Tested in `tests/api/console.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use futures_util::future::join;
use serde_json::{Value, json};

use crate::http::api::Api;
use crate::http::api::body::Json;
use crate::http::api::record_counts::MAX_COUNT;
use crate::http::api::system::store_info;
use crate::http::caller::Caller;
use crate::metrics::{RecordCounts, StreamKind};
use crate::rolling_stats::SAMPLE;
use keylatch_wire::{ObservedGuard, millis};

pub(super) async fn glance(State(api): State<Arc<Api>>, caller: Caller) -> Json<Value> {
    let metrics = &api.metrics;
    let observed = metrics.observed_guards.counts().into_iter();
    // What enforcing would have changed today, for each guard that only observes.
    let observed =
        observed.map(|(guard, counts)| (guard, ObservedGuard::sentence(&counts.today) + " today"));
    let counts = async { Some(api.record_counter.counts(api.records.as_deref()?).await) };
    let (health, counts) = join(api.locks.health(), counts).await;
    // Of all instances. There are none where the store keeps none, and no number that is not known.
    // One that is as large as `counted_to` may be larger.
    let records = counts.map(|counts| {
        let RecordCounts { unknown, in_flight, done, .. } = counts;
        json!({"unknown": unknown, "in_flight": in_flight, "done": done, "counted_to": MAX_COUNT})
    });
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "store": store_info(&api, health.ok()),
        "identity": caller.identity(),
        "permissions": caller.permissions(),
        "breaks": api.breaks,
        "records": records,
        "observed": observed.collect::<BTreeMap<_, _>>(),
        "waiters": api.locks.counts().waiters,
        "connections": metrics.connections.get(),
        "in_flight": metrics.in_flight.get(),
        "shed": metrics.shed.get(),
        "streams": {
            "hold": metrics.open_streams(StreamKind::Hold),
            "watch": metrics.open_streams(StreamKind::Watch),
            "console": metrics.open_streams(StreamKind::Console),
        },
        "sample_ms": millis(SAMPLE),
        "samples": metrics.recent.samples(),
    }))
}
