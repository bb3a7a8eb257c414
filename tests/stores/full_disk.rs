//! Goal: an engine whose disk is full refuses what it cannot keep, has everything that was
//! answered, and takes changes again once there is room.
//!
//! Method: the files of an engine that runs may not grow (`limit_files`). PostgreSQL refuses the
//! statement and serves others; etcd and ZooKeeper end, and the tests start them again when there
//! is room. etcd's own quota besides.

use keylatch_core::idempotency::{CompleteReply, RecordStatus};
use keylatch_core::store::{Effect, StoreError};
use keylatch_testkit::{
    Dice, EtcdServer, OpenStore, PostgresServer, Service, ZookeeperServer, eventually,
};
use serde_json::json;

use crate::lock_conformance::{ask, granted, held};
use crate::postgres::open_held;
use crate::record_conformance as records;

/// How large an answer is that fills a disk. No engine makes it smaller.
const ANSWER: usize = 400_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_postgres_refuses_and_forgets_nothing() {
    let server = PostgresServer::start().await;
    let store = open_held(&server.url("postgres")).await;
    // Its log is in files of 16 MB that are there.
    server.limit_files(Some(20_000_000));
    let (kept, refused) = fill(&store).await;
    assert_eq!(refused.effect(), Effect::NotExecuted, "{refused:?}");
    server.limit_files(None);
    has_everything(&store, kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_etcd_ends_and_forgets_nothing() {
    let mut server = EtcdServer::start_with(&[]).await;
    let store = open_held(&server.url("locks")).await;
    server.limit_files(3_000_000);
    let (kept, _) = fill(&store).await;
    is_refused(&server.url("locks"), "store-unavailable").await;
    server.restart().await;
    has_everything(&store, kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_zookeeper_ends_and_forgets_nothing() {
    let mut server = ZookeeperServer::start().await;
    let store = open_held(&server.url("a")).await;
    server.limit_files(3_000_000);
    let (kept, _) = fill(&store).await;
    is_refused(&server.url("a"), "store-unavailable").await;
    server.restart().await;
    has_everything(&store, kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_above_its_quota_takes_changes_again_when_there_is_room() {
    let server = EtcdServer::start_with(&["--quota-backend-bytes=6000000"]).await;
    let store = open_held(&server.url("locks")).await;
    // What another program keeps there: the base64 of no key of keylatch. It is half of the quota,
    // because the file may be larger after it was defragmented than what is in it.
    let junk = "QUFB".repeat(300_000);
    for key in ["aaaa", "aaab", "aaac"] {
        server.post("kv/put", &json!({"key": key, "value": junk})).await;
    }
    let (kept, refused) = fill(&store).await;
    assert_eq!(refused.effect(), Effect::Unknown, "{refused:?}");
    is_refused(&server.url("locks"), "store-full").await;
    server.post("kv/deleterange", &json!({"key": "aaaa"})).await;
    server.post("kv/deleterange", &json!({"key": "aaab"})).await;
    let deleted = server.post("kv/deleterange", &json!({"key": "aaac"})).await;
    let revision = &deleted["header"]["revision"];
    server.post("kv/compaction", &json!({"revision": revision, "physical": true})).await;
    server.post("maintenance/defragment", &json!({})).await;
    let mut alarm = server.post("maintenance/alarm", &json!({"action": "GET"})).await;
    let mut alarm = alarm["alarms"][0].take();
    alarm["action"] = json!("DEACTIVATE");
    server.post("maintenance/alarm", &alarm).await;
    has_everything(&store, kept).await;
}

/// Completes records until one is refused. Gives how many were kept before, and the refusal.
async fn fill(store: &OpenStore) -> (u8, StoreError) {
    let body: &'static str = incompressible();
    for record in 0..u8::MAX {
        let completed = async {
            store.begin(&records::ask(record, "one")).await?;
            let (key, token) = (records::key(record), records::token("one"));
            store.complete(&key, &token, records::done(body)).await
        };
        match completed.await {
            Ok(completed) => assert!(matches!(completed, CompleteReply::Done(_)), "{completed:?}"),
            Err(refused) => return (record, refused),
        }
    }
    panic!("the disk is not full");
}

/// New locks are refused over HTTP.
async fn is_refused(url: &str, code: &str) {
    let service = Service::start(url).await;
    service.create("b", &json!({})).await.is_problem(503, code);
}

/// Waits until the store works again; it has what it kept, and keeps more.
async fn has_everything(store: &OpenStore, kept: u8) {
    assert!(kept > 0, "nothing was kept before the disk was full");
    held(eventually(async || store.acquire(&ask("a", "two", 2)).await.ok()).await);
    for record in 0..kept {
        let begun = eventually(async || store.begin(&records::ask(record, "two")).await.ok()).await;
        let found = records::found(begun);
        assert!(matches!(found.phase, RecordStatus::Done { .. }), "record {record}: {found:?}");
    }
    granted(eventually(async || store.acquire(&ask("b", "one", 1)).await.ok()).await);
}

fn incompressible() -> &'static str {
    let mut dice = Dice(1);
    let letter = |_| char::from(b'0' + u8::try_from(dice.below(75)).expect("a byte"));
    Box::leak((0..ANSWER).map(letter).collect::<String>().into_boxed_str())
}
