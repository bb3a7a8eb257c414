//! What the service says of itself: `/v1/info`, health, metrics, the pages of the problems, the index.
//!
//! `/livez` asks no store, so that a store that is away restarts no instance, and fails where a part of the
//! store in this process has ended; `/readyz` asks the store. Tested in
//! `tests/api/system.rs`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};

use super::api::Api;
use super::assets::{DOCS_POLICY, POLICY};
use super::body::Json;
use super::caller::Caller;
use super::problem::{Code, HealthProblems, OwnProblems, PageProblems, Problem};
use keylatch_axum::status_code;
use keylatch_core::store::{Effect, StoreHealth};
use keylatch_wire::{ServiceInfo, StoreInfo};

/// What is promised, in the words of the README.
pub(super) const PROMISE: [&str; 4] = [
    "Exclusive while valid: a grant is exclusive until you sent the request + waited_ms + valid_for_ms.",
    "Fencing tokens only rise: a grant's token is larger than that of every earlier grant that it cannot be \
     held together with, also after a restart.",
    "Ambiguity is reported: a lost answer is 503 with outcome unknown, never 409 and never 404.",
    "Nothing without proof: only the token renews or releases; it is never listed, logged or stored.",
];

/// What this service is
///
/// Its version, its store, and what it promises on that store.
#[utoipa::path(
    get,
    path = "/v1/info",
    tag = "system",
    responses((status = 200, description = "What this service is", body = ServiceInfo), OwnProblems)
)]
pub(super) async fn info(State(api): State<Arc<Api>>, _: Caller) -> Json<ServiceInfo> {
    let health = api.locks.health().await.ok();
    Json(ServiceInfo {
        name: "keylatch".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        store: store_info(&api, health),
        promise: PROMISE.map(Into::into).to_vec(),
    })
}

pub(super) fn store_info(api: &Api, health: Option<StoreHealth>) -> StoreInfo {
    let tier = health.as_ref().map(|health| health.tier);
    let (facts, advice) = health.map(|health| (health.facts, health.advice)).unwrap_or_default();
    StoreInfo {
        kind: api.store_kind.into(),
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
/// Asks no store. Restarting the service helps only when this fails: when the process does not answer, or a
/// part of the store that is in it has ended.
#[utoipa::path(
    get,
    path = "/livez",
    tag = "system",
    responses(
        (status = 200, description = "It is", body = String, content_type = "text/plain", example = json!("ok")),
        HealthProblems,
    )
)]
pub(super) async fn livez(State(api): State<Arc<Api>>) -> Result<&'static str, Problem> {
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
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "system",
    responses(
        (status = 200, description = "It can", body = String, content_type = "text/plain", example = json!("ok")),
        HealthProblems,
    )
)]
pub(super) async fn readyz(State(api): State<Arc<Api>>) -> Result<&'static str, Problem> {
    if api.closing.is_cancelled() {
        let leaving = Problem::new(Code::Overloaded, "The service is shutting down.");
        return Err(leaving
            .with_outcome(Effect::NotExecuted)
            .with_retry_after(Duration::from_secs(1)));
    }
    api.locks.health().await?;
    Ok("ok")
}

/// The counters
///
/// For Prometheus, in the OpenMetrics text format.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "system",
    responses(
        (status = 200, description = "The counters", body = String, content_type = "application/openmetrics-text"),
        OwnProblems,
    )
)]
pub(super) async fn metrics(State(api): State<Arc<Api>>, _: Caller) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let kept_bytes = api.records.as_ref().and_then(|records| records.kept_bytes());
    match api.metrics.encode(api.locks.counts(), kept_bytes, api.authenticator.as_deref()) {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(_) => Problem::new(Code::Internal, "The metrics could not be written.").into_response(),
    }
}

/// What a problem means
///
/// The page that a problem's `type` leads to: what happened, and what to do.
#[utoipa::path(
    get,
    path = "/problems/{code}",
    tag = "system",
    params(("code" = String, Path, example = "lock-held", description = "The `code` of a problem")),
    responses(
        (status = 200, description = "A page for people", body = String, content_type = "text/html"),
        PageProblems,
    )
)]
pub(super) async fn problem_page(Path(slug): Path<String>) -> Result<impl IntoResponse, Problem> {
    let mut codes = Code::all().filter(|code| code.slug() == slug);
    let unknown = || Problem::new(Code::NotFound, "There is no such problem.");
    let code = codes.next().ok_or_else(unknown)?;
    let others: String = codes.map(|other| format!(" or {}", status_code(other))).collect();
    let headers = [(header::CONTENT_SECURITY_POLICY, POLICY)];
    let page = Html(format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <title>{title} · keylatch</title>\n<h1>{title}</h1>\n\
         <p>HTTP status {status}{others}, code <code>{slug}</code></p>\n<p>{advice}</p>\n\
         <p><a href=\"/docs\">The API</a></p>\n</html>\n",
        title = code.title(),
        status = status_code(code),
        slug = code.slug(),
        advice = code.advice(),
    ));
    Ok((headers, page))
}

/// What the Swagger UI answers, under the policy of all pages. A page that it does not have is a
/// problem like every other.
pub(super) async fn docs_page(mut response: Response) -> Response {
    if response.status() == StatusCode::NOT_FOUND {
        return Problem::new(Code::NotFound, "There is no such page.").into_response();
    }
    let policy = HeaderValue::from_static(DOCS_POLICY);
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}

pub(super) async fn not_found() -> Problem {
    no_resource()
}

pub(super) fn no_resource() -> Problem {
    Problem::new(Code::NotFound, "There is no such resource.")
}

pub(super) async fn method_not_allowed() -> Problem {
    Problem::new(Code::MethodNotAllowed, "The resource does not take this method.")
}
