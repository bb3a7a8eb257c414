//! Goal: the SQL of `docs/modes.md` refuses the late holder of each kind of lock, and no holder in
//! time.
//!
//! Method: the statements are taken out of the page and run by SQLite, with the tokens and slots of
//! leases that a service gave.

use keylatch_testkit::{Answer, Service, store_test};
use reqwest::Method;
use rusqlite::{Connection, named_params};
use serde_json::{Value, json};

/// The page's statements, in its order.
fn statements() -> [&'static str; 3] {
    let page = include_str!("../../docs/modes.md");
    let blocks = page.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.collect::<Vec<_>>().try_into().expect("exclusive, shared and counted")
}

/// What the locks protect: an invoice, a document, and a shard for each slot.
struct Database(Connection);

impl Database {
    fn new() -> Self {
        let database = Connection::open_in_memory().unwrap();
        database
            .execute_batch(
                "CREATE TABLE invoice (id INTEGER, state TEXT, fence INTEGER);
                 CREATE TABLE document (id INTEGER, marks TEXT, fence INTEGER);
                 CREATE TABLE shard (slot INTEGER, position INTEGER, fence INTEGER);
                 INSERT INTO invoice VALUES (17, 'open', 0);
                 INSERT INTO document VALUES (17, '', 0);
                 INSERT INTO shard VALUES (0, 0, 0), (1, 0, 0);",
            )
            .unwrap();
        Self(database)
    }

    /// Whether the holder of an exclusive lease may write.
    fn pays(&self, lease: &Answer) -> bool {
        let [exclusive, ..] = statements();
        self.0.execute(exclusive, named_params! {":fencing_token": fence(lease)}).unwrap() == 1
    }

    /// Whether one of many readers may write.
    fn marks(&self, lease: &Answer) -> bool {
        let [_, shared, _] = statements();
        let values = named_params! {":mark": "x", ":fencing_token": fence(lease)};
        self.0.execute(shared, values).unwrap() == 1
    }

    /// Whether the worker of a slot may write.
    fn moves(&self, lease: &Answer) -> bool {
        let [.., counted] = statements();
        let slot = lease.json["slot"].as_i64().expect("a slot");
        let values = named_params! {":position": 1, ":slot": slot, ":fencing_token": fence(lease)};
        self.0.execute(counted, values).unwrap() == 1
    }
}

fn fence(lease: &Answer) -> i64 {
    i64::try_from(lease.fencing_token()).unwrap()
}

async fn granted(service: &Service, body: Value) -> Answer {
    let lease = service.create("lock", &body).await;
    assert_eq!(lease.status, 201, "{lease:?}");
    lease
}

#[store_test(memory)]
async fn late_exclusive_holder_is_refused(service: &Service) {
    let database = Database::new();
    let late = granted(service, json!({})).await;
    assert!(database.pays(&late));
    service.release("lock", &late.token()).await;
    let next = granted(service, json!({})).await;
    assert!(database.pays(&next));
    assert!(!database.pays(&late), "the late holder wrote");
    assert!(database.pays(&next), "a holder in time is refused");
}

#[store_test(memory)]
async fn late_readers_are_refused_and_those_of_an_era_are_not(service: &Service) {
    let database = Database::new();
    let shared = || json!({"mode": "shared"});
    let readers = [granted(service, shared()).await, granted(service, shared()).await];
    assert!(readers.iter().rev().all(|reader| database.marks(reader)), "a reader is refused");
    for reader in &readers {
        service.release("lock", &reader.token()).await;
    }
    let writer = granted(service, json!({})).await;
    assert!(database.marks(&writer));
    service.release("lock", &writer.token()).await;
    let next = granted(service, shared()).await;
    assert!(database.marks(&next));
    assert!(!readers.iter().any(|late| database.marks(late)), "a reader of an earlier era wrote");
    assert!(!database.marks(&writer), "the late writer wrote");
}

#[store_test(memory)]
async fn late_worker_is_refused_in_its_slot_and_the_others_are_not(service: &Service) {
    let database = Database::new();
    let two = || json!({"mode": "shared", "limit": 2});
    let (late, other) = (granted(service, two()).await, granted(service, two()).await);
    assert!(database.moves(&other) && database.moves(&late), "a worker is refused");
    service.release("lock", &late.token()).await;
    let next = granted(service, two()).await;
    assert_eq!(next.json["slot"], late.json["slot"]);
    assert!(database.moves(&next));
    assert!(!database.moves(&late), "the late worker wrote");
    assert!(database.moves(&other), "a worker of another slot is refused");
}

#[store_test(memory)]
async fn reader_is_refused_after_another_reader_has_upgraded(service: &Service) {
    let database = Database::new();
    let shared = || json!({"mode": "shared"});
    let (late, reader) = (granted(service, shared()).await, granted(service, shared()).await);
    service.release("lock", &late.token()).await;
    let writer = service.create_as("lock", &reader.token(), &json!({})).await;
    assert_eq!(writer.status, 201, "{writer:?}");
    assert!(database.marks(&writer));
    assert!(!database.marks(&late), "a reader of before the upgrade wrote");
}

#[store_test(memory)]
async fn holder_whose_lease_was_broken_is_refused(service: &Service) {
    let database = Database::new();
    let broken = granted(service, json!({"ttl_ms": 60_000})).await;
    let why = json!({"reason": "it hangs", "fencing_token": broken.fencing_token(), "grace_ms": 0});
    let request = service.request(Method::POST, "/v1/locks/lock/break").json(&why);
    assert_eq!(Answer::of(request).await.status, 200);
    let next = granted(service, json!({})).await;
    assert!(database.pays(&next));
    assert!(!database.pays(&broken), "the holder that was cut off wrote");
}
