//! Goal: a watch reports every change of a lock in order, or says that it has missed some.
//!
//! Method: streams of server-sent events while locks change on this and on another instance; a
//! reader that is too slow.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use keylatch_core::lock::{
    AcquireRequest, Acquisition, LockName, LockService, Token, Ttl, WaiterLimits, WatchEvent,
};
use keylatch_testkit::{
    Api, EventStream, RedisServer, Service, eventually, redis_test, refusal_of, soon, store_test,
};
use reqwest::Method;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::KEYLATCH;

const TOKEN: &str = "a-token-of-the-holder-of-the-lock";

#[store_test(memory)]
async fn watch_begins_with_a_snapshot(service: &Service) {
    let mut events = watch(service).await;
    let free = events.next("snapshot").await;
    assert_eq!((free.data, free.id.as_str()), (json!({"held": false, "owner": null}), "0-1"));
    let held = service.create("deploy", &json!({"owner": "the holder"})).await;
    let mut events = watch(service).await;
    let snapshot = events.next("snapshot").await;
    assert_eq!(snapshot.id, format!("{}-1", held.fencing_token()));
    let seen = service.look("deploy").await.json;
    assert_eq!(snapshot.data["held"], true);
    for member in ["name", "owner", "fencing_token", "acquired_at", "waiting"] {
        assert_eq!(snapshot.data[member], seen[member], "{member}");
    }
    assert!(snapshot.data["expires_in_ms"].as_u64().unwrap() > 20_000, "{snapshot:?}");
}

#[store_test(service)]
async fn events_arrive_in_order(service: &Service) {
    let mut events = watch(service).await;
    events.next("snapshot").await;
    let held = service.create("deploy", &json!({"owner": "the holder", "ttl_ms": 60_000})).await;
    service.renew("deploy", &held.token(), &json!({"ttl_ms": 90_000})).await;
    service.release("deploy", &held.token()).await;
    let acquired = events.next("acquired").await;
    assert_eq!(
        (acquired.fencing_token(), &acquired.data["owner"]),
        (held.fencing_token(), &json!("the holder"))
    );
    let renewed = events.next("renewed").await;
    assert!(renewed.data["expires_in_ms"].as_u64().unwrap() > 80_000, "{renewed:?}");
    let released = events.next("released").await;
    let ended =
        json!({"name": "deploy", "owner": "the holder", "fencing_token": held.fencing_token()});
    assert_eq!(released.data, ended);
    for (number, event) in (2..).zip([&acquired, &renewed, &released]) {
        assert_eq!(event.id, format!("{}-{number}", held.fencing_token()));
        assert!(!event.data.to_string().contains(&held.token()), "{event:?}");
    }
}

#[store_test(service)]
async fn handover_is_two_events(service: &Service) {
    let first = service.create_as("deploy", TOKEN, &json!({})).await;
    let mut events = watch(service).await;
    events.next("snapshot").await;
    let next = service.request(Method::POST, "/v1/locks/deploy/hold");
    let mut next = EventStream::of(next.json(&json!({"wait_ms": 60_000}))).await;
    next.next("waiting").await;
    service.release("deploy", TOKEN).await;
    assert_eq!(events.next("released").await.fencing_token(), first.fencing_token());
    assert_eq!(
        events.next("acquired").await.fencing_token(),
        next.next("acquired").await.fencing_token()
    );
}

#[store_test(service)]
async fn short_grants_are_all_reported(service: &Service) {
    let mut events = watch(service).await;
    events.next("snapshot").await;
    for round in 0..20 {
        let held = service.create_as("deploy", TOKEN, &json!({})).await;
        assert_eq!(service.release("deploy", TOKEN).await.status, 204);
        assert_eq!(events.next("acquired").await.fencing_token(), held.fencing_token(), "{round}");
        assert_eq!(events.next("released").await.fencing_token(), held.fencing_token(), "{round}");
    }
}

#[redis_test]
async fn events_of_another_instance_arrive() {
    let redis = RedisServer::start().await;
    let there = Service::start(&redis.url()).await;
    let here = Service::start(&redis.url()).await;
    let mut events = watch(&here).await;
    events.next("snapshot").await;
    // Until the other instance hears of the watch, only a look finds this.
    let first = there.create_as("deploy", TOKEN, &json!({})).await;
    assert_eq!(events.next("acquired").await.fencing_token(), first.fencing_token());
    there.release("deploy", TOKEN).await;
    events.next("released").await;
    for round in 0..100 {
        let held = there.create_as("deploy", TOKEN, &json!({})).await;
        there.renew("deploy", TOKEN, &json!({"ttl_ms": 60_000})).await;
        there.release("deploy", TOKEN).await;
        assert_eq!(events.next("acquired").await.fencing_token(), held.fencing_token(), "{round}");
        events.next("renewed").await;
        events.next("released").await;
    }
}

#[redis_test]
async fn nothing_is_published_without_watchers() {
    let (redis, service) = Service::on_redis().await;
    let mut messages = redis.messages("keylatch:changes").await;
    let cycle = async || {
        service.create_as("deploy", TOKEN, &json!({})).await;
        service.renew("deploy", TOKEN, &json!({})).await;
        assert_eq!(service.release("deploy", TOKEN).await.status, 204);
    };
    cycle().await;
    let _events = watch(&service).await;
    let first = soon("a message", messages.next()).await.expect("a message");
    assert!(first.starts_with("watched\n"), "{first:?}");
    cycle().await;
    let kinds = messages.filter_map(async |message| {
        message.split('\n').next().filter(|kind| *kind != "watched").map(str::to_owned)
    });
    let heard: Vec<_> = soon("three messages", kinds.take(3).collect()).await;
    assert_eq!(heard, ["row", "row", "row"], "one for each change");
}

#[redis_test]
async fn missed_events_are_reported_with_a_snapshot() {
    let (redis, service) = Service::on_redis().await;
    let mut events = watch(&service).await;
    events.next("snapshot").await;
    let held = service.create("deploy", &json!({})).await;
    events.next("acquired").await;
    let killed: u64 = redis.run(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    assert_eq!(killed, 1);
    events.next("lagged").await;
    assert_eq!(events.next("snapshot").await.fencing_token(), held.fencing_token());
    service.release("deploy", &held.token()).await;
    events.next("released").await;
}

#[tokio::test]
async fn slow_reader_gets_lagged() {
    let (service, name) = in_memory();
    let watched = service.watch(name.clone(), CancellationToken::new()).await;
    let mut events = watched.expect("the store answers");
    let ttl = Ttl::from_millis(60_000).unwrap();
    let token = grant(&service, ttl).await;
    for _ in 0..1000 {
        let _ = service.renew(&name, &token, ttl).await;
        tokio::task::yield_now().await;
    }
    service.leave(&name, &token, None).await.expect("the store answers");
    let mut seen = Vec::new();
    loop {
        let event = soon("an event", events.recv()).await.expect("an event");
        let snapshot = matches!(event, WatchEvent::Snapshot(None));
        seen.push(event);
        if snapshot && seen.len() > 1 {
            break;
        }
    }
    assert!(seen.len() < 100, "{} events were kept for a slow reader", seen.len());
    assert!(matches!(seen[seen.len() - 2], WatchEvent::Lagged), "{seen:?}");
}

/// On tokio's paused clock, which jumps to the next timer whenever every task waits. So the time
/// that passes is that of timers alone, on any machine.
#[tokio::test(start_paused = true)]
async fn expiry_event_comes_at_the_expiry() {
    let (service, name) = in_memory();
    grant(&service, Ttl::from_millis(5200).unwrap()).await;
    let begun = Instant::now();
    let watched = service.watch(name, CancellationToken::new()).await;
    let mut events = watched.expect("the store answers");
    assert!(matches!(events.recv().await, Some(WatchEvent::Snapshot(Some(_)))));
    assert!(matches!(events.recv().await, Some(WatchEvent::Expired(_))));
    let late = begun.elapsed().saturating_sub(Duration::from_millis(5200));
    assert!(late < Duration::from_millis(100), "{late:?}");
}

/// More of them than take up changes at once, on any machine, and each with all that a watcher may
/// have unread.
#[tokio::test(start_paused = true)]
async fn unread_watches_keep_no_other_watcher_waiting() {
    let (service, name) = in_memory();
    let watch = async || {
        let watched = service.watch(name.clone(), CancellationToken::new()).await;
        watched.expect("the store answers")
    };
    let mut unread = Vec::new();
    for _ in 0..1000 {
        unread.push(watch().await);
    }
    let ttl = Ttl::from_millis(60_000).unwrap();
    let token = grant(&service, ttl).await;
    for _ in 0..40 {
        tokio::time::advance(Duration::from_millis(20)).await;
        service.renew(&name, &token, ttl).await.expect("the store answers");
    }
    let mut events = watch().await;
    assert!(matches!(events.recv().await, Some(WatchEvent::Snapshot(Some(_)))));
    service.leave(&name, &token, None).await.expect("the store answers");
    let released = soon("the release", events.recv()).await;
    assert!(matches!(released, Some(WatchEvent::Released(_))), "{released:?}");
}

/// A watcher of a lock that changes all the time reads in one go what has come in a few
/// milliseconds.
#[tokio::test(start_paused = true)]
async fn first_change_comes_at_once_and_those_after_it_together() {
    let (service, name) = in_memory();
    let ttl = Ttl::from_millis(60_000).unwrap();
    let token = grant(&service, ttl).await;
    let watched = service.watch(name.clone(), CancellationToken::new()).await;
    let mut events = watched.expect("the store answers");
    assert!(matches!(events.recv().await, Some(WatchEvent::Snapshot(Some(_)))));
    let renew = async || {
        tokio::time::advance(Duration::from_micros(100)).await;
        service.renew(&name, &token, ttl).await.expect("the store answers");
        Instant::now()
    };
    let mut renewed = async || {
        assert!(matches!(events.recv().await, Some(WatchEvent::Renewed(_))));
        Instant::now()
    };
    let first = renew().await;
    assert_eq!(renewed().await, first, "the first change had to wait");
    for _ in 0..5 {
        renew().await;
    }
    let next = renewed().await;
    assert!((5..=11).contains(&(next - first).as_millis()), "{:?}", next - first);
    for _ in 1..5 {
        assert_eq!(renewed().await, next, "a change came apart from the others");
    }
}

#[tokio::test(start_paused = true)]
async fn change_that_gathers_comes_before_the_end() {
    let (service, name) = in_memory();
    let leaving = CancellationToken::new();
    let watched = service.watch(name.clone(), leaving.clone()).await;
    let mut events = watched.expect("the store answers");
    assert!(matches!(events.recv().await, Some(WatchEvent::Snapshot(None))));
    let token = grant(&service, Ttl::from_millis(60_000).unwrap()).await;
    assert!(matches!(events.recv().await, Some(WatchEvent::Acquired(_))));
    service.leave(&name, &token, None).await.expect("the store answers");
    leaving.cancel();
    assert!(matches!(events.recv().await, Some(WatchEvent::Released(_))));
    assert!(matches!(events.recv().await, Some(WatchEvent::Closing)));
}

#[tokio::test(start_paused = true)]
async fn unread_watch_ends() {
    let (service, name) = in_memory();
    let watched = service.watch(name, CancellationToken::new()).await;
    let mut events = watched.expect("the store answers");
    assert!(matches!(events.recv().await, Some(WatchEvent::Snapshot(None))));
    drop(events);
    // The service waits for all watches.
    soon("the end", service.close()).await;
}

#[tokio::test]
async fn stream_ends_with_the_service() {
    let process = KEYLATCH.serve(&[], &[]).await;
    let mut events = watch(&Api::at(process.address)).await;
    events.next("snapshot").await;
    process.signal("-TERM");
    events.next("closing").await;
    events.ended().await;
    assert_eq!(process.ended().await.code, Some(0));
}

#[tokio::test]
async fn stream_ends_after_its_event_limit() {
    let service = Service::start("memory:").await;
    let request = service.request(Method::GET, "/v1/locks/deploy/events?limit=2");
    let mut events = EventStream::of(request).await;
    events.next("snapshot").await;
    service.create("deploy", &json!({})).await;
    events.next("acquired").await;
    events.ended().await;
}

#[tokio::test]
async fn invalid_watch_is_refused_before_the_stream() {
    let service = Service::set(|config| config.stream.max_streams = 1).await;
    for query in ["limit=0", "limit=x", "limit=1&limit=1", "limit=1&a=1", "ttl_ms=1"] {
        let path = format!("/v1/locks/deploy/events?{query}");
        refusal_of(service.request(Method::GET, &path)).await.is_problem(400, "invalid-query");
    }
    let path = "/v1/locks/%00/events";
    refusal_of(service.request(Method::GET, path)).await.is_problem(400, "invalid-name");
    let path = "/v1/locks/deploy/events";
    refusal_of(service.request(Method::POST, path)).await.is_problem(405, "method-not-allowed");
    let first = watch(&service).await;
    refusal_of(service.request(Method::GET, path)).await.is_problem(503, "overloaded");
    drop(first);
    eventually(async || {
        let answer = service.request(Method::GET, &format!("{path}?limit=1")).send().await.unwrap();
        (answer.status() == 200).then_some(())
    })
    .await;
}

#[redis_test]
async fn unreachable_store_is_refused_before_the_stream() {
    let (mut redis, service) = Service::on_redis().await;
    let mut events = watch(&service).await;
    events.next("snapshot").await;
    redis.kill().await;
    let request = service.request(Method::GET, "/v1/locks/deploy/events");
    refusal_of(request).await.is_problem(503, "store-unavailable");
    redis.restart().await;
    let held = async || {
        let held = service.create("deploy", &json!({})).await;
        (held.status == 201).then(|| held.fencing_token())
    };
    let fencing_token = eventually(held).await;
    loop {
        let event = soon("an event", events.read()).await.expect("the stream continues");
        if event.name == "acquired" || event.data["held"] == true {
            assert_eq!(event.fencing_token(), fencing_token);
            break;
        }
    }
}

async fn watch(service: &Api) -> EventStream {
    EventStream::of(service.request(Method::GET, "/v1/locks/deploy/events")).await
}

/// A service over nothing but memory, and the name of a lock.
fn in_memory() -> (Arc<LockService>, LockName) {
    let limits = WaiterLimits { each: 1, all: 1 };
    let store = keylatch_stores::memory();
    let service = LockService::start(store, Duration::from_secs(1), limits).expect("a service");
    (Arc::new(service), LockName::parse("deploy").unwrap())
}

async fn grant(service: &LockService, ttl: Ttl) -> Token {
    let request = AcquireRequest::new(LockName::parse("deploy").unwrap(), ttl);
    let Ok(Acquisition::New(grant)) = service.acquire(request).await else { panic!("a grant") };
    grant.token
}
