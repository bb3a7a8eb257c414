//! Goal: the process ends on SIGTERM with code 0 and without losing a request in progress.
//!
//! Method: processes with half-open, idle and busy connections and with a Redis that hangs.

use std::time::Duration;

use keylatch_testkit::{
    Api, Process, RawConnection, RedisServer, default_config, eventually, post_head, redis_test,
};
use serde_json::json;
use tokio::net::TcpStream;

use crate::KEYLATCH;

/// How long supervisors wait between SIGTERM and SIGKILL.
const LIMIT: Duration = Duration::from_secs(10);
const HALF_A_HEAD: &str = "GET /livez HTTP/1.1\r\nHost:";

#[tokio::test]
async fn sigterm_and_sigint_end_the_process_despite_half_open_connections() {
    tokio::join!(ends_in_time("-TERM"), ends_in_time("-INT"));
}

async fn ends_in_time(signal: &str) {
    let process = KEYLATCH.serve(&[], &[]).await;
    let _silent = RawConnection::connect(process.address).await;
    let _half_a_head = RawConnection::sending(process.address, HALF_A_HEAD).await;
    let _half_a_body = RawConnection::sending(process.address, &post_head("/v1/locks/a", 2)).await;
    let mut idle = RawConnection::connect(process.address).await;
    assert_eq!(idle.get("/livez").await.status, 200);
    let mut half_a_second_head = RawConnection::connect(process.address).await;
    assert_eq!(half_a_second_head.get("/livez").await.status, 200);
    half_a_second_head.send(HALF_A_HEAD).await;

    process.signal(signal);
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[redis_test]
async fn hanging_redis_does_not_prevent_shutdown() {
    let redis = RedisServer::start().await;
    let soon = [("KEYLATCH_STORE_TIMEOUT_MS", "2000")];
    let process = KEYLATCH.serve(&["--store", &redis.url()], &soon).await;
    let _half_a_head = RawConnection::sending(process.address, HALF_A_HEAD).await;
    let mut stuck = RawConnection::connect(process.address).await;
    assert_eq!(stuck.get("/readyz").await.status, 200);
    redis.pause();
    stuck.send(&post_head("/v1/locks/a", 0)).await;
    in_flight(&process, 1).await;

    process.signal("-TERM");
    let answer = stuck.answer().await;
    answer.is_problem(503, "store-unavailable");
    assert_eq!(answer.json["outcome"], "unknown", "{answer:?}");
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn default_timeouts_end_before_sigkill() {
    let config = default_config("memory:");
    // After the drain, nothing waits but for one answer of the store.
    let end = Duration::from_millis(config.server.drain_timeout_ms + config.store_timeout_ms);
    assert!(end < LIMIT, "{end:?}");
}

#[tokio::test]
async fn shutdown_closes_idle_connections_at_once() {
    let environment = [
        ("KEYLATCH_SERVER_DRAIN_TIMEOUT_MS", "600000"),
        ("KEYLATCH_LOG_LEVEL", "warn,keylatch=info"),
    ];
    let process = KEYLATCH.serve(&[], &environment).await;
    let mut idle = RawConnection::connect(process.address).await;
    assert_eq!(idle.get("/livez").await.status, 200);
    process.signal("-TERM");
    idle.closed().await;
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("SIGTERM"), "the log says why: {ended:?}");
}

#[tokio::test]
async fn shutdown_answers_requests_in_progress_and_refuses_new_connections() {
    let process = KEYLATCH.serve(&[], &[]).await;
    let address = process.address;
    let mut slow = RawConnection::sending(address, &post_head("/v1/locks/a", 2)).await;
    in_flight(&process, 1).await;

    process.signal("-TERM");
    eventually(async || TcpStream::connect(address).await.err()).await;
    slow.send("{}").await;
    let answer = slow.answer().await;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(answer.header("connection"), "close", "{answer:?}");
    slow.closed().await;
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(TcpStream::connect(address).await.is_err(), "a process still listens");
}

#[redis_test]
async fn waiters_read_503_at_once_and_keep_their_place_in_the_store() {
    let redis = RedisServer::start().await;
    let environment = [("KEYLATCH_SERVER_DRAIN_TIMEOUT_MS", "600000")];
    let [leaving, staying] = [
        KEYLATCH.serve(&["--store", &redis.url()], &environment).await,
        KEYLATCH.serve(&["--store", &redis.url()], &environment).await,
    ];
    let (api, other) = (Api::at(leaving.address), Api::at(staying.address));
    let (holder, waiter) = ("a-token-of-the-holders", "a-token-of-the-waiters");
    assert_eq!(other.create_as("a", holder, &json!({})).await.status, 201);
    let wait = json!({"wait_ms": 60_000});
    let (answer, ()) = tokio::join!(api.create_as("a", waiter, &wait), async {
        other.has_waiting("a", 1).await;
        leaving.signal("-TERM");
    });
    answer.is_problem(503, "overloaded");
    assert_eq!(answer.json["outcome"], "not-executed", "{answer:?}");
    assert_eq!(leaving.ended().await.code, Some(0));
    assert_eq!(other.look("a").await.json["waiting"], 1, "its place is gone");
}

#[tokio::test]
async fn request_past_the_drain_timeout_is_cut() {
    let environment = [
        ("KEYLATCH_SERVER_DRAIN_TIMEOUT_MS", "200"),
        ("KEYLATCH_SERVER_BODY_TIMEOUT_MS", "600000"),
        ("KEYLATCH_SERVER_REQUEST_TIMEOUT_MS", "600000"),
    ];
    let process = KEYLATCH.serve(&[], &environment).await;
    let mut never = RawConnection::sending(process.address, &post_head("/v1/locks/a", 2)).await;
    in_flight(&process, 1).await;
    process.signal("-TERM");
    never.closed().await;
    assert_eq!(process.ended().await.code, Some(0));
}

/// Waits until the service has `count` requests, besides the one that asks.
async fn in_flight(process: &Process, count: usize) {
    let line = format!("keylatch_http_in_flight {}", count + 1);
    eventually(async || {
        let metrics = RawConnection::connect(process.address).await.get("/metrics").await;
        metrics.text.lines().any(|found| found == line).then_some(())
    })
    .await;
}
