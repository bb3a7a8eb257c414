//! How long requests take that come at a steady rate, next to a closed loop, and after a restart of Redis.
//!
//! In each round the closed loop comes first, and the steady rates are shares of what it reached. It is of the same
//! program as they are (`load/paced.rs`), so that all figures are taken alike.
//!
//! A Redis that keeps its data is restarted while requests come at half of the most. The figure is how long it
//! took until so many windows of 100 ms in a row were as they were before: every request served, and 99 of 100
//! in twice the time.

use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use crate::Result;
use crate::load::{Arrival, Arrivals, Load, Pace};
use crate::processes::{Machine, Process};
use crate::slice::Spread;

/// The shares of the most at which requests come.
const SHARES: [f64; 2] = [0.5, 0.8];
/// The share at which Redis is restarted.
const SHARE_AT_RESTART: f64 = 0.5;
/// How long is measured before the restart, and in all.
const BEFORE: Duration = Duration::from_secs(3);
const WITH_RESTART: Duration = Duration::from_secs(15);
/// The windows after a restart.
const WINDOW: Duration = Duration::from_millis(100);
/// How many of them in a row are to be as they were before.
const IN_A_ROW: usize = 5;
/// How many times as long 99 of 100 requests may take in such a window.
const AS_BEFORE: f64 = 2.0;

/// A service, and what was measured of it: the closed loop, and then each steady rate.
struct Subject {
    name: &'static str,
    service: Process,
    rounds: [Vec<Figures>; 3],
}

/// What some requests took.
#[derive(Debug, Clone, Copy)]
struct Figures {
    /// Requests a second.
    rate: f64,
    /// Half, 99 of 100 and 999 of 1000 requests took at most so long, in milliseconds.
    latencies: [f64; 3],
}

/// Measures all subjects and prints the tables.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32) -> Result<()> {
    let redis = machine.redis()?;
    let stores = [
        ("memory", "memory:".to_owned()),
        ("embedded", format!("embedded:{}", machine.directory("steady").display())),
        ("Redis", format!("redis://{}", redis.address)),
    ];
    let subject = |(name, store): (_, String)| -> Result<_> {
        let service = machine.keylatch(&store)?;
        Ok(Subject { name, service, rounds: Default::default() })
    };
    let mut subjects: Vec<_> = stores.into_iter().map(subject).collect::<Result<_>>()?;
    for _ in 0..rounds {
        for subject in &mut subjects {
            subject.measure(load)?;
        }
    }
    print(&subjects);
    let most = subjects.last().map_or(0.0, Subject::closed_rate);
    drop((subjects, redis));
    restart(machine, load, most * SHARE_AT_RESTART)
}

impl Subject {
    fn measure(&mut self, load: &Load) -> Result<()> {
        let closed = Figures::of(&load.send_at(Pace::Closed, load.window, &self.service)?.all)?;
        let [of_closed, steady @ ..] = &mut self.rounds;
        of_closed.push(closed);
        for (rounds, share) in steady.iter_mut().zip(SHARES) {
            let pace = Pace::Rate(closed.rate * share);
            let arrivals = load.send_at(pace, load.window, &self.service)?;
            rounds.push(Figures::of(&arrivals.all)?);
        }
        Ok(())
    }

    /// What the closed loop reached.
    fn closed_rate(&self) -> f64 {
        Spread::new(self.rounds[0].iter().map(|figures| figures.rate).collect()).median
    }
}

impl Figures {
    /// Fails where a request was not served: the store was not away.
    fn of(arrivals: &[Arrival]) -> Result<Self> {
        if arrivals.iter().any(|arrival| !arrival.is_served) {
            return Err("a request was not served".into());
        }
        let last = arrivals.iter().map(|arrival| arrival.due + arrival.took).max();
        let last = last.ok_or("no request came")?;
        Ok(Self {
            rate: arrivals.len() as f64 / last.as_secs_f64(),
            latencies: [500, 990, 999].map(|of| percentile(arrivals, of)),
        })
    }
}

/// So many of 1000 requests took at most so long, in milliseconds.
fn percentile(arrivals: &[Arrival], of_thousand: usize) -> f64 {
    let mut times: Vec<_> = arrivals.iter().map(|arrival| arrival.took).collect();
    let rank = (times.len() * of_thousand).div_ceil(1000).saturating_sub(1);
    if rank >= times.len() {
        return f64::NAN;
    }
    let (_, time, _) = times.select_nth_unstable(rank);
    time.as_secs_f64() * 1000.0
}

fn print(subjects: &[Subject]) {
    println!(
        "\n{:<24}{:>12}{:>24}{:>24}{:>24}",
        "subject", "requests/s", "p50 ms", "p99 ms", "p99.9 ms"
    );
    for subject in subjects {
        let loads = ["closed loop", "50 % of that", "80 % of that"];
        for (load, rounds) in loads.iter().zip(&subject.rounds) {
            let of = |value: fn(&Figures) -> f64| Spread::new(rounds.iter().map(value).collect());
            let name = format!("{}, {load}", subject.name);
            print!("{name:<24}{:>12.0}", of(|figures| figures.rate).median);
            for spread in [
                of(|figures| figures.latencies[0]),
                of(|figures| figures.latencies[1]),
                of(|figures| figures.latencies[2]),
            ] {
                print!("{:>24}", spread.to_string());
            }
            println!();
        }
    }
    println!(
        "\nNumbers are medians of the rounds; in parentheses, the least and the most. At a steady rate a latency \
         counts\nfrom the moment at which the request was due, also where no connection was free for it."
    );
}

/// Restarts a Redis while requests come at `rate`.
fn restart(machine: &Machine, load: &Load, rate: f64) -> Result<()> {
    let redis = machine.lasting_redis("steady-redis", None)?;
    let service = machine.keylatch(&format!("redis://{}", redis.address))?;
    let address = redis.address;
    let (restarted, arrivals) = scope(|scope| {
        let restarting = scope.spawn(move || -> Result<_> {
            sleep(WITH_RESTART / 10 + BEFORE);
            let down = Instant::now();
            redis.terminate()?;
            let redis = machine.lasting_redis("steady-redis", Some(address))?;
            Ok((redis, down, Instant::now()))
        });
        let arrivals = load.send_at(Pace::Rate(rate), WITH_RESTART, &service);
        (restarting.join(), arrivals)
    });
    let (_redis, down, up) = restarted.map_err(|_| "the restart panicked")??;
    print_restart(&arrivals?, rate, down, up);
    Ok(())
}

fn print_restart(arrivals: &Arrivals, rate: f64, down: Instant, up: Instant) {
    let windows = windows(&arrivals.all);
    let at = |instant: Instant| {
        (instant.saturating_duration_since(arrivals.started).as_nanos() / WINDOW.as_nanos())
            as usize
    };
    let p99 = |window: &Vec<Arrival>| percentile(window, 990);
    let before = Spread::new(windows.iter().take(at(down)).map(p99).collect()).median;
    let is_as_before = |window: &Vec<Arrival>| {
        window.iter().all(|arrival| arrival.is_served) && p99(window) <= AS_BEFORE * before
    };
    let after: Vec<_> = windows.iter().skip(at(down)).map(is_as_before).collect();
    let back = after.windows(IN_A_ROW).position(|row| row.iter().all(|is_back| *is_back));
    let failed = arrivals.all.iter().filter(|arrival| !arrival.is_served).count();
    let longest = arrivals.all.iter().map(|arrival| arrival.took).max().unwrap_or_default();
    println!("\nRedis is restarted with its data while {rate:.0} requests a second come:");
    println!("  it was away for {:.1?}", up - down);
    println!("  p99 before, the median of windows of {WINDOW:?}: {before:.3} ms");
    match back {
        Some(back) => {
            let back = WINDOW * u32::try_from(back).unwrap_or(u32::MAX);
            println!("  from its end until p99 was back to {AS_BEFORE} times that: {back:?}");
        }
        None => println!("  p99 was not back to {AS_BEFORE} times that while it was looked at"),
    }
    println!(
        "  answered 503 or 404: {failed} of {}; the longest wait: {longest:.1?}",
        arrivals.all.len()
    );
}

/// The requests by the window in which they were due.
fn windows(arrivals: &[Arrival]) -> Vec<Vec<Arrival>> {
    let mut windows: Vec<Vec<Arrival>> = Vec::new();
    for arrival in arrivals {
        let window = (arrival.due.as_nanos() / WINDOW.as_nanos()) as usize;
        if windows.len() <= window {
            windows.resize_with(window + 1, Vec::new);
        }
        windows[window].push(*arrival);
    }
    windows
}
