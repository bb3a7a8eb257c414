//! What a list of unknown records costs, and whether the index follows the records: engine by engine.
//!
//! Method: many records are done and a few are not; then the engine itself says what a list read. No time
//! is measured. The conformance tests say what a list has; these say that it does not walk.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use futures_util::future::join_all;
use keylatch_core::idempotency::{
    BeginCommand, IdempotencyKey, PhaseName, RecordFilter, RecordKey, RecordScope, RecordStatus,
    RecordSummary, ResolveCommand, RunEnd, Scope, StoredResponse, UnknownReason,
};
use keylatch_core::store::{ListRecords, Store};
use keylatch_stores::conditional::Key;
use keylatch_stores::optimistic;
use keylatch_testkit::{
    Dice, EtcdServer, FakeEngine, Faults, FromStore as _, PostgresDatabase, Records, RedisServer,
    TestStore, ZookeeperServer, eventually, scaled, seed, soon, stores,
};
use serde_json::json;
use zookeeper_client::{Acls, CreateMode};

use crate::conditional::BAD_DAYS;
use crate::postgres::open;
use crate::record_conformance::{ask, token};

const DONE: u32 = 2000;
const UNKNOWN: u32 = 20;

/// A run of an order under a key of this number.
fn order(number: u32) -> BeginCommand {
    let scope = Scope { principal: "", method: "POST", path: "/v1/orders" };
    let key = IdempotencyKey::from(number);
    BeginCommand { key: scope.record(&key), scope: RecordScope::new(&scope, &key), ..ask(0, "one") }
}

/// Runs orders that end in this way.
async fn run_orders(store: &dyn Store, numbers: std::ops::Range<u32>, end: &RunEnd) {
    let numbers: Vec<_> = numbers.collect();
    for some in numbers.chunks(100) {
        join_all(some.iter().map(async |number| {
            let order = order(*number);
            store.begin(&order).await.unwrap();
            store.complete(&order.key, &order.token, end.clone()).await.unwrap();
        }))
        .await;
    }
}

/// Many records that are done, and a few whose outcome is unknown.
async fn fill(store: &dyn Store) {
    run_orders(store, 0..DONE, &RunEnd::Done(StoredResponse::Mark(201))).await;
    run_orders(store, DONE..DONE + UNKNOWN, &RunEnd::Unknown(UnknownReason::Failed)).await;
}

async fn listed(store: &dyn Store, phase: PhaseName) -> Vec<RecordSummary> {
    listed_by(store, RecordFilter { phase: Some(phase), ..RecordFilter::default() }).await
}

async fn listed_by(store: &dyn Store, filter: RecordFilter) -> Vec<RecordSummary> {
    let mut query = ListRecords { filter, limit: 1000, cursor: None };
    let mut found = Vec::new();
    loop {
        let page = store.list_records(&query).await.unwrap().expect("its own cursor");
        found.extend(page.entries);
        query.cursor = page.next;
        if query.cursor.is_none() {
            return found;
        }
    }
}

fn stopped() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().expect("a runtime")
}

#[expect(
    clippy::disallowed_methods,
    reason = "the clock is stopped, and jumps to the end of a pause"
)]
async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

#[test]
fn conditional_list_of_unknown_reads_no_row_that_is_done() {
    for engine in [FakeEngine::new, FakeEngine::without_clock] {
        stopped().block_on(async {
            let engine = engine(Faults::default(), seed());
            let store = optimistic(engine.clone());
            fill(&*store).await;
            let before = engine.looks();
            assert_eq!(listed(&*store, PhaseName::Unknown).await.len(), UNKNOWN as usize);
            // A mark and a row each.
            assert_eq!(engine.looks() - before, u64::from(2 * UNKNOWN));
            assert_eq!(engine.marked_rows(), UNKNOWN as usize);
            tokio::time::advance(Duration::from_secs(31 * 24 * 3600)).await;
            // Long enough for the sweeps that see a dead row and remove it.
            pass(Duration::from_secs(180)).await;
            assert_eq!(engine.marked_rows(), 0, "an entry of the index outlived its record");
        });
    }
}

#[test]
fn conditional_list_has_a_record_that_comes_after_many_others() {
    stopped().block_on(async {
        let store = optimistic(FakeEngine::new(Faults::default(), seed()));
        fill(&*store).await;
        for number in 1990..DONE {
            let filter = RecordFilter { key_prefix: number.to_string(), ..Default::default() };
            assert_eq!(listed_by(&*store, filter).await.len(), 1, "order {number}");
        }
    });
}

/// What becomes of records in three processes, on an engine that does all that it may.
async fn work(store: &dyn Store, dice: &mut Dice, records: u32) {
    for _ in 0..scaled(60) {
        let mut order = order(u32::try_from(dice.below(records.into())).expect("a small number"));
        order.lease = Duration::from_secs(10);
        order.token = token(&dice.below(3).to_string());
        // A lost answer leaves it unknown what the engine did, and the index has to follow all the same.
        let _ = match dice.below(5) {
            0 | 1 => store.begin(&order).await.err(),
            2 => {
                let end = RunEnd::Done(StoredResponse::Mark(201));
                store.complete(&order.key, &order.token, end).await.err()
            }
            3 => {
                let end = RunEnd::Unknown(UnknownReason::Failed);
                store.complete(&order.key, &order.token, end).await.err()
            }
            _ => store.abandon(&order.key, &order.token).await.err(),
        };
        pass(Duration::from_millis(dice.below(2000))).await;
    }
}

/// The records that are not done, by a look at each.
async fn look_at_each(store: &dyn Store, records: u32) -> BTreeSet<RecordKey> {
    let mut unfinished = BTreeSet::new();
    for number in 0..records {
        let key = order(number).key;
        let view = eventually(async || store.find(&key).await.ok()).await;
        let is_done = |status: &RecordStatus| matches!(status, RecordStatus::Done { .. });
        if view.is_some_and(|view| !is_done(&view.phase)) {
            unfinished.insert(key);
        }
    }
    unfinished
}

/// The records that a list of what is unknown has.
async fn list_unknown(store: &dyn Store) -> BTreeSet<RecordKey> {
    let filter = RecordFilter { phase: Some(PhaseName::Unknown), ..RecordFilter::default() };
    let query = ListRecords { filter, limit: 1000, cursor: None };
    let page = eventually(async || store.list_records(&query).await.ok().flatten()).await;
    page.entries.into_iter().map(|record| record.key).collect()
}

#[test]
fn conditional_index_follows_the_records_on_bad_days() {
    const RECORDS: u32 = 12;
    for engine in [FakeEngine::new, FakeEngine::without_clock] {
        stopped().block_on(async {
            let engine = engine(BAD_DAYS, seed());
            let stores: Vec<Arc<dyn Store>> = (0..3).map(|_| optimistic(engine.clone())).collect();
            let working = stores.iter().zip(1..).map(async |(store, number)| {
                work(&**store, &mut Dice(seed() + number), RECORDS).await;
            });
            join_all(working).await;
            // What was carried out late has come.
            pass(Duration::from_secs(15)).await;
            let unfinished = look_at_each(&*stores[0], RECORDS).await;
            let found = list_unknown(&*stores[0]).await;
            assert_eq!(found, unfinished);
            assert_eq!(
                engine.marked_rows(),
                unfinished.len(),
                "the marks are not those of the rows"
            );
        });
    }
}

#[tokio::test]
async fn postgres_list_of_unknown_reads_the_index_of_the_unfinished() {
    let database = PostgresDatabase::create().await;
    let store = open(&database.url()).await;
    fill(&*store).await;
    // Without the dead entries of runs that ended, which are there until the server cleans up.
    database.run("VACUUM keylatch.entries").await;
    let statistics = "SELECT idx_scan::text || ' ' || idx_tup_read::text FROM pg_stat_user_indexes
        WHERE indexrelname = 'entries_unfinished'";
    // The server counts what a session did a while later, so it is asked until it has counted a list.
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

/// The marks of a store, and the number of its records that are unknown, through the end of some of them.
async fn check_marks(store: &TestStore, marks: impl AsyncFn() -> usize) {
    let records = Records::from_store(store).await;
    fill(&**records).await;
    assert_eq!(marks().await, UNKNOWN as usize, "the marks are not those of the unknown");
    assert_eq!(listed(&**records, PhaseName::Unknown).await.len(), UNKNOWN as usize);
    for number in DONE..DONE + UNKNOWN / 2 {
        let end = Some(StoredResponse::Mark(200)).filter(|_| number % 2 == 0);
        let resolve = ResolveCommand { key: order(number).key, fencing_token: None, end };
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

/// How often the server ran a command since its counts were set back.
async fn calls(redis: &RedisServer, command: &str) -> u32 {
    let counts: String = redis.run(&["INFO", "commandstats"]).await;
    let line =
        counts.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |rest| {
        rest.split(',').next().and_then(|count| count.parse().ok()).expect("a count")
    })
}

/// How many entries the indexes of all buckets have.
async fn indexed(redis: &RedisServer) -> usize {
    let indexes: Vec<String> = redis.run(&["KEYS", "*:unfinished"]).await;
    let mut count = 0;
    for index in indexes {
        count += redis.run::<usize>(&["ZCARD", &index]).await;
    }
    count
}

#[tokio::test]
async fn redis_list_of_unknown_reads_no_record_that_is_done() {
    let redis = RedisServer::start().await;
    let store = open(&redis.url()).await;
    fill(&*store).await;
    assert_eq!(indexed(&redis).await, UNKNOWN as usize, "the index is not that of the unknown");
    redis.run::<()>(&["CONFIG", "RESETSTAT"]).await;
    assert_eq!(listed(&*store, PhaseName::Unknown).await.len(), UNKNOWN as usize);
    // Each look at a record is one such call, and each at an index of the other kind.
    assert_eq!(calls(&redis, "get").await, UNKNOWN);
    assert_eq!(calls(&redis, "zrangebyscore").await, 256);
    assert_eq!(calls(&redis, "scan").await, 0);
    for number in DONE..DONE + UNKNOWN / 2 {
        let end = Some(StoredResponse::Mark(200)).filter(|_| number % 2 == 0);
        let resolve = ResolveCommand { key: order(number).key, fencing_token: None, end };
        store.resolve(&resolve).await.unwrap();
    }
    assert_eq!(indexed(&redis).await, UNKNOWN as usize / 2, "an entry outlived the unknown");
    redis.advance(Duration::from_secs(31 * 24 * 3600));
    assert_eq!(indexed(&redis).await, 0, "an index outlived its records");
}

#[tokio::test]
async fn redis_index_loses_what_expired() {
    let redis = RedisServer::start().await;
    let store = open(&redis.url()).await;
    run_orders(&*store, 0..6, &RunEnd::Unknown(UnknownReason::Failed)).await;
    let records: Vec<String> = redis.run(&["KEYS", "*:record:*"]).await;
    redis.run::<()>(&["DEL", &records[0]]).await;
    assert_eq!(listed(&*store, PhaseName::Unknown).await.len(), 5);
    assert_eq!(indexed(&redis).await, 5, "an entry outlived the unknown");
    // A begin in its bucket takes out what has expired; six days later than the others.
    redis.advance(Duration::from_secs(6 * 24 * 3600));
    let mut later = order(0);
    later.key = RecordKey::from_bytes([7; 32]);
    let index = "keylatch:{07}:unfinished";
    redis.run::<()>(&["ZADD", index, "1000", "expired"]).await;
    store.begin(&later).await.unwrap();
    assert_eq!(redis.run::<usize>(&["ZCARD", index]).await, 1);
}
