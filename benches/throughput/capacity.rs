//! What a million held locks cost, next to a thousand.
//!
//! The same load is measured on both in turn. The goal bounds how much slower a request may be among a million
//! locks, and how many bytes each lock takes in memory; Redis is printed beside them.

use crate::Result;
use crate::load::Load;
use crate::processes::{Machine, Process};
use crate::report;
use crate::slice::{Slice, Spread};

const FEW: usize = 1_000;
const MANY: usize = 1_000_000;
/// How many times as long a create and a delete may take with many locks held as with few.
const GOAL_TIME: f64 = 1.15;
/// How many bytes a lock in memory may need.
const GOAL_BYTES: f64 = 400.0;

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

/// Measures both stores with few and with many locks held, and prints the table.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32) -> Result<()> {
    println!("\nHolding {FEW} and {MANY} locks on each store; this takes a while.");
    let mut memory = [Subject::on_memory(machine)?, Subject::on_memory(machine)?];
    let mut redis = [Subject::on_redis(machine)?, Subject::on_redis(machine)?];
    let empty = memory[1].service.resident()?;
    for subjects in [&memory, &redis] {
        load.fill(&subjects[0].service, FEW)?;
        load.fill(&subjects[1].service, MANY)?;
    }
    let bytes = (memory[1].service.resident()? - empty) / MANY as f64;
    for _ in 0..rounds {
        for subject in memory.iter_mut().chain(&mut redis) {
            subject.measure(load)?;
        }
    }
    print(&memory, &redis, bytes);
    Ok(())
}

fn print(memory: &[Subject; 2], redis: &[Subject; 2], bytes: f64) {
    let rows = [
        ("memory, 1,000 held", &memory[0].rounds[..]),
        ("memory, 1,000,000 held", &memory[1].rounds),
        ("Redis, 1,000 held", &redis[0].rounds),
        ("Redis, 1,000,000 held", &redis[1].rounds),
    ];
    report::table(&[], &rows, |_| Vec::new());
    report::legend("", &rows);
    println!("\nGoals, with {MANY} locks held next to {FEW}:");
    for (store, [few, many]) in [("memory", memory), ("Redis", redis)] {
        let time = Spread::of_ratios(&few.rounds, &many.rounds, |few, many| few.rate / many.rate);
        let what = format!("on {store}, a request takes at most {GOAL_TIME} times as long");
        report::goal(&what, time.median <= GOAL_TIME, time);
        let cost =
            Spread::of_ratios(&many.rounds, &few.rounds, |many, few| many.cost() / few.cost());
        println!("           and by CPU time, which others disturb less, {cost}");
    }
    let what = format!("a lock in memory needs at most {GOAL_BYTES} bytes");
    report::goal(&what, bytes <= GOAL_BYTES, format_args!("{bytes:.0}"));
}
