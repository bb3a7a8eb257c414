//! Goal: a run whose process dies or stops is never run twice unless its guard allows it, and no
//! stored response is lost.
//!
//! Method: processes with an upstream that holds the run; SIGKILL, SIGSTOP and SIGTERM in the
//! middle; on each store that outlives a process.

use std::io::Write as _;

use keylatch_testkit::{
    Answer, Api, Process, RedisServer, Service, TestStore, Upstream, eventually, guard_orders,
    redis_test, store_test,
};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::KEYLATCH;

/// A process that guards `/orders`, and its API.
async fn process(store: &str, upstream: &Upstream, settings: &str) -> (Process, Api) {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    let guard = format!("[[guard]]\npath = \"/orders\"\nupstream = \"{}\"", upstream.url());
    writeln!(file, "{guard}\n{settings}").expect("the file takes it");
    let path = file.path().to_str().expect("a plain path");
    let process = KEYLATCH.serve(&["--config", path, "--store", store], &[]).await;
    let api = Api::at(process.address);
    (process, api)
}

/// A request that the upstream has begun and holds.
async fn begin(api: &Api, upstream: &Upstream, key: &str) -> JoinHandle<reqwest::Result<Answer>> {
    upstream.hold();
    let runs = upstream.runs();
    let first = tokio::spawn(Answer::try_of(api.order(key)));
    upstream.begun(runs + 1).await;
    first
}

/// Repeats a request until the answer is no longer that it is in progress.
async fn in_progress_until(api: &Api, key: &str) -> Answer {
    let mut seen = 0;
    let answer = eventually(async || {
        let answer = api.buy(key).await;
        let in_progress = answer.json["code"] == "request-in-progress";
        seen += usize::from(in_progress);
        if in_progress {
            answer.is_refusal(409, "request-in-progress", "same-key");
        }
        (!in_progress).then_some(answer)
    })
    .await;
    assert!(seen > 0, "it was never in progress: {answer:?}");
    answer
}

fn fencing_token(upstream: &Upstream) -> u64 {
    let fencing_token = upstream.last().headers["idempotency-fence"].clone();
    fencing_token
        .to_str()
        .ok()
        .and_then(|fencing_token| fencing_token.parse().ok())
        .expect("a fence")
}

/// A run whose process is killed is in progress until its lease ends, and unknown from then on.
#[store_test(restart)]
async fn killed_run_is_unknown_until_resolved(store: &TestStore) {
    let upstream = Upstream::start().await;
    let (one, api) = process(store.url(), &upstream, "lease_ms = 8000").await;
    let first = begin(&api, &upstream, "k-1").await;
    one.ended_by("-KILL").await;
    assert!(first.await.expect("an end").is_err(), "a killed service answered");
    let (_two, api) = process(store.url(), &upstream, "lease_ms = 8000").await;
    in_progress_until(&api, "k-1").await.is_refusal(409, "outcome-unknown", "never");
    upstream.resume();
    api.buy("k-1").await.is_refusal(409, "outcome-unknown", "never");
    let record = api.record("k-1").await;
    assert_eq!((&record["state"], &record["reason"]), (&json!("unknown"), &json!("interrupted")));
    assert_eq!((&record["fencing_token"], upstream.runs()), (&json!(fencing_token(&upstream)), 1));

    let path = "/v1/idempotency/k-1/resolve?method=POST&path=/orders";
    let outcome = json!({"outcome": "completed", "answer": {"status": 201, "json": {"run": 1}}});
    let resolved = Answer::of(api.request(reqwest::Method::POST, path).json(&outcome)).await;
    assert_eq!(resolved.status, 200, "{resolved:?}");
    api.buy("k-1").await.is_replay_of(1);
    assert_eq!(upstream.runs(), 1);
}

/// The same where the route says that it may be run again.
#[store_test(restart)]
async fn killed_run_is_rerun_where_the_guard_allows(store: &TestStore) {
    let settings = "lease_ms = 8000\non_crash = \"rerun\"";
    let upstream = Upstream::start().await;
    let (one, api) = process(store.url(), &upstream, settings).await;
    let first = begin(&api, &upstream, "k-1").await;
    let before = fencing_token(&upstream);
    one.ended_by("-KILL").await;
    assert!(first.await.expect("an end").is_err(), "a killed service answered");
    upstream.resume();
    let (_two, api) = process(store.url(), &upstream, settings).await;
    in_progress_until(&api, "k-1").await.is_run(2);
    assert!(
        fencing_token(&upstream) > before,
        "{before} is not below {}",
        fencing_token(&upstream)
    );
    api.buy("k-1").await.is_replay_of(2);
    let record = api.record("k-1").await;
    assert_eq!((&record["attempts"], upstream.runs()), (&json!(2), 2));
}

/// What was done is done after a kill.
#[store_test(restart)]
async fn stored_response_survives_a_kill(store: &TestStore) {
    let upstream = Upstream::start().await;
    let (one, api) = process(store.url(), &upstream, "").await;
    api.buy("k-1").await.is_run(1);
    upstream.answers(|_| axum::http::StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(api.buy("k-2").await.status, 500);
    one.ended_by("-KILL").await;
    let (_two, api) = process(store.url(), &upstream, "").await;
    api.buy("k-1").await.is_replay_of(1);
    api.buy("k-2").await.is_refusal(409, "outcome-unknown", "never");
    assert_eq!(upstream.runs(), 2);
}

/// A run that is under way at the end of the process is brought to its end, and is kept.
#[store_test(restart)]
async fn shutdown_finishes_a_run_in_progress(store: &TestStore) {
    let upstream = Upstream::start().await;
    let (one, api) = process(store.url(), &upstream, "").await;
    let first = begin(&api, &upstream, "k-1").await;
    let leaving = begin(&api, &upstream, "k-2").await;
    leaving.abort();
    one.signal("-TERM");
    eventually(async || tokio::net::TcpStream::connect(one.address).await.err()).await;
    upstream.resume();
    first.await.expect("an end").expect("an answer").is_run(1);
    assert_eq!(one.ended().await.code, Some(0));
    let (_two, api) = process(store.url(), &upstream, "").await;
    api.buy("k-1").await.is_replay_of(1);
    api.buy("k-2").await.is_replay_of(2);
    assert_eq!(upstream.runs(), 2);
}

/// The drain is for runs as well as for connections, and lasts longer than what is left to do after
/// it.
#[tokio::test]
async fn shutdown_awaits_a_run_whose_client_has_gone_during_the_whole_drain() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = format!("embedded:{}", directory.path().display());
    let upstream = Upstream::start().await;
    let settings = "lease_ms = 30000\n[server]\ndrain_timeout_ms = 600000";
    let (one, api) = process(&store, &upstream, settings).await;
    begin(&api, &upstream, "k-1").await.abort();
    // No connection is left that the service would wait for.
    drop(api);
    one.signal("-TERM");
    let watch = Service::start("memory:").await;
    assert_eq!(watch.create("held", &json!({})).await.status, 201);
    let waited = watch.create("held", &json!({"wait_ms": 3000})).await;
    waited.is_problem(409, "lock-held");
    upstream.resume();
    assert_eq!(one.ended().await.code, Some(0));
    let (_two, api) = process(&store, &upstream, "").await;
    api.buy("k-1").await.is_replay_of(1);
}

#[store_test(restart)]
async fn run_that_outlives_the_drain_is_unknown_at_once_and_its_client_reads_so(store: &TestStore) {
    let upstream = Upstream::start().await;
    let settings = "lease_ms = 600000\n[server]\ndrain_timeout_ms = 200";
    let (one, api) = process(store.url(), &upstream, settings).await;
    let first = begin(&api, &upstream, "k-1").await;
    let gone = begin(&api, &upstream, "k-2").await;
    gone.abort();
    one.signal("-TERM");
    let answer = first.await.expect("an end").expect("an answer, and no cut");
    answer.is_refusal(409, "outcome-unknown", "never");
    assert_eq!(one.ended().await.code, Some(0));
    let (_two, api) = process(store.url(), &upstream, "").await;
    for key in ["k-1", "k-2"] {
        let record = api.record(key).await;
        assert_eq!(record["state"], "unknown", "{record}");
        assert_eq!(record["reason"], "interrupted", "{record}");
    }
}

/// The next process may run it again, and the lease says when.
#[redis_test]
async fn run_that_outlives_the_drain_is_in_progress_where_the_guard_allows_a_rerun() {
    let (redis, upstream) = (RedisServer::start().await, Upstream::start().await);
    let settings = "lease_ms = 8000\non_crash = \"rerun\"\n[server]\ndrain_timeout_ms = 200";
    let (one, api) = process(&redis.url(), &upstream, settings).await;
    let first = begin(&api, &upstream, "k-1").await;
    one.signal("-TERM");
    let answer = first.await.expect("an end").expect("an answer, and no cut");
    answer.is_refusal(409, "request-in-progress", "same-key");
    assert_eq!(one.ended().await.code, Some(0));
    upstream.resume();
    let (_two, api) = process(&redis.url(), &upstream, settings).await;
    in_progress_until(&api, "k-1").await.is_run(2);
}

#[redis_test]
async fn late_response_does_not_replace_a_later_run() {
    let (redis, upstream) = (RedisServer::start().await, Upstream::start().await);
    let settings = "lease_ms = 5000\non_crash = \"rerun\"";
    let (paused, api) = process(&redis.url(), &upstream, settings).await;
    let rerun = keylatch_core::idempotency::OnCrash::Rerun;
    let other = guard_orders(&redis.url(), &upstream.url(), |guard| {
        (guard.lease_ms, guard.on_crash) = (5000, rerun);
    })
    .await;
    let first = begin(&api, &upstream, "k-1").await;
    let before = fencing_token(&upstream);
    paused.signal("-STOP");
    // The second run begins when the lease of the first is over, so that its owner surely stands.
    let second_begins = async {
        upstream.begun(2).await;
        upstream.resume();
    };
    let (second, ()) = tokio::join!(in_progress_until(&other, "k-1"), second_begins);
    second.is_run(2);
    assert!(fencing_token(&upstream) > before);
    paused.signal("-CONT");
    // All read one answer, also the client of the run that came too late.
    first.await.expect("an end").expect("an answer").is_replay_of(2);
    other.buy("k-1").await.is_replay_of(2);
    assert_eq!((upstream.runs(), &other.record("k-1").await["attempts"]), (2, &json!(2)));
}
