//! Goal: no effect happens twice and no response is lost while instances are killed between any two
//! steps.
//!
//! Method: many keys, submitted again and again by impatient clients, and the upstream's own ledger
//! of effects. Instances stop, responses of the store are lost or held back, and syncs are slow as
//! well. A store that forgets and a service without guard are seen to fail the same check.

mod fleet;
mod guilt;
mod key;
mod ledger;
mod settled;
mod shopper;
mod steps;
mod verdict;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use keylatch_testkit::{Dice, PostgresServer, RedisServer, scaled, soon};
use tokio_util::sync::CancellationToken;

use crate::locks::pass;
use fleet::Fleet;
use key::Key;
use ledger::Ledger;
use shopper::{History, Shopper};
use steps::Steps;
use verdict::{Case, Tally};

/// Long enough for a busy machine to renew it in time, and short enough to be waited for.
const LEASE: Duration = Duration::from_secs(3);
/// How long a guard waits for the upstream: with the wait for another's run, less than a client
/// waits for its response.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(8);
/// How many keys are in hand at once.
const AT_ONCE: usize = 100;
/// The most steps from one kill to the next, divided by the instances: of many, each has less in
/// hand.
const STEPS: u64 = 1800;

/// The most campaigns until a kill has come at every step. A few leave one out, because to keep an
/// answer and to tell it are close together.
const CAMPAIGNS: u64 = 8;

/// How many keys a campaign has.
fn keys() -> u64 {
    scaled(1500)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_one_of_three_instances_runs_nothing_twice() {
    let redis = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    reach_every_step(&redis.url(), 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_one_of_three_instances_on_postgres_runs_nothing_twice() {
    let server = PostgresServer::start_with(&[]).await;
    reach_every_step(&server.url("postgres"), 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_the_only_instance_runs_nothing_twice() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    reach_every_step(&format!("embedded:{}", directory.path().display()), 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_reports_double_runs_of_a_forgetful_store() {
    let found = campaign("memory:", 1, 0..200).await;
    assert!(found.is_err(), "a store that keeps nothing was not noticed: {found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_reports_double_runs_without_a_guard() {
    let found = campaign("memory:", 0, 0..100).await;
    assert!(found.is_err(), "that nothing was guarded was not noticed: {found:?}");
}

/// Runs campaigns over one store, each with keys of its own, until a kill has come at every step:
/// without one, a campaign proves nothing of that step. Any violation ends the test at once.
async fn reach_every_step(store: &str, instances: usize) {
    let mut tally = Tally::default();
    for number in 0..CAMPAIGNS {
        let keys = number * keys()..(number + 1) * keys();
        let found = campaign(store, instances, keys).await;
        tally += found.unwrap_or_else(|guilt| panic!("{guilt}"));
        if tally.reaches_every_step() {
            return;
        }
    }
    panic!("no kill came at some step: {tally:?}");
}

/// Lets shoppers use these keys over so many instances that are killed meanwhile, and compares
/// the answers that they read with the ledger.
async fn campaign(store: &str, instances: usize, keys: Range<u64>) -> Result<Tally, String> {
    let begun = Instant::now();
    let steps = Arc::new(Steps::default());
    let ledger = Arc::new(Ledger::open(Arc::clone(&steps)).await);
    let fleet = Arc::new(match instances {
        0 => Fleet::none(ledger.address),
        _ => Fleet::start(store, &ledger.url(), instances).await,
    });
    let ending = CancellationToken::new();
    let dice = Dice(keys.start + 1);
    let killing = tokio::spawn(kill(Arc::clone(&fleet), Arc::clone(&steps), dice, ending.clone()));
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    // Without an instance, no API is there.
    let keys = keys.filter(|number| instances > 0 || !Key { number: *number }.is_by_calls());
    let shoppers = keys.map(|number| {
        let (fleet, steps, http) = (Arc::clone(&fleet), Arc::clone(&steps), http.clone());
        Shopper { key: Key { number }, fleet, steps, http, upstream: ledger.url() }
    });
    let shopped = at_once(shoppers, async |shopper| (shopper.shop().await, shopper)).await;
    ending.cancel();
    let kills = soon("the last kill", killing).await.expect("an end");
    soon("the end of all runs", ledger.rests()).await;
    let tallies = at_once(shopped, |(history, shopper)| {
        let ledger = Arc::clone(&ledger);
        async move { settle(&ledger, &shopper, history).await }
    });
    let mut tally = Tally::default();
    for one in tallies.await {
        tally += one?;
    }
    report(store, kills, begun.elapsed(), &tally);
    Ok(tally)
}

/// Kills random instances at random steps, and in the end all of them; gives the number of kills.
async fn kill(
    fleet: Arc<Fleet>,
    steps: Arc<Steps>,
    mut dice: Dice,
    ending: CancellationToken,
) -> u64 {
    let mut kills = 0;
    let instances = fleet.len().await;
    let any = instances.max(1) as u64;
    loop {
        let due = steps.kill_after(dice.below(STEPS / any));
        let due = ending.run_until_cancelled(due).await.is_some() && instances > 0;
        let first = dice.below(any) as usize;
        if due && dice.below(4) == 0 {
            disturb(&fleet, &steps, first, &mut dice).await;
            continue;
        }
        let killed = match dice.below(8) {
            _ if !due => 0..instances,
            0 => 0..instances,
            _ => first..first + 1,
        };
        for number in killed.clone() {
            fleet.kill(number).await;
            kills += 1;
        }
        if due {
            steps.killed();
        } else {
            steps.spare();
        }
        for number in killed {
            fleet.restart(number).await;
        }
        if !due {
            return kills;
        }
    }
}

/// Disturbs the store, and half of the time stops an instance meanwhile until its leases are over.
async fn disturb(fleet: &Fleet, steps: &Steps, instance: usize, dice: &mut Dice) {
    let stops = dice.below(2) == 0;
    if stops {
        fleet.signal(instance, "-STOP").await;
    }
    steps.killed();
    fleet.disturb_store(dice).await;
    if stops {
        pass(LEASE).await;
        fleet.signal(instance, "-CONT").await;
    }
}

/// Asks once more after the last restart, and judges it all. Then resolves an unknown outcome by
/// the ledger: from then on, the work was done once.
async fn settle(ledger: &Ledger, shopper: &Shopper, mut history: History) -> Result<Tally, String> {
    shopper.audit(&mut history).await;
    let mut runs = ledger.runs(shopper.key).await;
    let tally = Case { key: shopper.key, runs: &runs, history: &history }.judge()?;
    let mut is_unknown = tally.unknown > 0;
    while is_unknown {
        let effect = runs.iter().rev().find_map(|run| run.effect.clone());
        let told = shopper.resolve(effect.as_deref()).await;
        // A run that came of it may fail at the upstream, or lose its lease on a busy machine.
        is_unknown = effect.is_none() && told.is_unknown();
        if is_unknown {
            ledger.rests().await;
        }
        runs = ledger.runs(shopper.key).await;
        let answer = runs.last().and_then(|run| run.answer.clone());
        let expected = effect.map(|effect| (201, effect)).or(answer);
        if !is_unknown && expected != Some((told.status, told.body.clone())) {
            return Err(format!("resolved, so that it is {expected:?}, and told is {told:?}"));
        }
    }
    Ok(tally)
}

/// Does something with each, many at once.
async fn at_once<T, R, F>(all: impl IntoIterator<Item = T>, each: impl Fn(T) -> F) -> Vec<R>
where
    R: Send + 'static,
    F: Future<Output = R> + Send + 'static,
{
    let tasks = stream::iter(all).map(|one| tokio::spawn(each(one)));
    tasks.buffer_unordered(AT_ONCE).map(|ended| ended.expect("an end")).collect().await
}

#[expect(clippy::print_stdout, reason = "the figures of a campaign are for people to read")]
fn report(store: &str, kills: u64, took: Duration, tally: &Tally) {
    println!("{store}: {kills} kills in {took:?}, {tally:?}");
}
