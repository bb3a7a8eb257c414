//! Grants that replicas have to have.

use futures_util::future::join_all;
use serde_json::json;

use crate::failover::granted;
use crate::support::{Sentinels, Service, config, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_too_few_replicas_have_is_given_back() {
    let set = Sentinels::start(1, 1).await;
    for url in [set.servers[0].url(), set.url()] {
        let service = replicated(&url).await;
        let held = granted(&service, "held").await;
        set.servers[1].pause();
        // More at once than could each wait for the replica in turn.
        let (names, body) =
            ((0..200).map(|n| format!("deploy-{n}")).collect::<Vec<_>>(), json!({}));
        let refused = join_all(names.iter().map(|name| service.create(name, &body))).await;
        for answer in &refused {
            answer.is_problem(503, "store-unavailable");
            assert_eq!(answer.json["outcome"], "unknown", "{answer:?}");
        }
        for name in &names {
            eventually(async || (service.look(name).await.status == 404).then_some(())).await;
        }
        // A renewal is not counted on, and takes nothing.
        let renewed = service.renew("held", &held.token(), &json!({})).await;
        renewed.is_problem(503, "store-unavailable");
        assert_eq!(service.look("held").await.fence(), held.fence());
        // Who is told that the lock is held needs no replica for that.
        assert_eq!(service.create("held", &json!({})).await.status, 409);
        set.servers[1].resume();
        granted(&service, "deploy-1").await;
        assert_eq!(service.renew("held", &held.token(), &json!({})).await.status, 200);
        let () = set.servers[0].run(&["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn a_repeat_of_a_grant_waits_for_the_replicas_too() {
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
    assert_eq!(again.fence(), first.fence());
}

/// A service whose grants one replica must have.
async fn replicated(url: &str) -> Service {
    let mut config = config(url);
    config.redis.min_replicas = 1;
    config.store_timeout_ms = 60_000;
    Service::start_with(config).await
}
