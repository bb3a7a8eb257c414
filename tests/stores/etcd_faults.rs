//! Goal: when members of an etcd are killed, stopped or cut off, no answer says more than is known,
//! no request waits for a dead member for longer than it must, and the store works again by itself.
//!
//! Method: clusters of the test's own, whose members get signals, and a proxy before a single one.

use futures_util::future::try_join_all;
use keylatch_core::lock::{AcquireReply, ReleaseReply, Ttl};
use keylatch_core::store::{Effect, Hint, StoreError};
use keylatch_testkit::{
    Acquire, Answer, Api, EtcdCluster, EtcdServer, Event, EventStream, OpenStore, Proxy, Service,
    eventually, soon,
};
use reqwest::Method;
use serde_json::json;

use crate::KEYLATCH;
use crate::failover;
use crate::lock_conformance::{TTL, ask, granted, held, name, token};
use crate::postgres::{
    hears_of, open_by_default as open, open_held_by_default as open_held, release_wakes, until,
};

/// How many requests in a row show that none goes to the dead member.
const REQUESTS: u64 = 50;

#[tokio::test]
async fn killed_member_gets_no_more_requests() {
    let cluster = EtcdCluster::start().await;
    let store = open_held(&cluster.url()).await;
    in_use(&cluster, &store).await.signal("-KILL");
    recovers(&store).await;
    held(store.acquire(&ask("a", "two", 2)).await.unwrap());
}

#[tokio::test]
async fn killed_leader_is_succeeded() {
    let cluster = EtcdCluster::start().await;
    let store = open_held(&cluster.url()).await;
    cluster.members[cluster.leader().await].signal("-KILL");
    recovers(&store).await;
    held(store.acquire(&ask("a", "two", 2)).await.unwrap());
}

#[tokio::test]
async fn stopped_member_gets_no_more_requests() {
    let cluster = EtcdCluster::start().await;
    let store = open_held(&cluster.url()).await;
    let mut changes = store.changes(&name("a"));
    let stopped = in_use(&cluster, &store).await;
    stopped.signal("-STOP");
    let sent = store.release(&name("a"), &token("one")).await.expect_err("it is stopped");
    assert_eq!(sent.effect(), Effect::Unknown, "{sent:?}");
    // It was found out before the time for the call was over.
    assert!(format!("{sent:?}").contains("gives no sign"), "{sent:?}");
    recovers(&store).await;
    // What others write is heard from another member as well.
    until(&mut changes, |hint| *hint == Hint::Missed).await;
    let other = open(&cluster.url()).await;
    release_wakes(&other, &store, "b").await;
    stopped.signal("-CONT");
}

#[tokio::test]
async fn member_that_is_stopped_at_the_start_does_not_keep_from_the_next_one() {
    let cluster = EtcdCluster::start().await;
    cluster.members[0].signal("-STOP");
    let store = open(&cluster.url()).await;
    recovers(&store).await;
    cluster.members[0].signal("-CONT");
}

#[tokio::test]
async fn minority_grants_nothing_and_works_again_as_a_majority() {
    let mut cluster = EtcdCluster::start().await;
    let store = open_held(&cluster.url()).await;
    for member in &cluster.members[1..] {
        member.signal("-KILL");
    }
    // What was under way is unknown; then the member knows of no leader.
    let error = async || {
        let error = store.acquire(&ask("b", "one", 1)).await.expect_err("there is no majority");
        (error.effect() == Effect::NotExecuted).then_some(())
    };
    eventually(error).await;
    assert!(store.look(&name("a")).await.is_err(), "a minority was asked");
    assert!(store.health().await.is_err());
    cluster.members[1].restart().await;
    recovers(&store).await;
    held(store.acquire(&ask("a", "two", 2)).await.unwrap());
}

#[tokio::test]
async fn cluster_that_is_away_executes_nothing() {
    let mut server = EtcdServer::start_with(&[]).await;
    let store = open_held(&server.url("locks")).await;
    server.signal("-KILL");
    let is_away = async || {
        let error = store.acquire(&ask("b", "one", 1)).await.expect_err("it is away");
        (error.effect() == Effect::NotExecuted).then_some(())
    };
    eventually(is_away).await;
    // It is no reason to give up at start either.
    let late = open(&server.url("locks")).await;
    server.restart().await;
    for store in [&store, &late] {
        held(eventually(async || store.acquire(&ask("a", "two", 2)).await.ok()).await);
    }
    let released = store.release(&name("a"), &token("one")).await.unwrap();
    assert_eq!(released, ReleaseReply::Released);
}

#[tokio::test]
async fn lost_answer_is_unknown() {
    let server = EtcdServer::start_with(&[]).await;
    let proxy = Proxy::start(server.address()).await;
    let store = open_held(&format!("etcd://{}/locks", proxy.address())).await;
    // The watch repeats the grant. The proxy would lose that, and cut the connection before the
    // release.
    hears_of(&open(&server.url("locks")).await, &store, "b").await;
    proxy.lose_answers();
    let lost = store.release(&name("a"), &token("one")).await.expect_err("the answer is lost");
    assert!(matches!(lost, StoreError::Lost(_)), "{lost:?}");
    proxy.forward();
    let again = eventually(async || store.acquire(&ask("a", "two", 2)).await.ok()).await;
    granted(again);
}

#[tokio::test]
async fn watch_that_is_cut_says_that_hints_were_missed() {
    let server = EtcdServer::start_with(&[]).await;
    let proxy = Proxy::start(server.address()).await;
    let store = open(&format!("etcd://{}/locks", proxy.address())).await;
    let other = open(&server.url("locks")).await;
    for cut in [Proxy::refuse, Proxy::stall] {
        let mut changes = store.changes(&name("a"));
        cut(&proxy);
        eventually(async || store.health().await.err()).await;
        proxy.forward();
        until(&mut changes, |hint| *hint == Hint::Missed).await;
        release_wakes(&other, &store, "a").await;
        other.release(&name("a"), &token("two")).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_do_not_reach_each_other_grant_nothing() {
    let cluster = EtcdCluster::start_behind_proxies().await;
    let service = Service::by_default(&cluster.url()).await;
    let lease = service.create("a", &json!({})).await;
    cluster.cut();
    let refused = async || {
        let answer = soon("the answer", service.create("b", &json!({}))).await;
        answer.is_problem(503, "store-unavailable");
        (answer.json["outcome"] == "not-executed").then_some(())
    };
    eventually(refused).await;
    soon("the answer", service.look("a")).await.is_problem(503, "store-unavailable");
    cluster.join();
    service.granted("c").await;
    let renewed = eventually(async || {
        let answer = service.renew("a", &lease.token(), &json!({})).await;
        (answer.status != 503).then_some(answer)
    });
    assert_eq!(renewed.await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_of_an_instance_whose_watch_was_compacted_away_is_served() {
    let server = EtcdServer::start_with(&[]).await;
    let instance = KEYLATCH.serve(&["--store", &server.url("locks")], &[]).await;
    let api = Api::at(instance.address);
    let store = open_held(&server.url("locks")).await;
    let waiter = api.request(Method::POST, "/v1/locks/a").json(&json!({"wait_ms": 60_000}));
    let waiter = tokio::spawn(Answer::of(waiter));
    api.has_waiting("a", 1).await;
    let mut events = EventStream::of(api.request(Method::GET, "/v1/locks/b/events")).await;
    events.next("snapshot").await;
    instance.signal("-STOP");
    falls_behind(&server, &store).await;
    store.release(&name("a"), &token("one")).await.unwrap();
    let lease = granted(store.acquire(&ask("b", "one", 1)).await.unwrap());
    let now = server.post("kv/range", &json!({"key": "YQ=="})).await;
    let revision = &now["header"]["revision"];
    server.post("kv/compaction", &json!({"revision": revision, "physical": true})).await;
    instance.signal("-CONT");
    // That watch says no more, and the instance looks for itself.
    let lease = json!(lease.fencing_token.get());
    says(&mut events, |event| event.data["fencing_token"] == lease).await;
    let answer = soon("the grant", waiter).await.unwrap();
    assert_eq!(answer.status, 201, "{answer:?}");
    store.release(&name("b"), &token("one")).await.unwrap();
    // Where its new watch begins later than this, the stream has lagged and shows what there is.
    says(&mut events, |event| event.name == "released" || event.data["held"] == false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_a_stopped_cluster_end_by_their_deadline() {
    let server = EtcdServer::start_with(&[]).await;
    failover::requests_end_by_their_deadline(&server.url("locks"), |signal| server.signal(signal))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn line_goes_over_to_another_leader() {
    let cluster = EtcdCluster::start().await;
    failover::the_line_goes_on(&cluster.url(), async || kill_leader(&cluster).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_go_over_to_another_leader() {
    let cluster = EtcdCluster::start().await;
    failover::what_was_done_is_known(&cluster.url(), async || kill_leader(&cluster).await).await;
}

/// Waits until a stream says something.
async fn says(events: &mut EventStream, is_it: impl Fn(&Event) -> bool) {
    let said = async { while !events.read().await.is_some_and(|event| is_it(&event)) {} };
    soon("the event", said).await;
}

/// Changes a lock with a long queue until etcd has more to say to a watch than it keeps for one
/// that does not read.
async fn falls_behind(server: &EtcdServer, store: &OpenStore) {
    const BEHIND: &str = "etcd_debugging_mvcc_slow_watcher_total";
    granted(store.acquire(&ask("long", "one", 1)).await.unwrap());
    let waiters: Vec<_> = (0..500)
        .map(|waiter| Acquire { queue: Some(TTL), ..ask("long", &format!("waiter {waiter}"), 1) })
        .collect();
    try_join_all(waiters.iter().map(|waiter| store.acquire(waiter))).await.unwrap();
    for change in 0..5000 {
        store.renew(&name("long"), &token("one"), Ttl::MAX).await.unwrap();
        if change % 50 == 0 && server.counts(BEHIND).await > 0.0 {
            return;
        }
    }
    panic!("the watch reads all of it");
}

async fn kill_leader(cluster: &EtcdCluster) {
    cluster.members[cluster.leader().await].signal("-KILL");
}

/// The member that calls go to.
async fn in_use<'a>(cluster: &'a EtcdCluster, store: &OpenStore) -> &'a EtcdServer {
    let address = store.health().await.unwrap().facts["member"].clone();
    cluster.members.iter().find(|member| member.address() == address).expect("a member")
}

/// Waits until the store works again. From the first success on nothing fails: no request goes to a
/// member that is dead.
async fn recovers(store: &OpenStore) {
    let first = eventually(async || store.acquire(&ask("first", "one", 1)).await.ok()).await;
    assert!(!matches!(first, AcquireReply::Busy(_)), "{first:?}");
    for request in 0..REQUESTS {
        granted(store.acquire(&ask(&format!("lock {request}"), "one", 1)).await.unwrap());
    }
}
