//! Goal: clients hold a lock together as far as each of them allows, no waiter is passed, and a
//! resource that compares fencing tokens refuses every late holder and none that is in time.
//!
//! Method: requests over HTTP, on each store that has locks of every kind.

use futures_util::future::join_all;
use keylatch_testkit::{Answer, Api, EventStream, Service, store_test};
use reqwest::Method;
use serde_json::{Value, json};

const ALICE: &str = "a-token-that-alice-chose";
const BOB: &str = "a-token-that-bob-chose-himself";

fn shared() -> Value {
    json!({"mode": "shared", "ttl_ms": 60_000})
}

fn counted(limit: u64) -> Value {
    json!({"mode": "shared", "limit": limit, "ttl_ms": 60_000})
}

#[store_test(memory)]
async fn shared_lease_says_its_mode_and_an_exclusive_one_says_nothing_new(service: &Service) {
    let exclusive = service.create("one", &json!({"mode": "exclusive"})).await;
    assert_eq!(exclusive.status, 201);
    for member in ["mode", "limit", "slot", "entries"] {
        assert_eq!(exclusive.json.get(member), None, "{exclusive:?}");
    }
    let reader = service.create("several", &shared()).await;
    assert_eq!((&reader.json["mode"], reader.json.get("slot")), (&json!("shared"), None));
    let worker = service.create("several", &counted(5)).await;
    let found = ["mode", "limit", "slot"].map(|member| worker.json[member].clone());
    assert_eq!(found, [json!("shared"), json!(5), json!(1)], "{worker:?}");
}

#[store_test(memory)]
async fn readers_hold_together_and_a_writer_waits_for_them(service: &Service) {
    let body = shared();
    let readers = [ALICE, BOB].map(|token| service.create_as("file", token, &body));
    let readers = join_all(readers).await;
    assert!(readers.iter().all(|answer| answer.status == 201), "{readers:?}");
    let writer = service.create("file", &json!({})).await;
    writer.is_problem(409, "lock-held");
    assert_eq!(writer.json["holding"], 2);
    assert_eq!(writer.json["holders"].as_array().map(Vec::len), Some(2), "{writer:?}");
    assert_eq!(writer.json.get("holder"), None);
    for token in [ALICE, BOB] {
        assert_eq!(service.release("file", token).await.status, 204);
    }
    assert_eq!(service.create("file", &json!({})).await.status, 201);
    service.create("file", &shared()).await.is_problem(409, "lock-held");
}

#[store_test(memory)]
async fn look_and_list_show_all_holders_by_slot(service: &Service) {
    for owner in ["one", "two", "three"] {
        let body = json!({"mode": "shared", "limit": 3, "owner": owner});
        assert_eq!(service.create("slots", &body).await.status, 201);
    }
    let look = service.look("slots").await;
    let list = service.get("/v1/locks?prefix=slots").await;
    for lock in [&look.json, &list.json["locks"][0]] {
        let found = ["name", "mode", "limit", "holding", "waiting"].map(|member| &lock[member]);
        assert_eq!(found, [&json!("slots"), &json!("shared"), &json!(3), &json!(3), &json!(0)]);
        let holders = lock["holders"].as_array().expect("holders");
        let by_slot: Vec<_> = holders
            .iter()
            .map(|holder| (holder["slot"].as_u64(), holder["owner"].as_str()))
            .collect();
        assert_eq!(
            by_slot,
            [(Some(0), Some("one")), (Some(1), Some("two")), (Some(2), Some("three"))]
        );
    }
}

#[store_test(service, modes)]
async fn readers_behind_a_writer_come_in_together(service: &Service) {
    let writer = service.create("gate", &json!({"ttl_ms": 60_000})).await;
    let body = json!({"mode": "shared", "wait_ms": 60_000, "ttl_ms": 60_000});
    let readers = async { join_all((0..5).map(|_| service.create("gate", &body))).await };
    let opening = async {
        service.has_waiting("gate", 5).await;
        assert_eq!(service.release("gate", &writer.token()).await.status, 204);
    };
    let (readers, ()) = tokio::join!(readers, opening);
    assert!(readers.iter().all(|answer| answer.status == 201), "{readers:?}");
    let fences: Vec<_> = readers.iter().map(Answer::fencing_token).collect();
    assert!(fences.iter().all(|fence| *fence == fences[0]), "an era has one: {fences:?}");
    assert!(fences[0] > writer.fencing_token());
}

#[store_test(memory)]
async fn downgrade_is_the_same_grant_and_an_upgrade_is_another(service: &Service) {
    let writer = service.create_as("doc", ALICE, &json!({"ttl_ms": 60_000})).await;
    let reader = service.create_as("doc", ALICE, &shared()).await;
    assert_eq!((reader.status.as_u16(), reader.fencing_token()), (200, writer.fencing_token()));
    assert_eq!(service.create_as("doc", BOB, &shared()).await.status, 201);
    let body = json!({"wait_ms": 60_000});
    let refused = service.create_as("doc", ALICE, &body).await;
    refused.is_problem(409, "lock-held");
    assert_eq!(service.look("doc").await.json["waiting"], 0, "an upgrade never waits");
    assert_eq!(service.release("doc", BOB).await.status, 204);
    let again = service.create_as("doc", ALICE, &body).await;
    assert_eq!(again.status, 201, "{again:?}");
    assert!(again.fencing_token() > reader.fencing_token());
}

#[store_test(memory)]
async fn entries_free_the_lock_with_the_last(service: &Service) {
    let enter =
        async |entry: &str| service.create_as("flow", ALICE, &json!({"entry": entry})).await;
    assert_eq!(enter("step 1").await.status, 201);
    for _ in 0..2 {
        let second = enter("step 2").await;
        assert_eq!(second.status, 200);
        assert_eq!(second.json["entries"], json!(["step 1", "step 2"]));
    }
    for _ in 0..2 {
        let left = leave(service, "flow", ALICE, "step%201").await;
        assert_eq!((left.status.as_u16(), &left.json["entries"]), (200, &json!(["step 2"])));
    }
    assert_eq!(leave(service, "flow", ALICE, "step%202").await.status, 204);
    service.look("flow").await.is_problem(404, "lock-not-held");
}

#[store_test(memory)]
async fn watch_tells_holders_apart_by_their_slots(service: &Service) {
    let request = service.request(Method::GET, "/v1/locks/seen/events");
    let mut events = EventStream::of(request).await;
    assert_eq!(events.next("snapshot").await.data["held"], false);
    let one = service.create("seen", &counted(2)).await;
    let two = service.create("seen", &counted(2)).await;
    for (lease, slot) in [(&one, 0), (&two, 1)] {
        let acquired = events.next("acquired").await;
        assert_eq!(
            (acquired.fencing_token(), &acquired.data["slot"]),
            (lease.fencing_token(), &json!(slot))
        );
    }
    service.release("seen", &one.token()).await;
    let released = events.next("released").await;
    assert_eq!(
        (released.fencing_token(), &released.data["slot"]),
        (one.fencing_token(), &json!(0))
    );
}

/// Each step on the lock writes the labels and entries of all of its holders.
#[tokio::test]
async fn labels_and_entries_of_many_holders_have_a_bound() {
    let service = Service::start("memory:").await;
    let body = json!({"mode": "shared", "owner": "o".repeat(256), "entry": "e".repeat(64)});
    let mut tokens = Vec::new();
    let refused = loop {
        let reader = service.create("file", &body).await;
        if reader.status != 201 {
            break reader;
        }
        tokens.push(reader.token());
        assert!(tokens.len() < 250, "they have no bound");
    };
    refused.is_problem(429, "too-many-holders");
    assert!(tokens.len() > 150, "{} have 64 KiB", tokens.len());
    let enter = async |number: usize| {
        let next = json!({"mode": "shared", "entry": format!("{number:064}")});
        service.create_as("file", &tokens[0], &next).await
    };
    let mut number = 0;
    while enter(number).await.status == 200 {
        number += 1;
        assert!(number < 8, "its entries have no bound");
    }
    enter(number).await.is_problem(429, "too-many-holders");
    // What is there goes on.
    assert_eq!(service.create_as("file", &tokens[0], &body).await.status, 200);
    assert_eq!(service.renew("file", &tokens[0], &json!({})).await.status, 200);
    assert_eq!(service.release("file", &tokens[1]).await.status, 204);
    assert_eq!(service.create("file", &body).await.status, 201);
}

#[tokio::test]
async fn wrong_members_name_what_is_wrong() {
    let service = Service::start("memory:").await;
    let bodies = [
        (json!({"mode": "both"}), "mode"),
        (json!({"limit": 3}), "limit"),
        (json!({"mode": "exclusive", "limit": 3}), "limit"),
        (json!({"mode": "shared", "limit": 0}), "limit"),
        (json!({"mode": "shared", "limit": 1001}), "limit"),
        (json!({"entry": ""}), "entry"),
        (json!({"entry": "x".repeat(65)}), "entry"),
        (json!({"entry": "a\nb"}), "entry"),
    ];
    for (body, field) in bodies {
        let answer = service.create("a", &body).await;
        answer.is_problem(400, "invalid-body");
        assert_eq!(answer.json["field"], field, "{body}: {answer:?}");
    }
    for query in ["?entry=", "?entry=a&entry=b", "?step=a"] {
        let path = format!("/v1/locks/a{query}");
        let request = service.request(Method::DELETE, &path).header("Lock-Token", ALICE);
        Answer::of(request).await.is_problem(400, "invalid-query");
    }
}

async fn leave(api: &Api, name: &str, token: &str, entry: &str) -> Answer {
    let path = format!("/v1/locks/{name}?entry={entry}");
    Answer::of(api.request(Method::DELETE, &path).header("Lock-Token", token)).await
}
