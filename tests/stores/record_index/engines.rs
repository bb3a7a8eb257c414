//! Goal: PostgreSQL, etcd and ZooKeeper mark the records that are not done, and read a list of them
//! by the marks.
//!
//! Method: the rows and keys of a server are counted beside what a list gives.

use base64::Engine as _;
use keylatch_core::idempotency::ResolveCommand;
use keylatch_stores::conditional::Key;
use keylatch_testkit::engines::stores;
use keylatch_testkit::zookeeper_client::{Acls, CreateMode};
use keylatch_testkit::{
    EtcdServer, FromStore as _, PostgresDatabase, Records, TestStore, ZookeeperServer, soon,
};
use serde_json::json;

use super::*;
use crate::postgres::open;

#[tokio::test]
async fn postgres_list_of_unknown_reads_the_index_of_the_unfinished() {
    let database = PostgresDatabase::create().await;
    let store = open(&database.url()).await;
    fill(&*store).await;
    // Without the dead entries of runs that ended, which are there until the server cleans up.
    database.run("VACUUM keylatch.entries").await;
    let statistics = "SELECT idx_scan::text || ' ' || idx_tup_read::text FROM pg_stat_user_indexes
        WHERE indexrelname = 'entries_unfinished'";
    // The server counts what a session did a while later, so it is asked until it has counted a
    // list.
    let [scans, read] = eventually(async || {
        assert_eq!(listed(&*store, PhaseName::Unknown).await.len(), UNKNOWN as usize);
        let counted = database.ask::<String>(statistics).await;
        let counted: Vec<u32> =
            counted.split(' ').map(|count| count.parse().expect("a count")).collect();
        let counted: [u32; 2] = counted.try_into().expect("two counts");
        (counted[0] > 0).then_some(counted)
    })
    .await;
    assert_eq!(read, scans * UNKNOWN, "{scans} lists");
}

/// The marks of a store, and the number of its records that are unknown, through the end of some of
/// them.
async fn check_marks(store: &TestStore, marks: impl AsyncFn() -> usize) {
    let records = Records::from_store(store).await;
    fill(&**records).await;
    assert_eq!(marks().await, UNKNOWN as usize, "the marks are not those of the unknown");
    assert_eq!(listed(&**records, PhaseName::Unknown).await.len(), UNKNOWN as usize);
    for number in DONE..DONE + UNKNOWN / 2 {
        let end = Some(StoredResponse::Mark(200)).filter(|_| number % 2 == 0);
        let resolve =
            ResolveCommand { key: order(number).key, fencing_token: None, end: end.into() };
        records.resolve(&resolve).await.unwrap();
    }
    assert_eq!(marks().await, UNKNOWN as usize / 2, "a mark outlived the unknown");
    records.advance(Duration::from_secs(31 * 24 * 3600)).await;
    // A sweep sees a dead row, and a later one removes it.
    for _ in 0..200 {
        records.advance(Duration::from_secs(5)).await;
        // Its calls are answered while these are.
        for _ in 0..100 {
            records.find(&order(0).key).await.unwrap();
        }
        if marks().await == 0 {
            return;
        }
    }
    panic!("a mark outlived its record for 200 sweeps");
}

/// Runs whose marks someone removed end as others do, and a mark that is there already stays.
async fn check_changed_marks(
    store: &dyn Store,
    remove: impl AsyncFn(&RecordKey),
    make: impl AsyncFn(&RecordKey),
) {
    let asks = [order(1), order(2), order(3)];
    let end = RunEnd::Done(StoredResponse::Mark(201));
    for ask in &asks[..2] {
        store.begin(ask).await.unwrap();
        remove(&ask.key).await;
    }
    store.complete(&asks[0].key, &asks[0].token, end).await.unwrap();
    store.abandon(&asks[1].key, &asks[1].token).await.unwrap();
    for ask in &asks[1..] {
        make(&ask.key).await;
        store.begin(ask).await.unwrap();
    }
    let found = listed(store, PhaseName::InFlight).await;
    let found: BTreeSet<_> = found.into_iter().map(|record| record.key).collect();
    assert_eq!(found, asks[1..].iter().map(|ask| ask.key).collect());
}

/// What the keys of the marks below an etcd's URL begin with.
fn etcd_marks(url: &str) -> Vec<u8> {
    let (_, prefix) = url.rsplit_once('/').expect("a prefix");
    format!("{prefix}/m").into_bytes()
}

fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[tokio::test]
async fn etcd_marks_are_those_of_the_unfinished() {
    let store = stores::etcd().await;
    let first = etcd_marks(store.url());
    let mut end = first.clone();
    *end.last_mut().expect("a byte") += 1;
    let all = json!({"key": base64(&first), "range_end": base64(&end), "count_only": true});
    let marks = async || {
        let found = EtcdServer::shared().await.post("kv/range", &all).await;
        found["count"].as_str().map_or(0, |count| count.parse().expect("a number"))
    };
    check_marks(&store, marks).await;
}

#[tokio::test]
async fn etcd_bears_marks_that_someone_changed() {
    let (store, server) = (stores::etcd().await, EtcdServer::shared().await);
    let mark = |key: &RecordKey| {
        base64(&[&*etcd_marks(store.url()), &Key::Record(*key).to_bytes()].concat())
    };
    let remove = async |key: &RecordKey| {
        server.post("kv/deleterange", &json!({"key": mark(key)})).await;
    };
    let make = async |key: &RecordKey| {
        server.post("kv/put", &json!({"key": mark(key), "value": ""})).await;
    };
    soon("the end of the runs", check_changed_marks(&*store.open().await, remove, make)).await;
}

/// The node of the marks below a ZooKeeper's URL.
fn zookeeper_marks(url: &str) -> String {
    let (_, node) = url.rsplit_once('/').expect("a node");
    format!("/{node}/m")
}

#[tokio::test]
async fn zookeeper_marks_are_those_of_the_unfinished() {
    let store = stores::zookeeper().await;
    let (client, top) =
        (ZookeeperServer::shared().await.connect().await, zookeeper_marks(store.url()));
    let marks = async || {
        client.sync("/").await.unwrap();
        let buckets = (0..=u8::MAX).map(|bucket| format!("{top}/{bucket:02x}"));
        let counts = buckets.map(async |bucket| client.list_children(&bucket).await.unwrap().len());
        join_all(counts).await.into_iter().sum()
    };
    check_marks(&store, marks).await;
}

#[tokio::test]
async fn zookeeper_bears_marks_that_someone_changed() {
    let store = stores::zookeeper().await;
    let (client, top) =
        (ZookeeperServer::shared().await.connect().await, zookeeper_marks(store.url()));
    let mark = |key: &RecordKey| {
        let name = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(key.as_bytes());
        format!("{top}/{:02x}/{name}", key.bucket())
    };
    let remove = async |key: &RecordKey| client.delete(&mark(key), None).await.unwrap();
    let make = async |key: &RecordKey| {
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.create(&mark(key), &[], &options).await.unwrap();
    };
    soon("the end of the runs", check_changed_marks(&*store.open().await, remove, make)).await;
}
