//! Goal: with `min_replicas` a grant is reported only when so many replicas have it.
//!
//! Method: a master with a replica that is paused or refuses.

use futures_util::future::join_all;
use keylatch_testkit::{Answer, Sentinels, Service, config, eventually};
use reqwest::Method;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_with_too_few_replicas_is_withdrawn() {
    let set = Sentinels::start(1, 1).await;
    for url in [set.servers[0].url(), set.url()] {
        let service = replicated(&url).await;
        let held = service.granted("held").await;
        set.servers[1].pause();
        // More at once than could each wait for the replica in turn.
        let (names, body) =
            ((0..200).map(|n| format!("deploy-{n}")).collect::<Vec<_>>(), json!({}));
        let refused = join_all(names.iter().map(|name| service.create(name, &body))).await;
        refused.iter().for_each(is_unknown);
        for name in &names {
            service.is_free(name).await;
        }
        // A renewal is not counted on, and takes nothing.
        let renewed = service.renew("held", &held.token(), &json!({})).await;
        renewed.is_problem(503, "store-unavailable");
        assert_eq!(service.look("held").await.fencing_token(), held.fencing_token());
        // A refusal because the lock is held needs no replica.
        assert_eq!(service.create("held", &json!({})).await.status, 409);
        set.servers[1].resume();
        service.granted("deploy-1").await;
        assert_eq!(service.renew("held", &held.token(), &json!({})).await.status, 200);
        let () = set.servers[0].run(&["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn repeated_grant_waits_for_the_replicas() {
    const TOKEN: &str = "a-token-of-the-clients-own";
    let set = Sentinels::start(1, 1).await;
    let service = replicated(&set.url()).await;
    // A replica on a busy machine may be late.
    let first = eventually(async || {
        let first = service.create_as("deploy", TOKEN, &json!({})).await;
        [200, 201].contains(&first.status.as_u16()).then_some(first)
    })
    .await;
    set.servers[1].pause();
    for _ in 0..2 {
        let again = service.create_as("deploy", TOKEN, &json!({})).await;
        again.is_problem(503, "store-unavailable");
    }
    set.servers[1].resume();
    let again = eventually(async || {
        let again = service.create_as("deploy", TOKEN, &json!({})).await;
        (again.status == 200).then_some(again)
    })
    .await;
    assert_eq!(again.fencing_token(), first.fencing_token());
}

#[tokio::test]
async fn refused_wait_command_is_unknown_and_leaves_nothing_held() {
    let set = Sentinels::start(1, 1).await;
    let (master, may) = (&set.servers[0], ["ACL", "SETUSER", "keylatch", "+wait"]);
    // All that the README lists for a Redis without `min_replicas`.
    let readme = include_str!("../../docs/stores/redis.md");
    let user = readme.lines().find(|line| line.starts_with("ACL SETUSER ")).expect("a user");
    for url in [master.url(), set.url()] {
        for server in &set.servers {
            let () = server.run(&["ACL", "DELUSER", "keylatch"]).await;
            let () = server.run(&user.split(' ').collect::<Vec<_>>()).await;
        }
        let service = replicated(&url.replace("://", "://keylatch:PASSWORD@")).await;
        is_unknown(&service.create("deploy", &json!({})).await);
        service.is_free("deploy").await;
        let order = json!({"amount": 1999, "currency": "EUR"});
        let order = || {
            let request = service.request(Method::POST, "/v1/payments");
            Answer::of(request.header("Idempotency-Key", "pay-1").json(&order))
        };
        // Nothing is run under a key that is not surely begun, and what began is given up.
        order().await.is_refusal(503, "store-unavailable", "same-key");
        let record = "/v1/idempotency/pay-1?method=POST&path=/v1/payments";
        eventually(async || (service.get(record).await.status == 404).then_some(())).await;

        let () = master.run(&may).await;
        let held = service.granted("deploy").await;
        assert_eq!(order().await.status, 201);
        let () = master.run(&["ACL", "SETUSER", "keylatch", "-wait"]).await;
        is_unknown(&service.renew("deploy", &held.token(), &json!({})).await);
        assert_eq!(service.look("deploy").await.fencing_token(), held.fencing_token());
        let () = master.run(&may).await;
        assert_eq!(service.release("deploy", &held.token()).await.status, 204);
        set.flush().await;
    }
}

/// Asserts that the store's answer is not known to be a refusal.
#[track_caller]
fn is_unknown(answer: &Answer) {
    answer.is_problem(503, "store-unavailable");
    assert_eq!(answer.json["outcome"], "unknown", "{answer:?}");
}

/// A service whose grants one replica must have.
async fn replicated(url: &str) -> Service {
    let mut config = config(url);
    config.redis.min_replicas = 1;
    config.store_timeout_ms = 60_000;
    Service::start_with(config).await
}
