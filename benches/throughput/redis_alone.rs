//! The other yardstick: Redis alone, with a lock as most programs make it there.
//!
//! `redis-benchmark` sets a key if it is not there, and calls a script that compares and deletes
//! it. So the ratio of both is what keylatch adds to its engine, with its tokens, queues and
//! fencing tokens.

use std::process::Command;
use std::time::Duration;

use crate::Result;
use crate::load::CONNECTIONS;
use crate::processes::{Machine, Process, ended_cpu, machine_cpu, run};
use crate::slice::{Cpu, Slice};

/// redis-benchmark makes 12 digits of the last part, and with them a name of 24 bytes.
const PREFIX: &str = "keylatch:{3f}:lock:redis-alone-";
const DIGITS: &str = "__rand_int__";
const TOKEN_HASH: &str = "n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCgg";

/// Sets so many locks.
const FILL: &str = "for i = 0, ARGV[3] - 1 do \
     redis.call('SET', string.format('%s%012d', ARGV[1], i), ARGV[2], 'PX', 300000) end";
/// Compares and deletes a lock.
pub(crate) const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// Few of so many random keys are drawn twice.
const MANY: u64 = 1_000_000_000;
/// How many locks are held for each release. Some are drawn twice, and found free: with 4, one in
/// nine.
const HELD_PER_RELEASE: u64 = 4;
/// The commands that tell how many make up the time to measure.
const TRIAL: u64 = 20_000;

/// redis-benchmark before a Redis.
#[derive(Debug)]
pub(crate) struct Scripts<'a> {
    machine: &'a Machine,
    redis: &'a Process,
}

/// redis-benchmark with one command.
#[derive(Debug)]
pub(crate) struct Plain<'a> {
    pub(crate) scripts: Scripts<'a>,
    call: Vec<String>,
    count: u64,
}

/// redis-benchmark, ready to acquire and release.
#[derive(Debug)]
pub(crate) struct RedisAlone<'a> {
    scripts: Scripts<'a>,
    release: String,
    /// How many commands there are in each of the two runs of a round.
    count: u64,
}

/// What one run of redis-benchmark says.
#[derive(Debug)]
struct Run {
    rate: f64,
    p50: f64,
    p99: f64,
    cpu: Cpu,
}

impl<'a> Plain<'a> {
    /// Tries how many commands last about as long as `window`.
    pub(crate) fn new(
        machine: &'a Machine,
        redis: &'a Process,
        call: &[&str],
        window: Duration,
    ) -> Result<Self> {
        let call = call.iter().map(|part| (*part).to_owned()).collect();
        let mut plain = Self { scripts: Scripts::new(machine, redis), call, count: TRIAL };
        plain.count = (plain.run()?.rate * window.as_secs_f64()).max(1.0) as u64;
        Ok(plain)
    }

    pub(crate) fn measure(&self) -> Result<Slice> {
        let Run { rate, p50, p99, cpu } = self.run()?;
        Ok(Slice { rate, p50, p99, cores: cpu.over(self.count as f64 / rate) })
    }

    fn run(&self) -> Result<Run> {
        let call: Vec<_> = self.call.iter().map(String::as_str).collect();
        self.scripts.run(self.count, MANY, &call)
    }
}

impl<'a> RedisAlone<'a> {
    /// Loads the script, and tries how many commands last about as long as `window`.
    pub(crate) fn new(machine: &'a Machine, redis: &'a Process, window: Duration) -> Result<Self> {
        let scripts = Scripts::new(machine, redis);
        let release = scripts.load(RELEASE)?;
        let mut alone = Self { scripts, release, count: TRIAL };
        let rate = alone.acquire()?.rate;
        alone.flush()?;
        alone.count = (rate * window.as_secs_f64() / 2.0).max(1.0) as u64;
        Ok(alone)
    }

    /// As many acquires as releases. Of p50 and p99, those of the slower of the two.
    pub(crate) fn measure(&self) -> Result<Slice> {
        let acquire = self.acquire()?;
        self.flush()?;
        let release = self.release()?;
        // Otherwise the locks would expire while others are measured.
        self.flush()?;
        let count = self.count as f64;
        let seconds = count / acquire.rate + count / release.rate;
        let cpu = acquire.cpu.and(release.cpu);
        Ok(Slice {
            rate: 2.0 * count / seconds,
            p50: acquire.p50.max(release.p50),
            p99: acquire.p99.max(release.p99),
            cores: cpu.over(seconds),
        })
    }

    fn acquire(&self) -> Result<Run> {
        let key = format!("{PREFIX}{DIGITS}");
        self.scripts.run(self.count, MANY, &["SET", &key, TOKEN_HASH, "NX", "PX", "30000"])
    }

    fn release(&self) -> Result<Run> {
        let held = self.count * HELD_PER_RELEASE;
        self.scripts.cli(&["EVAL", FILL, "0", PREFIX, TOKEN_HASH, &held.to_string()])?;
        let key = format!("{PREFIX}{DIGITS}");
        self.scripts.run(self.count, held, &["EVALSHA", &self.release, "1", &key, TOKEN_HASH])
    }

    fn flush(&self) -> Result<String> {
        self.scripts.cli(&["FLUSHALL", "SYNC"])
    }
}

impl<'a> Scripts<'a> {
    pub(crate) fn new(machine: &'a Machine, redis: &'a Process) -> Self {
        Self { machine, redis }
    }

    /// Its name for a script.
    pub(crate) fn load(&self, script: &str) -> Result<String> {
        Ok(self.cli(&["SCRIPT", "LOAD", script])?.trim().to_owned())
    }

    /// What Redis says to one command.
    pub(crate) fn cli(&self, call: &[&str]) -> Result<String> {
        let mut command = Command::new("redis-cli");
        // With -e, an error that the server answers is a failure.
        command.args(["-e", "-p", &self.redis.address.port().to_string()]);
        run(command.args(call))
    }

    /// Calls a command `count` times, with random numbers below `keys` where `call` wants any.
    fn run(&self, count: u64, keys: u64, call: &[&str]) -> Result<Run> {
        let mut command = self.machine.redis_benchmark()?;
        command.args(["-p", &self.redis.address.port().to_string(), "--csv"]);
        command.args(["-c", &CONNECTIONS.to_string(), "-n", &count.to_string()]);
        command.args(["-r", &keys.to_string()]).args(call);
        let before = self.cpu()?;
        let printed = run(&mut command)?;
        let cpu = self.cpu()?.since(before);
        let column = |name| column(&printed, name);
        let (p50, p99) = (column("p50_latency_ms")?, column("p99_latency_ms")?);
        Ok(Run { rate: column("rps")?, p50, p99, cpu })
    }

    fn cpu(&self) -> Result<Cpu> {
        let redis = self.redis.cpu()?;
        Ok(Cpu { generator: ended_cpu()?, service: 0.0, redis, machine: machine_cpu()? })
    }
}

/// A number in the CSV of redis-benchmark: a line of names, then one of values. All are quoted,
/// and no name or value of ours has a comma or a quote in it.
fn column(csv: &str, name: &str) -> Result<f64> {
    let unexpected = || format!("redis-benchmark printed no {name}: {csv}");
    let mut lines = csv.lines().filter(|line| line.starts_with('"'));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let quoted = format!("\"{name}\"");
    let at = names.split(',').position(|field| field == quoted).ok_or_else(unexpected)?;
    let value = values.split(',').nth(at).ok_or_else(unexpected)?;
    Ok(value.trim_matches('"').parse()?)
}
