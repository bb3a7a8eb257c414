//! The yardstick of a replay on Redis: the one script call that it makes, of a record that is done,
//! with nothing in front of it.
//!
//! The script does not look into the row, so its bytes are of no account, and its length is.

use std::time::Duration;

use crate::Result;
use crate::processes::{Machine, Process};
use crate::redis_alone::{Run, Scripts};
use crate::slice::Slice;

const READ: &str = include_str!("../../crates/stores/src/redis/lua/read.lua");
const KEY: &str = "keylatch:{3f}:record:PzEi8tq0m5rKZ0YxGm9vQd2n7cJ4sWbE1uLhT6aXoN8";
/// The row of a record with what is kept of the sandbox's answer has about so many bytes.
const ROW: usize = 512;
/// The commands that tell how many make up the time to measure.
const TRIAL: u64 = 20_000;

/// redis-benchmark, ready to read what is done.
#[derive(Debug)]
pub(crate) struct ReplayAlone<'a> {
    scripts: Scripts<'a>,
    read: String,
    count: u64,
}

impl<'a> ReplayAlone<'a> {
    /// Keeps a record, and tries how many calls last about as long as `window`.
    pub(crate) fn new(machine: &'a Machine, redis: &'a Process, window: Duration) -> Result<Self> {
        let scripts = Scripts::new(machine, redis);
        let read = scripts.load(READ)?;
        scripts.cli(&["SET", KEY, &"x".repeat(ROW)])?;
        let mut alone = Self { scripts, read, count: TRIAL };
        let rate = alone.run()?.rate;
        alone.count = (rate * window.as_secs_f64()).max(1.0) as u64;
        Ok(alone)
    }

    pub(crate) fn measure(&self) -> Result<Slice> {
        let Run { rate, p50, p99, cpu } = self.run()?;
        Ok(Slice { rate, p50, p99, cores: cpu.over(self.count as f64 / rate) })
    }

    fn run(&self) -> Result<Run> {
        self.scripts.run(self.count, 1, &["EVALSHA", &self.read, "1", KEY])
    }
}
