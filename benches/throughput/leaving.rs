//! What a million one-time locks leave behind on disk and in memory.
//!
//! Each is created and released once. After a time of rest, in which the stores sweep, the footprint may be
//! larger than that after a short warm-up by a bounded factor and no more.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::Result;
use crate::load::Load;
use crate::processes::{Machine, Process};
use crate::report;

const COUNT: usize = 1_000_000;
/// How many have come and gone before the first look, so that it finds a service in use.
const WARM_UP: usize = 20_000;
/// How many times as much may be left.
const GOAL: f64 = 1.5;
/// How long the service is left alone before a look: it sweeps every 5 s, and needs two sweeps to
/// find that nothing more is written.
const REST: Duration = Duration::from_secs(16);

/// What a service uses.
#[derive(Debug)]
struct Footprint {
    disk: f64,
    memory: f64,
}

impl Footprint {
    fn of(service: &Process, data: &Path) -> Result<Self> {
        let mut disk = 0;
        for file in fs::read_dir(data)? {
            disk += file?.metadata()?.len();
        }
        Ok(Self { disk: disk as f64, memory: service.resident()? })
    }

    fn at_rest(service: &Process, data: &Path) -> Result<Self> {
        std::thread::sleep(REST);
        Self::of(service, data)
    }

    fn print(&self, state: &str) {
        let (disk, memory) = (self.disk / 1024.0, self.memory / 1024.0 / 1024.0);
        println!("{state:<44}{disk:>14.0}{memory:>14.1}");
    }

    fn judge(&self, before: &Self, how: &str) {
        let parts = [
            ("the files are", self.disk / before.disk),
            ("memory is", self.memory / before.memory),
        ];
        for (what, ratio) in parts {
            let what = format!("after {COUNT} locks {how}, {what} at most {GOAL} of before");
            report::goal(&what, ratio <= GOAL, format_args!("{ratio:.2}"));
        }
    }
}

/// Lets locks come and go, one after another and all held at once, and prints what they leave.
pub(crate) fn run(machine: &Machine, load: &Load) -> Result<()> {
    println!("\n{COUNT} locks come and go; this takes a while.");
    let data = machine.directory("leaving");
    let service = machine.keylatch(&format!("embedded:{}", data.display()))?;
    load.come_and_go(&service, WARM_UP)?;
    let before = Footprint::at_rest(&service, &data)?;
    load.come_and_go(&service, COUNT)?;
    let busy = Footprint::of(&service, &data)?;
    let one_by_one = Footprint::at_rest(&service, &data)?;
    let held = load.hold(&service, COUNT)?;
    let peak = Footprint::of(&service, &data)?;
    load.end(held)?;
    let at_once = Footprint::at_rest(&service, &data)?;
    println!("\n{:<44}{:>14}{:>14}", "state", "files, KiB", "memory, MiB");
    before.print("before");
    busy.print("at the end of one after another");
    one_by_one.print("at rest after that");
    peak.print("all held at once");
    at_once.print("at rest after that");
    println!("\nGoals:");
    one_by_one.judge(&before, "one after another");
    at_once.judge(&before, "held at once");
    Ok(())
}
