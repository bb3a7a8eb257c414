//! Goal: a client of this version reads what became of its request on what an older instance keeps: 409 with
//! the holder or the run, 503 (`not-executed`) where this version would have to change it.
//!
//! Method: the service of this version over HTTP, on the Redis on which the older version's scripts run.

use std::time::Duration;

use keylatch_core::idempotency::{IdempotencyKey, RecordKey, Scope};
use keylatch_core::lock::Token;
use keylatch_testkit::{Answer, Api, RedisServer, Service, eventually, soon};
use reqwest::Method;
use serde_json::{Value, json};

use super::older::{LEASE, Older, RETENTION, is};

const TTL: Duration = Duration::from_secs(600);
const SECOND: Duration = Duration::from_secs(1);
const ONE: &str = "a-token-of-the-older-holder";
const TWO: &str = "a-token-of-somebody-else";

fn hash(token: &str) -> keylatch_core::lock::TokenHash {
    Token::parse(token).expect("a token").hash()
}

#[tokio::test]
async fn waiter_gets_the_lock_when_an_older_lease_ends_by_time() {
    let redis = RedisServer::start().await;
    let (service, older) = (Service::start(&redis.url()).await, Older(&redis));
    let fence = older.acquire("deploy", &hash(ONE), TTL).await.expect("a free lock");
    let body = json!({"wait_ms": 60_000});
    let waiting = service.create_as("deploy", TWO, &body);
    let ending = async {
        // Each of its rounds but the first meets the hash.
        eventually(async || (conflicts(&service).await >= 2).then_some(())).await;
        redis.advance(TTL + SECOND);
    };
    let (waited, ()) = soon("the lock", async { tokio::join!(waiting, ending) }).await;
    assert_eq!(waited.status, 201, "{waited:?}");
    assert!(waited.fencing_token() > fence, "{waited:?} after {fence}");
    assert_eq!(older.ask("deploy", &hash(ONE), TTL, "").await, None);
    assert_eq!(service.release("deploy", TWO).await.status, 204);
}

async fn conflicts(api: &Api) -> u64 {
    let metrics = api.get("/metrics").await.text;
    let lines = metrics.lines();
    let count =
        lines.filter_map(|line| line.strip_prefix("keylatch_store_conflicts_total ")).next();
    count.expect("the metric").parse().expect("a number")
}

/// It has no place in a queue, so no instance can promise it anything.
#[tokio::test]
async fn wait_that_ends_before_an_older_lease_reads_not_executed() {
    let redis = RedisServer::start().await;
    let (service, older) = (Service::start(&redis.url()).await, Older(&redis));
    older.acquire("deploy", &hash(ONE), TTL).await.expect("a free lock");
    is_left_alone(&service.create_as("deploy", TWO, &json!({"wait_ms": 1})).await);
    is(&older.release("deploy", &hash(ONE)).await, "released");
    assert_eq!(service.create_as("deploy", TWO, &json!({"wait_ms": 1})).await.status, 201);
}

#[tokio::test]
async fn lock_of_an_older_instance_is_shown_and_not_changed() {
    let redis = RedisServer::start().await;
    let (service, older) = (Service::start(&redis.url()).await, Older(&redis));
    let fence = older.acquire("deploy", &hash(ONE), TTL).await.expect("a free lock");
    let refused = service.create_as("deploy", TWO, &json!({})).await;
    refused.is_problem(409, "lock-held");
    assert_eq!(refused.json["holder"]["owner"], "older", "{refused:?}");
    assert_eq!(refused.json["holder"]["fencing_token"], fence, "{refused:?}");
    assert_eq!(service.look("deploy").await.fencing_token(), fence);
    service.create_set_as(&["deploy", "other"], TWO, &json!({})).await.is_problem(409, "lock-held");
    service.renew("deploy", TWO, &json!({})).await.is_problem(412, "token-mismatch");
    service.release("deploy", TWO).await.is_problem(412, "token-mismatch");

    is_left_alone(&service.create_as("deploy", ONE, &json!({})).await);
    is_left_alone(&service.create_set_as(&["deploy", "other"], ONE, &json!({})).await);
    is_left_alone(&service.renew("deploy", ONE, &json!({})).await);
    is_left_alone(&service.release("deploy", ONE).await);
    let body = json!({"reason": "it hangs", "fencing_token": fence});
    is_left_alone(
        &Answer::of(service.request(Method::POST, "/v1/locks/deploy/break").json(&body)).await,
    );

    is(&older.renew("deploy", &hash(ONE), TTL).await, "renewed");
    assert_eq!(service.look("other").await.status, 404);
    redis.advance(TTL + SECOND);
    assert_eq!(service.look("deploy").await.status, 404);
    let next = service.create_as("deploy", TWO, &json!({})).await;
    assert_eq!(next.status, 201, "{next:?}");
    assert!(next.fencing_token() > fence);
}

const RECORD: &str = "/v1/idempotency/order-17";
const SCOPE: &str = "?method=POST&path=/v1/orders";

/// The key of [`RECORD`] in [`SCOPE`].
fn record() -> RecordKey {
    let scope = Scope { principal: "", method: "POST", path: "/v1/orders" };
    scope.record(&IdempotencyKey::parse("order-17").expect("a key"))
}

async fn call(api: &Api, method: Method, step: &str, token: &str, body: &Value) -> Answer {
    let request = api.request(method, &format!("{RECORD}{step}{SCOPE}"));
    Answer::of(request.header("Lock-Token", token).json(body)).await
}

async fn begin(api: &Api, token: &str) -> Answer {
    call(api, Method::POST, "", token, &json!({"fingerprint": "an order"})).await
}

#[tokio::test]
async fn run_of_an_older_instance_is_shown_and_not_changed() {
    let redis = RedisServer::start().await;
    let (service, older) = (Service::start(&redis.url()).await, Older(&redis));
    let fence = older.begin(&record(), &hash(ONE)).await.expect("a free key");
    begin(&service, TWO).await.is_refusal(409, "request-in-progress", "same-key");
    let shown = service.get(&format!("{RECORD}{SCOPE}")).await;
    assert_eq!((&shown.json["state"], shown.fencing_token()), (&json!("in-flight"), fence));
    is_left_alone(&call(&service, Method::POST, "/renew", ONE, &json!({})).await);
    is_left_alone(&call(&service, Method::PUT, "", ONE, &json!({"status": 201})).await);
    is_left_alone(&call(&service, Method::DELETE, "", ONE, &json!({})).await);
    is(&older.extend(&record(), &hash(ONE)).await, "extended");

    redis.advance(LEASE + SECOND);
    begin(&service, TWO).await.is_refusal(409, "outcome-unknown", "never");
    let body = json!({"outcome": "not-executed", "reason": "the log says so", "by": "ann"});
    is_left_alone(&call(&service, Method::POST, "/resolve", TWO, &body).await);

    is(&older.resolve(&record(), true).await, "completed");
    let replayed = begin(&service, TWO).await;
    assert_eq!((replayed.status.as_u16(), &replayed.json["state"]), (200, &json!("done")));
    redis.advance(RETENTION + SECOND);
    let run = begin(&service, TWO).await;
    assert_eq!((run.status.as_u16(), &run.json["attempts"]), (201, &json!(1)), "{run:?}");
    assert!(run.fencing_token() > fence, "{run:?} after {fence}");
    assert_eq!(older.find(&record()).await, None);
}

/// Asserts that the answer says that nothing was done, and when to ask again.
#[track_caller]
fn is_left_alone(answer: &Answer) {
    answer.is_problem(503, "store-unavailable");
    assert_eq!(answer.json["outcome"], "not-executed", "{answer:?}");
    assert_eq!(answer.header("retry-after"), "1", "{answer:?}");
}
