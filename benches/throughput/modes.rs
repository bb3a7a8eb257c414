//! What many holders of one lock cost, next to one, and how a long queue gets several slots.
//!
//! A thousand holders share one lock while one more comes and leaves, and a thousand waiters get 50
//! slots. The goal bounds how much more a share costs than a lock with one holder.

use crate::Result;
use crate::load::{Load, WAITING};
use crate::processes::Machine;
use crate::report;
use crate::slice::{Slice, Spread};

/// How many hold the lock where many do, the one that is measured among them.
const HOLDERS: usize = 1000;
/// How many times as long the last share may take as the first.
const GOAL_SHARE: f64 = 2.0;
/// How many wait in the long line.
const WAITERS: usize = 1000;
const SHARE: &str = r#"{"mode":"shared"}"#;
const FIFTY_PLACES: &str = r#"{"wait_ms":60000,"mode":"shared","limit":50}"#;

/// Measures shares of a lock in memory, and lines of waiters, and prints the table.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32) -> Result<()> {
    let [free, shared, line, places] = [(); 4].map(|()| machine.keylatch("memory:"));
    let (free, shared, line, places) = (free?, shared?, line?, places?);
    load.share(&shared, HOLDERS - 1)?;
    let mut slices = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        slices[0].push(load.measure_turns(1, SHARE, &[&free])?);
        slices[1].push(load.measure_turns(1, SHARE, &[&shared])?);
        slices[2].push(load.measure_turns(WAITERS, WAITING, &[&line])?);
        slices[3].push(load.measure_turns(WAITERS, FIFTY_PLACES, &[&places])?);
    }
    print(&slices);
    Ok(())
}

fn print([first, last, line, places]: &[Vec<Slice>; 4]) {
    let rows = [
        ("first share", &first[..]),
        ("1,000th share", last),
        ("1,000 for one place", line),
        ("1,000 for 50 places", places),
    ];
    report::table(&[], &rows, |_| Vec::new());
    let latencies = "A request is here a grant, and the release after it. Shares: one client, a lock in memory.\n\
                     p50, p99: from sending the request to reading the 201.\n";
    report::legend(latencies, &rows);
    println!("\nGoals:");
    let time = Spread::of_ratios(last, first, |last, first| last.p50 / first.p50);
    let what = format!("the 1,000th share takes at most {GOAL_SHARE} times as long as the first");
    report::goal(&what, time.median <= GOAL_SHARE, time);
    let rate = Spread::of_rates(places, line);
    println!("           50 places serve so many times as many of 1,000 waiters as one: {rate}");
}
