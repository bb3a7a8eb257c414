//! This build next to another one, such as the one before a change.
//!
//! Both run at the same time and are measured in turn, round by round, so that noise hits both
//! alike. The guarded requests go to the bare handler behind both.

use std::path::Path;

use crate::Result;
use crate::load::{CONNECTIONS, Load, Orders};
use crate::processes::{Machine, Process};
use crate::slice::{Slice, Spread};

/// A build that reaches less than this part of the other build's rate has lost some of it.
const GOAL: f64 = 0.97;

/// What is measured of both builds.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// Creates and deletes on so many connections.
    Locks(usize),
    /// Guarded requests.
    Guarded(Orders),
}

/// One kind of work on both builds.
#[derive(Debug)]
struct Subject<'a> {
    name: &'static str,
    work: Work,
    this: Process,
    other: Process,
    redis: Option<&'a Process>,
    rounds: [Vec<Slice>; 2],
}

impl Subject<'_> {
    fn measure(&mut self, load: &Load, other_first: bool) -> Result<()> {
        let [this, other] = &mut self.rounds;
        let measure = |service: &Process| match self.work {
            Work::Locks(connections) => load.measure_on(connections, service, self.redis),
            Work::Guarded(orders) => load.measure_orders(orders, service, self.redis),
        };
        if other_first {
            other.push(measure(&self.other)?);
        }
        this.push(measure(&self.this)?);
        if !other_first {
            other.push(measure(&self.other)?);
        }
        Ok(())
    }

    fn print(&self) {
        let [this, other] = &self.rounds;
        let rate = Spread::of_rates(this, other);
        let cost = Spread::of_ratios(this, other, |this, other| other.cost() / this.cost());
        let p99 = Spread::of_ratios(this, other, |this, other| this.p99 / other.p99);
        let verdict = if rate.median >= GOAL { "no loss" } else { "loss" };
        println!("  {verdict:<8} {:<32}{rate:>22}{cost:>22}{p99:>22}", self.name);
    }
}

/// Measures both builds and prints the ratios.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32, other: &Path) -> Result<()> {
    let redis = machine.redis()?;
    let upstream = machine.bare()?;
    let on_redis = format!("redis://{}", redis.address);
    let start = |name: &'static str, work: Work, store: &str| -> Result<Subject<'_>> {
        let guarded = match work {
            Work::Locks(_) => None,
            Work::Guarded(_) => Some(&upstream),
        };
        let of = |build: &Path, directory: &str| {
            let directory = machine.directory(&format!("{name} {directory}"));
            let store = store.replace("DIRECTORY", &directory.to_string_lossy());
            machine.keylatch_of(build, &store, guarded)
        };
        let (this, other) = (of(&machine.build, "this")?, of(other, "other")?);
        let redis = store.starts_with("redis").then_some(&redis);
        Ok(Subject { name, work, this, other, redis, rounds: Default::default() })
    };
    let many = Work::Locks(CONNECTIONS);
    let (first, replay) = (Work::Guarded(Orders::New), Work::Guarded(Orders::Repeated));
    let mut subjects = [
        start("locks, memory", many, "memory:")?,
        start("locks, embedded", many, "embedded:DIRECTORY")?,
        start("locks, embedded, 1 connection", Work::Locks(1), "embedded:DIRECTORY")?,
        start("locks, Redis", many, &on_redis)?,
        start("first run, memory", first, "memory:")?,
        start("first run, embedded", first, "embedded:DIRECTORY")?,
        start("replay, memory", replay, "memory:")?,
        start("replay, Redis", replay, &on_redis)?,
    ];
    for round in 0..rounds {
        for subject in &mut subjects {
            subject.measure(load, round.is_multiple_of(2))?;
        }
    }
    print(other, &subjects);
    Ok(())
}

fn print(other: &Path, subjects: &[Subject<'_>]) {
    println!(
        "\nThis build / {}: medians of the ratios of each round; in parentheses, the least and the \
         most.\n  {:<41}{:>22}{:>22}{:>22}",
        other.display(),
        "",
        "requests/s",
        "requests/CPU time",
        "p99",
    );
    for subject in subjects {
        subject.print();
    }
}
