//! How soon requests are served again, and as fast as before, when Redis goes while they come at a
//! steady rate.
//!
//! A Redis that keeps its data is restarted. Then the master of a Redis with a replica and
//! sentinels is killed, and the replica takes its place. The figures are how long it took until a
//! request was served again, and until so many windows of 100 ms in a row were as they were before:
//! every request served, and 99 of 100 in twice the time. All times count from the end of its
//! process.

use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use crate::Result;
use crate::load::{Arrival, Arrivals, Load, Outcome, Pace, percentile};
use crate::processes::{Machine, Process, Store};
use crate::sentinels::{DOWN_AFTER, Sentinels};
use crate::slice::Spread;

/// How long is measured before the end of Redis, and in all.
const BEFORE: Duration = Duration::from_secs(3);
const IN_ALL: Duration = Duration::from_secs(20);
/// The windows that are compared.
const WINDOW: Duration = Duration::from_millis(100);
/// How many of them in a row are to be as they were before.
const IN_A_ROW: usize = 5;
/// How many times as long 99 of 100 requests may take in such a window.
const AS_BEFORE: f64 = 2.0;

/// Measures a restart and a failover while `rate` requests a second come, and prints both.
pub(crate) fn run(machine: &Machine, load: &Load, rate: f64) -> Result<()> {
    restart(machine, load, rate)?;
    fail_over(machine, load, rate)
}

fn restart(machine: &Machine, load: &Load, rate: f64) -> Result<()> {
    let redis = machine.lasting_redis("outage", None)?;
    let service = machine.keylatch(Store::Redis(&redis))?;
    let address = redis.address;
    let restart = || -> Result<_> {
        redis.terminate()?;
        let down = Instant::now();
        let redis = machine.lasting_redis("outage", Some(address))?;
        Ok((redis, down, Instant::now()))
    };
    let (arrivals, (_redis, down, up)) = send_during(load, rate, &service, restart)?;
    println!("\nRedis is restarted with its data while {rate:.0} requests a second come:");
    println!("  it was away for {:.1?}", up - down);
    print(&arrivals, down);
    Ok(())
}

fn fail_over(machine: &Machine, load: &Load, rate: f64) -> Result<()> {
    let set = Sentinels::start(machine)?;
    let service = machine.keylatch(Store::Url(&set.url()))?;
    let master = set.master;
    let kill = || {
        // A process that is dropped is killed.
        drop(master);
        Ok(Instant::now())
    };
    let (arrivals, down) = send_during(load, rate, &service, kill)?;
    println!(
        "\nThe master of a Redis with sentinels is killed (down-after-milliseconds {}) while {rate:.0} requests a \
         second come:",
        DOWN_AFTER.as_millis()
    );
    print(&arrivals, down);
    Ok(())
}

/// Sends requests, and calls `outage` when enough were answered to know how long they take.
fn send_during<T: Send>(
    load: &Load,
    rate: f64,
    service: &Process,
    outage: impl FnOnce() -> Result<T> + Send,
) -> Result<(Arrivals, T)> {
    let (ended, arrivals) = scope(|scope| {
        let outage = scope.spawn(|| {
            sleep(IN_ALL / 10 + BEFORE);
            outage()
        });
        let arrivals = load.send_at(Pace::Rate(rate), IN_ALL, service);
        (outage.join(), arrivals)
    });
    let ended = ended.map_err(|_| "the outage panicked")??;
    Ok((arrivals?, ended))
}

fn print(arrivals: &Arrivals, down: Instant) {
    if let Some(served) = served_again(arrivals, down) {
        println!("  from its end until a request that came since was served: {served:.1?}");
    }
    print_p99(arrivals, down);
    let count = |outcome| arrivals.all.iter().filter(|arrival| arrival.outcome == outcome).count();
    let longest = arrivals.all.iter().map(|arrival| arrival.took).max().unwrap_or_default();
    println!(
        "  of {} requests: 503 and not executed {}, 503 and unknown {}, 404 for a held lock {}; the longest wait: \
         {longest:.1?}",
        arrivals.all.len(),
        count(Outcome::NotExecuted),
        count(Outcome::Unknown),
        count(Outcome::Forgotten),
    );
}

/// From the end of Redis until the first answer that only the next one can have given: to a request
/// that came since.
fn served_again(arrivals: &Arrivals, down: Instant) -> Option<Duration> {
    let down = down.saturating_duration_since(arrivals.started);
    let since = arrivals.all.iter().filter(|arrival| arrival.due > down && arrival.is_served());
    since.map(|arrival| arrival.due + arrival.took - down).min()
}

fn print_p99(arrivals: &Arrivals, down: Instant) {
    let windows = windows(&arrivals.all);
    let down = window_of(down.saturating_duration_since(arrivals.started));
    let p99 = |window: &Vec<Arrival>| percentile(window, 990);
    let before = Spread::new(windows.iter().take(down).map(p99).collect()).median;
    let is_as_before = |window: &Vec<Arrival>| {
        window.iter().all(Arrival::is_served) && p99(window) <= AS_BEFORE * before
    };
    let after: Vec<_> = windows.iter().skip(down).map(is_as_before).collect();
    let back = after.windows(IN_A_ROW).position(|row| row.iter().all(|is_back| *is_back));
    println!("  p99 before, the median of windows of {WINDOW:?}: {before:.3} ms");
    match back {
        Some(back) => {
            let back = WINDOW * u32::try_from(back).unwrap_or(u32::MAX);
            println!("  from its end until p99 was back to {AS_BEFORE} times that: {back:?}");
        }
        None => println!("  p99 was not back to {AS_BEFORE} times that while it was looked at"),
    }
}

/// The requests by the window in which they were due.
fn windows(arrivals: &[Arrival]) -> Vec<Vec<Arrival>> {
    let mut windows: Vec<Vec<Arrival>> = Vec::new();
    for arrival in arrivals {
        let window = window_of(arrival.due);
        if windows.len() <= window {
            windows.resize_with(window + 1, Vec::new);
        }
        windows[window].push(*arrival);
    }
    windows
}

/// The number of the window that a time since the start is in.
fn window_of(time: Duration) -> usize {
    (time.as_nanos() / WINDOW.as_nanos()) as usize
}
