//! Goal: when members of an ensemble are killed, stopped or forget everything, no answer says more than is
//! known, and the store works again without a restart of keylatch.
//!
//! Method: servers and ensembles of the test's own, which get signals.

use keylatch_core::store::{Effect, Hint};
use keylatch_testkit::{Ensemble, Service, ZookeeperServer, eventually, soon};
use serde_json::json;

use crate::failover;
use crate::lock_conformance::{ask, granted, held, name, token};
use crate::postgres::{open, release_wakes, until};

#[tokio::test]
async fn killed_server_executes_nothing_and_comes_back_with_what_it_knew() {
    let mut server = ZookeeperServer::start().await;
    let store = open(&server.url("a")).await;
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
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
    let store = open(&server.url("a")).await;
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
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
async fn lost_session_is_replaced_and_watchers_are_told() {
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
    let services =
        [Service::start(&ensemble.url("a")).await, Service::start(&ensemble.url("a")).await];
    for (member, lock) in [(follower, "a"), (leader, "b")] {
        member.signal("-STOP");
        for service in &services {
            failover::granted(service, &format!("{lock}-{}", service.address)).await;
        }
        member.signal("-CONT");
        ensemble.serves().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ensemble_without_a_majority_answers_so_until_it_has_one() {
    let mut ensemble = Ensemble::start().await;
    let service = Service::start(&ensemble.url("a")).await;
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
    failover::granted(&service, "b").await;
    let renewed = service.renew("a", &lease.token(), &json!({})).await;
    assert_eq!(renewed.status, 200, "{renewed:?}");
}
