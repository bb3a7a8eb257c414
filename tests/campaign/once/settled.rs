//! Goal: where the guard says how to ask its upstream, no order is placed twice, and nothing stays
//! unknown.
//!
//! Method: 100 clicks a second, or as many as a slow machine answers, each of two equal requests
//! without a key, while instances are killed and the store is disturbed. The upstream tells the
//! truth when it is asked, and refuses a run with a smaller fence. A minute after the last fault
//! every click has its answer. `mod.rs` shows that the ledger finds double runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use keylatch_testkit::{Answer, Dice, PostgresServer, RedisServer, scaled, soon};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;

use super::AT_ONCE;
use super::fleet::Fleet;
use super::key::{Key, Kind};
use super::kill;
use super::ledger::Ledger;
use super::shopper::Shopper;
use super::steps::Steps;

/// A click comes so often.
const PERIOD: Duration = Duration::from_millis(10);
/// How long after the last fault an outcome may be unknown.
const SETTLED: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clicks_on_redis_settle_themselves() {
    let redis = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    click(&redis.url(), 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clicks_on_postgres_settle_themselves() {
    let server = PostgresServer::start_with(&[]).await;
    click(&server.url("postgres"), 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clicks_on_disk_settle_themselves() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    click(&format!("embedded:{}", directory.path().display()), 1).await;
}

#[expect(clippy::print_stdout, reason = "the figures of a campaign are for people to read")]
async fn click(store: &str, instances: usize) {
    let steps = Arc::new(Steps::default());
    let ledger = Ledger::open(Arc::clone(&steps)).await;
    let fleet = Arc::new(Fleet::start(store, &ledger.url(), instances).await);
    let ending = CancellationToken::new();
    let killing = kill(Arc::clone(&fleet), Arc::clone(&steps), Dice(7), ending.clone());
    let killing = tokio::spawn(killing);
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let (mut clicking, mut period) = (JoinSet::new(), interval(PERIOD));
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    for number in Key::settled(scaled(1000)) {
        period.tick().await;
        let turn = Arc::clone(&turns).acquire_owned().await.expect("nobody closes it");
        let (fleet, steps, http) = (Arc::clone(&fleet), Arc::clone(&steps), http.clone());
        let shopper = Shopper { key: Key { number }, fleet, steps, http, upstream: ledger.url() };
        clicking.spawn(async move {
            let told = shopper.click_twice().await;
            drop(turn);
            (number, told)
        });
    }
    ending.cancel();
    let kills = soon("the last kill", killing).await.expect("an end");
    let told = timeout(SETTLED, clicking.join_all()).await.expect("an outcome stays unknown");
    let mut runs = BTreeMap::new();
    for (number, told) in told {
        let key = Key { number };
        let of_key = ledger.runs(key).await;
        let effects: Vec<_> = of_key.iter().filter_map(|run| run.effect.as_ref()).collect();
        let is_done = effects.len() == 1 && told.iter().all(|told| told == effects[0]);
        let is_invalid = key.kind() == Kind::Invalid && effects.is_empty();
        assert!(is_done || is_invalid, "{key:?}: {told:?}, {of_key:#?}");
        *runs.entry(of_key.len()).or_insert(0) += 1;
    }
    let unknown = format!("http://{}/v1/idempotency?state=unknown", fleet.any(&mut Dice(1)).await);
    let list = Answer::of(http.get(unknown)).await;
    assert_eq!(list.json["records"].as_array().map(Vec::len), Some(0), "{list:?}");
    println!("{store}: {kills} kills; keys by their number of runs: {runs:?}");
}
