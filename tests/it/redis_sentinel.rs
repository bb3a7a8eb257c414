//! A master with replicas, the sentinels that watch over them, and failovers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::future::join_all;
use keylatch::app::App;
use keylatch::lock::LockName;
use reqwest::Method;
use serde_json::json;

use crate::support::{Answer, RedisServer, Sentinels, Service, Shop, config, eventually, soon};

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
    let service = Service::start(&set.url()).await;
    let holder = granted(&service, "deploy").await;
    let request = service.request(Method::POST, "/v1/locks/deploy");
    let waiter = Answer::of(request.json(&json!({"wait_ms": 60_000})));
    let failover = async {
        eventually(async || (service.look("deploy").await.json["waiting"] == 1).then_some(()))
            .await;
        replicated(&set).await;
        set.servers[0].kill().await;
        eventually(async || {
            let released = service.release("deploy", &holder.token()).await;
            (released.status == 204).then_some(())
        })
        .await;
    };
    let (waiter, ()) = tokio::join!(soon("the waiter", waiter), failover);
    assert_eq!(waiter.status, 201, "{waiter:?}");
    assert!(waiter.fence() > holder.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_done_once_is_not_done_again_after_a_failover() {
    let mut set = Sentinels::start(1, 3).await;
    let shop = Shop::open(&set.url()).await;
    shop.buy("order-1").await.is_run(1);
    replicated(&set).await;
    set.servers[0].kill().await;
    let again = eventually(async || {
        let answer = shop.buy("order-1").await;
        (answer.status != 503).then_some(answer)
    })
    .await;
    again.is_replay_of(1);
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

/// A grant, however long it takes until there is one.
async fn granted(service: &Service, name: &str) -> Answer {
    eventually(async || {
        let answer = service.create(name, &json!({})).await;
        (answer.status == 201).then_some(answer)
    })
    .await
}

/// Whether a server knows of a grant.
async fn is_held_at(server: &RedisServer, grant: &Answer) -> bool {
    let name = grant.json["name"].as_str().expect("a lease");
    let bucket = LockName::parse(name).expect("a name").bucket();
    let key = format!("keylatch:{{{bucket:02x}}}:lock:{name}");
    server.run::<Option<u64>>(&["HGET", &key, "fence"]).await == Some(grant.fence())
}

/// Waits until the replicas have all that the master has.
async fn replicated(set: &Sentinels) {
    let [master, replica] = &set.servers[..] else { panic!("one master and one replica") };
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

/// Waits until the sentinels have made a server a replica, for which they cut its connections.
async fn is_replica(server: &RedisServer) {
    eventually(async || {
        let told = server.try_run::<String>(&["INFO", "replication"]).await;
        told.is_ok_and(|told| told.contains("role:slave")).then_some(())
    })
    .await;
}
