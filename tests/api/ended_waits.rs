//! Goal: a client that waits before a free lock is seen, and an operator ends its wait.
//!
//! Method: a set waits for its second lock and so keeps its first one free; requests over HTTP, on
//! each store that has queues. The same for the waiter of a single lock, and for a hold.

use keylatch_testkit::{Answer, EventStream, Service, eventually, soon, store_test};
use reqwest::Method;
use serde_json::{Value, json};

const ALICE: &str = "a-token-that-alice-chose";
const BOB: &str = "a-token-that-bob-chose-himself";
const CAROL: &str = "a-token-that-carol-chose";
const DAVE: &str = "a-token-that-dave-chose";

fn waiting(owner: &str) -> Value {
    json!({"ttl_ms": 60_000, "wait_ms": 60_000, "owner": owner})
}

async fn end_wait(service: &Service, name: &str, waiter: &Value) -> Answer {
    let body = json!({"reason": "it blocks the release", "waiter": waiter, "by": "bob"});
    Answer::of(service.request(Method::POST, &format!("/v1/locks/{name}/end-wait")).json(&body))
        .await
}

/// Waits until so many stand before a lock that is free, and gives what a look at it says.
async fn has_before(service: &Service, name: &str, ahead: u64) -> Answer {
    let look = async || Some(service.look(name).await).filter(|look| look.json["ahead"] == ahead);
    let look = eventually(look).await;
    look.is_problem(404, "lock-not-held");
    look
}

fn is_ended(refused: &Answer) {
    refused.is_problem(409, "wait-ended");
    let told = ["reason", "by"].map(|member| refused.json["broken"][member].clone());
    assert_eq!(told, ["it blocks the release", "bob"], "{refused:?}");
}

#[store_test(service, sets)]
async fn set_that_keeps_a_free_lock_from_others_is_seen_and_ended(service: &Service) {
    assert_eq!(service.create_as("b", BOB, &json!({"ttl_ms": 60_000})).await.status, 201);
    let body = waiting("tenant");
    let set = service.create_set_as(&["a", "b"], ALICE, &body);
    let next = async {
        has_before(service, "a", 1).await;
        service.create_as("a", CAROL, &waiting("carol")).await
    };
    let operator = async {
        let look = has_before(service, "a", 2).await;
        assert_eq!(look.json["waiter"]["owner"], "tenant", "{look:?}");
        let refused = service.create_as("a", DAVE, &json!({})).await;
        refused.is_problem(409, "lock-held");
        let waiter = &refused.json["waiter"];
        assert_eq!(refused.json["ahead"], 2, "{refused:?}");
        assert_eq!((&waiter["owner"], waiter["waited_ms"].is_u64()), (&json!("tenant"), true));
        assert_eq!(waiter["number"], look.json["waiter"]["number"]);
        for _ in 0..2 {
            let ended = end_wait(service, "a", &waiter["number"]).await;
            assert_eq!(ended.status, 204, "a repeat is the same: {ended:?}");
        }
    };
    let (set, next, ()) = soon("both", async { tokio::join!(set, next, operator) }).await;
    is_ended(&set);
    assert_eq!((set.json["name"].clone(), next.status.as_u16()), (Value::Null, 201), "{next:?}");
    service.has_waiting("b", 0).await;
    // The client asks again with its token: at the end of the queue.
    let body = json!({"ttl_ms": 60_000, "wait_ms": 2000});
    let again = service.create_set_as(&["a", "b"], ALICE, &body).await;
    again.is_problem(409, "lock-held");
    assert_eq!(service.release("a", CAROL).await.status, 204);
    assert_eq!(service.release("b", BOB).await.status, 204);
    assert_eq!(service.create_set_as(&["a", "b"], ALICE, &waiting("tenant")).await.status, 201);
}

#[store_test(service, modes)]
async fn wait_for_a_held_lock_is_ended_and_its_token_returns_at_the_end(service: &Service) {
    assert_eq!(service.create_as("job", BOB, &json!({"ttl_ms": 60_000})).await.status, 201);
    let body = waiting("alice");
    let first = async {
        is_ended(&service.create_as("job", ALICE, &body).await);
        service.create_as("job", ALICE, &body).await
    };
    let second = async {
        service.has_waiting("job", 1).await;
        service.create_as("job", CAROL, &waiting("carol")).await
    };
    let operator = async {
        service.has_waiting("job", 2).await;
        let refused = service.create_as("job", DAVE, &json!({})).await;
        assert_eq!(refused.json["waiter"]["owner"], "alice", "{refused:?}");
        let number = &refused.json["waiter"]["number"];
        assert_eq!(end_wait(service, "job", number).await.status, 204);
        service.has_waiting("job", 2).await;
        let refused = service.create_as("job", DAVE, &json!({})).await;
        assert_eq!(refused.json["waiter"]["owner"], "carol", "alice has her place again");
        let gone = end_wait(service, "job", &json!(7)).await;
        gone.is_problem(412, "fence-mismatch");
        assert_eq!(service.release("job", BOB).await.status, 204);
        service.has_waiting("job", 1).await;
        assert_eq!(service.look("job").await.json["owner"], "carol");
        assert_eq!(service.release("job", CAROL).await.status, 204);
    };
    let all = async { tokio::join!(first, second, operator) };
    let (first, second, ()) = soon("all", all).await;
    assert_eq!((first.status.as_u16(), second.status.as_u16()), (201, 201), "{first:?}");
    let ends = service.get("/v1/locks/job/history").await;
    assert_eq!(ends.json["ends"], json!([]), "no grant ended: {ends:?}");
    end_wait(service, "free", &json!(7)).await.is_problem(404, "lock-not-held");
}

#[tokio::test]
async fn hold_that_waits_reads_that_its_wait_was_ended() {
    let service = Service::start("memory:").await;
    assert_eq!(service.create_as("job", BOB, &json!({"ttl_ms": 60_000})).await.status, 201);
    let request = service.request(Method::POST, "/v1/locks/job/hold").json(&waiting("alice"));
    let mut events = EventStream::of(request).await;
    events.next("waiting").await;
    let refused = service.create_as("job", DAVE, &json!({})).await;
    assert_eq!(end_wait(&service, "job", &refused.json["waiter"]["number"]).await.status, 204);
    let refused = events.next("refused").await;
    assert_eq!(refused.data["code"], "wait-ended", "{refused:?}");
}

#[tokio::test]
async fn end_of_a_wait_names_its_waiter() {
    let service = Service::start("memory:").await;
    let body = json!({"reason": "x"});
    let request = service.request(Method::POST, "/v1/locks/a/end-wait").json(&body);
    let refused = Answer::of(request).await;
    refused.is_problem(400, "invalid-body");
    assert_eq!(refused.json["field"], "waiter", "{refused:?}");
}
