//! Goal: fencing tokens of Redlock rise, whichever majority grants them.
//!
//! Method: nodes whose counters and grants the test sets, behind proxies that lose answers.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::join_all;
use keylatch_core::lock::{AcquireReply, LockName, RenewReply};
use keylatch_core::store::Effect;
use keylatch_testkit::{
    Dice, OpenStore, Proxy, RedisServer, RedlockNodes, config, eventually, open_redlock,
    redlock_url, with_generous_timeouts,
};

use crate::lock_conformance::{TTL, ask, granted, name, repeated, token, ttl};

/// The largest number that JavaScript reads exactly is 2^53 - 1.
pub(crate) const FAR_AHEAD: u64 = (1 << 53) - 10_000;

#[tokio::test]
async fn fencing_token_is_above_the_counters_of_every_majority() {
    let mut nodes = RedlockNodes::start().await;
    let store = nodes.store().await;
    for (node, counter) in nodes.iter().zip([0, 7, FAR_AHEAD, 1 << 52, 1]) {
        let () = node.run(&["SET", &counter_of("a"), &counter.to_string()]).await;
    }
    // Only this majority knows the largest one, and the next has but one node of it.
    nodes.kill_all([0, 1]).await;
    let first = fencing_token(&store, 1).await;
    assert_eq!(first, FAR_AHEAD + 1);
    nodes.restart_all([0, 1]).await;
    nodes.kill_all([2, 3]).await;
    eventually(async || (store.health().await.ok()?.facts["voting"] == "3").then_some(())).await;
    assert_eq!(fencing_token(&store, 2).await, FAR_AHEAD + 2);
}

#[tokio::test]
async fn fencing_tokens_rise_over_changing_majorities() {
    let nodes = RedlockNodes::start().await;
    let proxies: Vec<_> = join_all(nodes.iter().map(|node| Proxy::start(node.address()))).await;
    let url = redlock_url(proxies.iter().map(|proxy| proxy.address().to_string()));
    let mut config = with_generous_timeouts(config(&url));
    (config.redlock.node_timeout_ms, config.redis.connect_timeout_ms) = (500, 100);
    let stores = [open_redlock(&config).await, open_redlock(&config).await];
    let (mut dice, mut last, mut attempts) = (Dice(17), 0, 0..);
    for step in 0..24 {
        let mut up = [true; 5];
        for _ in 0..dice.below(3) {
            up[usize::try_from(dice.below(5)).unwrap()] = false;
        }
        // A counter may be far ahead of all the others, and of every clock.
        if step % 6 == 5 {
            let node = usize::try_from(dice.below(5)).unwrap();
            let ahead = last + 1_000_000_000 * dice.below(1000);
            let () = nodes[node].run(&["SET", &counter_of("a"), &ahead.to_string()]).await;
        }
        for (proxy, up) in proxies.iter().zip(up) {
            if up { proxy.forward() } else { proxy.refuse() }
        }
        let store = &stores[usize::try_from(dice.below(2)).unwrap()];
        let holder = format!("holder {step}");
        let lease = eventually(async || {
            let ask = ask("a", &holder, attempts.next().unwrap());
            match store.acquire(&ask).await {
                Ok(AcquireReply::Granted(leases) | AcquireReply::Repeated(leases)) => {
                    leases.into_iter().next()
                }
                // What an earlier step got late, on a node that came back, expires.
                Ok(_) => {
                    nodes.age(TTL).await;
                    None
                }
                Err(_) => None,
            }
        });
        let fencing_token = lease.await.fencing_token.get();
        assert!(fencing_token > last, "{fencing_token} after {last}, with {up:?} up");
        last = fencing_token;
        nodes.age(TTL).await;
    }
}

#[tokio::test]
async fn fencing_token_accepted_by_one_node_is_kept() {
    let (nodes, fencing_token) = (RedlockNodes::start().await, FAR_AHEAD);
    half_granted(&nodes, fencing_token, [fencing_token - 1, fencing_token - 1, fencing_token - 1])
        .await;
    let store = nodes.store().await;
    let lease = repeated(store.acquire(&ask("a", "one", 2)).await.unwrap());
    assert_eq!(lease.fencing_token.get(), fencing_token);
    let again = repeated(store.acquire(&ask("a", "one", 3)).await.unwrap());
    assert_eq!(again.fencing_token.get(), fencing_token);
    let renewed = store.renew(&name("a"), &token("one"), ttl(TTL)).await.unwrap();
    let RenewReply::Renewed(renewed) = renewed else { panic!("{renewed:?}") };
    assert_eq!(renewed[0].fencing_token.get(), fencing_token);
}

#[tokio::test]
async fn fencing_token_without_a_possible_quorum_is_replaced() {
    let (nodes, fencing_token) = (RedlockNodes::start().await, FAR_AHEAD);
    // All the other nodes gave the lock to another client in between.
    give(&nodes, fencing_token, [fencing_token - 1, fencing_token + 5, fencing_token + 5]).await;
    for node in &nodes[3..] {
        let () = node.run(&["SET", &counter_of("a"), &(fencing_token + 5).to_string()]).await;
    }
    let store = nodes.store().await;
    let lease = granted(store.acquire(&ask("a", "one", 2)).await.unwrap());
    assert!(lease.fencing_token.get() > fencing_token + 5, "{lease:?}");
    let again = repeated(store.acquire(&ask("a", "one", 3)).await.unwrap());
    assert_eq!(again.fencing_token, lease.fencing_token);
}

#[tokio::test]
async fn possibly_chosen_fencing_token_is_not_replaced() {
    let (nodes, fencing_token) = (RedlockNodes::start().await, FAR_AHEAD);
    give(&nodes, fencing_token, [fencing_token - 1, fencing_token + 5, fencing_token + 5]).await;
    let store = open_redlock(&nodes.config_with_silent_nodes()).await;
    nodes.pause_all([3, 4]);
    let error = store.acquire(&ask("a", "one", 2)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error:?}");
}

/// A grant on the first three nodes whose attempt died when the first one had its fence. On the
/// other nodes, which are paused, the lock is free.
async fn half_granted(nodes: &RedlockNodes, fencing_token: u64, floors: [u64; 3]) {
    give(nodes, fencing_token, floors).await;
    nodes.pause_all([3, 4]);
}

/// The same with all of them running.
async fn give(nodes: &RedlockNodes, fencing_token: u64, floors: [u64; 3]) {
    for (at, floor) in floors.into_iter().enumerate() {
        let fencing_token = if at == 0 { fencing_token } else { 0 };
        let counter = floor.max(fencing_token).to_string();
        let () = nodes[at].run(&["SET", &counter_of("a"), &counter]).await;
        put_lock(&nodes[at], "one", fencing_token, floor).await;
    }
}

/// Puts the lock `a` on a node, as if its first attempt had got it there.
pub(crate) async fn put_lock(node: &RedisServer, holder: &str, fencing_token: u64, floor: u64) {
    let (lock, hash) = (lock_of("a"), hash_of(holder));
    let (fencing_token, floor) = (fencing_token.to_string(), floor.to_string());
    let fields = ["token", &hash, "fence", &fencing_token, "ttl", "60000", "owner", ""];
    let rest = ["acquired", "1", "attempt", "1", "floor", &floor];
    let _: u64 = node.run(&[&["HSET", &lock][..], &fields, &rest].concat()).await;
    let _: u64 = node.run(&["PEXPIRE", &lock, "60000"]).await;
}

#[tokio::test]
async fn late_fencing_token_is_not_used_for_a_later_grant() {
    let node = RedisServer::start().await;
    let settle = concat!(
        include_str!("../../crates/stores/src/redis/lua/redlock.lua"),
        include_str!("../../crates/stores/src/redis/lua/redlock_accept.lua"),
    );
    let (lock, counter, hash) = (lock_of("a"), counter_of("a"), hash_of("one"));
    let settled = async |ballot: u64, fencing_token: u64| {
        let (ballot, fencing_token) = (format!("{ballot:040}"), fencing_token.to_string());
        let arguments = [&hash, &ballot, &fencing_token, "", "1"];
        let _: redis::Value =
            node.run(&[&["EVAL", settle, "2", &lock, &counter][..], &arguments].concat()).await;
        (
            node.run::<u64>(&["HGET", &lock, "fence"]).await,
            node.run::<u64>(&["GET", &counter]).await,
        )
    };
    put_lock(&node, "one", 0, 100).await;
    assert_eq!(settled(5, 99).await, (0, 99));
    assert_eq!(settled(5, 100).await, (0, 100));
    assert_eq!(settled(5, FAR_AHEAD).await, (FAR_AHEAD, FAR_AHEAD));
    assert_eq!(settled(4, 101).await, (FAR_AHEAD, FAR_AHEAD), "a lower ballot");
    assert_eq!(settled(6, 101).await, (101, FAR_AHEAD), "a higher ballot");
    let promised = format!("{:040}", 9);
    let _: u64 = node.run(&["HSET", &lock, "promised", &promised]).await;
    assert_eq!(settled(8, 102).await, (101, FAR_AHEAD), "below what was promised");
}

async fn fencing_token(store: &OpenStore, attempt: u64) -> u64 {
    let lease = granted(store.acquire(&ask("a", "one", attempt)).await.unwrap());
    store.release(&name("a"), &token("one")).await.unwrap();
    lease.fencing_token.get()
}

fn counter_of(lock: &str) -> String {
    format!("keylatch:{{{:02x}}}:fence", LockName::parse(lock).unwrap().bucket())
}

fn lock_of(lock: &str) -> String {
    format!("keylatch:{{{:02x}}}:lock:{lock}", LockName::parse(lock).unwrap().bucket())
}

/// A holder's token as scripts write it.
pub(crate) fn hash_of(holder: &str) -> String {
    URL_SAFE_NO_PAD.encode(token(holder).as_bytes())
}
