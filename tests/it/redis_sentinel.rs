//! A master with replicas, the sentinels that watch over them, and failovers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::future::join_all;
use keylatch::app::App;
use keylatch::lock::LockName;
use serde_json::json;

use crate::failover::{self, granted};
use crate::support::{Answer, RedisServer, Sentinels, Service, config, eventually};

#[tokio::test]
async fn a_failover_is_followed_and_fences_go_on_rising() {
    let mut set = Sentinels::start(1, 3).await;
    let service = Service::start(&set.url()).await;
    let first = service.create("deploy", &json!({})).await;
    assert_eq!(first.status, 201, "{first:?}");
    assert_eq!(service.release("deploy", &first.token()).await.status, 204);
    set.servers[0].kill().await;
    let next = granted(&service, "deploy").await;
    assert!(next.fence() > first.fence());
    let info = service.get("/v1/info").await;
    assert_eq!(info.json["store"]["tier"], "fenced", "{info:?}");
    assert_eq!(info.json["store"]["kind"], "redis+sentinel", "{info:?}");
    assert_eq!(service.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn what_is_asked_during_a_failover_is_answered_within_the_deadline() {
    let mut set = Sentinels::start(1, 3).await;
    let service = Service::start(&set.url()).await;
    granted(&service, "deploy").await;
    set.servers[0].kill().await;
    // Nothing was sent, so it is known that nothing was executed.
    let answer = service.create("other", &json!({})).await;
    if answer.status != 201 {
        answer.is_problem(503, "store-unavailable");
        assert_eq!(answer.json["outcome"], "not-executed", "{answer:?}");
    }
    granted(&service, "other").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_was_stopped_grants_nothing_once_it_goes_on() {
    const CLIENTS: u64 = 8;
    let set = Sentinels::start(1, 3).await;
    let service = Service::start(&set.url()).await;
    granted(&service, "before").await;
    let old = &set.servers[0];
    old.pause();
    let body = json!({});
    let names: Vec<_> = (0..CLIENTS).map(|n| format!("in-flight-{n}")).collect();
    let in_flight = join_all(names.iter().map(|name| service.create(name, &body)));
    let (in_flight, new) = tokio::join!(in_flight, set.master_after(old));
    for answer in in_flight.iter().filter(|answer| answer.status == 201) {
        assert!(is_held_at(new, answer).await, "the old master granted {answer:?}");
    }
    granted(&service, "after").await;

    let (over, grants) = (AtomicBool::new(false), AtomicU64::new(0));
    let load = join_all((0..CLIENTS).map(|client| {
        let (service, over, grants) = (&service, &over, &grants);
        async move {
            for n in 0.. {
                let answer = service.create(&format!("{client}-{n}"), &json!({})).await;
                assert!(is_held_at(new, &answer).await, "the old master granted {answer:?}");
                grants.fetch_add(1, Ordering::Relaxed);
                if over.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    }));
    let resume = async {
        old.resume();
        let while_master = grants.load(Ordering::Relaxed);
        // The sentinels take their time to make it a replica.
        is_replica(old).await;
        over.store(true, Ordering::Relaxed);
        grants.load(Ordering::Relaxed) - while_master
    };
    let (_, during) = tokio::join!(load, resume);
    assert!(during > 0, "the old master was a replica at once");
}

#[tokio::test]
async fn who_waits_in_line_is_served_across_a_failover() {
    let mut set = Sentinels::start(1, 3).await;
    failover::the_line_goes_on(&set.url(), async || {
        failover::replicated(&set.servers[0], &set.servers[1]).await;
        set.servers[0].kill().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_done_once_is_not_done_again_after_a_failover() {
    let mut set = Sentinels::start(1, 3).await;
    failover::what_was_done_is_known(&set.url(), async || {
        failover::replicated(&set.servers[0], &set.servers[1]).await;
        set.servers[0].kill().await;
    })
    .await;
}

#[tokio::test]
async fn a_name_that_no_sentinel_knows_is_an_error_at_the_start() {
    let set = Sentinels::start(0, 1).await;
    let url = set.url().replace("/mymaster", "/another");
    let error = App::new(config(&url)).await.expect_err("there is no such master").to_string();
    assert!(error.contains("none of the sentinels knows a master `another`"), "{error}");
    for url in ["redis+sentinel://a,b", "redis+sentinel://a,,b/mymaster", "redis+sentinel:a/b"] {
        App::new(config(url)).await.expect_err(url);
    }
}

#[tokio::test]
async fn sentinels_that_are_away_are_waited_for() {
    let url = {
        let set = Sentinels::start(0, 1).await;
        set.url()
    };
    let service = Service::start(&url).await;
    let answer = service.create("deploy", &json!({})).await;
    answer.is_problem(503, "store-unavailable");
    assert_eq!(answer.json["outcome"], "not-executed", "{answer:?}");
}

/// Whether a server knows of a grant.
async fn is_held_at(server: &RedisServer, grant: &Answer) -> bool {
    let name = grant.json["name"].as_str().expect("a lease");
    let bucket = LockName::parse(name).expect("a name").bucket();
    let key = format!("keylatch:{{{bucket:02x}}}:lock:{name}");
    server.run::<Option<u64>>(&["HGET", &key, "fence"]).await == Some(grant.fence())
}

/// Waits until the sentinels have made a server a replica, for which they cut its connections.
async fn is_replica(server: &RedisServer) {
    eventually(async || {
        let told = server.try_run::<String>(&["INFO", "replication"]).await;
        told.is_ok_and(|told| told.contains("role:slave")).then_some(())
    })
    .await;
}
