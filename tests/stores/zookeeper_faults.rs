//! Goal: when members of an ensemble are killed, stopped or forget everything, no answer says more
//! than is known, and the store works again without a restart of keylatch.
//!
//! Method: servers and ensembles of the test's own, which get signals, and a proxy before a single
//! one. How soon the store works again is counted in sessions that the ensemble takes meanwhile,
//! one after the other.

use std::time::Duration;

use keylatch_core::lock::Ttl;
use keylatch_core::store::{Effect, Hint};
use keylatch_testkit::{
    Acquire, Ensemble, OpenStore, Proxy, Service, ZookeeperRoot, ZookeeperServer, eventually, soon,
};
use serde_json::json;
use tokio::time::Instant;

use crate::failover;
use crate::lock_conformance::{ask, granted, held, name, token};
use crate::postgres::{
    open_by_default as open, open_held_by_default as open_held, release_wakes, until,
};

/// How many sessions an ensemble takes at most until a store that lost it works again. It tries
/// each member ten times a second; the pauses of the client by itself grow to seconds.
const SESSIONS: u32 = 150;
/// How long a lease is.
const TTL: Duration = Duration::from_secs(60);

#[tokio::test]
async fn killed_server_executes_nothing_and_comes_back_with_what_it_knew() {
    let mut server = ZookeeperServer::start().await;
    let store = open_held(&server.url("a")).await;
    server.signal("-KILL");
    let is_down = async || {
        let error = store.acquire(&ask("b", "one", 1)).await.expect_err("the server is down");
        // The first may have been sent.
        (error.effect() == Effect::NotExecuted).then_some(())
    };
    eventually(is_down).await;
    assert!(store.health().await.is_err());
    server.restart().await;
    held(eventually(async || store.acquire(&ask("a", "two", 2)).await.ok()).await);
    granted(store.acquire(&ask("c", "one", 2)).await.unwrap());
}

#[tokio::test]
async fn stopped_server_leaves_unknown_what_was_sent() {
    let server = ZookeeperServer::start().await;
    let store = open_held(&server.url("a")).await;
    server.signal("-STOP");
    let sent = store.release(&name("a"), &token("one")).await.expect_err("it is stopped");
    assert_eq!(sent.effect(), Effect::Unknown, "{sent:?}");
    // There is no connection that this could be sent on.
    let unsent = store.release(&name("a"), &token("one")).await.expect_err("it is stopped");
    assert_eq!(unsent.effect(), Effect::NotExecuted, "{unsent:?}");
    server.signal("-CONT");
    eventually(async || store.release(&name("a"), &token("one")).await.ok()).await;
    granted(store.acquire(&ask("a", "two", 2)).await.unwrap());
}

#[tokio::test]
async fn server_that_is_down_at_start_is_no_error() {
    let mut server = ZookeeperServer::start().await;
    server.signal("-KILL");
    let store = open(&server.url("a")).await;
    let error = store.acquire(&ask("a", "one", 1)).await.expect_err("the server is down");
    assert_eq!(error.effect(), Effect::NotExecuted, "{error:?}");
    server.restart().await;
    granted(eventually(async || store.acquire(&ask("a", "one", 2)).await.ok()).await);
}

#[tokio::test]
async fn start_without_a_server_does_not_wait_for_one() {
    let began = Instant::now();
    // Nothing listens there.
    open("zookeeper://127.0.0.1:1/a").await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test]
async fn lost_session_is_replaced_and_watchers_read_missed() {
    let mut server = ZookeeperServer::start().await;
    let (one, other) = (open(&server.url("a")).await, open(&server.url("a")).await);
    granted(one.acquire(&ask("a", "one", 1)).await.unwrap());
    let mut changes = other.changes(&name("a"));
    server.signal("-KILL");
    // It knows neither the sessions nor the tree.
    server.restart_empty().await;
    until(&mut changes, |hint| *hint == Hint::Missed).await;
    let free = async || other.acquire(&ask("a", "two", 2)).await.ok();
    granted(eventually(free).await);
    eventually(async || one.look(&name("a")).await.ok().flatten()).await;
    release_wakes(&one, &other, "b").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn line_goes_over_to_another_leader() {
    let ensemble = Ensemble::start().await;
    let (leader, _) = ensemble.leader_and_follower().await;
    failover::the_line_goes_on(&ensemble.url("a"), async || leader.signal("-KILL")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_go_over_to_another_leader() {
    let ensemble = Ensemble::start().await;
    let (leader, _) = ensemble.leader_and_follower().await;
    failover::what_was_done_is_known(&ensemble.url("a"), async || leader.signal("-KILL")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_member_is_left_for_another_one() {
    let ensemble = Ensemble::start().await;
    let (leader, follower) = ensemble.leader_and_follower().await;
    let services = [
        Service::by_default(&ensemble.url("a")).await,
        Service::by_default(&ensemble.url("a")).await,
    ];
    for (member, lock) in [(follower, "a"), (leader, "b")] {
        member.signal("-STOP");
        for service in &services {
            service.granted(&format!("{lock}-{}", service.address)).await;
        }
        member.signal("-CONT");
        ensemble.serves().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ensemble_without_a_majority_answers_so_until_it_has_one() {
    let mut ensemble = Ensemble::start().await;
    let service = Service::by_default(&ensemble.url("a")).await;
    let lease = service.create("a", &json!({})).await;
    for member in &ensemble.members[..2] {
        member.signal("-KILL");
    }
    let refused = async || {
        let answer = soon("the answer", service.create("b", &json!({}))).await;
        answer.is_problem(503, "store-unavailable");
        (answer.json["outcome"] == "not-executed").then_some(())
    };
    eventually(refused).await;
    for member in &mut ensemble.members[..2] {
        member.restart().await;
    }
    ensemble.serves().await;
    let sessions = sessions_until(&ensemble.members[2], service.granted("b")).await;
    assert!(sessions < SESSIONS, "{sessions} sessions");
    let renewed = service.renew("a", &lease.token(), &json!({})).await;
    assert_eq!(renewed.status, 200, "{renewed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_that_is_behind_refuses_nothing() {
    let ensemble = Ensemble::start_behind_proxies().await;
    let leader = ensemble.leader().await;
    let follower = (leader + 1) % ensemble.members.len();
    let behind = open(&ensemble.members[follower].url("a")).await;
    let store = open_held(&ensemble.members[leader].url("a")).await;
    held(behind.acquire(&ask("a", "two", 2)).await.unwrap());
    ensemble.cut_off(follower);
    store.release(&name("a"), &token("one")).await.unwrap();
    // What this member has still says that it is held.
    let refused = behind.acquire(&ask("a", "two", 3)).await;
    assert!(refused.is_err(), "{refused:?}");
}

#[tokio::test]
async fn watch_that_is_cut_says_that_hints_were_missed() {
    let (root, proxy) = behind_a_proxy().await;
    let (store, other) = (open(&url(&root, &proxy).await).await, open(&root.url()).await);
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

#[tokio::test]
async fn new_session_with_the_same_ensemble_prolongs_no_lease() {
    let (root, proxy) = behind_a_proxy().await;
    let store = held_and_cut_off(&root, &proxy).await;
    proxy.forward();
    eventually(async || store.look(&name("a")).await.ok()).await;
    root.pass(TTL / 5).await;
    granted(store.acquire(&ask("a", "two", 2)).await.unwrap());
}

#[tokio::test]
async fn lease_gets_its_time_again_where_the_ensemble_may_have_been_restored() {
    let (root, proxy) = behind_a_proxy().await;
    let store = held_and_cut_off(&root, &proxy).await;
    root.pass(TTL / 3).await;
    proxy.forward();
    held(eventually(async || store.acquire(&ask("a", "two", 2)).await.ok()).await);
}

/// A store that has seen a lease for most of its time, and has just lost its member.
async fn held_and_cut_off(root: &ZookeeperRoot, proxy: &Proxy) -> OpenStore {
    let store = open(&url(root, proxy).await).await;
    let ttl = Ttl::from_millis(TTL.as_millis().try_into().unwrap()).unwrap();
    let lease = Acquire { ttl, ..ask("a", "one", 1) };
    granted(store.acquire(&lease).await.unwrap());
    root.pass(TTL * 5 / 6).await;
    store.look(&name("a")).await.unwrap().expect("it is held");
    proxy.refuse();
    eventually(async || store.look(&name("a")).await.err()).await;
    store
}

async fn behind_a_proxy() -> (ZookeeperRoot, Proxy) {
    let proxy = Proxy::start(ZookeeperServer::shared().await.address()).await;
    (ZookeeperRoot::create().await, proxy)
}

async fn url(root: &ZookeeperRoot, proxy: &Proxy) -> String {
    let server = ZookeeperServer::shared().await.address();
    root.url().replace(&server, &proxy.address().to_string())
}

/// How many sessions a server takes, one after the other, until something is done.
async fn sessions_until<T>(server: &ZookeeperServer, done: impl Future<Output = T>) -> u32 {
    let mut sessions = 0;
    let taking = async {
        loop {
            server.serves().await;
            sessions += 1;
        }
    };
    tokio::select! {
        biased;
        _ = done => {}
        () = taking => {}
    }
    sessions
}
