//! Goal: a guard of the Rust client holds its lock, or says in time that it does not.
//!
//! Method: the client against a process, through a proxy that loses, delays and cuts.

use std::time::Duration;

use keylatch_client::{
    AcquireOptions, Client, Error, FOREVER, Holder, Lease, Limit, LockGuard, LossReason,
    ReleaseReply,
};
use keylatch_testkit::{Proxy, RedisServer, Service, eventually, redis_test, soon};
use serde_json::json;

use crate::KEYLATCH;

pub(crate) fn client(service: &Service) -> Client {
    Client::new(&service.url()).expect("a URL")
}

pub(crate) fn for_millis(ttl: u64) -> AcquireOptions {
    AcquireOptions { ttl: Duration::from_millis(ttl), ..AcquireOptions::default() }
}

pub(crate) fn waiting(options: AcquireOptions) -> AcquireOptions {
    AcquireOptions { wait: Duration::from_secs(15), ..options }
}

/// A service, a proxy in front of it, and a client that goes through the proxy.
pub(crate) async fn by_proxy() -> (Service, Proxy, Client) {
    let (service, proxy) = Service::behind_proxy().await;
    let client = Client::new(&proxy.http_url()).expect("a URL");
    (service, proxy, client)
}

/// A service, and a client of it.
pub(crate) async fn with_client() -> (Service, Client) {
    let service = Service::start("memory:").await;
    let client = client(&service);
    (service, client)
}

/// Waits until the guard or run is lost; says why.
pub(crate) async fn lost(lease: &Lease) -> LossReason {
    soon("the loss", lease.lost().cancelled()).await;
    lease.loss().expect("it is lost")
}

pub(crate) async fn guard(client: &Client, lock: &str, options: &AcquireOptions) -> LockGuard {
    soon("the lock", client.lock(lock, options)).await.expect("it is free")
}

async fn held(client: &Client, lock: &str, options: &AcquireOptions) -> Holder {
    match soon("the lock", client.lock(lock, options)).await {
        Err(Error::Held(held)) if held.name == lock => held.holder.expect("a holder"),
        other => panic!("{lock} is held: {other:?}"),
    }
}

#[tokio::test]
async fn guard_shows_its_lease_and_releases_it() {
    let (service, client) = with_client().await;
    let options = AcquireOptions { owner: Some("alice".to_owned()), ..for_millis(30_000) };
    for lock in ["deploy", "a/b c", "..", "ünï%2F{x}?#"] {
        let guard = guard(&client, lock, &options).await;
        assert_eq!(guard.name(), lock);
        let valid = guard.valid_for();
        assert!(valid > Duration::from_secs(20) && valid < Duration::from_secs(30), "{valid:?}");
        assert!(!guard.lost().is_cancelled());

        let holder = held(&client, lock, &options).await;
        assert_eq!(holder.owner.as_deref(), Some("alice"));
        assert_eq!(holder.fencing_token, guard.fencing_token().get());
        let list = service.get("/v1/locks").await;
        assert_eq!(list.json["locks"][0]["name"], lock, "{list:?}");

        assert_eq!(guard.close().await.expect("an answer"), ReleaseReply::Released);
        let list = service.get("/v1/locks").await;
        assert_eq!(list.json["locks"], json!([]), "{list:?}");
    }
}

#[tokio::test]
async fn lease_granted_late_in_a_wait_has_its_full_ttl() {
    let (service, client) = with_client().await;
    service.create("a", &json!({"ttl_ms": 1500})).await;
    let guard = guard(&client, "a", &waiting(for_millis(20_000))).await;
    assert!(guard.valid_for() > Duration::from_secs(15), "{guard:?}");
    let left = service.look("a").await.json["expires_in_ms"].as_u64().expect("a lock");
    assert!(guard.valid_for() < Duration::from_millis(left), "{guard:?}");
}

#[tokio::test]
async fn nearly_expired_lease_is_renewed_before_use() {
    let (service, proxy, client) = by_proxy().await;
    proxy.lose_answers();
    let options = waiting(for_millis(4000));
    let nearly_over = async {
        let little = async || {
            let left = service.look("a").await.json["expires_in_ms"].as_u64();
            left.is_some_and(|left| left < 1500).then_some(())
        };
        eventually(little).await;
        let fencing_token = service.look("a").await.fencing_token();
        proxy.forward();
        fencing_token
    };
    let (guard, granted) = tokio::join!(guard(&client, "a", &options), nearly_over);
    assert_eq!(guard.fencing_token().get(), granted, "the same grant");
    assert!(guard.valid_for() > Duration::from_secs(2), "{guard:?}");
}

#[tokio::test]
async fn dropped_guard_releases_its_lock() {
    let (service, client) = with_client().await;
    drop(guard(&client, "a", &for_millis(30_000)).await);
    soon("the release", client.close()).await;
    assert_eq!(service.look("a").await.status, 404);
}

#[redis_test]
async fn expired_lock_is_reported_lost() {
    let (redis, service) = Service::on_redis().await;
    let guard = guard(&client(&service), "a", &for_millis(1500)).await;
    redis.run::<()>(&["FLUSHALL"]).await;
    assert_eq!(lost(&guard).await, LossReason::NotHeld);
    assert_eq!(guard.close().await.expect("an answer"), ReleaseReply::NotHeld);
}

#[redis_test]
async fn lock_held_by_another_is_reported_lost() {
    let (redis, service) = Service::on_redis().await;
    let guard = guard(&client(&service), "a", &for_millis(3000)).await;
    redis.run::<()>(&["FLUSHALL"]).await;
    let other = service.create("a", &json!({})).await;
    assert_eq!(other.status, 201, "{other:?}");
    assert_eq!(lost(&guard).await, LossReason::TakenOver);
    assert_eq!(guard.close().await.expect("an answer"), ReleaseReply::Mismatch);
    assert_eq!(
        service.look("a").await.fencing_token(),
        other.fencing_token(),
        "the other still holds it"
    );
}

#[tokio::test]
async fn refused_upgrade_is_reported_at_once_and_changes_nothing() {
    let (service, client) = with_client().await;
    let shared = AcquireOptions { limit: Limit::Shared, ..for_millis(60_000) };
    let readers = [guard(&client, "a", &shared).await, guard(&client, "a", &shared).await];
    let token = Some(readers[0].token().clone());
    // Without the refusal it would wait for as long as a client can.
    let alone = AcquireOptions { token, wait: FOREVER, ..for_millis(60_000) };
    let holder = held(&client, "a", &alone).await;
    assert_eq!(holder.fencing_token, readers[0].fencing_token().get());
    soon("the releases", client.close()).await;
    assert_eq!(service.look("a").await.json["holding"], 2, "a reader lost its lease");
}

#[tokio::test]
async fn other_server_is_refused_at_once() {
    let service = Service::start("memory:").await;
    let elsewhere = Client::new(&format!("http://{}/elsewhere", service.address)).expect("a URL");
    let refused = elsewhere.lock("a", &waiting(for_millis(30_000))).await;
    let is_not_found =
        |error: &Error| matches!(error, Error::Problem(problem) if problem.status == 404);
    assert!(refused.as_ref().is_err_and(is_not_found), "{refused:?}");
}

#[test]
fn invalid_url_is_refused() {
    for url in [
        "",
        "http://",
        "ftp://host",
        "http://user:sesame@host",
        "http://h/?a",
        "a b",
        "h:70a",
        "h:70000",
    ] {
        let error = Client::new(url).expect_err(url);
        assert!(matches!(error, Error::Settings(_)), "{url}: {error}");
        assert!(!error.to_string().contains("sesame"), "{error}");
    }
    for url in ["localhost:7070", "http://h", "https://h/keylatch/", "http://[::1]:7070"] {
        Client::new(url).expect(url);
    }
}

/// The service renewed the lock and stopped, and its last event was still on the way: a client that
/// counted from when it read the event would believe for as much longer that it holds the lock.
#[redis_test]
async fn late_event_does_not_lengthen_a_hold() {
    let redis = RedisServer::start().await;
    let environment = [("KEYLATCH_STREAM_HEARTBEAT_MS", "60000")];
    let renewing = KEYLATCH.serve(&["--store", &redis.url()], &environment).await;
    let other = Service::start(&redis.url()).await;
    let proxy = Proxy::start(renewing.address.to_string()).await;
    let holder = Client::new(&proxy.http_url()).expect("a URL");
    let held = soon("the hold", holder.hold("a", &for_millis(9000))).await.expect("it is free");
    proxy.delay(Duration::from_secs(3));
    eventually(async || (proxy.disturbed() > 0).then_some(())).await;
    renewing.signal("-STOP");
    assert!(!held.lost().is_cancelled());

    let next = guard(&client(&other), "a", &waiting(for_millis(30_000))).await;
    assert_eq!(held.valid_for(), Duration::ZERO, "two hold the lock");
    assert!(matches!(lost(&held).await, LossReason::Unrenewed(_)));
    assert!(next.fencing_token() > held.fencing_token());
    renewing.signal("-CONT");
}
