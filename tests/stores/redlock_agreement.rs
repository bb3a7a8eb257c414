//! Goal: all nodes of one Redlock grant agree on one fencing token, although several instances ask
//! for it at once.
//!
//! Method: several stores over the same nodes, and random faults between them.

use std::time::Duration;

use futures_util::future::join_all;
use keylatch_core::lock::{AcquireReply, Lease, LockLoss, RenewReply};
use keylatch_core::store::{Effect, ListLocks};
use keylatch_testkit::{
    Dice, OpenStore, Proxy, RedlockNodes, config, eventually, open_redlock, redlock_url,
    with_generous_timeouts,
};

use crate::lock_conformance::{TTL, ask, held, name, repeated, token, ttl};
use crate::redlock_fences::{FAR_AHEAD, put_lock};

/// A store with its own proxies to the nodes, which may be slow.
async fn slow_store(nodes: &RedlockNodes) -> (OpenStore, Vec<Proxy>) {
    let proxies: Vec<_> = join_all(nodes.iter().map(|node| Proxy::start(node.address()))).await;
    let url = redlock_url(proxies.iter().map(|proxy| proxy.address().to_string()));
    (open_redlock(&with_generous_timeouts(config(&url))).await, proxies)
}

#[tokio::test]
async fn concurrent_requests_of_one_token_get_one_grant() {
    let nodes = RedlockNodes::start().await;
    let places = [slow_store(&nodes).await, slow_store(&nodes).await, slow_store(&nodes).await];
    let (mut dice, mut attempts) = (Dice(23), 0..);
    for round in 0..60 {
        for proxy in places.iter().flat_map(|(_, proxies)| proxies) {
            match dice.below(3) {
                0 => proxy.delay(Duration::from_millis(dice.below(12))),
                _ => proxy.forward(),
            }
        }
        let lock = format!("lock {round}");
        let asks: Vec<_> =
            places.iter().map(|_| ask(&lock, "one", attempts.next().unwrap())).collect();
        let asking = asks.iter().zip(&places).map(|(ask, (store, _))| store.acquire(ask));
        let answers: Vec<_> = join_all(asking).await;
        let leases: Vec<_> =
            answers.iter().filter_map(|answer| lease(answer.as_ref().ok()?)).collect();
        assert_eq!(leases.len(), places.len(), "{answers:?}");
        assert!(
            leases.iter().all(|lease| lease.fencing_token == leases[0].fencing_token),
            "{answers:?}"
        );
        let granted = |answer: &&Result<_, _>| matches!(answer, Ok(AcquireReply::Granted(_)));
        assert_eq!(answers.iter().filter(granted).count(), 1, "{answers:?}");
        let again = ask(&lock, "one", attempts.next().unwrap());
        let again = repeated(places[0].0.acquire(&again).await.unwrap());
        assert_eq!(again.fencing_token, leases[0].fencing_token, "{answers:?}");
    }
}

fn lease(found: &AcquireReply) -> Option<&Lease> {
    match found {
        AcquireReply::Granted(leases) | AcquireReply::Repeated(leases) => leases.first(),
        _ => None,
    }
}

#[tokio::test]
async fn unreported_grant_is_neither_shown_nor_renewed() {
    let nodes = RedlockNodes::start().await;
    let store = nodes.store().await;
    for node in nodes.iter() {
        put_lock(node, "one", 0, 0).await;
    }
    assert_no_holder_is_shown(&store).await;
    let renewal = store.renew(&name("a"), &token("one"), ttl(TTL)).await.unwrap();
    assert_eq!(renewal, RenewReply::lost(&name("a"), LockLoss::NotHeld));
    // A minority has the fencing token, and will have no more of it.
    for node in &nodes[..2] {
        put_lock(node, "one", 7, 0).await;
    }
    assert_no_holder_is_shown(&store).await;
    put_lock(&nodes[2], "one", 7, 0).await;
    assert_eq!(held(store.acquire(&ask("a", "two", 2)).await.unwrap()).fencing_token.get(), 7);
    assert_eq!(store.look(&name("a")).await.unwrap().unwrap().first.fencing_token.get(), 7);
    assert_eq!(listed(&store).await, 1);
}

async fn assert_no_holder_is_shown(store: &OpenStore) {
    assert_eq!(store.look(&name("a")).await.unwrap(), None);
    assert_eq!(listed(store).await, 0);
    let AcquireReply::Busy(busy) = store.acquire(&ask("a", "two", 2)).await.unwrap() else {
        panic!("the nodes have it with another")
    };
    assert_eq!(busy.holding, None);
}

async fn listed(store: &OpenStore) -> usize {
    let query = ListLocks { prefix: String::new(), limit: 10, cursor: None };
    store.list_locks(&query).await.unwrap().unwrap().entries.len()
}

#[tokio::test]
async fn possible_holder_on_down_nodes_is_an_unknown_outcome() {
    let mut nodes = RedlockNodes::start().await;
    let store = open_redlock(&nodes.config_with_silent_nodes()).await;
    for (node, (holder, fencing_token)) in
        nodes.iter().zip([("one", 9), ("one", 9), ("one", 9), ("two", 0), ("two", 0)])
    {
        put_lock(node, holder, fencing_token, 0).await;
    }
    let asked = held(store.acquire(&ask("a", "three", 3)).await.unwrap());
    assert_eq!(asked.fencing_token.get(), 9);
    nodes.kill_all([0, 1]).await;
    // Two of the three nodes left hold the lock for `two`, without a fencing token.
    let error = store.acquire(&ask("a", "three", 4)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::NotExecuted, "{error:?}");
    assert!(store.look(&name("a")).await.is_err());
    // The holder's own repeat is not executed either.
    let error = store.acquire(&ask("a", "one", 5)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::NotExecuted, "{error:?}");
}

/// Two of the four nodes that answer hold the lock for another token, and so may the one that is
/// down.
#[tokio::test]
async fn wrong_token_is_not_told_that_a_lock_is_free_which_another_may_hold() {
    let mut nodes = RedlockNodes::start().await;
    let store = open_redlock(&nodes.config_with_silent_nodes()).await;
    for node in &nodes[..3] {
        put_lock(node, "one", 9, 0).await;
    }
    let renew = async || store.renew(&name("a"), &token("two"), ttl(TTL)).await;
    let lost = RenewReply::lost(&name("a"), LockLoss::Mismatch);
    assert_eq!(renew().await.unwrap(), lost);
    nodes[0].kill().await;
    assert!(renew().await.is_err());
    assert!(store.release(&name("a"), &token("two")).await.is_err());
    assert!(store.look(&name("a")).await.is_err());
}

#[tokio::test]
async fn proposed_fencing_token_is_an_unknown_outcome() {
    let nodes = RedlockNodes::start().await;
    let store = open_redlock(&nodes.config_with_silent_nodes()).await;
    // These take no fencing token of today, and the last one says nothing, so that it takes some
    // rounds.
    for node in &nodes[..3] {
        put_lock(node, "one", 0, FAR_AHEAD).await;
    }
    nodes[4].pause();
    let taking_over = async {
        let proposed = async || {
            let keys = join_all(nodes[..3].iter().map(|node| node.run(&["KEYS", "*:fence"]))).await;
            keys.into_iter().any(|keys: Vec<String>| !keys.is_empty()).then_some(())
        };
        eventually(proposed).await;
        for node in &nodes[..3] {
            put_lock(node, "two", FAR_AHEAD, 0).await;
        }
    };
    let (one, two) = (ask("a", "one", 2), ask("a", "two", 3));
    let (found, ()) = tokio::join!(store.acquire(&one), taking_over);
    let error = found.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error:?}");
    repeated(store.acquire(&two).await.unwrap());
}
