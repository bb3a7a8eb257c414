//! Goal: several locks are acquired, renewed and released at once, all of them or none, and no two
//! clients that wait for sets wait for each other.
//!
//! Method: requests over HTTP, on each store that takes steps on several locks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use keylatch_testkit::{Answer, Dice, Service, TestStore, seed, store_test};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const ALICE: &str = "a-token-that-alice-chose";
const BOB: &str = "a-token-that-bob-chose-himself";

fn minute() -> Value {
    json!({"ttl_ms": 60_000})
}

fn waiting() -> Value {
    json!({"ttl_ms": 60_000, "wait_ms": 60_000})
}

#[store_test(service, sets)]
async fn set_is_granted_whole_in_the_order_of_the_request(service: &Service) {
    let body = json!({"ttl_ms": 60_000, "owner": "alice"});
    let created = service.create_set_as(&["b", "c", "a"], ALICE, &body).await;
    assert_eq!(created.status, 201, "{created:?}");
    assert_eq!((&created.json["token"], created.header("lock-token")), (&json!(ALICE), ALICE));
    assert_eq!(names(&created), ["b", "c", "a"]);
    assert!(created.json["valid_for_ms"].as_u64().is_some_and(|left| left <= 60_000));
    let again = service.create_set_as(&["b", "c", "a"], ALICE, &body).await;
    assert_eq!((again.status.as_u16(), &again.json["locks"]), (200, &created.json["locks"]));
    for lock in locks(&created) {
        let look = service.look(lock["name"].as_str().expect("a name")).await;
        assert_eq!(
            (&look.json["fencing_token"], &look.json["owner"]),
            (&lock["fencing_token"], &json!("alice"))
        );
    }
    assert_eq!(service.release_set(&["a", "b", "c"], ALICE).await.status, 204);
    let next = service.create_set_as(&["a", "b", "c"], BOB, &body).await;
    let before: BTreeMap<_, _> = fences(&created);
    assert!(fences(&next).iter().all(|(name, fence)| fence > &before[name]), "{next:?}");
}

#[store_test(memory)]
async fn renewal_is_of_all_or_of_none_and_says_which_are_lost(service: &Service) {
    let all = ["a", "b", "c"];
    assert_eq!(service.create_set_as(&all, ALICE, &minute()).await.status, 201);
    let renewed = service.renew_set(&all, ALICE, &json!({"ttl_ms": 120_000})).await;
    assert_eq!((renewed.status.as_u16(), &renewed.json["ttl_ms"]), (200, &json!(120_000)));
    assert_eq!(names(&renewed), all);
    let as_before = service.renew_set(&all, ALICE, &json!({})).await;
    assert_eq!((as_before.status.as_u16(), &as_before.json["ttl_ms"]), (200, &json!(120_000)));
    // Each by itself as well.
    assert_eq!(service.renew("a", ALICE, &json!({"ttl_ms": 90_000})).await.status, 200);
    assert_eq!(service.release("b", ALICE).await.status, 204);
    assert_eq!(service.release("c", ALICE).await.status, 204);
    assert_eq!(service.create_as("c", BOB, &minute()).await.status, 201);
    let lost = service.renew_set(&all, ALICE, &json!({"ttl_ms": 300_000})).await;
    lost.is_problem(404, "lock-not-held");
    let words =
        json!([{"name": "b", "code": "lock-not-held"}, {"name": "c", "code": "token-mismatch"}]);
    assert_eq!(lost.json["locks"], words);
    let left = service.look("a").await.json["expires_in_ms"].as_u64();
    assert!(left.is_some_and(|left| left <= 90_000), "one of the set was renewed: {left:?}");
    let lost = service.renew_set(&["c", "b"], ALICE, &minute()).await;
    lost.is_problem(412, "token-mismatch");
}

#[store_test(memory)]
async fn release_ends_all_that_the_token_holds_and_says_which_were_lost(service: &Service) {
    let all = ["a", "b", "c"];
    assert_eq!(service.create_set_as(&all, ALICE, &minute()).await.status, 201);
    assert_eq!(service.release("b", ALICE).await.status, 204);
    let rest = service.release_set(&all, ALICE).await;
    rest.is_problem(404, "lock-not-held");
    assert_eq!(rest.json["locks"], json!([{"name": "b", "code": "lock-not-held"}]));
    for name in all {
        service.look(name).await.is_problem(404, "lock-not-held");
    }
}

#[store_test(service, sets)]
async fn client_that_goes_away_leaves_all_lines(service: &Service) {
    assert_eq!(service.create_as("b", BOB, &minute()).await.status, 201);
    {
        let body = waiting();
        let gone = service.create_set_as(&["a", "b"], ALICE, &body);
        tokio::select! {
            granted = gone => panic!("{granted:?}"),
            () = service.has_waiting("b", 1) => {}
        }
    }
    service.has_waiting("b", 0).await;
    service.granted("a").await;
}

#[store_test(service, sets)]
async fn wait_that_is_over_reports_the_lock_and_leaves_all_lines(service: &Service) {
    assert_eq!(service.create_as("b", BOB, &minute()).await.status, 201);
    let body = json!({"ttl_ms": 60_000, "wait_ms": 200});
    let refused = service.create_set_as(&["a", "b"], ALICE, &body).await;
    refused.is_problem(409, "lock-held");
    assert_eq!(refused.json["name"], "b");
    assert!(refused.json["waited_ms"].as_u64().is_some_and(|waited| waited >= 200));
    service.has_waiting("b", 0).await;
    service.granted("a").await;
}

#[store_test(service, sets)]
async fn waiting_set_is_served_when_leases_expire(service: &Service) {
    for name in ["a", "b"] {
        assert_eq!(service.create_as(name, BOB, &json!({"ttl_ms": 2000})).await.status, 201);
    }
    let granted = service.create_set_as(&["a", "b"], ALICE, &waiting()).await;
    assert_eq!(granted.status, 201, "{granted:?}");
}

/// One lock is free for the first in the queue and another is held: what keeps the places of all
/// must not wake them.
#[store_test(service, sets)]
async fn sets_that_wait_do_not_ask_over_and_over(service: &Service) {
    assert_eq!(service.create_as("b", BOB, &minute()).await.status, 201);
    let body = json!({"ttl_ms": 60_000, "wait_ms": 3000, "mode": "shared"});
    let tokens: Vec<_> = (0..4).map(|number| format!("the-token-of-reader-{number}")).collect();
    let waits = tokens.iter().map(|token| service.create_set_as(&["a", "b"], token, &body));
    for refused in join_all(waits).await {
        refused.is_problem(409, "lock-held");
    }
    let metrics = service.get("/metrics").await.text;
    let count = metrics.lines().find_map(|line| {
        let is_of_sets = line.contains("_count{") && line.contains("\"acquire_set\"");
        line.rsplit(' ').next().filter(|_| is_of_sets).and_then(|count| count.parse::<u64>().ok())
    });
    // Each keeps its places every 1.3 s, and hears at most once for each time that another one
    // joins.
    assert!(count.is_some_and(|count| (8..=60).contains(&count)), "{count:?} rounds: {metrics}");
}

/// The names of sets that overlap at random, and clients that all wait for theirs at once.
#[store_test(sets, url)]
async fn two_hundred_sets_on_three_instances_are_all_served(store: &TestStore) {
    const SETS: usize = 200;
    let instances = three_on(store).await;
    let held: Arc<[AtomicBool; 10]> = Arc::default();
    let mut dice = Dice(seed());
    let mut clients = JoinSet::new();
    for number in 0..SETS {
        let mut names: Vec<usize> = (0..10).collect();
        let names: Vec<usize> =
            (0..3).map(|_| names.swap_remove(dice.below(names.len() as u64) as usize)).collect();
        let (service, held) = (Arc::clone(&instances[number % 3]), Arc::clone(&held));
        clients.spawn(async move {
            let token = format!("the-token-of-client-number-{number}");
            let locks: Vec<_> = names.iter().map(|name| format!("lock-{name}")).collect();
            let locks: Vec<_> = locks.iter().map(String::as_str).collect();
            let body = json!({"ttl_ms": 60_000, "wait_ms": 300_000});
            let granted = service.create_set_as(&locks, &token, &body).await;
            // 200 where the service asked a store again that was late.
            assert!(granted.status.is_success(), "{number}: {granted:?}");
            for name in &names {
                assert!(!held[*name].swap(true, Ordering::AcqRel), "two hold lock-{name}");
            }
            tokio::task::yield_now().await;
            for name in &names {
                held[*name].store(false, Ordering::Release);
            }
            release(&service, &locks, &token).await;
        });
    }
    let mut served = 0;
    while let Some(client) = clients.join_next().await {
        client.expect("a client that is served");
        served += 1;
    }
    assert_eq!(served, SETS);
}

/// Releases a set as every client does: it repeats what a late store leaves unknown, and then the
/// locks may be another's already.
async fn release(service: &Service, locks: &[&str], token: &str) {
    let mut is_unknown = false;
    loop {
        let released = service.release_set(locks, token).await;
        match released.status.as_u16() {
            204 => return,
            404 | 412 if is_unknown => return,
            503 => is_unknown = true,
            _ => panic!("{token}: {released:?}"),
        }
    }
}

/// As behind a proxy that lets no `%2F` pass.
#[store_test(memory)]
async fn set_of_one_is_any_lock(service: &Service) {
    let one = ["ci/deploy"];
    let created = service.create_set_as(&one, ALICE, &minute()).await;
    assert_eq!(created.status, 201, "{created:?}");
    assert_eq!(names(&created), one);
    let held = service.look("ci%2Fdeploy").await;
    assert_eq!(held.json["fencing_token"], created.json["locks"][0]["fencing_token"], "{held:?}");
    service.create("ci%2Fdeploy", &minute()).await.is_problem(409, "lock-held");
    assert_eq!(service.renew_set(&one, ALICE, &minute()).await.status, 200);
    assert_eq!(service.release_set(&one, ALICE).await.status, 204);
    assert_eq!(service.look("ci%2Fdeploy").await.status, 404);
    let path = service.get("/v1/locks/ci/deploy").await;
    path.is_problem(404, "not-found");
    let said = path.json["detail"].as_str().expect("a text");
    assert!(said.contains("A `/` in a name travels as `%2F`"), "{said}");
}

#[tokio::test]
async fn wrong_sets_name_what_is_wrong() {
    let service = Service::start("memory:").await;
    let many: Vec<_> = (0..17).map(|number| format!("lock {number}")).collect();
    let bodies = [
        (json!({}), "names"),
        (json!({"names": []}), "names"),
        (json!({"names": many}), "names"),
        (json!({"names": ["a", "b", "a"]}), "names"),
        (json!({"names": ["a", ""]}), "names[1]"),
        (json!({"names": ["a", "b"], "limit": 2}), "limit"),
        (json!({"names": ["a", "b"], "entry": "one"}), "entry"),
    ];
    for (body, field) in bodies {
        let answer = Answer::of(service.request(Method::POST, "/v1/locks").json(&body)).await;
        answer.is_problem(400, "invalid-body");
        assert_eq!(answer.json["field"], field, "{body}: {answer:?}");
    }
    for query in ["", "?name=a&name=a", "?name=a&lock=b", "?name=a&name="] {
        let request = service.request(Method::DELETE, &format!("/v1/locks{query}"));
        Answer::of(request.header("Lock-Token", ALICE)).await.is_problem(400, "invalid-query");
    }
    let request = service.request(Method::POST, "/v1/locks?ttl_ms=5").json(&json!({}));
    Answer::of(request).await.is_problem(400, "invalid-query");
    let request = service.request(Method::PUT, "/v1/locks").json(&json!({"names": ["a", "b"]}));
    Answer::of(request).await.is_problem(428, "token-required");
}

async fn three_on(store: &TestStore) -> [Arc<Service>; 3] {
    // A store in the process is one service's alone.
    if ["memory:", "embedded:"].iter().any(|scheme| store.url().starts_with(scheme)) {
        let service = Arc::new(Service::start_with(store.config()).await);
        return [Arc::clone(&service), Arc::clone(&service), service];
    }
    let services = join_all((0..3).map(|_| Service::start_with(store.config()))).await;
    let services: Vec<_> = services.into_iter().map(Arc::new).collect();
    services.try_into().expect("three services")
}

fn locks(answer: &Answer) -> &[Value] {
    answer.json["locks"].as_array().map_or(&[], Vec::as_slice)
}

fn names(answer: &Answer) -> Vec<&str> {
    locks(answer).iter().filter_map(|lock| lock["name"].as_str()).collect()
}

fn fences(answer: &Answer) -> BTreeMap<String, u64> {
    let fence = |lock: &Value| {
        let name = lock["name"].as_str()?.to_owned();
        Some((name, lock["fencing_token"].as_u64()?))
    };
    locks(answer).iter().filter_map(fence).collect()
}

#[tokio::test]
async fn set_names_what_it_did_not_change() {
    let service = Service::start("memory:").await;
    let mine = "a-token-of-the-clients-own";
    service.create_as("a", mine, &json!({"ttl_ms": 60_000})).await;
    let create = async |body: Value| {
        let request = service.request(Method::POST, "/v1/locks").json(&body);
        Answer::of(request.header("Lock-Token", mine)).await
    };
    let first = create(json!({"names": ["a", "b"]})).await;
    assert_eq!((first.status.as_u16(), &first.json["unchanged"]), (201, &json!(["ttl_ms"])));
    let again = create(json!({"names": ["b", "c"]})).await;
    assert_eq!((again.status.as_u16(), &again.json["unchanged"]), (201, &Value::Null));
}
