//! What a great number of held locks costs, next to a thousand: each request, memory, their end,
//! and a start.
//!
//! The goals are of 10,000,000 locks, which are held with `--held 10000000`; less is held by
//! default, because it takes minutes. The locks are made by requests for sets of 16. Requests are
//! measured on both stores in turn, with few and with many locks held. Then all locks of a store
//! expire in the same moment, and a few clients create and delete meanwhile. Last a store on disk
//! is opened with all of them, while `/livez` is asked.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use crate::Result;
use crate::load::{Load, Waits};
use crate::processes::{Machine, Process};
use crate::report;
use crate::slice::{Slice, Spread};

const FEW: usize = 1_000;
/// How many times as much a create and a delete may cost with many locks held as with few.
const GOAL_COST: f64 = 1.15;
/// How many bytes a lock in memory may need.
const GOAL_BYTES: f64 = 200.0;
/// How long a request may take while the store forgets what has expired, in milliseconds.
const GOAL_WAIT: f64 = 20.0;
/// How long a store on disk may take to serve.
const GOAL_OPEN: Duration = Duration::from_secs(10);
/// How long `/livez` may take meanwhile.
const GOAL_LIVE: Duration = Duration::from_secs(1);
/// How many clients wait while locks expire.
const CLIENTS: usize = 4;
/// How long clients are looked at, at least, before the locks expire.
const CALM: Duration = Duration::from_secs(10);
/// How long the locks may take to go.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often is looked whether something has happened.
const LOOK: Duration = Duration::from_millis(100);

/// A service and the store behind it.
#[derive(Debug)]
struct Subject {
    service: Process,
    redis: Option<Process>,
    rounds: Vec<Slice>,
}

impl Subject {
    fn on_memory(machine: &Machine) -> Result<Self> {
        Ok(Self { service: machine.keylatch("memory:")?, redis: None, rounds: Vec::new() })
    }

    fn on_redis(machine: &Machine) -> Result<Self> {
        let redis = machine.redis()?;
        let service = machine.keylatch(&format!("redis://{}", redis.address))?;
        Ok(Self { service, redis: Some(redis), rounds: Vec::new() })
    }

    fn measure(&mut self, load: &Load) -> Result<()> {
        self.rounds.push(load.measure(&self.service, self.redis.as_ref())?);
        Ok(())
    }
}

/// Measures all of it with so many locks held.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32, held: usize) -> Result<()> {
    println!("\nHolding {FEW} and {held} locks on each store; this takes a while.");
    let in_memory = compare(machine, load, rounds, held)?;
    expire(machine, load, "memory:", held, in_memory)?;
    let data = machine.directory("level-open");
    let on_disk = open(machine, load, &data, held)?;
    let store = format!("embedded:{}", machine.directory("level-expiry").display());
    expire(machine, load, &store, held, on_disk)
}

/// Measures requests on both stores with few and with many locks held. How long it took to make the
/// many in memory.
fn compare(machine: &Machine, load: &Load, rounds: u32, held: usize) -> Result<Duration> {
    let mut memory = [Subject::on_memory(machine)?, Subject::on_memory(machine)?];
    let mut redis = [Subject::on_redis(machine)?, Subject::on_redis(machine)?];
    for [few, _] in [&memory, &redis] {
        load.fill_by_sets(&few.service, FEW, None)?;
    }
    let (empty, began) = (memory[1].service.resident()?, Instant::now());
    load.fill_by_sets(&memory[1].service, held, None)?;
    let took = began.elapsed();
    let bytes = (memory[1].service.resident()? - empty) / held as f64;
    load.fill_by_sets(&redis[1].service, held, None)?;
    for _ in 0..rounds {
        for subject in memory.iter_mut().chain(&mut redis) {
            subject.measure(load)?;
        }
    }
    print(&memory, &redis, held, bytes);
    Ok(took)
}

fn print(memory: &[Subject; 2], redis: &[Subject; 2], held: usize, bytes: f64) {
    let [few, many] = [FEW, held].map(|held| format!("{held} held"));
    let names = [("memory", &few), ("memory", &many), ("Redis", &few), ("Redis", &many)]
        .map(|(store, held)| format!("{store}, {held}"));
    let subjects = memory.iter().chain(redis);
    let rows: Vec<_> =
        names.iter().zip(subjects).map(|(name, it)| (&**name, &it.rounds[..])).collect();
    report::table(&[], &rows, |_| Vec::new());
    report::legend("", &rows);
    println!("\nGoals, with {held} locks held next to {FEW}:");
    for (store, [few, many]) in [("memory", memory), ("Redis", redis)] {
        let cost =
            Spread::of_ratios(&many.rounds, &few.rounds, |many, few| many.cost() / few.cost());
        let what =
            format!("on {store}, a request costs at most {GOAL_COST} times as much CPU time");
        report::goal(&what, cost.median <= GOAL_COST, cost);
        let time = Spread::of_rates(&few.rounds, &many.rounds);
        println!("           and by the rate of requests, which others disturb more, {time}");
    }
    let what = format!("a lock in memory needs at most {GOAL_BYTES} bytes");
    report::goal(&what, bytes <= GOAL_BYTES, format_args!("{bytes:.0}"));
}

/// Lets all locks of a store expire in one moment. `took` is about how long it takes to make them.
fn expire(machine: &Machine, load: &Load, store: &str, held: usize, took: Duration) -> Result<()> {
    let service = machine.keylatch(store)?;
    let end = Instant::now() + took.mul_f64(1.5) + 2 * CALM;
    load.fill_by_sets(&service, held, Some(end))?;
    let until = |at: Instant| sleep(at.saturating_duration_since(Instant::now()));
    let calm_began = Instant::now();
    let calm = load.wait_while(CLIENTS, &service, || {
        until(end.checked_sub(LOOK).unwrap_or(end));
        Ok(())
    })?;
    let calm_took = calm_began.elapsed();
    until(end);
    let began = Instant::now();
    let sweep = load.wait_while(CLIENTS, &service, || until_gone(&service))?;
    let sweep_took = began.elapsed();
    let (kind, _) = store.split_once(':').unwrap_or((store, ""));
    println!(
        "\n{held} locks of {kind} expire at once; {CLIENTS} clients create and delete, one after another:"
    );
    for (when, took, Waits { p99, longest }) in
        [("before", calm_took, calm), ("until they have gone", sweep_took, sweep)]
    {
        println!("  {when:<22}{took:>9.1?}   p99 {p99:>8.3} ms   longest {longest:>8.3} ms");
    }
    let what = format!("on {kind}, no request waits longer than {GOAL_WAIT} ms meanwhile");
    report::goal(&what, sweep.longest <= GOAL_WAIT, format_args!("{:.1} ms", sweep.longest));
    Ok(())
}

/// Waits until the service has forgotten all but a few locks.
fn until_gone(service: &Process) -> Result<()> {
    let began = Instant::now();
    loop {
        let metrics = service.metrics()?;
        let held = metrics.lines().find_map(|line| line.strip_prefix("keylatch_locks_held "));
        if held.ok_or("no count of the held locks")?.parse::<usize>()? < FEW {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            return Err("the service does not forget the locks that expired".into());
        }
        sleep(LOOK);
    }
}

/// Opens a store on disk with many locks. How long it took to make them.
fn open(machine: &Machine, load: &Load, data: &std::path::Path, held: usize) -> Result<Duration> {
    let store = format!("embedded:{}", data.display());
    let (service, began) = (machine.keylatch(&store)?, Instant::now());
    load.fill_by_sets(&service, held, None)?;
    let took = began.elapsed();
    // Killed, so that the file is opened as after a crash.
    drop(service);
    let size = fs::metadata(data.join("locks.sqlite"))?.len() >> 20;
    let began = Instant::now();
    let service = machine.keylatch(&store)?;
    let is_open = AtomicBool::new(false);
    let (opened, looks) = scope(|scope| {
        let watching = scope.spawn(|| look_until(&is_open, &service));
        let created = load.create_one(&service).map(|()| began.elapsed());
        is_open.store(true, Ordering::Relaxed);
        (created, watching.join())
    });
    let (opened, looks) = (opened?, looks.map_err(|_| "the watch panicked")?);
    println!("\nA store with {held} locks on disk ({size} MiB) is opened:");
    let what = format!("a lock is created within {GOAL_OPEN:?}");
    report::goal(&what, opened <= GOAL_OPEN, format_args!("{opened:.2?}"));
    let slowest = looks.iter().copied().max().unwrap_or(Duration::MAX);
    let what = format!("/livez answers within {GOAL_LIVE:?} meanwhile");
    let found = format_args!("{slowest:.1?} at most, {} times", looks.len());
    report::goal(&what, slowest <= GOAL_LIVE, found);
    Ok(took)
}

/// How long each answer of `/livez` took, until the store is open. What is no answer takes for
/// ever.
fn look_until(is_open: &AtomicBool, service: &Process) -> Vec<Duration> {
    let mut looks = Vec::new();
    while !is_open.load(Ordering::Relaxed) {
        let began = Instant::now();
        let is_alive = service.get("/livez").is_ok_and(|answer| answer.contains(" 200 OK"));
        looks.push(if is_alive { began.elapsed() } else { Duration::MAX });
        sleep(LOOK);
    }
    looks
}
