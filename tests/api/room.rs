//! Goal: however many wait and run, a release and the health check find room.
//!
//! Method: a small service that is filled over connections by hand, with repeats that prefer to
//! wait and with runs that an upstream holds, as strangers can at a public guard.

use keylatch_testkit::{
    Answer, RawConnection, Service, Shop, Upstream, config, eventually, get_request,
};
use serde_json::json;
use tokio::task::JoinHandle;

const TOKEN: &str = "the-token-of-the-holder";
/// Requests and connections.
const ROOM: usize = 20;

/// A service with little room and a guard in front of an upstream that holds every run.
async fn small_service() -> (Service, Upstream) {
    let upstream = Upstream::start().await;
    upstream.hold();
    let mut config = config("memory:");
    (config.server.max_connections, config.server.max_requests) = (ROOM, ROOM);
    config.guard = vec![Shop::guard(&upstream.url())];
    (Service::start_with(config).await, upstream)
}

/// An order on a connection of its own, which is closed once it is answered.
fn order(service: &Service, key: &str, prefer: &str) -> JoinHandle<Answer> {
    let (address, request) = (
        service.address,
        format!(
            "POST /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: {key}\r\n\
             {prefer}Content-Length: 0\r\n\r\n"
        ),
    );
    tokio::spawn(async move {
        let mut wire = RawConnection::sending(address, &request).await;
        wire.answer().await
    })
}

/// Waits until so many are answered, and asserts how.
async fn are_refused(orders: Vec<JoinHandle<Answer>>, refused: usize, status: u16, code: &str) {
    let finished = || orders.iter().filter(|order| order.is_finished()).count();
    eventually(async || (finished() == refused).then_some(())).await;
    for order in orders.into_iter().filter(JoinHandle::is_finished) {
        order.await.expect("an answer").is_problem(status, code);
    }
}

async fn release(service: &Service, name: &str) -> Answer {
    let request = format!(
        "DELETE /v1/locks/{name} HTTP/1.1\r\nHost: localhost\r\nLock-Token: {TOKEN}\r\n\r\n"
    );
    RawConnection::sending(service.address, &request).await.answer().await
}

#[tokio::test]
async fn parked_repeats_and_held_runs_leave_room_for_a_release_and_for_health() {
    let (service, upstream) = small_service().await;
    for name in ["one", "two"] {
        assert_eq!(service.create_as(name, TOKEN, &json!({})).await.status, 201);
    }
    let first = order(&service, "k-1", "");
    upstream.begun(1).await;
    // A quarter of the room is for those that wait there; the others read at once that they would
    // have to.
    let repeats = (0..18).map(|_| order(&service, "k-1", "Prefer: wait=30\r\n")).collect();
    are_refused(repeats, 13, 409, "request-in-progress").await;
    // Those that were refused leave room for as many connections: the first, five that wait and
    // this client are left.
    let are_left = async || service.metric("keylatch_http_connections").await == 7;
    eventually(async || are_left().await.then_some(())).await;
    // Runs get what is left of it, but not the last tenth.
    let runs = (0..17).map(|number| order(&service, &format!("r-{number}"), "")).collect();
    are_refused(runs, 5, 503, "overloaded").await;
    assert!(!first.is_finished());

    assert_eq!(RawConnection::connect(service.address).await.get("/livez").await.status, 200);
    assert_eq!(release(&service, "one").await.status, 204);
    // The same once there are as many connections as may be.
    let mut idle = Vec::new();
    loop {
        let mut wire = RawConnection::connect(service.address).await;
        let alive = wire.get("/livez").await;
        assert_eq!(alive.status, 200, "{alive:?}");
        if alive.header("connection") == "close" {
            break;
        }
        idle.push(wire);
        assert!(idle.len() < ROOM, "the service has more connections than it may");
    }
    assert_eq!(release(&service, "two").await.status, 204);
    let mut other = RawConnection::sending(service.address, &get_request("/v1/info")).await;
    other.answer().await.is_problem(503, "overloaded");
}

/// Strangers wait at a public guard.
#[tokio::test]
async fn repeats_that_wait_leave_places_for_those_that_wait_for_locks() {
    let (service, upstream) = small_service().await;
    assert_eq!(service.create_as("one", TOKEN, &json!({})).await.status, 201);
    let _first = order(&service, "k-1", "");
    upstream.begun(1).await;
    let repeats = (0..11).map(|_| order(&service, "k-1", "Prefer: wait=30\r\n")).collect();
    are_refused(repeats, 6, 409, "request-in-progress").await;
    service.create("one", &json!({"wait_ms": 1})).await.is_problem(409, "lock-held");
}
