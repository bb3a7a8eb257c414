//! Checks that hold across a failover of any topology, for `sentinel.rs` and `cluster.rs`.
//!
//! Each takes the URL of a service and a way to end the master. A check asserts what clients read
//! before and after, and waits for the failover by asking again until the service answers.

use keylatch_testkit::{Answer, RedisServer, Service, Shop, eventually, soon};
use reqwest::Method;
use serde_json::json;

/// The lock "deploy" and its line go over to another master.
pub(crate) async fn the_line_goes_on(url: &str, kill: impl AsyncFnOnce()) {
    let service = Service::by_default(url).await;
    let holder = service.granted("deploy").await;
    let request = service.request(Method::POST, "/v1/locks/deploy");
    let waiter = Answer::of(request.json(&json!({"wait_ms": 60_000})));
    let failover = async {
        service.has_waiting("deploy", 1).await;
        kill().await;
        eventually(async || {
            let released = service.release("deploy", &holder.token()).await;
            (released.status == 204).then_some(())
        })
        .await;
    };
    let (waiter, ()) = tokio::join!(soon("the waiter", waiter), failover);
    assert_eq!(waiter.status, 201, "{waiter:?}");
    assert!(waiter.fencing_token() > holder.fencing_token());
}

/// The record of the key "order-1" goes over to another master.
pub(crate) async fn what_was_done_is_known(url: &str, kill: impl AsyncFnOnce()) {
    let shop = Shop::open(url).await;
    shop.buy("order-1").await.is_run(1);
    kill().await;
    let again = eventually(async || {
        let answer = shop.buy("order-1").await;
        (answer.status != 503).then_some(answer)
    })
    .await;
    again.is_replay_of(1);
}

/// A renewal and a look at a server that `signal` stops end by their deadline, and succeed once it
/// continues.
pub(crate) async fn requests_end_by_their_deadline(url: &str, signal: impl Fn(&str)) {
    let service = Service::by_default(url).await;
    let lease = service.create("a", &json!({})).await;
    signal("-STOP");
    let late = soon("the answer", service.renew("a", &lease.token(), &json!({}))).await;
    late.is_problem(503, "store-unavailable");
    assert_eq!(late.json["outcome"], "unknown", "{late:?}");
    soon("the answer", service.look("a")).await.is_problem(503, "store-unavailable");
    signal("-CONT");
    let renewed = async || {
        let answer = service.renew("a", &lease.token(), &json!({})).await;
        (answer.status != 503).then_some(answer)
    };
    assert_eq!(eventually(renewed).await.status, 200);
}

/// Waits until a replica has all that its master has.
pub(crate) async fn replicated(master: &RedisServer, replica: &RedisServer) {
    let offset = async |server: &RedisServer, field: &str| {
        let told: String = server.run(&["INFO", "replication"]).await;
        let line = told.lines().find_map(|line| line.strip_prefix(field).map(str::to_owned));
        line.expect("an offset")
    };
    eventually(async || {
        let sent = offset(master, "master_repl_offset:").await;
        (offset(replica, "slave_repl_offset:").await == sent).then_some(())
    })
    .await;
}
