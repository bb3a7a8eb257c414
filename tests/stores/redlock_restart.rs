//! Goal: a Redlock node that may have forgotten a grant does not vote until every such lease has
//! ended.
//!
//! Method: nodes that are killed and started again, with and without their data.

use std::error::Error as _;
use std::time::Duration;

use keylatch_core::lock::AcquireReply;
use keylatch_core::store::Effect;
use keylatch_testkit::{
    Acquire, RedisServer, RedlockNodes, Service, config, eventually, open_redlock, redlock_url,
};
use serde_json::json;

use crate::lock_conformance::{ask, granted, name, ttl};

#[tokio::test]
async fn empty_restarted_node_does_not_vote() {
    let mut nodes = RedlockNodes::start().await;
    let service = Service::start_with(nodes.config_with_silent_nodes()).await;
    let lease = held_by_three(&mut nodes, &service).await;
    // Of the three that gave the lock one forgets it, and the two that never heard of it come up.
    nodes[2].kill().await;
    nodes[2].restart_empty(&[]).await;
    nodes.restart_all([3, 4]).await;
    voting(&service, "4").await;
    let second = service.create("deploy", &json!({})).await;
    assert_ne!(second.status, 201, "a second grant: {second:?}");
    // Two nodes release the lock, two do not hold it, and the fifth has no vote: no quorum.
    assert_eq!(service.release("deploy", &lease).await.status, 503);
    assert_eq!(service.get("/v1/info").await.json["store"]["tier"], "fenced");
}

#[tokio::test]
async fn durable_restarted_node_votes_at_once() {
    let mut nodes = RedlockNodes::start().await;
    let service = Service::start_with(nodes.config_with_silent_nodes()).await;
    let lease = held_by_three(&mut nodes, &service).await;
    nodes[2].kill().await;
    nodes.restart_all([2, 3, 4]).await;
    voting(&service, "5").await;
    service.create("deploy", &json!({})).await.is_problem(409, "lock-held");
    assert_eq!(service.release("deploy", &lease).await.status, 204);
    assert_eq!(service.get("/v1/info").await.json["store"]["tier"], "strict");
}

/// While it reads what it wrote, a Redis says that it writes nothing.
#[tokio::test]
async fn durable_node_votes_once_its_log_is_read() {
    let mut nodes = RedlockNodes::start().await;
    let service = Service::start_with(nodes.config_with_silent_nodes()).await;
    let many = "for key = 1, 10000 do redis.call('SET', key, key) end";
    let () = nodes[4].run(&["EVAL", many, "0"]).await;
    nodes[4].kill().await;
    let asking = async {
        loop {
            service.get("/v1/info").await;
        }
    };
    tokio::select! {
        () = nodes[4].restart_slowly(200) => {}
        () = asking => {}
    }
    voting(&service, "5").await;
}

/// A lock that the first three nodes have, and the other two, which are down, have not: its token.
async fn held_by_three(nodes: &mut RedlockNodes, service: &Service) -> String {
    nodes.kill_all([3, 4]).await;
    let lease = service.create("deploy", &json!({"ttl_ms": 600_000})).await;
    assert_eq!(lease.status, 201, "{lease:?}");
    for node in 0..3 {
        let keys: Vec<String> = nodes[node].run(&["KEYS", "*:lock:*"]).await;
        assert_eq!(keys.len(), 1);
    }
    lease.token()
}

async fn voting(service: &Service, expected: &str) {
    let voting = async || {
        let info = service.get("/v1/info").await;
        let facts = &info.json["store"]["facts"];
        (facts["answering"] == "5" && facts["voting"] == expected).then_some(())
    };
    eventually(voting).await;
}

#[tokio::test]
async fn restarted_nodes_vote_after_every_forgotten_lease_ended() {
    let mut nodes = RedlockNodes::start_with(&[]).await;
    let mut config = nodes.config_with_silent_nodes();
    config.redlock.max_ttl_ms = 6000;
    let store = open_redlock(&config).await;
    let short = Acquire { ttl: ttl(Duration::from_secs(6)), ..ask("a", "one", 1) };
    let silent = async || {
        let error = store.acquire(&short).await.err()?;
        let cause = error.source().map(ToString::to_string)?;
        cause.contains("came up lately and does not vote").then_some(())
    };
    let granted = async || store.acquire(&short).await.ok();
    // The nodes came up just now, and may have forgotten grants.
    eventually(silent).await;
    eventually(granted).await;
    for node in 0..3 {
        nodes[node].kill().await;
        nodes[node].restart().await;
    }
    eventually(silent).await;
    eventually(granted).await;
}

#[tokio::test]
async fn quorum_above_majority_tolerates_forgetful_nodes() {
    let mut nodes = RedlockNodes::start().await;
    let mut config = nodes.config_with_silent_nodes();
    config.redlock.quorum = 4;
    let store = open_redlock(&config).await;
    nodes[4].kill().await;
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    nodes[4].restart().await;
    eventually(async || (store.health().await.ok()?.facts["voting"] == "5").then_some(())).await;
    for node in [2, 3] {
        let () = nodes[node].run(&["FLUSHALL"]).await;
    }
    // Three have not the lock, which would be a majority.
    let found = store.acquire(&ask("a", "two", 2)).await.unwrap();
    let AcquireReply::Busy(busy) = found else { panic!("held, not {found:?}") };
    assert_eq!((busy.holding, busy.ahead, busy.first), (None, 0, None));
    assert!(store.look(&name("a")).await.unwrap().is_none());
}

#[tokio::test]
async fn quorum_above_majority_is_required() {
    let mut nodes = RedlockNodes::start().await;
    let mut config = nodes.config_with_silent_nodes();
    config.redlock.quorum = 4;
    let store = open_redlock(&config).await;
    nodes[0].kill().await;
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    nodes[1].kill().await;
    eventually(async || store.health().await.is_err().then_some(())).await;
    let error = store.acquire(&ask("b", "one", 2)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::NotExecuted, "{error:?}");
}

#[tokio::test]
async fn one_server_under_two_names_is_refused() {
    let (one, two) = (RedisServer::start().await, RedisServer::start().await);
    let again = one.address().replace("127.0.0.1", "localhost");
    let config = config(&redlock_url([one.address(), two.address(), again].into_iter()));
    let opened = keylatch_stores::open(config.store.expose(), config.stores()).await;
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("same server"), "{error}");
}
