//! What it costs to keep locks on disk: next to memory, to the disk itself, and at a restart.
//!
//! The disk's own rate is measured in the same rounds, as a page that is written and synced,
//! because the goals are shares of it: a figure alone would be one of the machine.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Result;
use crate::load::{CONNECTIONS, Load};
use crate::processes::{Machine, Process};
use crate::report;
use crate::slice::{Cpu, Slice, Spread};

/// The part of memory's rate that is to be left on 64 connections.
const GOAL_MANY: f64 = 0.68;
/// The part of the disk's own rate of writes with fdatasync that is to be left on one connection.
const GOAL_ONE: f64 = 0.5;
/// How long a store with so many held locks may take to serve again.
const GOAL_OPEN: Duration = Duration::from_secs(2);
const HELD: usize = 1_000_000;
/// What one write of the disk's own rate writes.
const PAGE: [u8; 4096] = [0xA5; 4096];

/// The rounds of each subject.
#[derive(Debug, Default)]
struct Rounds {
    memory: Vec<Slice>,
    embedded: Vec<Slice>,
    one: Vec<Slice>,
    disk: Vec<Slice>,
    /// About how many bytes went to disk for a create and a release, on 64 connections and on one.
    written: [Vec<f64>; 2],
}

/// Measures all subjects and prints the table.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32) -> Result<()> {
    let data = machine.directory("durable");
    let on_memory = machine.keylatch("memory:")?;
    let on_disk = machine.keylatch(&format!("embedded:{}", data.display()))?;
    let raw = File::create(machine.directory("raw"))?;
    let mut measured = Rounds::default();
    for _ in 0..rounds {
        measured.memory.push(load.measure(&on_memory, None)?);
        let (embedded, of_many) = measure_written(load, CONNECTIONS, &on_disk)?;
        measured.disk.push(write_and_sync(&raw, load.window)?);
        let (one, of_one) = measure_written(load, 1, &on_disk)?;
        measured.embedded.push(embedded);
        measured.one.push(one);
        measured.written[0].push(of_many);
        measured.written[1].push(of_one);
    }
    measured.print();
    drop(on_disk);
    restart(machine, load, &machine.directory("restart"))
}

/// Measures, and says about how many bytes were written for a create and a release. The warm-up is
/// a tenth more.
fn measure_written(load: &Load, connections: usize, service: &Process) -> Result<(Slice, f64)> {
    let before = service.written()?;
    let slice = load.measure_on(connections, service, None)?;
    let pairs = slice.rate * load.window.as_secs_f64() * 1.1 / 2.0;
    Ok((slice, (service.written()? - before) / pairs))
}

/// The machine's own rate of writing a page and syncing it.
fn write_and_sync(file: &File, window: Duration) -> Result<Slice> {
    let (started, mut latencies) = (Instant::now(), Vec::new());
    while started.elapsed() < window {
        let before = Instant::now();
        file.write_all_at(&PAGE, 0)?;
        file.sync_data()?;
        latencies.push(u32::try_from(before.elapsed().as_nanos()).unwrap_or(u32::MAX));
    }
    let idle = Cpu { generator: 0.0, service: 0.0, redis: 0.0, machine: 0.0 };
    Slice::new(latencies, started.elapsed(), idle)
}

/// How long a service with many held locks takes to answer again.
fn restart(machine: &Machine, load: &Load, data: &Path) -> Result<()> {
    println!("\nHolding {HELD} locks on disk; this takes a while.");
    let store = format!("embedded:{}", data.display());
    let service = machine.keylatch(&store)?;
    load.fill(&service, HELD)?;
    // Killed, so that the file is opened as after a crash.
    drop(service);
    let size = fs::metadata(data.join("locks.sqlite"))?.len();
    let started = Instant::now();
    let service = machine.keylatch(&store)?;
    load.wait_until_ready(service.address)?;
    let took = started.elapsed();
    println!("\nGoals:");
    let what =
        format!("{HELD} held locks ({} MiB) are open and serving in {GOAL_OPEN:?}", size >> 20);
    report::goal(&what, took <= GOAL_OPEN, format_args!("{took:.2?}"));
    Ok(())
}

impl Rounds {
    fn print(self) {
        let rows = [
            ("memory", &self.memory[..]),
            ("embedded", &self.embedded),
            ("embedded, 1 connection", &self.one),
            ("write and fdatasync", &self.disk),
        ];
        report::table(&["of memory", "of the disk alone"], &rows, |slices| {
            let of = |others: &[Slice]| Some(Spread::of_rates(slices, others));
            vec![of(&self.memory), of(&self.disk)]
        });
        report::legend("", &rows[..3]);
        for (count, bytes) in [CONNECTIONS, 1].into_iter().zip(self.written) {
            let Spread { median, least, most } = Spread::new(bytes);
            println!(
                "About {median:.0} bytes ({least:.0}–{most:.0}) to disk for a create and a release on {count} connections."
            );
        }
        println!("\nGoals:");
        let many = Spread::of_rates(&self.embedded, &self.memory);
        report::at_least("on 64 connections, of memory", GOAL_MANY, many);
        let one = Spread::of_rates(&self.one, &self.disk);
        report::at_least("on 1 connection, of the disk's own rate", GOAL_ONE, one);
        let p99 = |slices: &[Slice]| Spread::of(slices, |slice| slice.p99).median;
        let sync = 1000.0 / Spread::of(&self.disk, |slice| slice.rate).median;
        let (limit, found) = (3.0 * p99(&self.memory) + 10.0 * sync, p99(&self.embedded));
        let what = format!("p99 at most 3 times memory's and 10 syncs ({limit:.3} ms)");
        report::goal(&what, found <= limit, format_args!("{found:.3} ms"));
    }
}
