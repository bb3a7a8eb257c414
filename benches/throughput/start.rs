//! How soon a service responds after it was spawned, with nothing in its store, and how often it
//! wakes while it idles.
//!
//! A first response is waited for by asking again and again, since a pause between two tries would
//! be part of it. A wake-up is a voluntary switch of context, which Linux counts for each thread: a
//! thread that waits for something makes one each time.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Result;
use crate::load::STUCK;
use crate::processes::{Machine, Process, Store};
use crate::slice::Spread;

/// How often each store is started.
const STARTS: usize = 20;
/// How long a service rests before it is looked at: threads of its start end after 10 s.
const REST: Duration = Duration::from_secs(12);
/// How long it is looked at.
const LOOK: Duration = Duration::from_secs(30);

/// Starts services on new stores in turn, and looks at idle ones.
pub(crate) fn run(machine: &Machine) -> Result<()> {
    let mut times = [const { [const { Vec::new() }; 2] }; 2];
    for start in 0..STARTS {
        let data = format!("start-{start}");
        let stores = [Store::Memory, Store::Embedded(&data)];
        for (store, [live, created]) in stores.into_iter().zip(&mut times) {
            let began = Instant::now();
            let (service, _log) = machine.spawn_keylatch(&machine.build, store, "")?;
            live.push(first_response(began, || service.get("/livez"), " 200 OK")?);
            let create = || service.post("/v1/locks/first", "{}");
            created.push(first_response(began, create, " 201 Created")?);
        }
    }
    println!("\nMilliseconds from the spawn of the process, {STARTS} starts with an empty store:");
    for (store, [live, created]) in ["memory", "embedded"].into_iter().zip(times) {
        println!("  {store}: /livez responds after {}", Spread::new(live));
        println!("  {store}: a lock is created after {}", Spread::new(created));
    }
    idle(machine)
}

/// How many milliseconds after `began` the first response came that has `expected` in it.
fn first_response(began: Instant, ask: impl Fn() -> Result<String>, expected: &str) -> Result<f64> {
    loop {
        match ask() {
            Ok(response) if response.contains(expected) => {
                return Ok(began.elapsed().as_secs_f64() * 1000.0);
            }
            Ok(response) => return Err(format!("expected{expected}, got: {response}").into()),
            // It does not listen yet.
            Err(error) if began.elapsed() > STUCK => return Err(error),
            Err(_) => sleep(Duration::from_micros(200)),
        }
    }
}

/// Counts the wake-ups of services that nothing asks.
fn idle(machine: &Machine) -> Result<()> {
    let redis = machine.redis()?;
    println!("\nWake-ups a second of a service that nothing asks, for {LOOK:?}, by thread:");
    let stores = [Store::Memory, Store::Embedded("idle"), Store::Redis(&redis)];
    let services: Vec<_> =
        stores.into_iter().map(|store| machine.keylatch(store)).collect::<Result<_>>()?;
    sleep(REST);
    let before: Vec<_> = services.iter().map(Process::wakeups).collect::<Result<_>>()?;
    sleep(LOOK);
    for (name, (service, before)) in
        ["memory", "embedded", "Redis"].into_iter().zip(services.iter().zip(before))
    {
        let mut by_thread = BTreeMap::new();
        for ((id, thread), count) in service.wakeups()? {
            let earlier = before.get(&(id, thread.clone())).copied().unwrap_or_default();
            *by_thread.entry(thread).or_insert(0) += count - earlier;
        }
        let a_second = f64::from(by_thread.values().sum::<u32>()) / LOOK.as_secs_f64();
        println!("  {name}: {a_second:.2} {by_thread:?}");
    }
    Ok(())
}
