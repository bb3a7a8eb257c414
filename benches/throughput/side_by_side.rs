//! keylatch next to what it is built on.
//!
//! Memory is compared with the bare handlers, and Redis with Redis alone, in rounds that take
//! turns, because noise then hits all of them. What counts is the ratio of medians and never a
//! rate.

use crate::Result;
use crate::load::Load;
use crate::processes::Machine;
use crate::redis_alone::RedisAlone;
use crate::report;
use crate::slice::{Slice, Spread};

/// The part of the bare handler's rate that is to be left with locks in memory.
const GOAL_MEMORY: f64 = 0.85;
/// The part of Redis's own rate, with a plain SET NX PX, that is to be left with locks in Redis.
const GOAL_REDIS: f64 = 0.45;
/// The goal for 99 of 100 requests with locks in Redis, in milliseconds ...
const GOAL_P99: f64 = 4.0;
/// ... on a machine on which the bare handler stays below this.
const CALM_P99: f64 = 1.5;
/// A generator that is so busy may be what limits the rate.
const SATURATED: f64 = 0.95;

/// The rounds of each subject.
#[derive(Debug, Default)]
struct Rounds {
    bare: Vec<Slice>,
    memory: Vec<Slice>,
    redis: Vec<Slice>,
    alone: Vec<Slice>,
}

/// Measures all subjects and prints the table.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32) -> Result<()> {
    let redis = machine.redis()?;
    let alone = RedisAlone::new(machine, &redis, load.window)?;
    let bare = machine.bare()?;
    let on_memory = machine.keylatch("memory:")?;
    let on_redis = machine.keylatch(&format!("redis://{}", redis.address))?;
    let mut measured = Rounds::default();
    for _ in 0..rounds {
        measured.bare.push(load.measure(&bare, None)?);
        measured.memory.push(load.measure(&on_memory, None)?);
        measured.redis.push(load.measure(&on_redis, Some(&redis))?);
        measured.alone.push(alone.measure()?);
    }
    measured.print();
    Ok(())
}

impl Rounds {
    fn print(&self) {
        let rows = [
            ("bare handler", &self.bare[..]),
            ("keylatch on memory", &self.memory),
            ("keylatch on Redis", &self.redis),
            ("Redis alone", &self.alone),
        ];
        report::table(&["of bare", "of Redis alone"], &rows, |slices| {
            let of = |others: &[Slice]| Some(Spread::of_rates(slices, others));
            vec![of(&self.bare), of(&self.alone)]
        });
        report::legend(
            "p50, p99: of creates and deletes together; of Redis alone, of the slower of the two.\n",
            &rows,
        );
        for (subject, slices) in rows {
            let generator = Spread::of(slices, |slice| slice.cores.generator).median;
            if generator >= SATURATED {
                println!("The load generator itself may limit the rate of: {subject}.");
            }
        }
        self.print_goals();
    }

    fn print_goals(&self) {
        let p99 = |slices: &[Slice]| Spread::of(slices, |slice| slice.p99).median;
        println!("\nGoals:");
        let memory = Spread::of_rates(&self.memory, &self.bare);
        report::at_least("on memory, of the bare handler", GOAL_MEMORY, memory);
        report::by_cpu_time(&self.memory, &self.bare);
        let redis = Spread::of_rates(&self.redis, &self.alone);
        report::at_least("on Redis, of Redis alone", GOAL_REDIS, redis);
        let (bare, redis) = (p99(&self.bare), p99(&self.redis));
        if bare < CALM_P99 {
            let what = format!("on Redis, p99 below {GOAL_P99} ms");
            report::goal(&what, redis < GOAL_P99, format_args!("{redis:.3} ms"));
        } else {
            println!(
                "  open     on Redis, p99 below {GOAL_P99} ms: {redis:.3} ms, on a machine on which \
                 that of the\n           bare handler is {bare:.3} ms and not below {CALM_P99} ms"
            );
        }
    }
}
