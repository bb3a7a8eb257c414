//! The yardstick of a replay on Redis: the one script call that it makes, of a record that is done,
//! with nothing in front of it.
//!
//! The record is begun and completed by the scripts of the service first. The benchmark fails if a call does not
//! reply with the stored response.

use std::time::Duration;

use crate::Result;
use crate::processes::{Machine, Process};
use crate::redis_alone::{Run, Scripts};
use crate::slice::Slice;

const BEGIN: &str = concat!(
    include_str!("../../tests/stores/redis_upgrade/fence.lua"),
    include_str!("../../tests/stores/redis_upgrade/record.lua"),
    include_str!("../../tests/stores/redis_upgrade/record_begin.lua")
);
const COMPLETE: &str = concat!(
    include_str!("../../tests/stores/redis_upgrade/record.lua"),
    include_str!("../../tests/stores/redis_upgrade/record_complete.lua")
);

const KEY: &str = "keylatch:{3f}:record:PzEi8tq0m5rKZ0YxGm9vQd2n7cJ4sWbE1uLhT6aXoN8";
const COUNTER: &str = "keylatch:{3f}:fence";
const TOKEN_HASH: &str = "n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCgg";
const FINGERPRINT: &str = "ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0";
/// What is kept of the sandbox's answer has about so many bytes.
const KEPT: usize = 256;
/// The commands that tell how many make up the time to measure.
const TRIAL: u64 = 20_000;

/// redis-benchmark, ready to begin what is done.
#[derive(Debug)]
pub(crate) struct ReplayAlone<'a> {
    scripts: Scripts<'a>,
    begin: String,
    count: u64,
}

impl<'a> ReplayAlone<'a> {
    /// Keeps a record, and tries how many calls last about as long as `window`.
    pub(crate) fn new(machine: &'a Machine, redis: &'a Process, window: Duration) -> Result<Self> {
        let scripts = Scripts::new(machine, redis);
        let (begin, complete) = (scripts.load(BEGIN)?, scripts.load(COMPLETE)?);
        let mut alone = Self { scripts, begin, count: TRIAL };
        alone.begin("started")?;
        let (kept, outlives) = ("x".repeat(KEPT), "2592000000");
        let call = ["EVALSHA", &complete, "1", KEY, TOKEN_HASH, "done", &kept, outlives];
        alone.scripts.cli(&call)?;
        alone.begin("found")?;
        let rate = alone.run()?.rate;
        alone.count = (rate * window.as_secs_f64()).max(1.0) as u64;
        Ok(alone)
    }

    pub(crate) fn measure(&self) -> Result<Slice> {
        let Run { rate, p50, p99, cpu } = self.run()?;
        Ok(Slice { rate, p50, p99, cores: cpu.over(self.count as f64 / rate) })
    }

    fn run(&self) -> Result<Run> {
        self.scripts.run(self.count, 1, &self.call())
    }

    /// Begins once, and expects this reply.
    fn begin(&self, expected: &str) -> Result<()> {
        let reply = self.scripts.cli(&self.call())?;
        if reply.lines().next() != Some(expected) {
            return Err(format!("in place of {expected:?} Redis replied: {reply}").into());
        }
        Ok(())
    }

    fn call(&self) -> [&str; 11] {
        let spans = ["30000", "86400000", "unknown", "2592000000"];
        let [lease, retention, on_crash, outlives] = spans;
        let [script, hash] = [&*self.begin, TOKEN_HASH];
        #[rustfmt::skip]
        let call = [
            "EVALSHA", script, "2", KEY, COUNTER, hash, FINGERPRINT, lease, retention, on_crash, outlives,
        ];
        call
    }
}
