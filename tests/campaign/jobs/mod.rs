//! Goal: on each store, whatever becomes of machines and services, the job of a night runs once
//! (`keylatch once`), and no two machines lead at a time (`keylatch elect`).
//!
//! Method: many jobs side by side, each of three machines whose clocks are up to 30 s apart, and
//! elections of three. Machines are killed with and without what they run, stopped and cut off, and
//! services are killed and stopped. Pure functions judge what the commands noted. Histories that
//! are guilty of one thing each judge the judges, and so does a campaign without `keylatch`.

mod election;
mod fleet;
mod guilt;
mod ledger;
mod machine;
mod schedule;
mod terms;
mod verdict;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use keylatch_testkit::{Dice, WallClock, scaled, seed};
use tokio_util::sync::CancellationToken;

use election::Election;
use fleet::{Fleet, Store};
use schedule::{Played, Schedule};
use verdict::Tally;

/// Long enough for a busy machine to renew it in time, and short enough to be waited for.
const TTL: Duration = Duration::from_secs(4);
/// How many jobs there are in a night on each store, and how many elections.
const SCHEDULES: u64 = 50;
const ELECTIONS: u64 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn jobs_of_three_machines_run_once() {
    // Machines are processes with pipes, behind proxies.
    rlimit::increase_nofile_limit(8192).expect("more open files");
    for night in 0..scaled(1) {
        let dice = Dice(seed() + night).below(u64::MAX);
        let mut tally = Tally::default();
        for store in spawn_all(Store::all().await.map(|store| run_night(store, dice))).await {
            tally += store;
        }
        let shows = [tally.done, tally.unknown, tally.rerun, tally.killed, tally.lost, tally.told];
        assert!(shows.iter().all(|count| *count > 0), "{tally:?} shows too little, {}", seeded());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_two_of_three_machines_lead_at_a_time() {
    for term in 0..scaled(1) {
        let dice = Dice(seed() + term).below(u64::MAX);
        spawn_all(Store::all().await.map(|store| elect(store, dice))).await;
    }
}

/// All jobs of a night on a store, and what they came to.
async fn run_night(store: Store, dice: u64) -> Tally {
    let begun = Instant::now();
    let clocks = tempfile::tempdir().expect("a directory");
    let (fleet, clock) = (Fleet::start(store).await, WallClock::new(clocks.path()));
    let (clock, ending) = (clock.expect("a clock"), CancellationToken::new());
    let failing = tokio::spawn(Arc::clone(&fleet).fail(Dice(dice), ending.clone()));
    let schedules = (0..SCHEDULES).map(|number| Schedule::of(number, Dice(dice ^ number)));
    let play = |schedule: Schedule| schedule.play(Arc::clone(&fleet), clock.clone());
    let played = spawn_all(schedules.map(play)).await;
    ending.cancel();
    let faults = failing.await.expect("an end");
    let mut tally = Tally::default();
    for (number, history) in spawn_all(played.into_iter().map(Played::end)).await {
        let found = history.judge();
        let which = || format!("schedule {number} on {}, {}", fleet.store(), seeded());
        tally += found.unwrap_or_else(|guilt| panic!("{}: {guilt}", which()));
    }
    report(&format!("{}: {faults} faults, {:?}, {tally:?}", fleet.store(), begun.elapsed()));
    tally
}

/// All elections on a store.
async fn elect(store: Store, dice: u64) {
    let begun = Instant::now();
    let clocks = tempfile::tempdir().expect("a directory");
    let (fleet, clock) = (Fleet::start(store).await, WallClock::new(clocks.path()));
    let clock = clock.expect("a clock");
    let elections = (0..ELECTIONS).map(|number| Election::new(number, Dice(dice ^ number)));
    let hold = |election: Election| election.hold(Arc::clone(&fleet), clock.clone());
    let mut terms = 0;
    for (number, history) in spawn_all(elections.map(hold)).await.into_iter().enumerate() {
        let found = history.judge();
        let which = || format!("election {number} on {}, {}", fleet.store(), seeded());
        terms += found.unwrap_or_else(|guilt| panic!("{}: {guilt}", which()));
    }
    report(&format!("{}: {terms} terms, {:?}", fleet.store(), begun.elapsed()));
}

/// What each comes to, side by side.
async fn spawn_all<F>(all: impl IntoIterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let ended = join_all(all.into_iter().map(tokio::spawn)).await;
    ended.into_iter().map(|ended| ended.expect("an end")).collect()
}

/// What plays the same choices again.
fn seeded() -> String {
    format!("KEYLATCH_TEST_SEED={}", seed())
}

#[expect(clippy::print_stdout, reason = "the figures of a campaign are for people to read")]
fn report(what: &str) {
    println!("jobs on {what}");
}
