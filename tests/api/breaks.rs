//! Goal: a break ends the lease of the grant that it names and of no other, its holder reads why,
//! and the history has it.
//!
//! Method: breaks over HTTP, on each store that has locks of every kind.

use keylatch::config::Switch;
#[cfg(feature = "test-engines")]
use keylatch_testkit::RedlockNodes;
use keylatch_testkit::{Answer, Api, EventStream, Service, config, store_test};
use reqwest::Method;
use serde_json::{Value, json};

const ALICE: &str = "a-token-that-alice-chose";

async fn break_lease(api: &Api, name: &str, body: &Value) -> Answer {
    Answer::of(api.request(Method::POST, &format!("/v1/locks/{name}/break")).json(body)).await
}

async fn history(api: &Api, name: &str) -> Vec<Value> {
    let answer = api.get(&format!("/v1/locks/{name}/history")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json["ends"].as_array().expect("ends").clone()
}

#[store_test(service, modes)]
async fn broken_lease_lasts_and_is_not_renewed(service: &Service) {
    let lease =
        service.create_as("deploy", ALICE, &json!({"ttl_ms": 60_000, "owner": "ci 7"})).await;
    let body =
        json!({"reason": "runner 7 is gone", "fencing_token": lease.fencing_token(), "by": "bob"});
    for _ in 0..2 {
        let broken = break_lease(service, "deploy", &body).await;
        assert_eq!((broken.status.as_u16(), broken.fencing_token()), (200, lease.fencing_token()));
        let ends_in = broken.json["ends_in_ms"].as_u64().expect("a time");
        // A store without a clock may count the lease from a little later, but never beyond its
        // TTL.
        let is_unchanged = (30_001..=60_000).contains(&ends_in);
        assert!(is_unchanged, "a break alone shortens nothing, nor lengthens it: {broken:?}");
    }
    let renewal = service.renew("deploy", ALICE, &json!({})).await;
    renewal.is_problem(409, "lock-broken");
    assert_eq!(renewal.json["broken"]["reason"], "runner 7 is gone", "{renewal:?}");
    assert_eq!(renewal.json["broken"]["by"], "bob");
    assert_eq!(service.look("deploy").await.json["broken"]["by"], "bob");
    service.create("deploy", &json!({})).await.is_problem(409, "lock-held");
    assert_eq!(history(service, "deploy").await, Vec::<Value>::new(), "it has not ended");
}

#[store_test(service, modes)]
async fn grace_ends_the_lease_and_the_queue_is_served(service: &Service) {
    let lease = service.create_as("job", ALICE, &json!({"ttl_ms": 60_000, "owner": "ci 7"})).await;
    let request = service.request(Method::GET, "/v1/locks/job/events");
    let mut events = EventStream::of(request).await;
    events.next("snapshot").await;
    let body = json!({"wait_ms": 60_000, "ttl_ms": 60_000});
    let waiting = service.create("job", &body);
    let breaking = async {
        service.has_waiting("job", 1).await;
        let body =
            json!({"reason": "it hangs", "fencing_token": lease.fencing_token(), "grace_ms": 0});
        let broken = break_lease(service, "job", &body).await;
        assert_eq!((broken.status.as_u16(), &broken.json["ends_in_ms"]), (200, &json!(0)));
        assert_eq!(break_lease(service, "job", &body).await.status, 200, "a repeat is the same");
    };
    let (next, ()) = tokio::join!(waiting, breaking);
    assert_eq!(next.status, 201, "{next:?}");
    assert!(next.fencing_token() > lease.fencing_token());
    service.renew("job", ALICE, &json!({})).await.is_problem(409, "lock-broken");
    let ends = history(service, "job").await;
    assert_eq!(ends.len(), 1, "{ends:?}");
    let found = ["fencing_token", "owner", "how", "reason"].map(|member| ends[0][member].clone());
    let expected =
        [json!(lease.fencing_token()), json!("ci 7"), json!("broken"), json!("it hangs")];
    assert_eq!(found, expected);
    assert_eq!(events.next("broken").await.fencing_token(), lease.fencing_token());
    assert_eq!(events.next("released").await.fencing_token(), lease.fencing_token());
    assert_eq!(events.next("acquired").await.fencing_token(), next.fencing_token());
}

#[store_test(memory)]
async fn slot_narrows_a_break_to_one_of_those_that_share_a_fencing_token(service: &Service) {
    let reader = json!({"mode": "shared", "ttl_ms": 60_000});
    let (one, two) = (service.create("era", &reader).await, service.create("era", &reader).await);
    let body = json!({"reason": "it hangs", "fencing_token": one.fencing_token(), "slot": 1, "grace_ms": 0});
    assert_eq!(break_lease(service, "era", &body).await.status, 200);
    assert_eq!(service.renew("era", &one.token(), &json!({})).await.status, 200);
    service.renew("era", &two.token(), &json!({})).await.is_problem(409, "lock-broken");
}

#[store_test(memory)]
async fn hold_reads_that_its_lease_is_broken(service: &Service) {
    let request =
        service.request(Method::POST, "/v1/locks/held/hold").json(&json!({"ttl_ms": 9000}));
    let mut events = EventStream::of(request).await;
    let acquired = events.next("acquired").await;
    let body =
        json!({"reason": "it hangs", "fencing_token": acquired.fencing_token(), "by": "bob"});
    assert_eq!(break_lease(service, "held", &body).await.status, 200);
    let lost = events.after_renewals("lost").await;
    assert_eq!(lost.data["reason"], "lock-broken", "{lost:?}");
    assert_eq!(lost.data["broken"]["reason"], "it hangs");
    events.ended().await;
}

#[tokio::test]
async fn break_needs_a_reason_and_the_fencing_token_of_what_was_seen() {
    let service = Service::start("memory:").await;
    let bodies = [
        (json!({"fencing_token": 7}), "reason"),
        (json!({"reason": "", "fencing_token": 7}), "reason"),
        (json!({"reason": "x".repeat(257), "fencing_token": 7}), "reason"),
        (json!({"reason": "it hangs"}), "fencing_token"),
        (json!({"reason": "it hangs", "fencing_token": 7, "grace_ms": 86_400_001}), "grace_ms"),
        (json!({"reason": "it hangs", "fencing_token": 7, "by": "a\nb"}), "by"),
    ];
    for (body, field) in bodies {
        let answer = break_lease(&service, "a", &body).await;
        answer.is_problem(400, "invalid-body");
        assert_eq!(answer.json["field"], field, "{body}: {answer:?}");
    }
}

#[tokio::test]
async fn break_is_off_where_it_is_not_served() {
    let body = json!({"reason": "it hangs", "fencing_token": 7});
    let mut off = config("memory:");
    off.lock.r#break = Switch::Off;
    let mut open = config("memory:");
    (open.listen, open.open) = ("0.0.0.0:0".to_owned(), true);
    for config in [off, open.clone()] {
        let service = Service::start_with(config).await;
        break_lease(&service, "a", &body).await.is_problem(403, "break-disabled");
    }
    open.lock.r#break = Switch::On;
    let service = Service::start_with(open).await;
    break_lease(&service, "a", &body).await.is_problem(404, "lock-not-held");
}

#[cfg(feature = "test-engines")]
#[tokio::test]
async fn redlock_has_exclusive_locks_alone() {
    let nodes = RedlockNodes::start().await;
    let service = Service::start_with(nodes.config()).await;
    for body in [json!({"mode": "shared"}), json!({"entry": "step 1"})] {
        service.create("a", &body).await.is_problem(501, "not-supported");
    }
    let body = json!({"reason": "it hangs", "fencing_token": 7});
    break_lease(&service, "a", &body).await.is_problem(501, "not-supported");
    service.get("/v1/locks/a/history").await.is_problem(501, "not-supported");
    assert_eq!(service.create("a", &json!({})).await.status, 201);
}
