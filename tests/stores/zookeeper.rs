//! Goal: instances that share a node of a ZooKeeper hear of each other's changes, no version of a
//! row that was removed comes back to life, and a store that cannot work fails to open.
//!
//! Method: nodes of the test's own on a real server. What an administrator or another process does
//! there is done by a session of the test.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keylatch_core::entry::Entry as _;
use keylatch_core::idempotency::{Answer, RunEnd, StoredResponse};
use keylatch_core::lock::{LockName, LockState, Ttl};
use keylatch_core::store::{ListLocks, StoreError, Tier};
use keylatch_testkit::zookeeper_client::{Client, Error};
use keylatch_testkit::{Acquire, OpenStore, Service, ZookeeperRoot, ZookeeperServer, eventually};
use serde_json::json;

use crate::lock_conformance::{ask, granted, name, token};
use crate::postgres::{hears_of, open, open_error, open_held, release_wakes};
use crate::record_conformance as records;

/// How long a sweep waits between its steps.
const STEP: Duration = Duration::from_secs(5);

#[tokio::test]
async fn waiter_and_watcher_hear_of_another_process() {
    let root = ZookeeperRoot::create().await;
    let (one, other) = (open(&root.url()).await, open(&root.url()).await);
    release_wakes(&one, &other, &"ä".repeat(LockName::MAX_BYTES / 2)).await;
    hears_of(&one, &other, "a").await;
}

#[tokio::test]
async fn own_changes_are_no_news() {
    let server = ZookeeperServer::start().await;
    let store = open(&server.url("a")).await;
    let cycle = async |attempt| {
        granted(store.acquire(&ask("a", "one", attempt)).await.unwrap());
        store.release(&name("a"), &token("one")).await.unwrap();
    };
    cycle(0).await;
    let received = async || server.says("Received:").await.unwrap().parse::<u64>().unwrap();
    let before = received().await;
    for attempt in 1..=200 {
        cycle(attempt).await;
    }
    let cost = received().await - before;
    // Each cycle is two writes. A row that counts as changed would be read again, behind a sync.
    assert!((400..600).contains(&cost), "{cost} requests");
}

#[tokio::test]
async fn row_that_is_removed_is_empty_before_its_node_is_deleted() {
    let root = ZookeeperRoot::create().await;
    let store = Swept { store: open(&root.url()).await, root };
    let first = granted(store.store.acquire(&ask("a", "one", 1)).await.unwrap());
    store.store.release(&name("a"), &token("one")).await.unwrap();
    let (node, client) = (node_of(&store.root, "a"), store.root.client());
    let (parent, _) = node.rsplit_once('/').unwrap();
    let parent_before = client.check_stat(parent).await.unwrap().unwrap().version;
    let written = client.check_stat(&node).await.unwrap().unwrap().version;
    let empty = async || {
        let stat = client.check_stat(&node).await.unwrap().expect("it is still there");
        (stat.data_length == 0).then_some(stat.version)
    };
    assert_eq!(store.until(empty).await, written + 1, "a change of before could be carried out");
    // It is there for as long as a change of before can be on its way.
    for _ in 0..4 {
        store.pass(STEP).await;
        assert_eq!(empty().await, Some(written + 1));
    }
    store.until(async || client.check_stat(&node).await.unwrap().is_none().then_some(())).await;
    let parent_after = client.check_stat(parent).await.unwrap().unwrap().version;
    assert_eq!(parent_after, parent_before + 1, "a row could be written in a node that is no more");
    let second = granted(store.store.acquire(&ask("a", "two", 2)).await.unwrap());
    assert!(second.fencing_token > first.fencing_token);
}

/// What a service leaves that gives each lock a new name is emptied by one transaction and deleted
/// by another.
#[tokio::test]
async fn rows_of_one_bucket_are_removed_together() {
    let root = ZookeeperRoot::create().await;
    let store = Swept { store: open(&root.url()).await, root };
    let (_, other) = same_bucket();
    let nodes = ["a", &other].map(|lock| node_of(&store.root, lock));
    let client = store.root.client();
    let (parent, _) = nodes[0].rsplit_once('/').unwrap();
    let parent_before = client.check_stat(parent).await.unwrap().unwrap().version;
    for lock in ["a", &other] {
        granted(store.store.acquire(&ask(lock, "one", 1)).await.unwrap());
        store.store.release(&name(lock), &token("one")).await.unwrap();
    }
    let stat = async |node: &String| client.check_stat(node).await.unwrap();
    let emptied = async || {
        let stats = [stat(&nodes[0]).await.unwrap(), stat(&nodes[1]).await.unwrap()];
        stats.iter().any(|stat| stat.data_length == 0).then_some(stats)
    };
    let [one, two] = store.until(emptied).await;
    assert_eq!((one.data_length, two.data_length), (0, 0));
    assert_eq!(one.mzxid, two.mzxid, "each was emptied by a transaction of its own");
    store.until(async || stat(&nodes[0]).await.is_none().then_some(())).await;
    assert!(stat(&nodes[1]).await.is_none(), "the other is still there");
    let parent_after = client.check_stat(parent).await.unwrap().unwrap().version;
    assert_eq!(parent_after, parent_before + 1, "each was deleted by a transaction of its own");
}

#[tokio::test]
async fn row_in_an_empty_node_continues_its_versions() {
    let root = ZookeeperRoot::create().await;
    let store = open_held(&root.url()).await;
    store.release(&name("a"), &token("one")).await.unwrap();
    let node = node_of(&root, "a");
    let emptied = root.client().set_data(&node, &[], None).await.unwrap();
    granted(store.acquire(&ask("a", "two", 2)).await.unwrap());
    let stat = root.client().check_stat(&node).await.unwrap().unwrap();
    assert_eq!((stat.czxid, stat.version), (emptied.czxid, emptied.version + 1));
}

#[tokio::test]
async fn row_that_was_written_again_is_not_deleted() {
    let root = ZookeeperRoot::create().await;
    let store = Swept { store: open(&root.url()).await, root };
    granted(store.store.acquire(&ask("a", "one", 1)).await.unwrap());
    store.store.release(&name("a"), &token("one")).await.unwrap();
    let (node, client) = (node_of(&store.root, "a"), store.root.client());
    let stat = async || client.check_stat(&node).await.unwrap().expect("it is there");
    store.until(async || (stat().await.data_length == 0).then_some(())).await;
    let lease = Acquire { ttl: Ttl::MAX, ..ask("a", "two", 2) };
    granted(store.store.acquire(&lease).await.unwrap());
    let held = stat().await;
    for _ in 0..10 {
        store.pass(STEP).await;
    }
    assert_eq!(stat().await.czxid, held.czxid, "the node of a held lock was deleted");
}

#[tokio::test]
async fn held_lock_in_a_node_that_was_made_again_is_not_deleted() {
    let root = ZookeeperRoot::create().await;
    let store = Swept { store: open(&root.url()).await, root };
    granted(store.store.acquire(&ask("a", "one", 1)).await.unwrap());
    store.store.release(&name("a"), &token("one")).await.unwrap();
    let (node, client) = (node_of(&store.root, "a"), store.root.client());
    let (parent, _) = node.rsplit_once('/').unwrap();
    let stat = async || client.check_stat(&node).await.unwrap().expect("the node of the lock");
    let empty = async || Some(stat().await).filter(|stat| stat.data_length == 0);
    let emptied = store.until(empty).await;
    // Another process deletes it first.
    client.set_data(parent, &[], None).await.unwrap();
    client.delete(&node, None).await.unwrap();
    let lease = Acquire { ttl: Ttl::MAX, ..ask("a", "two", 2) };
    granted(store.store.acquire(&lease).await.unwrap());
    for _ in 0..emptied.version {
        store.store.renew(&name("a"), &token("two"), Ttl::MAX).await.unwrap();
    }
    let held = stat().await;
    assert_eq!(held.version, emptied.version, "it has the data version of before");
    for _ in 0..10 {
        store.pass(STEP).await;
    }
    assert_eq!(stat().await.czxid, held.czxid);
}

#[tokio::test]
async fn creation_is_above_a_floor_that_was_raised_since_it_was_read() {
    let root = ZookeeperRoot::create().await;
    let store = open(&root.url()).await;
    let first = granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
    let (bucket, same) = same_bucket();
    let raised = first.fencing_token.get() + 3_600_000_000;
    let floor = root.path(&format!("f/{bucket:02x}"));
    root.client().set_data(&floor, &floor_of(raised), Some(0)).await.unwrap();
    let second = granted(store.acquire(&ask(&same, "one", 2)).await.unwrap());
    assert!(second.fencing_token.get() > raised, "the floor that was read before was good enough");
}

#[tokio::test]
async fn tree_that_was_deleted_is_made_again() {
    let root = ZookeeperRoot::create().await;
    let store = open_held(&root.url()).await;
    let top = root.path("");
    delete(root.client(), top.trim_end_matches('/')).await;
    eventually(async || store.acquire(&ask("b", "one", 1)).await.ok()).await;
    assert!(root.client().check_stat(&node_of(&root, "b")).await.unwrap().is_some());
}

#[tokio::test]
async fn names_of_all_buckets_are_listed_once() {
    let root = ZookeeperRoot::create().await;
    let store = open(&root.url()).await;
    let names: Vec<_> = (0..120).map(|number| format!("list/{number:03}")).collect();
    for lock in names.iter().map(String::as_str).chain(["other"]) {
        granted(store.acquire(&ask(lock, "one", 1)).await.unwrap());
    }
    for limit in [1, 7, 120, 500] {
        let mut query = ListLocks { prefix: "list/".to_owned(), limit, cursor: None };
        let mut found = Vec::new();
        loop {
            let page = store.list_locks(&query).await.unwrap().expect("the cursor is its own");
            assert!(page.entries.len() <= limit);
            found.extend(page.entries.into_iter().map(|holder| holder.first.name.to_string()));
            query.cursor = page.next;
            if query.cursor.is_none() {
                break;
            }
        }
        found.sort();
        assert_eq!(found, names, "by {limit}");
    }
}

#[tokio::test]
async fn nodes_of_a_user_are_for_that_user_alone() {
    let root = ZookeeperRoot::create().await;
    let url = |user: &str| root.url().replace("zookeeper://", &format!("zookeeper://{user}"));
    let _store = open_held(&url("keylatch:s3cret@")).await;
    let node = node_of(&root, "a");
    assert!(matches!(root.client().get_data(&node).await, Err(Error::NoAuth)));
    for other in ["", "keylatch:s3same@"] {
        let error = open_error(&url(other)).await;
        let advice = format!("setAcl -R {}", root.path("").trim_end_matches('/'));
        assert!(error.contains(&advice) && !error.contains("s3same"), "{error}");
    }
    granted(open(&url("keylatch:s3cret@")).await.acquire(&ask("b", "one", 1)).await.unwrap());
}

#[tokio::test]
async fn health_says_what_the_members_say() {
    let server = ZookeeperServer::shared().await;
    let version = server.says("Zookeeper version:").await.unwrap();
    let version = version.split(['-', ',']).next().unwrap();
    // Nothing listens there, and no member is needed to say what it is.
    let url = server.url("health").replace("/health", ",127.0.0.1:1/health");
    let health = open(&url).await.health().await.unwrap();
    assert_eq!((health.tier, &*health.facts["version"]), (Tier::Strict, version));
    assert_eq!(
        (&*health.facts["modes"], &*health.facts["members_that_say"]),
        ("standalone", "1 of 2")
    );
    assert_eq!(health.advice, Vec::<String>::new());
}

/// Debian's 3.8.0 is one of the versions with which an ensemble has lost what it had answered.
#[tokio::test]
async fn version_that_loses_what_it_answered_serves_and_is_fenced() {
    let server = ZookeeperServer::start_old().await;
    let service = Service::start(&server.url("old")).await;
    let info = service.get("/v1/info").await;
    let store = &info.json["store"];
    assert_eq!(
        (&store["tier"], &store["facts"]["version"]),
        (&json!("fenced"), &json!("3.8.0")),
        "{info:?}"
    );
    let advice = store["advice"].to_string();
    assert!(advice.contains("ZooKeeper 3.8.0 can lose writes"), "{advice}");
    let first = service.create("deploy", &json!({})).await;
    assert_eq!(service.renew("deploy", &first.token(), &json!({})).await.status, 200);
    assert_eq!(service.release("deploy", &first.token()).await.status, 204);
    let second = service.create("deploy", &json!({})).await;
    assert!(second.fencing_token() > first.fencing_token(), "{second:?} after {first:?}");
}

#[tokio::test]
async fn answer_that_zookeeper_does_not_take_is_too_large() {
    let root = ZookeeperRoot::create().await;
    let store = open(&root.url()).await;
    let answer = |bytes| {
        let body = Bytes::from(vec![7; bytes]);
        RunEnd::Done(StoredResponse::Answer(Arc::new(Answer {
            status: 200,
            headers: Vec::new(),
            body,
        })))
    };
    let (key, token) = (records::key(1), records::token("one"));
    store.begin(&records::ask(1, "one")).await.unwrap();
    let error = store.complete(&key, &token, answer(1_100_000)).await.expect_err("it is too large");
    assert!(matches!(error, StoreError::TooLarge { limit: 1_000_000, .. }), "{error:?}");
    // The largest one fits. A slow disk may take longer for it than a member may be silent, and a
    // completion whose answer is lost is safe to repeat.
    while let Err(lost) = store.complete(&key, &token, answer(999_000)).await {
        assert!(matches!(lost, StoreError::Lost(_) | StoreError::Unreachable(_)), "{lost:?}");
    }
    granted(store.acquire(&ask("a", "one", 1)).await.unwrap());
}

/// A store whose sweeps a test lets pass.
struct Swept {
    store: OpenStore,
    root: ZookeeperRoot,
}

impl Swept {
    async fn pass(&self, by: Duration) {
        self.root.pass(by).await;
        self.root.settle().await;
    }

    /// Lets sweeps pass until there is an answer.
    async fn until<T>(&self, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
        for _ in 0..100 {
            if let Some(answer) = ask().await {
                return answer;
            }
            self.pass(STEP).await;
        }
        panic!("it did not happen in 100 sweeps");
    }
}

/// The node of a lock.
fn node_of(root: &ZookeeperRoot, lock: &str) -> String {
    use base64::Engine as _;
    let encoded = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(lock);
    root.path(&format!("l/{:02x}/{encoded}", name(lock).bucket()))
}

/// The bucket of the lock `a`, and the name of another lock in it.
pub(crate) fn same_bucket() -> (u8, String) {
    let bucket = name("a").bucket();
    let mut names = (0..).map(|number| format!("lock {number}"));
    (bucket, names.find(|other| name(other).bucket() == bucket).expect("another name"))
}

/// The row of a floor with this fencing token.
pub(crate) fn floor_of(last: u64) -> Vec<u8> {
    let state = LockState::default().encode().unwrap();
    let (mut bytes, mut rest) = (vec![4], last);
    while rest > 0x7f {
        bytes.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    bytes.extend([rest as u8, 0, u8::try_from(state.len()).unwrap()]);
    [bytes, state].concat()
}

/// Deletes a node and all below it.
async fn delete(client: &Client, node: &str) {
    for child in client.list_children(node).await.unwrap() {
        Box::pin(delete(client, &format!("{node}/{child}"))).await;
    }
    client.delete(node, None).await.unwrap();
}
