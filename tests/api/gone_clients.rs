//! Goal: the service misses a client that goes away with something behind its request (an empty
//! line, another request, or more than the service reads ahead) as if it had sent the request
//! alone.
//!
//! Method: raw connections that send such bytes behind a wait, a hold or a watch and then close.
//! The tests wait for the queue, the lock and the gauges to show that nothing of the client is
//! left.

use std::time::Duration;

use keylatch_testkit::{RawConnection, Service, config, eventually, get_request, post_head};
use reqwest::StatusCode;
use serde_json::json;

const LONG_MS: u64 = 3_600_000;
const HOLDER: &str = "a-token-of-the-holder-of-the-lock";

/// What a client may have sent behind its request.
fn behind() -> [String; 3] {
    let second = post_head("/v1/locks/second", 2) + "{}";
    [String::from("\r\n"), second, get_request("/v1/locks/deploy")]
}

/// A service that writes nothing by itself to a stream: a write would find out that its reader is
/// gone.
async fn service() -> Service {
    let mut config = config("memory:");
    config.stream.heartbeat_ms = LONG_MS;
    Service::start_with(config).await
}

async fn hold(service: &Service) {
    let held = service.create_as("deploy", HOLDER, &json!({"ttl_ms": LONG_MS})).await;
    assert_eq!(held.status, 201, "{held:?}");
}

/// A request that waits for `deploy` for longer than any test lasts.
fn wait() -> String {
    asks("/v1/locks/deploy")
}

fn asks(path: &str) -> String {
    let body = format!(r#"{{"wait_ms":300000,"ttl_ms":{LONG_MS}}}"#);
    post_head(path, body.len()) + &body
}

async fn is(service: &Service, status: u16) {
    let status = StatusCode::from_u16(status).unwrap();
    eventually(async || (service.look("deploy").await.status == status).then_some(())).await;
}

#[tokio::test]
async fn waiter_that_sends_more_while_it_waits_leaves_queue() {
    let service = service().await;
    hold(&service).await;
    // The service has a limit on what it takes in before it has answered.
    for more in ["\r\n".to_owned(), "x".repeat(15_000)] {
        let mut waiter = RawConnection::sending(service.address, &wait()).await;
        service.has_waiting("deploy", 1).await;
        for _ in 0..3 {
            waiter.send(&more[..more.len() / 2]).await;
            // Has the service take in what was sent, before more follows.
            assert!(waiter.stays_open(Duration::from_millis(20)).await);
            waiter.send(&more[more.len() / 2..]).await;
        }
        drop(waiter);
        service.has_waiting("deploy", 0).await;
    }
}

#[tokio::test]
async fn lock_is_not_granted_to_gone_client_with_bytes_behind_its_request() {
    let service = service().await;
    for round in 0..20 {
        hold(&service).await;
        let more = &behind()[round % 3];
        let waiter = RawConnection::sending(service.address, &(wait() + more)).await;
        service.has_waiting("deploy", 1).await;
        // Its turn comes just after it went.
        waiter.hang_up().await;
        assert_eq!(service.release("deploy", HOLDER).await.status, 204);
        is(&service, 404).await;
    }
}

#[tokio::test]
async fn hold_with_bytes_behind_its_request_releases_lock() {
    let service = service().await;
    for more in behind() {
        let request = asks("/v1/locks/deploy/hold") + &more;
        let holder = RawConnection::sending(service.address, &request).await;
        is(&service, 200).await;
        let waiter = RawConnection::sending(service.address, &request).await;
        service.has_waiting("deploy", 1).await;
        drop(waiter);
        service.has_waiting("deploy", 0).await;
        drop(holder);
        is(&service, 404).await;
    }
}

#[tokio::test]
async fn watch_with_bytes_behind_its_request_ends() {
    const WATCHES: &str = "keylatch_http_streams{kind=\"watch\"}";
    let service = service().await;
    for more in behind() {
        let request = get_request("/v1/locks/deploy/events") + &more;
        let watcher = RawConnection::sending(service.address, &request).await;
        service.reaches(WATCHES, 1).await;
        drop(watcher);
        service.reaches(WATCHES, 0).await;
    }
}

/// As the README says of every client that does so before it has read the answer.
#[tokio::test]
async fn client_that_ends_its_side_behind_another_request_counts_as_gone() {
    let service = service().await;
    hold(&service).await;
    for more in behind() {
        let mut waiter = RawConnection::sending(service.address, &(wait() + &more)).await;
        service.has_waiting("deploy", 1).await;
        waiter.finish().await;
        waiter.closed().await;
        service.has_waiting("deploy", 0).await;
    }
}

#[tokio::test]
async fn request_behind_a_waiting_one_is_answered_after_it() {
    let service = service().await;
    hold(&service).await;
    let token = "a-token-of-one-that-waits";
    let body = r#"{"wait_ms":300000}"#;
    let waits = format!(
        "POST /v1/locks/deploy HTTP/1.1\r\nHost: localhost\r\nLock-Token: {token}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut waiter =
        RawConnection::sending(service.address, &(waits + &get_request("/livez").repeat(500)))
            .await;
    service.has_waiting("deploy", 1).await;
    assert_eq!(service.release("deploy", HOLDER).await.status, 204);
    let granted = waiter.answer().await;
    assert_eq!((granted.status.as_u16(), granted.token().as_str()), (201, token), "{granted:?}");
    for _ in 0..500 {
        assert_eq!(waiter.answer().await.status, 200);
    }
}

#[tokio::test]
async fn hundreds_of_waiters_that_close_at_once_leave_nothing() {
    // Both ends of each connection are files of this process.
    rlimit::increase_nofile_limit(4096).expect("more open files");
    let service = service().await;
    hold(&service).await;
    let mut waiters = Vec::new();
    for number in 0..300 {
        let more = &behind()[number % 3];
        let waiter = RawConnection::sending(service.address, &(wait() + more)).await;
        // Every second one goes before the service can have read what it asks for.
        if number % 2 == 0 {
            waiters.push(waiter);
        }
    }
    service.has_waiting("deploy", 150).await;
    drop(waiters);
    service.has_waiting("deploy", 0).await;
    assert_eq!(service.look("second").await.status, 404, "a request of a gone client was served");
    let alone = async || {
        let connections = service.metric("keylatch_http_connections").await;
        let requests = service.metric("keylatch_http_in_flight").await;
        (connections == 1 && requests == 1).then_some(())
    };
    eventually(alone).await;
    assert_eq!(service.release("deploy", HOLDER).await.status, 204);
    is(&service, 404).await;
}
