//! Goal: locks, queues and records survive a failover of a Redis with sentinels, and a master that
//! was replaced grants nothing.
//!
//! Method: a real master with replicas and sentinels, which the test kills, pauses and misleads.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use keylatch::app::App;
use keylatch_core::lock::LockName;
use keylatch_testkit::{
    Answer, Api, LogCapture, Process, Proxy, RedisServer, Sentinels, Service, default_config,
    eventually, soon,
};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use crate::KEYLATCH;
use crate::failover;

#[tokio::test]
async fn failover_is_followed_and_fencing_tokens_rise() {
    let mut set = Sentinels::start(1, 3).await;
    let service = Service::by_default(&set.url()).await;
    let first = service.create("deploy", &json!({})).await;
    assert_eq!(first.status, 201, "{first:?}");
    assert_eq!(service.release("deploy", &first.token()).await.status, 204);
    set.servers[0].kill().await;
    let next = service.granted("deploy").await;
    assert!(next.fencing_token() > first.fencing_token());
    let info = service.get("/v1/info").await;
    assert_eq!(info.json["store"]["tier"], "fenced", "{info:?}");
    assert_eq!(info.json["store"]["kind"], "redis+sentinel", "{info:?}");
    assert_eq!(service.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn logged_tier_is_the_one_of_the_info() {
    let set = Sentinels::start(0, 1).await;
    let log = LogCapture::start(&default_config(&set.url()), true);
    let service = Service::by_default(&set.url()).await;
    service.granted("deploy").await;
    let text = log.text();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("connected to Redis")).collect();
    assert!(!lines.is_empty(), "{text}");
    assert!(lines.iter().all(|line| line.contains("\"tier\":\"fenced\"")), "{lines:?}");
}

#[tokio::test]
async fn requests_during_a_failover_are_answered_within_the_deadline() {
    let mut set = Sentinels::start(1, 3).await;
    let service = Service::by_default(&set.url()).await;
    service.granted("deploy").await;
    set.servers[0].kill().await;
    // Nothing was sent, so it is known that nothing was executed.
    let answer = service.create("other", &json!({})).await;
    if answer.status != 201 {
        answer.is_problem(503, "store-unavailable");
        assert_eq!(answer.json["outcome"], "not-executed", "{answer:?}");
    }
    service.granted("other").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumed_old_master_grants_nothing() {
    const CLIENTS: u64 = 8;
    let set = Sentinels::start(1, 3).await;
    let mut config = default_config(&set.url());
    config.store_timeout_ms = 60_000;
    let service = Service::start_with(config).await;
    service.granted("before").await;
    let old = &set.servers[0];
    old.pause();
    // The clients get an answer once there is another master, not when the old one answers.
    let in_flight = soon("the answers to what is in flight", sent_are_unknown(&service));
    let ((), new) = tokio::join!(in_flight, set.master_after(old));
    service.granted("after").await;

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

/// An instance that granted a lock and is paused, and until when it has to be, so that it does not
/// trust what it knows of the masters.
async fn paused_instance(set: &Sentinels) -> (Process, Api, Instant) {
    // Longer than the time after which the service asks again which node is master.
    const AWAY: Duration = Duration::from_secs(4);
    let process = KEYLATCH.serve(&["--store", &set.url()], &[]).await;
    let service = Api::at(process.address);
    service.granted("before").await;
    let back = Instant::now() + AWAY;
    process.signal("-STOP");
    (process, service, back)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumed_instance_does_not_trust_the_old_master() {
    let set = Sentinels::start(1, 3).await;
    let (process, service, back) = paused_instance(&set).await;
    let old = &set.servers[0];
    old.pause();
    let new = set.master_after(old).await;
    old.resume();
    let names: Vec<_> = (0..64).map(|number| format!("deploy-{number}")).collect();
    let body = json!({});
    let mut asked = pin!(join_all(names.iter().map(|name| service.create(name, &body))));
    assert!(timeout_at(back, &mut asked).await.is_err(), "it is stopped");
    process.signal("-CONT");
    let answers = soon("the answers", asked).await;
    for answer in answers {
        assert_eq!(answer.status, 201, "{answer:?}");
        assert!(is_held_at(new, &answer).await, "the old master granted {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumed_instance_waits_for_a_sentinel_before_it_trusts_a_master() {
    let set = Sentinels::start(1, 3).await;
    let (process, service, back) = paused_instance(&set).await;
    let old = &set.servers[0];
    old.pause();
    let new = set.master_after(old).await;
    // The old master stays one, because no sentinel runs that would make it a replica.
    set.sentinels.iter().for_each(RedisServer::pause);
    old.resume();
    eventually(async || (Instant::now() > back).then_some(())).await;
    process.signal("-CONT");
    for name in ["a", "b"] {
        let answer = service.create(name, &json!({})).await;
        answer.is_problem(503, "store-unavailable");
        assert_eq!(answer.json["outcome"], "not-executed", "{answer:?}");
    }
    set.sentinels.iter().for_each(RedisServer::resume);
    let answer = service.granted("after").await;
    assert!(is_held_at(new, &answer).await, "the old master granted {answer:?}");
}

#[tokio::test]
async fn stale_sentinel_is_not_believed() {
    let mut set = Sentinels::start(1, 3).await;
    set.servers[0].kill().await;
    set.master_after(&set.servers[0]).await;
    let behind = set.stale_sentinel().await;
    let url = set.url().replace("://", &format!("://{},", behind.address()));
    let service = Service::by_default(&url).await;
    for number in 0..200 {
        let answer = service.create(&format!("deploy-{number}"), &json!({})).await;
        assert_eq!(answer.status, 201, "{answer:?}");
    }
}

#[tokio::test]
async fn leading_sentinel_does_not_lead_back_to_the_old_master() {
    let set = Sentinels::start(2, 3).await;
    for replica in &set.servers[1..] {
        // Whichever becomes master, the other cannot follow it, so that the failover does not end.
        let () = replica.run(&["ACL", "SETUSER", "default", "-psync", "-sync"]).await;
    }
    let old = &set.servers[0];
    old.pause();
    let leader = set.leader().await;
    let new = set.master_after(old).await;
    old.resume();
    for (url, name) in [(Sentinels::url_of([leader]), "by-leader"), (set.url(), "by-all")] {
        let service = Service::by_default(&url).await;
        for number in 0..20 {
            let answer = service.create(&format!("{name}-{number}"), &json!({})).await;
            assert_eq!(answer.status, 201, "{answer:?}");
            assert!(is_held_at(new, &answer).await, "the old master granted {answer:?}");
        }
    }
}

#[tokio::test]
async fn waiter_is_served_across_a_failover() {
    let mut set = Sentinels::start(1, 3).await;
    failover::the_line_goes_on(&set.url(), async || {
        failover::replicated(&set.servers[0], &set.servers[1]).await;
        set.servers[0].kill().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completed_run_is_not_repeated_after_a_failover() {
    let mut set = Sentinels::start(1, 3).await;
    failover::what_was_done_is_known(&set.url(), async || {
        failover::replicated(&set.servers[0], &set.servers[1]).await;
        set.servers[0].kill().await;
    })
    .await;
}

#[tokio::test]
async fn unknown_master_name_is_refused_at_start() {
    let set = Sentinels::start(0, 1).await;
    let url = set.url().replace("/mymaster", "/another");
    let error =
        App::new(default_config(&url)).await.expect_err("there is no such master").to_string();
    assert!(error.contains("none of the sentinels knows a master `another`"), "{error}");
    for url in ["redis+sentinel://a,b", "redis+sentinel://a,,b/mymaster", "redis+sentinel:a/b"] {
        App::new(default_config(url)).await.expect_err(url);
    }
}

#[tokio::test]
async fn credentials_are_sent_to_master_and_sentinels() {
    let set = Sentinels::start(0, 1).await;
    let user = ["ACL", "SETUSER", "locks", "on", ">s3cret", "~*", "&*", "+@all"];
    let () = set.servers[0].run(&user).await;
    let () = set.sentinels[0].run(&["ACL", "SETUSER", "watch", "on", ">0pen", "&*", "+@all"]).await;
    let sentinel = set.sentinels[0].address();
    let url = |password: &str, sentinel_password: &str| {
        format!(
            "redis+sentinel://locks:{password}@{sentinel}/mymaster/3\
             ?sentinel_user=watch&sentinel_password={sentinel_password}"
        )
    };
    let service = Service::by_default(&url("s3cret", "0pen")).await;
    service.granted("deploy").await;
    let clients: String = set.servers[0].run(&["CLIENT", "LIST"]).await;
    assert!(clients.contains("db=3") && clients.contains("user=locks"), "{clients}");
    let clients: String = set.sentinels[0].run(&["CLIENT", "LIST"]).await;
    assert!(clients.contains("user=watch"), "{clients}");
    for (password, sentinel_password) in [("wrong", "0pen"), ("s3cret", "wrong")] {
        let error = App::new(default_config(&url(password, sentinel_password))).await;
        let error = error.expect_err("the password is wrong").to_string();
        assert!(error.contains("assword") && !error.contains("wrong"), "{error}");
    }
}

#[tokio::test]
async fn unreachable_sentinels_are_awaited() {
    let url = {
        let set = Sentinels::start(0, 1).await;
        set.url()
    };
    let service = Service::by_default(&url).await;
    let answer = service.create("deploy", &json!({})).await;
    answer.is_problem(503, "store-unavailable");
    assert_eq!(answer.json["outcome"], "not-executed", "{answer:?}");
}

/// Asks for some locks at a master that answers nothing any more: what was sent there is unknown,
/// and what waited behind it may be granted by the next master.
async fn sent_are_unknown(service: &Service) {
    let body = json!({});
    let names = ["in-flight-1", "in-flight-2", "in-flight-3"];
    let answers = join_all(names.map(|name| service.create(name, &body))).await;
    let (granted, failed): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|answer| answer.status == 201);
    assert!(granted.len() < names.len(), "the old master answered: {granted:?}");
    for answer in failed {
        answer.is_problem(503, "store-unavailable");
        assert_eq!(answer.json["outcome"], "unknown", "{answer:?}");
    }
}

/// Whether a server knows of a grant.
async fn is_held_at(server: &RedisServer, grant: &Answer) -> bool {
    let name = grant.json["name"].as_str().expect("a lease");
    let bucket = LockName::parse(name).expect("a name").bucket();
    let key = format!("keylatch:{{{bucket:02x}}}:lock:{name}");
    let counter = format!("keylatch:{{{bucket:02x}}}:fence");
    let last = server.run::<Option<u64>>(&["GET", &counter]).await;
    server.run::<bool>(&["EXISTS", &key]).await && last >= Some(grant.fencing_token())
}

/// Waits until the sentinels have made a server a replica, for which they cut its connections.
async fn is_replica(server: &RedisServer) {
    eventually(async || {
        let told = server.try_run::<String>(&["INFO", "replication"]).await;
        told.is_ok_and(|told| told.contains("role:slave")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn majority_of_sentinels_decides_between_two_masters() {
    let (one, other) = tokio::join!(Sentinels::start(0, 2), Sentinels::start(0, 2));
    // Of as many, the one with the higher port would be taken.
    let ports = [one.servers[0].port(), other.servers[0].port()];
    let (most, odd) = if ports[0] < ports[1] { (one, other) } else { (other, one) };
    let late = Proxy::start(most.sentinels[1].address()).await;
    late.delay(Duration::from_millis(60));
    let [first, second] = [&odd.sentinels[0], &most.sentinels[0]].map(RedisServer::address);
    let url = format!("redis+sentinel://{first},{second},{}/mymaster", late.address());
    let service = Service::by_default(&url).await;
    let mut locks = (0..).map(|number| format!("lock-{number}"));
    eventually(async || {
        let lease = service.create(&locks.next().expect("a name"), &json!({})).await;
        let keys: u64 = most.servers[0].run(&["DBSIZE"]).await;
        (lease.status == 201 && keys > 0).then_some(())
    })
    .await;
}
