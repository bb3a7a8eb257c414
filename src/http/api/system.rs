//! What the service says of itself: `/v1/info`, health, metrics.
//!
//! `/livez` asks no store, so that a store that is away restarts no instance, and fails where a
//! part of the store in this process has ended; `/readyz` asks the store. Tested in
//! `tests/api/system.rs`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, Uri, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::future::join;
use tokio::time::timeout;

use super::Api;
use super::body::Json;
use super::record_counts::{COUNT_LIMIT, MAX_COUNT};
use crate::access::{Identity, Permissions};
use crate::http::caller::Caller;
use crate::http::parts::ServedParts;
use crate::http::problem::{Code, Problem, overloaded};
use crate::http::problem_pages::{no_page, prefers_html};
use crate::metrics::RecordCounts;
use keylatch_core::lock::{LockCounts, LockService};
use keylatch_core::store::{Effect, ListLocks, StoreHealth};
use keylatch_wire::{ServiceInfo, StoreInfo};

/// What is promised, in the words of the README.
pub(crate) const PROMISE: [&str; 4] = [
    "Exclusive while valid: a grant is exclusive until you sent the request + waited_ms + valid_for_ms.",
    "Fencing tokens only rise: a grant's token is larger than that of every earlier grant that it cannot be \
     held together with, also after a restart.",
    "Ambiguity is reported: a lost response is 503 with outcome unknown, never 409 and never 404.",
    "Nothing without proof: only the token renews or releases; it is never listed, logged or stored.",
];

/// What this service is
///
/// Its version, its store, and what it promises on that store.
#[utoipa::path(get, path = "/v1/info",
    responses((status = 200, description = "What this service is", body = ServiceInfo)))]
pub(crate) async fn get_info(State(api): State<Arc<Api>>, _: Caller) -> Json<ServiceInfo> {
    let health = api.locks.health().await.ok();
    let named = |names: &Vec<&'static str>| names.iter().map(|&name| name.into()).collect();
    let differing = api.guards.differing().clone();
    let differing_guards = differing.iter().map(|(path, it)| (path.clone(), named(it))).collect();
    Json(ServiceInfo {
        name: "keylatch".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        store: store_info(&api, health),
        promise: PROMISE.map(Into::into).to_vec(),
        differing_guards,
        observed_guards: api.metrics.observed_guards.counts(),
    })
}

pub(crate) fn store_info(api: &Api, health: Option<StoreHealth>) -> StoreInfo {
    let tier = health.as_ref().map(|health| health.tier);
    let (id, facts, advice) =
        health.map(|health| (health.id, health.facts, health.advice)).unwrap_or_default();
    StoreInfo {
        kind: api.store_kind.into(),
        id,
        reachable: tier.is_some(),
        tier: tier.map(|tier| tier.as_str().into()),
        tier_means: tier.map(|tier| tier.promise().into()),
        max_ttl_ms: api.locks.max_ttl().as_millis(),
        facts: facts.into_iter().map(|(name, fact)| (name.into(), fact)).collect(),
        advice,
    }
}

/// Is the process alive?
///
/// Asks no store. Restarting the service helps only when this fails: when the process does not
/// answer, or a part of the store that is in it has ended.
#[utoipa::path(get, path = "/livez",
    responses((status = 200, description = "It is", body = String, content_type = "text/plain", example = json!("ok"))))]
pub(crate) async fn get_liveness(State(api): State<Arc<Api>>) -> Result<&'static str, Problem> {
    if api.locks.is_alive() {
        return Ok("ok");
    }
    let detail =
        "A part of the store in this process has ended. Only a restart of the process helps.";
    Err(Problem::new(Code::StoreUnavailable, detail).with_outcome(Effect::NotExecuted))
}

/// Can it do its work?
///
/// Asks the store. A load balancer leaves the instance alone while this fails.
#[utoipa::path(get, path = "/readyz",
    responses((status = 200, description = "It can", body = String, content_type = "text/plain", example = json!("ok"))))]
pub(crate) async fn get_readiness(State(api): State<Arc<Api>>) -> Result<&'static str, Problem> {
    if api.closing.is_cancelled() {
        return Err(overloaded("The service is shutting down."));
    }
    if api.locks.health().await?.is_full {
        let detail =
            "The store has no room left. What is held can be released, and nothing else changed.";
        return Err(Problem::new(Code::StoreFull, detail).with_outcome(Effect::NotExecuted));
    }
    Ok("ok")
}

/// The counters
///
/// For Prometheus, in the OpenMetrics text format. Of the quotas it has those of the identity that
/// asks, and of all where that may read every lock and every key. Numbers of unfinished records may
/// be those of 2 s ago.
#[utoipa::path(get, path = "/metrics",
    responses((status = 200, description = "The counters", body = String, content_type = "application/openmetrics-text")))]
pub(crate) async fn get_metrics(
    State(api): State<Arc<Api>>,
    caller: Caller,
) -> Result<Response, Problem> {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    caller.check_whole(Permissions::cover_metrics, "read the metrics")?;
    let records = async {
        match &api.records {
            Some(records) => api.record_counter.counts(records).await,
            None => RecordCounts::default(),
        }
    };
    let (records, locks) = join(records, count_locks(&api)).await;
    let shows_quota = |identity: &Identity| caller.may_read_quota(identity);
    let identities = api.authenticator.as_deref();
    let text = api.metrics.encode(locks, records, identities, shows_quota);
    let unwritten = |_| Problem::new(Code::Internal, "The metrics could not be written.");
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], text.map_err(unwritten)?).into_response())
}

/// What the locks come to. A store in this process knows how many are held. Another is asked for a
/// page of them, which costs it the same however many there are, and whether it is there: where no
/// client asks, a scrape is what finds out.
async fn count_locks(api: &Api) -> LockCounts {
    let mut counts = api.locks.counts();
    if counts.held.is_none() {
        let held = timeout(COUNT_LIMIT, count_held(&api.locks));
        let (held, health) = join(held, timeout(COUNT_LIMIT, api.locks.health())).await;
        counts.held = held.ok().flatten();
        if health.is_err() {
            api.metrics.store_is_silent();
        }
    }
    counts
}

/// How many locks are held, if one page tells: it has all of them, or as many as are counted.
async fn count_held(locks: &LockService) -> Option<u64> {
    let query = ListLocks { prefix: String::new(), limit: MAX_COUNT, cursor: None };
    let page = locks.list(&query).await.ok()??;
    let is_enough = page.next.is_none() || page.entries.len() >= MAX_COUNT;
    is_enough.then_some(page.entries.len() as u64)
}

pub(crate) async fn not_found(uri: Uri, headers: HeaderMap, serves: ServedParts) -> Response {
    let path = uri.path();
    if prefers_html(&headers) {
        return no_page(path, serves);
    }
    if !path.starts_with("/v1/locks/") {
        return no_resource().into_response();
    }
    let detail = "There is no such resource. A `/` in a name travels as `%2F`. Where a proxy does not let it pass, name the \
                  lock in `names` of `/v1/locks`.";
    Problem::new(Code::NotFound, detail).into_response()
}

pub(crate) fn no_resource() -> Problem {
    Problem::new(Code::NotFound, "There is no such resource.")
}
