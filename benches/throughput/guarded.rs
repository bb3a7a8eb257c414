//! Guarded requests, run for the first time and replayed, next to what they are built on.
//!
//! The service that runs them is the bare handler, once alone and once behind the guard. A first
//! run goes through both, and a replay through the guard alone.

use crate::Result;
use crate::load::{Load, Orders};
use crate::processes::{Machine, Process};
use crate::redis_alone::{Plain, Scripts};
use crate::report;
use crate::slice::{Slice, Spread};
use crate::steps::Steps;

/// The part of the bare handler's rate that is to be left to a replay on memory ...
const GOAL_REPLAY: f64 = 0.6;
/// ... and to a first run, which the bare handler answers behind the guard.
const GOAL_FIRST: f64 = 0.4;
/// The part of Redis's own rate that is to be left to a replay on Redis.
const GOAL_REDIS: f64 = 0.4;
/// How many steps of the store a first run may take, and a replay.
const GOAL_STEPS: [f64; 2] = [2.0, 1.0];
/// Each replay needs a first run, which takes a step more.
const FIRST_OF_ALL: f64 = 0.01;

/// The one script that a replay calls. It does not look into the row, so that the row's length
/// alone is of account.
const READ: &str = include_str!("../../crates/stores/src/redis/lua/read.lua");
const KEY: &str = "keylatch:{3f}:record:PzEi8tq0m5rKZ0YxGm9vQd2n7cJ4sWbE1uLhT6aXoN8";
/// The row of a record with what is kept of the sandbox's answer has about so many bytes.
const ROW: usize = 512;

/// A service on a store, asked for one kind of orders only, so that its counts are theirs.
#[derive(Debug)]
struct Subject<'a> {
    name: &'static str,
    orders: Orders,
    service: Process,
    redis: Option<&'a Process>,
    empty: f64,
    rounds: Vec<Slice>,
}

impl<'a> Subject<'a> {
    fn new(name: &'static str, orders: Orders, service: Process) -> Result<Self> {
        let empty = service.resident()?;
        Ok(Self { name, orders, service, redis: None, empty, rounds: Vec::new() })
    }

    fn on(mut self, redis: &'a Process) -> Self {
        self.redis = Some(redis);
        self
    }

    fn measure(&mut self, load: &Load) -> Result<()> {
        self.rounds.push(load.measure_orders(self.orders, &self.service, self.redis)?);
        Ok(())
    }

    fn print_steps(&self) -> Result<()> {
        let steps = Steps::of(&self.service)?;
        let goal = GOAL_STEPS[usize::from(self.orders == Orders::Repeated)];
        let what = format!("{}: {goal} steps of the store each", self.name);
        report::goal(&what, (steps.each() - goal).abs() < FIRST_OF_ALL, &steps);
        Ok(())
    }
}

/// Measures all subjects and prints the table.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32) -> Result<()> {
    let redis = machine.redis()?;
    let scripts = Scripts::new(machine, &redis);
    scripts.cli(&["SET", KEY, &"x".repeat(ROW)])?;
    let read = scripts.load(READ)?;
    let alone = Plain::new(machine, &redis, &["EVALSHA", &read, "1", KEY], load.window)?;
    let bare = machine.bare()?;
    let upstream = machine.bare()?;
    let on_redis = format!("redis://{}", redis.address);
    let on_disk = |name| format!("embedded:{}", machine.directory(name).display());
    let start = |name, orders, store: &str| {
        let service = machine.keylatch_of(&machine.build, store, Some(&upstream))?;
        Subject::new(name, orders, service)
    };
    let mut subjects = [
        start("memory, first run", Orders::New, "memory:")?,
        start("memory, replay", Orders::Repeated, "memory:")?,
        start("embedded, first run", Orders::New, &on_disk("orders"))?,
        start("embedded, replay", Orders::Repeated, &on_disk("replays"))?,
        start("Redis, first run", Orders::New, &on_redis)?.on(&redis),
        start("Redis, replay", Orders::Repeated, &on_redis)?.on(&redis),
    ];
    let (mut bare_rounds, mut alone_rounds) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        bare_rounds.push(load.measure_orders(Orders::New, &bare, None)?);
        for subject in &mut subjects {
            subject.measure(load)?;
        }
        alone_rounds.push(alone.measure()?);
    }
    print(&subjects, &bare_rounds, &alone_rounds);
    println!();
    for subject in &subjects {
        subject.print_steps()?;
    }
    print_size(&subjects[0])
}

fn print(subjects: &[Subject<'_>; 6], bare: &[Slice], alone: &[Slice]) {
    let mut rows = vec![("bare handler", bare)];
    rows.extend(subjects.iter().map(|subject| (subject.name, &subject.rounds[..])));
    rows.push(("Redis alone, replay", alone));
    println!("\nAn order is submitted: a guarded POST to the bare handler.");
    report::table(&["of bare", "of Redis alone"], &rows, |slices| {
        let of = |others: &[Slice]| Some(Spread::of_rates(slices, others));
        vec![of(bare), of(alone)]
    });
    report::legend(
        "Redis alone, replay: the script that a replay calls, on a record that is done, called by \
         redis-benchmark.\n",
        &rows,
    );
    println!("\nGoals:");
    let [first, replay, _, _, _, on_redis] = subjects;
    for (name, subject, goal) in
        [("a replay", replay, GOAL_REPLAY), ("a first run", first, GOAL_FIRST)]
    {
        let what = format!("on memory, {name}, of the bare handler");
        report::at_least(&what, goal, Spread::of_rates(&subject.rounds, bare));
        report::by_cpu_time(&subject.rounds, bare);
    }
    let ratio = Spread::of_rates(&on_redis.rounds, alone);
    report::at_least("on Redis, a replay, of Redis alone", GOAL_REDIS, ratio);
}

fn print_size(first_runs: &Subject<'_>) -> Result<()> {
    let orders = Steps::of(&first_runs.service)?.orders();
    let bytes = (first_runs.service.resident()? - first_runs.empty) / orders;
    println!("\nA first run leaves some {bytes:.0} bytes in memory, of {orders} of them.");
    Ok(())
}
