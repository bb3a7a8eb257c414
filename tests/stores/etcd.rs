//! Goal: an etcd that a team already has keeps locks for a user who may do no more than it must;
//! all instances hear of each other's changes; and keylatch refuses what is too large for etcd.
//!
//! Method: prefixes, users and limits of the test's own on real servers; what the store does is
//! seen through its port, over HTTP, and in the log.

use base64::Engine as _;
use futures_util::future::try_join_all;
use keylatch_core::lock::AcquireReply;
use keylatch_core::store::{Effect, StoreError, Tier};
use keylatch_testkit::{Acquire, Answer, Api, EtcdServer, OpenStore, Service, empty_etcd};
use reqwest::Method;
use serde_json::{Value, json};

use crate::KEYLATCH;
use crate::lock_conformance::{TTL, ask, granted, held, list_all, name, token, ttl};
use crate::postgres::{everything_works, hears_of, open, open_error, open_held, release_wakes};
use crate::record_conformance as records;
use crate::redis_records::is_refused_with_advice;
use crate::zookeeper::{floor_of, same_bucket};

/// The password of every user of the tests.
const PASSWORD: &str = "s3cret";
/// A token of a client's own.
const OWN: &str = "a-token-of-the-clients-own";

#[tokio::test]
async fn user_without_rights_reads_what_is_wrong_and_no_password() {
    let server = EtcdServer::start_with(&[]).await;
    let anonymous = server.url("locks");
    let with = |user: &str, password: &str| {
        anonymous.replace("etcd://", &format!("etcd://{user}:{password}@"))
    };
    let error = open_error(&with("keylatch", PASSWORD)).await;
    assert!(
        error.contains("authentication is not enabled") && !error.contains(PASSWORD),
        "{error}"
    );
    Users::create(&server).await;
    for (url, why) in [
        (anonymous.clone(), "user name is empty"),
        (with("keylatch", "an0ther"), "invalid user ID or password"),
        (with("reader", PASSWORD), "permission denied"),
        (with("keylatch", PASSWORD).replace("locks", "other"), "permission denied"),
    ] {
        let error = open_error(&url).await;
        assert!(error.contains(why), "no `{why}` in: {error}");
        assert!(!error.contains(PASSWORD) && !error.contains("an0ther"), "{error}");
    }
    everything_works(&open(&with("keylatch", PASSWORD)).await).await;
}

#[tokio::test]
async fn token_that_is_not_valid_any_more_is_renewed() {
    let server = EtcdServer::start_with(&[]).await;
    let users = Users::create(&server).await;
    let url = server.url("locks").replace("etcd://", &format!("etcd://keylatch:{PASSWORD}@"));
    let store = open_held(&url).await;
    // A change of the password, to the same one, ends the user's tokens.
    users.post("auth/user/changepw", &json!({"name": "keylatch", "password": PASSWORD})).await;
    granted(store.acquire(&ask("b", "one", 1)).await.unwrap());
    held(store.acquire(&ask("a", "two", 2)).await.unwrap());
}

#[tokio::test]
async fn members_of_two_clusters_are_an_error() {
    let (one, other) = (EtcdServer::start_with(&[]).await, EtcdServer::start_with(&[]).await);
    let error = open_error(&format!("etcd://{},{}", one.address(), other.address())).await;
    assert!(error.contains("of two clusters"), "{error}");
}

#[tokio::test]
async fn prefixes_keep_their_locks_apart() {
    let server = EtcdServer::shared().await;
    let (one, other) = (open(&server.url("team/one")).await, open(&server.url("team/other")).await);
    for store in [&one, &other] {
        granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    }
    one.release(&name("a"), &token("one")).await.unwrap();
    held(other.acquire(&ask("a", "two", 2)).await.unwrap());
}

/// With so many rows a page is read in ranges that end between their keys, which are near one
/// another and far apart.
#[tokio::test]
async fn pages_of_many_locks_have_each_once() {
    let store = open(&empty_etcd().await).await;
    let names: Vec<_> = (0..4000_u64).map(|number| format!("job {}", number.pow(2))).collect();
    let acquire = async |text: &String| {
        store.acquire(&Acquire { ttl: ttl(TTL * 60), ..ask(text, "one", 1) }).await
    };
    for replies in try_join_all(names.iter().map(acquire)).await.unwrap() {
        granted(replies);
    }
    for limit in [1000, 64] {
        let listed = list_all(&store, "", limit).await;
        let listed: Vec<_> = listed.iter().map(|holder| holder.name.as_str()).collect();
        let mut expected: Vec<_> = names.iter().map(String::as_str).collect();
        expected.sort_unstable();
        assert!(listed == expected, "pages of {limit} have {} of {}", listed.len(), names.len());
    }
}

#[tokio::test]
async fn rows_of_another_format_are_refused_with_advice_and_stay() {
    let url = empty_etcd().await;
    let (server, (_, prefix)) = (EtcdServer::shared().await, url.rsplit_once('/').unwrap());
    let encode = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    let floor = [b"f", &[name("free").bucket()][..]].concat();
    let keys = [b"la".to_vec(), floor].map(|key| encode(&[prefix.as_bytes(), b"/", &key].concat()));
    for key in &keys {
        server.post("kv/put", &json!({"key": key, "value": encode(&[2, 0])})).await;
    }
    let store = open(&url).await;
    is_refused_with_advice(&store.acquire(&ask("a", "one", 1)).await.unwrap_err());
    is_refused_with_advice(&store.look(&name("a")).await.unwrap_err());
    is_refused_with_advice(&store.acquire(&ask("free", "one", 1)).await.unwrap_err());
    granted(store.acquire(&ask("of another bucket", "one", 1)).await.unwrap());
    for key in &keys {
        let found = server.post("kv/range", &json!({"key": key})).await;
        assert_eq!(found["kvs"][0]["value"], encode(&[2, 0]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_instances_gets_a_lock() {
    let url = empty_etcd().await;
    let stores = try_join_all((0..4).map(async |_| Ok::<_, ()>(open(&url).await))).await.unwrap();
    for lock in 0..50 {
        let asks: Vec<_> = (0..stores.len())
            .map(|instance| ask(&format!("lock {lock}"), &format!("instance {instance}"), 1))
            .collect();
        let asking = stores.iter().zip(&asks).map(|(store, ask)| store.acquire(ask));
        let replies = try_join_all(asking).await.unwrap();
        let grants = replies.iter().filter(|reply| matches!(reply, AcquireReply::Granted(_)));
        assert_eq!(grants.count(), 1, "{replies:?}");
    }
}

#[tokio::test]
async fn waiter_and_watcher_hear_of_another_process() {
    let url = empty_etcd().await;
    let (one, other) = (open(&url).await, open(&url).await);
    release_wakes(&one, &other, "b").await;
    hears_of(&one, &other, "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn version_with_known_defects_is_advised_against() {
    let service = KEYLATCH.serve(&["--store", &empty_etcd().await], &[]).await;
    let info = Api::at(service.address).get("/v1/info").await;
    let store = &info.json["store"];
    assert_eq!((&store["kind"], &store["tier"]), (&json!("etcd"), &json!("strict")));
    let version = store["facts"]["version"].as_str().expect("a version").to_owned();
    let advice = store["advice"][0].as_str().unwrap_or_default().to_owned();
    let log = service.ended_by("-TERM").await.stderr;
    // The tests run on what the machine has; Debian 12 has 3.4.23.
    let is_old = version.starts_with("3.4.2");
    assert_eq!(advice.contains("upgrade to 3.4.36"), is_old, "{store}");
    assert_eq!(log.contains("upgrade to 3.4.36"), is_old, "{log}");
}

#[tokio::test]
async fn full_database_leaves_unknown_and_says_what_to_do() {
    let server = EtcdServer::start_with(&["--quota-backend-bytes=4000000"]).await;
    let store = open(&server.url("locks")).await;
    assert_eq!(store.health().await.unwrap().tier, Tier::Strict);
    let refused = fill(&store).await;
    assert!(matches!(refused, StoreError::Full(_)), "{refused:?}");
    assert_eq!(refused.effect(), Effect::Unknown, "{refused:?}");
    let health = store.health().await.unwrap();
    assert!(health.advice.iter().any(|advice| advice.contains("is full")), "{health:?}");
    assert!(health.facts["alarms"].contains("NOSPACE") && health.is_full, "{health:?}");
}

/// Writes large answers until there is no room for one.
async fn fill(store: &OpenStore) -> StoreError {
    let large = large_answer(400_000);
    let write = async |record| {
        store.begin(&records::ask(record, "one")).await?;
        let end = records::done(large);
        store.complete(&records::key(record), &records::token("one"), end).await
    };
    for record in 0..100 {
        if let Err(refused) = write(record).await {
            return refused;
        }
    }
    panic!("the database is not full")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_database_is_named_on_readyz_too_and_takes_releases() {
    let server = EtcdServer::start_with(&["--quota-backend-bytes=4000000"]).await;
    let url = server.url("locks");
    let service = KEYLATCH.serve(&["--store", &url], &[]).await;
    let api = Api::at(service.address);
    let hold = async |lock: &str| {
        let held = api.create_as(lock, OWN, &json!({"ttl_ms": 600_000})).await;
        assert_eq!(held.status, 201, "{held:?}");
    };
    for lock in ["a", "b", "in a set", "in the same set"] {
        hold(lock).await;
    }
    fill(&open(&url).await).await;
    let refused = api.create_as("new", OWN, &json!({})).await;
    refused.is_problem(503, "store-full");
    assert_eq!(refused.json["outcome"], "unknown", "{refused:?}");
    api.get("/readyz").await.is_problem(503, "store-full");
    assert_eq!(api.get("/livez").await.status, 200);
    assert_eq!(api.release("a", OWN).await.status, 204);
    // Also beside a change that is refused.
    let body = json!({});
    let (refused, released) =
        tokio::join!(api.create_as("newer", OWN, &body), api.release("b", OWN));
    refused.is_problem(503, "store-full");
    assert_eq!(released.status, 204, "{released:?}");
    let set = "/v1/locks?name=in%20a%20set&name=in%20the%20same%20set";
    let released = api.request(Method::DELETE, set).header("lock-token", OWN);
    let released = Answer::of(released).await;
    assert_eq!(released.status, 204, "{released:?}");
    for lock in ["a", "b", "in a set", "in the same set"] {
        api.look(lock).await.is_problem(404, "lock-not-held");
    }
}

#[tokio::test]
async fn creation_is_above_a_floor_that_was_raised_since_it_was_read() {
    let server = EtcdServer::start_with(&[]).await;
    let store = open(&server.url("locks")).await;
    let first = granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    let (bucket, same) = same_bucket();
    let raised = first.fencing_token.get() + 3_600_000_000;
    let encode = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    let (key, value) = (encode(&[b"locks/f", &[bucket][..]].concat()), encode(&floor_of(raised)));
    server.post("kv/put", &json!({"key": key, "value": value})).await;
    let second = granted(store.acquire(&ask(&same, "one", 2)).await.unwrap());
    assert!(second.fencing_token.get() > raised, "the floor that was read before was good enough");
    let conflicts = store.gauges().conflicts;
    assert!((1..=2).contains(&conflicts), "{conflicts} tries by a floor that was refused");
}

#[tokio::test]
async fn batch_that_is_larger_than_a_request_is_carried_out() {
    let store = open(&empty_etcd().await).await;
    let large = large_answer(400_000);
    for record in 0..12 {
        records::started(store.begin(&records::ask(record, "one")).await.unwrap());
    }
    let (first, token) = (records::key(0), records::token("one"));
    let first = store.complete(&first, &token, records::done(large));
    // While the first is under way, the others make one batch.
    let keys: Vec<_> = (1..12).map(records::key).collect();
    let others =
        try_join_all(keys.iter().map(|key| store.complete(key, &token, records::done(large))));
    let (first, others) = tokio::join!(first, others);
    records::kept(first.unwrap());
    others.unwrap().into_iter().for_each(|completed| drop(records::kept(completed)));
}

#[tokio::test]
async fn answer_that_etcd_does_not_take_is_too_large() {
    let store = open(&empty_etcd().await).await;
    records::started(store.begin(&records::ask(1, "one")).await.unwrap());
    let (key, token) = (records::key(1), records::token("one"));
    let error = store.complete(&key, &token, records::done(large_answer(1_500_000))).await;
    let error = error.expect_err("it is too large");
    assert!(matches!(error, StoreError::TooLarge { limit: 1_400_000, .. }), "{error:?}");
    records::kept(store.complete(&key, &token, records::done("small")).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn line_that_is_full_takes_no_more_waiters() {
    let url = empty_etcd().await;
    let store = open_held(&url).await;
    let waiters = (0..1000).map(|waiter| {
        let store = store.clone();
        let waiter = Acquire { queue: Some(TTL), ..ask("a", &format!("waiter {waiter}"), 1) };
        async move { store.acquire(&waiter).await }
    });
    try_join_all(waiters).await.unwrap();
    // By its configuration, the service would take ten times as many.
    let service = Service::start(&url).await;
    let late = service.create("a", &json!({"wait_ms": 60_000})).await;
    late.is_problem(429, "too-many-waiters");
    store.release(&name("a"), &token("one")).await.unwrap();
}

/// An answer of so many bytes.
fn large_answer(bytes: usize) -> &'static str {
    Box::leak("x".repeat(bytes).into_boxed_str())
}

/// The users of a server, with the rights that the documents name.
struct Users<'a> {
    server: &'a EtcdServer,
    token: String,
}

impl<'a> Users<'a> {
    async fn create(server: &'a EtcdServer) -> Self {
        for (user, role) in [("root", "root"), ("keylatch", "locks"), ("reader", "reading")] {
            let roles = async |method: &str, body: Value| server.post(method, &body).await;
            roles("auth/role/add", json!({"name": role})).await;
            roles("auth/user/add", json!({"name": user, "password": PASSWORD})).await;
            roles("auth/user/grant", json!({"user": user, "role": role})).await;
        }
        for (role, kind) in [("locks", "READWRITE"), ("reading", "READ")] {
            // "locks/" to "locks0", as etcdctl has it with --prefix.
            let keys = json!({"permType": kind, "key": "bG9ja3Mv", "range_end": "bG9ja3Mw"});
            let grant = json!({"name": role, "perm": keys});
            server.post("auth/role/grant", &grant).await;
        }
        server.post("auth/enable", &json!({})).await;
        Self { server, token: server.authenticate("root", PASSWORD).await }
    }

    async fn post(&self, method: &str, body: &Value) {
        self.server.post_as(&self.token, method, body).await;
    }
}
