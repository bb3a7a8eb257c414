//! Guarded requests beside what is there without a guard: two round trips to Redis, one `GET`, a
//! plain proxy.
//!
//! `guarded.rs` has them beside a bare handler and the scripts. Here a first run on Redis is
//! compared with two writes of a record by redis-benchmark, and a replay with one read; answers of
//! 1 MiB are replayed while the memory of the service is looked at; and the service that runs the
//! requests is asked through the guard, past every guard, and through nginx, which keeps its
//! connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use crate::Result;
use crate::bare::LARGE;
use crate::load::{CONNECTIONS, Load, Orders};
use crate::one_core::nginx;
use crate::processes::{Machine, Process};
use crate::redis_alone::Plain;
use crate::report;
use crate::slice::{Slice, Spread};

/// The part of what two plain round trips to Redis allow that is to be left to a first run.
const GOAL_FIRST: f64 = 0.5;
/// The part of the rate of plain reads that is to be left to a replay.
const GOAL_REPLAY: f64 = 0.8;
/// The part of the rate through nginx that is to be left through the guard.
const GOAL_PROXY: f64 = 0.8;
/// The part of the rate through nginx that is to be left to what no guard names.
const GOAL_PASS: f64 = 0.6;
/// What a record of an order has, about.
const RECORD: usize = 512;
/// How many clients read large answers.
const LARGE_CLIENTS: usize = 8;
/// How often the memory is looked at.
const LOOK: Duration = Duration::from_millis(20);
const MIB: f64 = 1_048_576.0;

/// Measures all of it.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32) -> Result<()> {
    beside_redis(machine, load, rounds)?;
    beside_nginx(machine, load, rounds)?;
    large(machine, load, rounds)
}

fn beside_redis(machine: &Machine, load: &Load, rounds: u32) -> Result<()> {
    let (redis, alone, upstream) = (machine.redis()?, machine.redis()?, machine.bare()?);
    let on_redis = format!("redis://{}", redis.address);
    let service = machine.keylatch_of(&machine.build, &on_redis, Some(&upstream))?;
    let record = "x".repeat(RECORD);
    let set = ["SET", "record-__rand_int__", &record, "PX", "30000"];
    let write = Plain::new(machine, &alone, &set, load.window)?;
    write.scripts.cli(&["SET", "record", &record])?;
    let read = Plain::new(machine, &alone, &["GET", "record"], load.window)?;
    let mut measured: [Vec<Slice>; 4] = Default::default();
    for _ in 0..rounds {
        let slices = [
            load.measure_orders(Orders::New, &service, Some(&redis))?,
            write.measure()?,
            load.measure_orders(Orders::Repeated, &service, Some(&redis))?,
            read.measure()?,
        ];
        write.scripts.cli(&["FLUSHALL", "SYNC"])?;
        write.scripts.cli(&["SET", "record", &record])?;
        measured.iter_mut().zip(slices).for_each(|(rounds, slice)| rounds.push(slice));
    }
    print_beside_redis(&measured);
    Ok(())
}

fn print_beside_redis([first, write, replay, read]: &[Vec<Slice>; 4]) {
    let rows = [
        ("Redis, first run", &first[..]),
        ("plain SET", write),
        ("Redis, replay", replay),
        ("plain GET", read),
    ];
    report::table(&[], &rows, |_| Vec::new());
    report::legend("plain: redis-benchmark, a record of 512 bytes.\n", &rows);
    println!("\nGoals:");
    let ratio = Spread::of_ratios(first, write, |first, write| 2.0 * first.rate / write.rate);
    report::at_least("a first run, of what two round trips allow", GOAL_FIRST, ratio);
    let ratio = Spread::of_rates(replay, read);
    report::at_least("a replay, of a plain read", GOAL_REPLAY, ratio);
}

fn beside_nginx(machine: &Machine, load: &Load, rounds: u32) -> Result<()> {
    let upstream = machine.bare()?;
    let upstreams =
        format!("upstream shop {{ server {}; keepalive {CONNECTIONS}; }}", upstream.address);
    let pass = "proxy_pass http://shop; proxy_http_version 1.1; proxy_set_header Connection \"\";";
    let proxy = nginx(machine, &upstreams, pass)?;
    let guard = machine.keylatch_of(&machine.build, "memory:", Some(&upstream))?;
    let passes = format!(
        "[gateway]\nupstream = \"http://{}\"\n[[listener]]\naddress = \"LISTEN\"\nserves = [\"guards\"]\n",
        upstream.address
    );
    let passing = machine.keylatch_set(&machine.build, "memory:", Some(&passes))?;
    let mut measured: [Vec<Slice>; 4] = Default::default();
    for _ in 0..rounds {
        for (slices, server) in measured.iter_mut().zip([&upstream, &proxy, &guard, &passing]) {
            slices.push(load.measure_orders(Orders::New, server, None)?);
        }
    }
    let [bare, nginx, guard, passing] = &measured;
    let rows = [
        ("bare handler", &bare[..]),
        ("behind nginx", nginx),
        ("behind the guard", guard),
        ("past every guard", passing),
    ];
    report::table(&["of nginx"], &rows, |slices| vec![Some(Spread::of_rates(slices, nginx))]);
    report::legend("nginx is one process, and records nothing.\n", &rows);
    println!("\nGoals:");
    let ratio = Spread::of_rates(guard, nginx);
    let what = format!("a first run on memory at least {GOAL_PROXY} of the rate through nginx");
    report::goal(&what, ratio.median >= GOAL_PROXY, ratio);
    let cost = Spread::of_ratios(nginx, guard, |nginx, guard| nginx.cost() / guard.cost());
    println!("           and by CPU time for a request, {cost}");
    report::at_least("past every guard, of nginx", GOAL_PASS, Spread::of_rates(passing, nginx));
    Ok(())
}

/// A server of large answers, with the memory that it had before it was asked and the most while it
/// was.
struct Large<'a> {
    name: &'static str,
    server: Process,
    redis: Option<&'a Process>,
    orders: Orders,
    empty: f64,
    most: f64,
    rounds: Vec<Slice>,
}

impl Large<'_> {
    fn measure(&mut self, load: &Load) -> Result<()> {
        let is_over = AtomicBool::new(false);
        let (slice, most) = scope(|scope| {
            let looking = scope.spawn(|| most_resident(&self.server, &is_over));
            let slice = load.measure_large(LARGE_CLIENTS, self.orders, &self.server, self.redis);
            is_over.store(true, Ordering::Relaxed);
            (slice, looking.join())
        });
        self.rounds.push(slice?);
        self.most = self.most.max(most.map_err(|_| "the look at memory panicked")??);
        Ok(())
    }
}

fn most_resident(server: &Process, is_over: &AtomicBool) -> Result<f64> {
    let mut most = server.resident()?;
    while !is_over.load(Ordering::Relaxed) {
        sleep(LOOK);
        most = most.max(server.resident()?);
    }
    Ok(most)
}

fn large(machine: &Machine, load: &Load, rounds: u32) -> Result<()> {
    let (redis, upstream) = (machine.redis()?, machine.bare()?);
    let settings = format!(
        "[[guard]]\npath = \"/v1/orders\"\nupstream = \"http://{}\"\nresponse_limit_bytes = {}\n",
        upstream.address,
        2 * LARGE
    );
    let guard = |store: &str| machine.keylatch_set(&machine.build, store, Some(&settings));
    let subject = |name, server: Process, redis, orders| -> Result<_> {
        let empty = server.resident()?;
        Ok(Large { name, server, redis, orders, empty, most: empty, rounds: Vec::new() })
    };
    let on_disk = format!("embedded:{}", machine.directory("large").display());
    let on_redis = format!("redis://{}", redis.address);
    let mut subjects = [
        subject("bare handler", machine.bare()?, None, Orders::New)?,
        subject("memory, replay", guard("memory:")?, None, Orders::Repeated)?,
        subject("embedded, replay", guard(&on_disk)?, None, Orders::Repeated)?,
        subject("Redis, replay", guard(&on_redis)?, Some(&redis), Orders::Repeated)?,
    ];
    for _ in 0..rounds {
        for subject in &mut subjects {
            subject.measure(load)?;
        }
    }
    print_large(&subjects);
    Ok(())
}

fn print_large(subjects: &[Large<'_>]) {
    println!("\n{LARGE_CLIENTS} clients read answers of 1 MiB, the same ones over and over:");
    println!(
        "{:<22}{:>12}{:>12}{:>12}{:>12}{:>14}{:>14}",
        "subject", "MiB/s", "cores", "p50 ms", "p99 ms", "MiB before", "MiB at most"
    );
    for Large { name, empty, most, rounds, .. } in subjects {
        let of = |value: fn(&Slice) -> f64| Spread::of(rounds, value).median;
        println!(
            "{name:<22}{:>12.0}{:>12.2}{:>12.1}{:>12.1}{:>14.0}{:>14.0}",
            of(|slice| slice.rate),
            of(|slice| slice.cores.service),
            of(|slice| slice.p50),
            of(|slice| slice.p99),
            empty / MIB,
            most / MIB
        );
    }
}
