//! How long requests take that come at a steady rate, next to a closed loop.
//!
//! In each round the closed loop comes first, and the steady rates are shares of what it reached.
//! It is of the same program as they are (`load/paced.rs`), so that all figures are taken alike.
//! Then Redis goes while requests come at half of the most (`outage.rs`).

use crate::load::{Arrival, Load, Pace, percentile};
use crate::outage;
use crate::processes::{Process, Store};
use crate::slice::Spread;
use crate::{Bench, Result};

/// The shares of the most at which requests come.
const SHARES: [f64; 2] = [0.5, 0.8];
/// The share at which Redis goes.
const SHARE_AT_OUTAGE: f64 = 0.5;

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

pub(crate) fn run(Bench { machine, load, rounds, .. }: &Bench) -> Result<()> {
    let redis = machine.redis()?;
    let mut subjects = Vec::new();
    for (name, store) in [
        ("memory", Store::Memory),
        ("embedded", Store::Embedded("steady")),
        ("Redis", Store::Redis(&redis)),
    ] {
        let service = machine.keylatch(store)?;
        subjects.push(Subject { name, service, rounds: Default::default() });
    }
    for _ in 0..*rounds {
        for subject in &mut subjects {
            subject.measure(load)?;
        }
    }
    print(&subjects);
    let most = subjects.last().map_or(0.0, Subject::closed_rate);
    drop((subjects, redis));
    outage::run(machine, load, most * SHARE_AT_OUTAGE)
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
        Spread::of(&self.rounds[0], |figures| figures.rate).median
    }
}

impl Figures {
    /// Fails where a request was not served: the store was not away.
    fn of(arrivals: &[Arrival]) -> Result<Self> {
        if arrivals.iter().any(|arrival| !arrival.is_served()) {
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

fn print(subjects: &[Subject]) {
    println!(
        "\n{:<24}{:>12}{:>24}{:>24}{:>24}",
        "subject", "requests/s", "p50 ms", "p99 ms", "p99.9 ms"
    );
    for subject in subjects {
        let loads = ["closed loop", "50 % of that", "80 % of that"];
        for (load, rounds) in loads.iter().zip(&subject.rounds) {
            let name = format!("{}, {load}", subject.name);
            print!("{name:<24}{:>12.0}", Spread::of(rounds, |figures| figures.rate).median);
            for of in 0..3 {
                let spread = Spread::of(rounds, |figures| figures.latencies[of]);
                print!("{:>24}", spread.to_string());
            }
            println!();
        }
    }
    println!(
        "At a steady rate a latency counts from the moment at which the request was due, also \
         where no connection was free for it."
    );
}
