//! Goal: a guard of the Rust client holds all locks of its set, or says in time that it does not,
//! and which of them it lost.
//!
//! Method: the client against a process, through a proxy that loses and cuts; the metrics count its
//! requests.

use std::time::Duration;

use keylatch_client::{
    AcquireOptions, Client, Error, FOREVER, Holder, Limit, LossReason, ReleaseReply, SetGuard,
    Token,
};
use keylatch_testkit::{Service, eventually, soon};
use keylatch_wire::Code;
use serde_json::json;

use crate::rust_client::{by_proxy, client, for_millis, lost, waiting, with_client};

async fn guard(client: &Client, names: &[&str], options: &AcquireOptions) -> SetGuard {
    let all = client.lock_all(names.iter().copied(), options);
    soon("the locks", all).await.expect("they are free")
}

async fn held(client: &Client, names: &[&str], options: &AcquireOptions) -> (String, Holder) {
    match soon("the locks", client.lock_all(names.iter().copied(), options)).await {
        Err(Error::Held(held)) => (held.name, held.holder.expect("a holder")),
        other => panic!("{names:?} are held: {other:?}"),
    }
}

fn one_of_set(lost: &str, reason: LossReason) -> LossReason {
    LossReason::OneOfSet { name: lost.to_owned(), reason: Box::new(reason) }
}

/// How many requests about locks were answered, by method, route and status.
async fn count(service: &Service, method: &str, route: &str, status: u16) -> u64 {
    let of = format!(
        "keylatch_http_request_duration_seconds_count{{method=\"{method}\",route=\"{route}\",\
         status=\"{status}\"}}"
    );
    service.metric(&of).await
}

async fn is_free(service: &Service, name: &str) {
    service.look(name).await.is_problem(404, "lock-not-held");
}

#[tokio::test]
async fn set_guard_shows_each_lock_and_releases_all() {
    let (service, client) = with_client().await;
    let names = ["b", "a/b c", "..", "ünï%2F{x}?#&name=c+d"];
    let options = AcquireOptions { owner: Some("alice".to_owned()), ..for_millis(30_000) };
    let guard = guard(&client, &names, &options).await;
    assert!(guard.locks().iter().map(|lock| lock.name.as_str()).eq(names), "{guard:?}");
    let valid = guard.valid_for();
    assert!(valid > Duration::from_secs(20) && valid < Duration::from_secs(30), "{valid:?}");
    let list = service.get("/v1/locks").await;
    for lock in list.json["locks"].as_array().expect("locks") {
        let leased = guard.lock(lock["name"].as_str().expect("a name")).expect("its lock");
        assert_eq!(lock["fencing_token"], leased.fencing_token.get(), "{lock}");
        assert_eq!((&lock["owner"], leased.slot), (&json!("alice"), None));
    }
    assert_eq!(guard.lock("c"), None);
    assert_eq!(guard.close().await.expect("an answer"), ReleaseReply::Released);
    assert_eq!(service.get("/v1/locks").await.json["locks"], json!([]));
    assert_eq!(count(&service, "DELETE", "/v1/locks", 204).await, 1);
}

#[tokio::test]
async fn set_is_renewed_past_its_ttl_by_one_request() {
    let (service, client) = with_client().await;
    let guard = guard(&client, &["a", "b"], &for_millis(5000)).await;
    for lock in ["a", "b"] {
        // Another client waits for longer than the TTL and does not get the lock.
        let patient = AcquireOptions { wait: Duration::from_secs(6), ..for_millis(5000) };
        let refused = soon("the lock", client.try_lock(lock, &patient)).await;
        assert!(matches!(refused, Ok(None)), "{refused:?}");
    }
    assert_eq!(guard.loss(), None);
    assert!(count(&service, "PUT", "/v1/locks", 200).await > 0);
    assert_eq!(count(&service, "PUT", "/v1/locks/{name}", 200).await, 0);
    assert_eq!(guard.close().await.expect("an answer"), ReleaseReply::Released);
}

#[tokio::test]
async fn waiting_set_is_granted_after_the_release_of_its_last_lock() {
    let (service, client) = with_client().await;
    let before = service.create("b", &json!({"ttl_ms": 60_000})).await;
    let options = waiting(for_millis(30_000));
    let release = async {
        let is_in_line = async || (service.look("b").await.json["waiting"] == 1).then_some(());
        eventually(is_in_line).await;
        assert_eq!(service.release("b", &before.token()).await.status, 204);
    };
    let (guard, ()) = tokio::join!(guard(&client, &["a", "b"], &options), release);
    let fencing_token = guard.lock("b").expect("its lock").fencing_token;
    assert!(fencing_token.get() > before.fencing_token());
    assert!(guard.valid_for() > Duration::from_secs(10), "{guard:?}");
}

#[tokio::test]
async fn counted_set_has_a_slot_of_each_lock() {
    let (service, client) = with_client().await;
    let limit = Limit::Counted(2);
    let options = AcquireOptions { limit, ..for_millis(30_000) };
    let before = service.create("b", &json!({"mode": "shared", "limit": 2})).await;
    assert_eq!(before.json["slot"], 0, "{before:?}");
    let guard = guard(&client, &["a", "b"], &options).await;
    let slots: Vec<_> = guard.locks().iter().map(|lock| lock.slot).collect();
    assert_eq!(slots, [Some(0), Some(1)]);
}

#[tokio::test]
async fn lost_lock_is_named_and_the_others_are_released() {
    let (service, client) = with_client().await;
    let guard = guard(&client, &["a", "b", "c"], &for_millis(3000)).await;
    assert_eq!(service.release("b", guard.token().expose()).await.status, 204);
    let other = service.create("b", &json!({"ttl_ms": 60_000})).await;
    let why = lost(&guard).await;
    assert_eq!(why, one_of_set("b", LossReason::TakenOver));
    assert_eq!(why.to_string(), "`b`: the lease has ended: another client holds the lock");
    assert_eq!(guard.close().await.expect("an answer"), ReleaseReply::Mismatch);
    is_free(&service, "a").await;
    is_free(&service, "c").await;
    assert_eq!(service.look("b").await.fencing_token(), other.fencing_token(), "of another");
}

#[tokio::test]
async fn broken_lock_of_a_set_is_named_with_the_reason() {
    let (service, client) = with_client().await;
    let guard = guard(&client, &["a", "b"], &for_millis(3000)).await;
    let fencing_token = guard.locks()[1].fencing_token.get();
    service.break_lease("b", fencing_token).await;
    assert_eq!(
        lost(&guard).await,
        one_of_set("b", LossReason::Broken { reason: "it hangs".to_owned(), by: None })
    );
}

#[tokio::test]
async fn set_is_released_when_its_guard_is_dropped_or_was_never_had() {
    let (service, proxy, client) = by_proxy().await;
    drop(guard(&client, &["a", "b"], &for_millis(30_000)).await);
    service.is_free("b").await;
    is_free(&service, "a").await;
    proxy.lose_answers();
    let unheard = client.lock_all(["a", "b"], &for_millis(60_000)).await;
    assert!(matches!(unheard, Err(Error::Unanswered(_))), "{unheard:?}");
    proxy.forward();
    soon("the release", client.close()).await;
    is_free(&service, "a").await;
    is_free(&service, "b").await;
}

#[tokio::test]
async fn lost_answers_of_a_set_are_repeated() {
    let (service, proxy, client) = by_proxy().await;
    proxy.lose_answers();
    let options = waiting(for_millis(60_000));
    let granted = async {
        let lease = async || {
            let look = service.look("b").await;
            (look.status == 200).then_some(look)
        };
        let fencing_token = eventually(lease).await.fencing_token();
        proxy.forward();
        fencing_token
    };
    let (guard, granted) = tokio::join!(guard(&client, &["a", "b"], &options), granted);
    assert_eq!(guard.locks()[1].fencing_token.get(), granted, "the same grant");
    proxy.lose_answers();
    let released = async {
        service.is_free("a").await;
        proxy.forward();
    };
    let (closed, ()) = tokio::join!(guard.close(), released);
    assert_eq!(closed.expect("an answer"), ReleaseReply::Released);
}

#[tokio::test]
async fn kept_set_is_renewed_and_stays_with_its_token() {
    let (service, client) = with_client().await;
    let outer = guard(&client, &["a", "b", "c"], &for_millis(6000)).await;
    let token = Some(outer.token().clone());
    let options = AcquireOptions { token, keep: true, ..for_millis(2000) };
    let inner = guard(&client, &["c", "a"], &options).await;
    assert_eq!(inner.locks()[1].fencing_token, outer.locks()[0].fencing_token);
    eventually(async || (count(&service, "PUT", "/v1/locks", 200).await > 0).then_some(())).await;
    assert_eq!(inner.close().await.expect("an answer"), ReleaseReply::Released);
    drop(guard(&client, &["b", "a"], &options).await);
    soon("the releases", client.close()).await;
    for lock in outer.locks() {
        let look = service.look(&lock.name).await;
        assert_eq!(look.fencing_token(), lock.fencing_token.get(), "{look:?}");
    }
    assert_eq!(outer.close().await.expect("an answer"), ReleaseReply::Released);
}

#[tokio::test]
async fn entry_of_a_set_is_refused() {
    let options = AcquireOptions { entry: Some("step 1".to_owned()), ..AcquireOptions::default() };
    let (_service, client) = with_client().await;
    let refused = client.lock_all(["a", "b"], &options).await;
    assert!(matches!(&refused, Err(Error::Problem(it)) if it.is(Code::InvalidBody)), "{refused:?}");
}

#[tokio::test]
async fn holder_of_one_lock_does_not_wait_for_the_set() {
    let service = Service::start("memory:").await;
    let token = Token::generate().expect("a token");
    assert_eq!(service.create_as("a", token.expose(), &json!({})).await.status, 201);
    assert_eq!(service.create("b", &json!({"owner": "bob"})).await.status, 201);
    let client = client(&service);
    let options = AcquireOptions { token: Some(token), wait: FOREVER, ..AcquireOptions::default() };
    let (name, holder) = held(&client, &["a", "b"], &options).await;
    assert_eq!((&*name, holder.owner.as_deref()), ("b", Some("bob")));
    soon("the releases", client.close()).await;
    assert_eq!(service.look("a").await.status, 200, "it released what the token had before");
}
