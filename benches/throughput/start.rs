//! How soon a service answers after it was spawned, with nothing in its store, and how often it
//! wakes while it idles.
//!
//! A first answer is waited for by asking again and again, since a pause between two tries would be
//! part of it. A wake-up is a voluntary switch of context, which Linux counts for each thread: a
//! thread that waits for something makes one each time.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Result;
use crate::processes::{Machine, Process};
use crate::report;
use crate::slice::Spread;

/// How often each store is started.
const STARTS: usize = 20;
/// How long the first answer may take, in milliseconds.
const GOAL_START: f64 = 50.0;
/// How often an idle service may wake in a second.
const GOAL_WAKE: f64 = 1.0;
/// How long a service rests before it is looked at: threads of its start end after 10 s.
const REST: Duration = Duration::from_secs(12);
/// How long it is looked at.
const LOOK: Duration = Duration::from_secs(30);
/// How long is waited for a first answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts services on new stores in turn, and looks at idle ones.
pub(crate) fn run(machine: &Machine) -> Result<()> {
    let mut times: [[Vec<f64>; 2]; 2] = Default::default();
    for start in 0..STARTS {
        let data = machine.directory(&format!("start-{start}"));
        let stores = ["memory:".to_owned(), format!("embedded:{}", data.display())];
        for (store, [live, created]) in stores.iter().zip(&mut times) {
            let began = Instant::now();
            let service = machine.spawn_keylatch(store)?;
            live.push(first_answer(began, || service.get("/livez"), " 200 OK")?);
            let create = || service.post("/v1/locks/first", "{}");
            created.push(first_answer(began, create, " 201 Created")?);
        }
    }
    println!("\nFrom the spawn of the process, {STARTS} starts with nothing in the store:");
    for (store, [live, created]) in ["memory", "embedded"].iter().zip(times) {
        for (what, times) in [("/livez answers", live), ("a lock is created", created)] {
            let spread = Spread::new(times);
            let what = format!("{store}: {what} within {GOAL_START} ms");
            report::goal(&what, spread.median <= GOAL_START, spread);
        }
    }
    idle(machine)
}

/// How many milliseconds after `began` the first answer came that has `expected` in it.
fn first_answer(began: Instant, ask: impl Fn() -> Result<String>, expected: &str) -> Result<f64> {
    loop {
        match ask() {
            Ok(answer) if answer.contains(expected) => {
                return Ok(began.elapsed().as_secs_f64() * 1000.0);
            }
            Ok(answer) => return Err(format!("in place of{expected} came: {answer}").into()),
            // It does not listen yet.
            Err(error) if began.elapsed() > PATIENCE => return Err(error),
            Err(_) => sleep(Duration::from_micros(200)),
        }
    }
}

/// Counts the wake-ups of services that nothing asks.
fn idle(machine: &Machine) -> Result<()> {
    let redis = machine.redis()?;
    let data = machine.directory("idle");
    let on_disk = format!("embedded:{}", data.display());
    let on_redis = format!("redis://{}", redis.address);
    let services = [("memory", "memory:"), ("embedded", &on_disk), ("Redis", &on_redis)]
        .map(|(name, store)| machine.keylatch(store).map(|service| (name, service)));
    let services: Vec<_> = services.into_iter().collect::<Result<_>>()?;
    sleep(REST);
    let count = |(_, service): &(&str, Process)| service.wakeups();
    let before: Vec<_> = services.iter().map(count).collect::<Result<_>>()?;
    sleep(LOOK);
    println!("\nA service that nothing asks, for {LOOK:?}:");
    for ((name, service), before) in services.iter().zip(before) {
        let mut by_thread = BTreeMap::new();
        for ((id, thread), count) in service.wakeups()? {
            let earlier = before.get(&(id, thread.clone())).copied().unwrap_or_default();
            *by_thread.entry(thread).or_insert(0) += count - earlier;
        }
        let a_second = f64::from(by_thread.values().sum::<u32>()) / LOOK.as_secs_f64();
        let what = format!("{name}: at most {GOAL_WAKE} wake-up a second");
        report::goal(&what, a_second <= GOAL_WAKE, format_args!("{a_second:.2} {by_thread:?}"));
    }
    Ok(())
}
