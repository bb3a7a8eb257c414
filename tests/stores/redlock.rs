//! Goal: on Redlock only what a majority says counts.
//!
//! Method: five real nodes, of which the test stops, pauses and edits some.

use std::time::Duration;

use futures_util::future::join_all;
use keylatch_core::lock::{AcquireReply, LockLoss, ReleaseReply, RenewReply};
use keylatch_core::store::Effect;
use keylatch_testkit::{RedlockNodes, Service, eventually, open_redlock};
use serde_json::json;
use tokio::time::Instant;

use crate::lock_conformance::{TTL, ask, granted, held, name, repeated, token, ttl};
use crate::redlock_fences::{hash_of, put_lock};

#[tokio::test]
async fn majority_grants_while_two_of_five_are_down() {
    let mut nodes = RedlockNodes::start().await;
    let service = Service::start_with(nodes.config()).await;
    nodes.kill_all([1, 3]).await;
    lives_through_its_life(&service).await;
}

#[tokio::test]
async fn majority_grants_while_two_of_five_are_stopped() {
    let nodes = RedlockNodes::start().await;
    let service = Service::start_with(nodes.config()).await;
    nodes.pause_all([0, 4]);
    lives_through_its_life(&service).await;
}

/// What a node refuses costs a round trip to each, and no answer shows it: a release that announces
/// itself, for one.
#[tokio::test]
async fn life_of_a_lock_has_no_failed_command_and_no_message_on_any_node() {
    let nodes = RedlockNodes::start().await;
    let service = Service::start_with(nodes.config()).await;
    lives_through_its_life(&service).await;
    for node in nodes.iter() {
        let errors: String = node.run(&["INFO", "errorstats"]).await;
        // A node that does not have a script yet says so, and the script is sent. `CLIENT SETINFO`
        // of the driver is an error before Redis 7.2, of no command.
        let is_known = |line: &str| ["NOSCRIPT", "ERR"].contains(&error_of(line));
        let unknown: Vec<_> = stats(&errors, "errorstat_").filter(|line| !is_known(line)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        let unloaded = stats(&errors, "errorstat_").find(|line| error_of(line) == "NOSCRIPT");
        let commands: String = node.run(&["INFO", "commandstats"]).await;
        let failed = |line: &str| field(line, "failed_calls") + field(line, "rejected_calls");
        let failed: u64 = stats(&commands, "cmdstat_").map(failed).sum();
        assert_eq!(failed, unloaded.map_or(0, |line| field(line, "count")), "{commands}");
        assert!(stats(&commands, "cmdstat_evalsha:").count() == 1, "{commands}");
        for command in ["cmdstat_publish:", "cmdstat_spublish:"] {
            assert_eq!(stats(&commands, command).count(), 0, "{commands}");
        }
    }
}

/// The lines of a section of `INFO` that begin so.
fn stats<'a>(section: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    section.lines().filter(move |line| line.starts_with(prefix))
}

fn error_of(line: &str) -> &str {
    line.trim_start_matches("errorstat_").split(':').next().unwrap_or_default()
}

/// A number in a line of statistics.
fn field(line: &str, name: &str) -> u64 {
    let fields = line.split_once(':').map_or("", |(_, fields)| fields).split(',');
    let value = fields.filter_map(|field| field.split_once('=')).find(|(field, _)| *field == name);
    value.map_or(0, |(_, value)| value.parse().expect("a number"))
}

/// Takes a lock, asks for it in every way, and gives it back.
pub(crate) async fn lives_through_its_life(service: &Service) {
    let lease = service.create("deploy", &json!({})).await;
    assert_eq!(lease.status, 201, "{lease:?}");
    service.create("deploy", &json!({})).await.is_problem(409, "lock-held");
    assert_eq!(service.look("deploy").await.fencing_token(), lease.fencing_token());
    let listed = service.get("/v1/locks").await;
    assert_eq!(listed.json["locks"][0]["name"], "deploy", "{listed:?}");
    let renewed = service.renew("deploy", &lease.token(), &json!({"ttl_ms": 20_000})).await;
    assert_eq!(
        (renewed.status.as_u16(), renewed.fencing_token()),
        (200, lease.fencing_token()),
        "{renewed:?}"
    );
    assert_eq!(service.release("deploy", &lease.token()).await.status, 204);
    service.look("deploy").await.is_problem(404, "lock-not-held");
    service.release("deploy", &lease.token()).await.is_problem(404, "lock-not-held");
    let next = service.create("deploy", &json!({})).await;
    assert!(next.fencing_token() > lease.fencing_token(), "{next:?}");
}

#[tokio::test]
async fn minority_grants_nothing_and_is_withdrawn() {
    let mut nodes = RedlockNodes::start().await;
    let service = Service::start_with(nodes.config_with_silent_nodes()).await;
    nodes.kill_all([0, 1, 2]).await;
    // Until the service knows that they are gone, it may ask them and get no answer.
    eventually(async || (service.get("/readyz").await.status == 503).then_some(())).await;
    let answer = service.create("deploy", &json!({})).await;
    answer.is_problem(503, "store-unavailable");
    assert_eq!(answer.json["outcome"], "not-executed", "{answer:?}");
    for node in [3, 4] {
        let freed = async || nodes[node].run::<Vec<String>>(&["KEYS", "*:lock:*"]).await.is_empty();
        eventually(async || freed().await.then_some(())).await;
    }
    nodes[2].restart().await;
    let granted = async || (service.create("deploy", &json!({})).await.status == 201).then_some(());
    eventually(granted).await;
}

#[tokio::test]
async fn late_grant_is_withdrawn_and_unknown() {
    let nodes = RedlockNodes::start().await;
    let service = Service::start_with(nodes.config_with_silent_nodes()).await;
    nodes.pause_all([0, 1, 2]);
    let answer = service.create("deploy", &json!({"ttl_ms": 60_000})).await;
    answer.is_problem(503, "store-unavailable");
    assert_eq!(answer.json["outcome"], "unknown", "{answer:?}");
    // The nodes now run the acquire that was sent before, and behind it its withdrawal.
    nodes.resume_all([0, 1, 2]);
    for node in nodes.iter() {
        let given = async || {
            let stats: String = node.run(&["INFO", "commandstats"]).await;
            stats.contains("cmdstat_evalsha").then_some(())
        };
        eventually(given).await;
    }
    eventually(async || (nodes.with_locks().await == 0).then_some(())).await;
}

#[tokio::test]
async fn missing_majority_is_an_unknown_outcome() {
    let nodes = RedlockNodes::start().await;
    let store = open_redlock(&nodes.config_with_silent_nodes()).await;
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    nodes.pause_all([0, 1, 2]);
    let (name, token) = (name("a"), token("one"));
    let renewal = store.renew(&name, &token, ttl(TTL)).await.unwrap_err();
    let release = store.release(&name, &token).await.unwrap_err();
    for error in [renewal, release, store.look(&name).await.unwrap_err()] {
        assert_eq!(error.effect(), Effect::Unknown, "{error:?}");
    }
    nodes.resume_all([0, 1, 2]);
    let freed = async || (store.look(&name).await.ok()?.is_none()).then_some(());
    eventually(freed).await;
}

#[tokio::test]
async fn renewal_does_not_revive_a_lost_grant() {
    let nodes = RedlockNodes::start().await;
    let store = nodes.store().await;
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    // Not only a majority: a node that accepts late would have the lock after its time.
    eventually(async || (nodes.with_locks().await == 5).then_some(())).await;
    for node in &nodes[..3] {
        node.age(TTL).await;
    }
    let renewal = store.renew(&name("a"), &token("one"), ttl(TTL)).await.unwrap();
    assert_eq!(renewal, RenewReply::lost(&name("a"), LockLoss::NotHeld));
    assert_eq!(store.look(&name("a")).await.unwrap(), None);
    for node in &nodes[..3] {
        assert!(node.run::<Vec<String>>(&["KEYS", "*:lock:*"]).await.is_empty());
    }
}

#[tokio::test]
async fn renewal_needs_a_majority() {
    let nodes = RedlockNodes::start().await;
    let store = nodes.store().await;
    let lease = granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    // Not only a majority: a node that accepts late would have the lock after its time.
    eventually(async || (nodes.with_locks().await == 5).then_some(())).await;
    for node in &nodes[..2] {
        node.age(TTL).await;
    }
    let renewal = store.renew(&name("a"), &token("one"), ttl(TTL * 2)).await.unwrap();
    let RenewReply::Renewed(renewed) = renewal else { panic!("renewed, not {renewal:?}") };
    assert_eq!((renewed[0].fencing_token, renewed[0].ttl), (lease.fencing_token, TTL * 2));
    nodes.age(TTL).await;
    held(store.acquire(&ask("a", "two", 2)).await.unwrap());
}

#[tokio::test]
async fn repeated_grant_lasts_while_a_quorum_has_it() {
    let nodes = RedlockNodes::start().await;
    let store = nodes.store().await;
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    eventually(async || (nodes.with_locks().await == 5).then_some(())).await;
    // Of the three that answer, two have it for longer.
    nodes[2].age(TTL / 2).await;
    nodes.pause_all([3, 4]);
    let lease = repeated(store.acquire(&ask("a", "one", 2)).await.unwrap());
    assert!(lease.expires_in <= TTL / 2, "{lease:?}");
    assert!(lease.expires_in > TTL / 2 - Duration::from_secs(10), "{lease:?}");
}

#[tokio::test]
async fn release_by_a_majority_frees_every_node() {
    let nodes = RedlockNodes::start().await;
    let store = nodes.store().await;
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    // A majority is enough for the reply, and a late node would grant after the release.
    eventually(async || (nodes.with_locks().await == 5).then_some(())).await;
    let released = store.release(&name("a"), &token("one")).await.unwrap();
    assert_eq!(released, ReleaseReply::Released);
    eventually(async || (nodes.with_locks().await == 0).then_some(())).await;
}

#[tokio::test]
async fn node_latency_shortens_validity_once() {
    let nodes = RedlockNodes::start().await;
    let service = Service::start_with(nodes.config()).await;
    nodes.pause_all([0, 1, 2]);
    let (ttl, drift, waited) = (30_000, 302, Duration::from_millis(200));
    let started = Instant::now();
    let resuming = async {
        eventually(async || (nodes[4].run::<u64>(&["DBSIZE"]).await > 0).then_some(())).await;
        let asked = Instant::now();
        eventually(async || (asked.elapsed() > waited).then_some(())).await;
        nodes.resume_all([0, 1, 2]);
    };
    let body = json!({"ttl_ms": ttl});
    let (lease, ()) = tokio::join!(service.create("deploy", &body), resuming);
    let (valid, spent) = (lease.json["valid_for_ms"].as_u64().unwrap(), started.elapsed());
    assert!(valid <= ttl - drift - 200, "{lease:?}");
    let spent = u64::try_from(spent.as_millis()).unwrap();
    assert!(valid + 1 >= ttl - drift - spent, "{lease:?} after {spent} ms");
}

#[tokio::test]
async fn one_of_two_contending_stores_is_granted() {
    let nodes = RedlockNodes::start().await;
    let stores = [nodes.store().await, nodes.store().await];
    for round in 0..10 {
        let lock = format!("lock {round}");
        let asks: Vec<_> = (0..20).map(|n| ask(&lock, &format!("token {n}"), n)).collect();
        let asking = asks.iter().zip(stores.iter().cycle()).map(|(ask, store)| store.acquire(ask));
        let answers = join_all(asking).await;
        let grants = answers.iter().filter(|answer| matches!(answer, Ok(AcquireReply::Granted(_))));
        assert_eq!(grants.count(), 1, "{answers:?}");
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
}

#[tokio::test]
async fn tie_is_won_by_the_smaller_hash() {
    let nodes = RedlockNodes::start().await;
    let store = open_redlock(&nodes.config_with_silent_nodes()).await;
    let mut holders = ["one", "two"];
    holders.sort_by_key(|holder| hash_of(holder));
    for (mine, other) in [(holders[0], holders[1]), (holders[1], holders[0])] {
        for (node, holder) in [(0, other), (1, other), (2, "three")] {
            put_lock(&nodes[node], holder, 0, 0).await;
        }
        let (name, ask) = (name("a"), ask("a", mine, 1));
        if mine == holders[1] {
            let found = store.acquire(&ask).await.unwrap();
            // No attempt has a majority, so the reply names no holder.
            let AcquireReply::Busy(busy) = found else { panic!("held, not {found:?}") };
            assert_eq!((busy.holding, busy.ahead, busy.first), (None, 0, None));
            eventually(async || (nodes.with_locks().await == 3).then_some(())).await;
            return;
        }
        let giving_way = async {
            eventually(async || (nodes.with_locks().await == 5).then_some(())).await;
            for node in &nodes[..2] {
                node.age(TTL).await;
            }
        };
        let (found, ()) = tokio::join!(store.acquire(&ask), giving_way);
        granted(found.unwrap());
        assert_eq!(store.release(&name, &token(mine)).await.unwrap(), ReleaseReply::Released);
        nodes.age(TTL).await;
    }
}
