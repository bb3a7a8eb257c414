//! Goal: `IdempotencyLayer` runs a request once on the routes of a program that is not keylatch.
//!
//! Method: an axum router with the layer over each store.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Request};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use futures_util::future::{Ready, join_all, ready};
use futures_util::poll;
use keylatch_axum::{
    DeriveKey, Guard, IdempotencyLayer, KeyPart, MissingKey, OnFailure, RetentionPolicy,
};
use keylatch_core::idempotency::{
    IdempotencyKey, PhaseName, Principal, RecordFilter, RecordStatus, ResolveReply, Scope,
};
use keylatch_core::lock::FencingToken;
use keylatch_core::store::{ListRecords, Store};
use keylatch_testkit::{
    Answer, Api, RawConnection, TestStore, Upstream, config, created, store_test,
};
use reqwest::Method;
use tokio::net::TcpListener;
use tower::Service;
use tower_http::catch_panic::CatchPanicLayer;

/// Routes behind a layer over the store at a URL, and their API.
async fn layered(
    store: &str,
    set: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
) -> (Upstream, Api) {
    let layer = set(IdempotencyLayer::new(records(store).await));
    let upstream =
        Upstream::start_behind(|routes| routes.layer(layer).layer(CatchPanicLayer::new()));
    let upstream = upstream.await;
    let api = Api::at(upstream.address);
    (upstream, api)
}

async fn records(url: &str) -> Arc<dyn Store> {
    let config = config(url);
    keylatch_stores::open(url, config.stores()).await.expect("the store opens")
}

/// Asserts that this is a refusal of the layer's.
#[track_caller]
fn is_refused(answer: &Answer, status: u16, code: &str, retry: &str) {
    assert_eq!(answer.status.as_u16(), status, "{answer:?}");
    assert_eq!(answer.header("content-type"), "application/problem+json");
    assert_eq!((&answer.json["code"], &answer.json["retry"]), (&code.into(), &retry.into()));
}

#[store_test(service)]
async fn layer_runs_a_request_once(store: &TestStore) {
    let (upstream, api) = layered(store.url(), |layer| layer).await;
    let first = upstream.holding(api.order("k-1")).await;
    is_refused(&api.buy("k-1").await, 409, "request-in-progress", "same-key");
    let other = Answer::of(api.order("k-1").body("{}")).await;
    is_refused(&other, 422, "idempotency-key-reused", "new-key");
    upstream.resume();
    first.await.expect("an answer").is_run(1);
    for repeat in join_all((0..20).map(|_| api.buy("k-1"))).await {
        repeat.is_replay_of(1);
    }
    let without = Answer::of(api.request(Method::POST, "/orders")).await;
    is_refused(&without, 400, "key-required", "new-key");
    for run in 2..4 {
        let request = api.request(Method::GET, "/orders").header("Idempotency-Key", "k-1");
        Answer::of(request.header("Idempotency-Fence", "1")).await.is_run(run);
        assert!(!upstream.last().headers.contains_key("idempotency-fence"));
    }
}

/// A layer has no path of its own, and another route of the program may have the same store.
#[tokio::test]
async fn derived_key_of_a_layer_has_the_path_in_any_case() {
    let derive = DeriveKey { of: vec![KeyPart::Body], anonymous: true, ..DeriveKey::default() };
    let guard = Guard { missing_key: MissingKey::Derive, derive, ..Guard::default() };
    let (_upstream, api) =
        layered("memory:", |layer| layer.with_guard(guard).expect("a guard")).await;
    let send = |path| Answer::of(api.request(Method::POST, path).body("order=1"));
    send("/orders").await.is_run(1);
    send("/orders").await.is_replay_of(1);
    send("/orders/17/refund").await.is_run(2);
}

#[store_test(service)]
async fn drain_awaits_runs_and_leaves_those_that_outlive_it_unknown(store: &TestStore) {
    let records = records(store.url()).await;
    let layer = IdempotencyLayer::new(Arc::clone(&records));
    let upstream = Upstream::start_behind(|routes| routes.layer(layer.clone())).await;
    let api = Api::at(upstream.address);
    upstream.hold();
    let [gone, first] = ["k-1", "k-2"].map(|key| tokio::spawn(Answer::of(api.order(key))));
    upstream.begun(2).await;
    gone.abort();
    let (long, short) = (layer.clone(), layer);
    let mut awaiting = pin!(long.drain(Duration::from_secs(600)));
    assert!(poll!(awaiting.as_mut()).is_pending(), "two runs are under way");
    short.drain(Duration::from_millis(100)).await;
    is_refused(&first.await.expect("an answer"), 409, "outcome-unknown", "never");
    awaiting.await;
    for key in ["k-1", "k-2"] {
        is_refused(&api.buy(key).await, 503, "store-unavailable", "same-key");
    }
    let next = IdempotencyLayer::new(records);
    let next = Upstream::start_behind(|routes| routes.layer(next)).await;
    let other = Api::at(next.address);
    for key in ["k-1", "k-2"] {
        is_refused(&other.buy(key).await, 409, "outcome-unknown", "never");
    }
}

/// What a person found out about an order.
fn paid() -> axum::http::Response<Bytes> {
    let response = axum::http::Response::builder().status(201).header("content-type", "text/html");
    response.body("<p>paid</p>".into()).expect("a response")
}

#[store_test(service)]
async fn records_of_a_layer_are_found_listed_and_resolved(store: &TestStore) {
    let layer = IdempotencyLayer::new(records(store.url()).await);
    let handle = layer.records();
    let upstream = Upstream::start_behind(|routes| routes.layer(layer)).await;
    let api = Api::at(upstream.address);
    api.buy("done").await.is_run(1);
    upstream.answers(|_| StatusCode::INTERNAL_SERVER_ERROR);
    for key in ["paid", "not-paid"] {
        assert_eq!(api.buy(key).await.status, 500);
        is_refused(&api.buy(key).await, 409, "outcome-unknown", "never");
    }
    let scope =
        Scope { principal: &Principal::None, method: "POST", path: "/%6frders/", source: "" };
    let key = |key| handle.key(scope, &IdempotencyKey::parse(key).expect("a key"));
    let found = handle.find(&key("done")).await.expect("an answer").expect("a record");
    assert!(matches!(found.phase, RecordStatus::Done { .. }), "{found:?}");
    assert_eq!(handle.find(&key("other")).await.expect("an answer"), None);
    let filter = RecordFilter { phase: Some(PhaseName::Unknown), ..RecordFilter::default() };
    let query = ListRecords { filter, limit: 1000, cursor: None };
    let page = handle.list(&query).await.expect("an answer").expect("a page");
    let listed: BTreeMap<_, _> =
        page.entries.into_iter().map(|record| (record.key, record.fencing_token)).collect();
    let run = |name| *listed.get(&key(name)).expect("it is listed");
    assert!(!listed.contains_key(&key("done")));
    for _ in 0..2 {
        let resolved = handle.resolve_as_done(&key("paid"), run("paid"), paid()).await;
        assert!(matches!(resolved.expect("an answer"), ResolveReply::Completed(_)));
    }
    let earlier = FencingToken::new(run("not-paid").get() - 1);
    let refused = handle.resolve_as_not_done(&key("not-paid"), earlier).await;
    assert!(matches!(refused.expect("an answer"), ResolveReply::Refused(_)));
    let freed = handle.resolve_as_not_done(&key("not-paid"), run("not-paid")).await;
    assert!(matches!(freed.expect("an answer"), ResolveReply::Freed(_)));
    let repeat = api.buy("paid").await;
    assert_eq!((repeat.status.as_u16(), repeat.text.as_str()), (201, "<p>paid</p>"));
    assert_eq!(repeat.header("content-security-policy"), "sandbox");
    upstream.answers(|seen| created(seen.run));
    api.buy("not-paid").await.is_run(4);
}

#[store_test(memory)]
async fn panic_is_an_unknown_outcome(store: &TestStore) {
    let (upstream, api) = layered(store.url(), |layer| layer).await;
    upstream.answers(|_| -> StatusCode { panic!("told to") });
    assert_eq!(api.buy("k-1").await.status, 500);
    for _ in 0..2 {
        is_refused(&api.buy("k-1").await, 409, "outcome-unknown", "never");
    }
    assert_eq!(upstream.runs(), 1);
}

#[store_test(memory)]
async fn panic_frees_the_key_where_the_policy_allows(store: &TestStore) {
    let guard = Guard { on_failure: OnFailure::Release.into(), ..Guard::default() };
    let release = |layer: IdempotencyLayer| layer.with_guard(guard).expect("valid settings");
    let (upstream, api) = layered(store.url(), release).await;
    upstream.answers(|_| -> StatusCode { panic!("told to") });
    for runs in 1..=2 {
        assert_eq!((api.buy("k-1").await.status.as_u16(), upstream.runs()), (500, runs));
    }
    upstream.answers(|seen| created(seen.run));
    api.buy("k-1").await.is_run(3);
    api.buy("k-1").await.is_replay_of(3);
}

#[store_test(memory)]
async fn handler_chooses_what_is_stored(store: &TestStore) {
    let (upstream, api) = layered(store.url(), |layer| layer).await;
    let says = |status: u16, keep: RetentionPolicy| {
        upstream.answers(move |_| {
            let mut answer = StatusCode::from_u16(status).expect("a status").into_response();
            answer.extensions_mut().insert(keep);
            answer
        });
    };
    says(503, RetentionPolicy::Answer);
    for replayed in ["", "true", "true"] {
        let answer = api.buy("k-1").await;
        assert_eq!((answer.status.as_u16(), answer.header("idempotent-replayed")), (503, replayed));
    }
    says(201, RetentionPolicy::Release);
    for runs in 2..4 {
        assert_eq!((api.buy("k-2").await.status.as_u16(), upstream.runs()), (201, runs));
    }
    says(200, RetentionPolicy::Unknown);
    assert_eq!(api.buy("k-3").await.status, 200);
    is_refused(&api.buy("k-3").await, 409, "outcome-unknown", "never");
    assert_eq!(upstream.runs(), 4);
}

#[store_test(memory)]
async fn stored_response_has_the_length_of_its_body(store: &TestStore) {
    let (upstream, api) = layered(store.url(), |layer| layer).await;
    for wrong in ["0", "2", "1000"] {
        upstream.answers(move |_| ([("Content-Length", wrong)], "whole"));
        let request = format!(
            "POST /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k-{wrong}\r\n\
             Content-Length: 2\r\n\r\n{{}}"
        );
        let mut wire = RawConnection::sending(api.address, &request).await;
        for replayed in ["", "true"] {
            let answer = wire.answer().await;
            assert_eq!((&*answer.text, answer.header("content-length")), ("whole", "5"));
            assert_eq!(answer.header("idempotent-replayed"), replayed, "{answer:?}");
            wire.send(&request).await;
        }
    }
}

#[tokio::test]
async fn policy_separates_principals() {
    let (upstream, api) = layered("memory:", |layer| {
        layer.with_principal(|parts| {
            let (user, _) = parts.headers.get("authorization")?.to_str().ok()?.split_once(' ')?;
            Some(user.to_owned())
        })
    })
    .await;
    let buy = async |credential: &str| {
        Answer::of(api.order("k-1").header("Authorization", credential)).await
    };
    for (run, credential) in (1..).zip(["ada 1", "bob 1", ""]) {
        buy(credential).await.is_run(run);
    }
    for (run, credential) in [(1, "ada 2"), (2, "bob 3"), (3, "nonsense")] {
        buy(credential).await.is_replay_of(run);
    }
    assert_eq!(upstream.runs(), 3);
}

#[tokio::test]
async fn invalid_setting_of_a_layer_is_refused() {
    let guard = Guard { lease_ms: 99, ..Guard::default() };
    let refused = IdempotencyLayer::new(keylatch_stores::memory()).with_guard(guard);
    let refused = refused.expect_err("a lease is at least 100 ms");
    assert_eq!(refused.to_string(), "`lease_ms` must be 100 to 86400000");
}

#[tokio::test]
async fn method_that_is_not_on_a_route_is_405_before_a_key_is_asked_for() {
    let layer = IdempotencyLayer::new(keylatch_stores::memory());
    let orders = post(async || "ordered").route_layer(layer).get(async || "none");
    let api = serve(Router::new().route("/orders", orders)).await;
    assert_eq!(Answer::of(api.request(Method::PATCH, "/orders")).await.status, 405);
    is_refused(
        &Answer::of(api.request(Method::POST, "/orders")).await,
        400,
        "key-required",
        "new-key",
    );
    assert_eq!(api.buy("k-1").await.text, "ordered");
    assert_eq!(api.get("/orders").await.text, "none");
}

#[tokio::test]
async fn handler_receives_its_fencing_token() {
    let fencing_token = async |Extension(fencing_token): Extension<FencingToken>,
                               headers: HeaderMap| {
        let header = headers["idempotency-fence"].to_str().expect("text").to_owned();
        assert_eq!(header, fencing_token.get().to_string());
        header
    };
    let layer = IdempotencyLayer::new(keylatch_stores::memory());
    let api = serve(Router::new().route("/orders", post(fencing_token)).layer(layer)).await;
    let [one, two] = [api.buy("k-1").await.text, api.buy("k-2").await.text]
        .map(|text| text.parse::<u64>().expect("a fence"));
    assert!(one < two, "{one} is not below {two}");
    assert_eq!(api.buy("k-1").await.text, one.to_string());
}

#[tokio::test]
async fn layer_runs_between_authentication_and_handler() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let order = async move || {
        counted.fetch_add(1, Ordering::SeqCst);
        "paid"
    };
    let authenticated =
        async |request: Request, next: Next| match request.headers().get("authorization") {
            Some(_) => next.run(request).await,
            None => StatusCode::UNAUTHORIZED.into_response(),
        };
    let layer = IdempotencyLayer::new(keylatch_stores::memory());
    let routes = Router::new().route("/orders", post(order)).layer(layer);
    let api = serve(routes.layer(middleware::from_fn(authenticated))).await;
    let buy = || api.order("k-1").header("Authorization", "a");
    assert_eq!(api.buy("k-1").await.status, 401);
    assert_eq!(Answer::of(buy()).await.text, "paid");
    assert_eq!(Answer::of(buy()).await.header("idempotent-replayed"), "true");
    // The layer gives a stored answer only to a client that is authenticated.
    assert_eq!(api.buy("k-1").await.status, 401);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// A service that has to be asked whether it is ready before each call, as tower demands.
#[derive(Debug, Default)]
struct Particular {
    ready: bool,
}

impl Clone for Particular {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Service<Request> for Particular {
    type Response = Response;
    type Error = Infallible;
    type Future = Ready<Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request) -> Self::Future {
        let status = if std::mem::take(&mut self.ready) { 201 } else { 500 };
        ready(Ok(StatusCode::from_u16(status).expect("a status").into_response()))
    }
}

#[tokio::test]
async fn inner_service_is_called_when_ready() {
    use tower::{Layer as _, ServiceExt as _};
    let layer = IdempotencyLayer::new(keylatch_stores::memory());
    let mut guarded = layer.layer(Particular::default());
    for (method, key) in [("POST", "k-1"), ("GET", "k-2"), ("POST", "k-3"), ("PATCH", "k-4")] {
        let request = Request::builder().method(method).header("Idempotency-Key", key);
        let request = request.body(axum::body::Body::empty()).expect("a request");
        let guarded = guarded.ready().await.expect("it is ready");
        let answer = guarded.call(request).await.expect("an answer");
        assert_eq!(answer.status(), 201, "{method}");
    }
}

async fn serve(routes: Router) -> Api {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, routes).await });
    Api::at(address)
}
