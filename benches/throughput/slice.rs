//! What was measured of one subject in one round, and what several rounds say together.
//!
//! A slice has a rate, latencies and the time of the processors. The value of several slices is
//! their median; their spread is printed beside it, so that a reader sees how far to trust it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::Result;
use crate::processes::{Process, machine_cpu, own_cpu};

/// One subject in one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slice {
    /// Requests a second.
    pub(crate) rate: f64,
    /// Half of the requests took at most so long, in milliseconds.
    pub(crate) p50: f64,
    /// 99 of 100 requests took at most so long, in milliseconds.
    pub(crate) p99: f64,
    /// How many cores were busy.
    pub(crate) cores: Cpu,
}

impl Slice {
    /// What the latencies of all requests, in nanoseconds, and the CPU time come to.
    pub(crate) fn new(mut latencies: Vec<u32>, elapsed: Duration, cpu: Cpu) -> Result<Self> {
        latencies.sort_unstable();
        let percentile = |percent: usize| {
            let rank = (latencies.len() * percent).div_ceil(100).saturating_sub(1);
            latencies.get(rank).map(|&nanoseconds| f64::from(nanoseconds) / 1e6)
        };
        let (Some(p50), Some(p99)) = (percentile(50), percentile(99)) else {
            return Err("not one request was answered while measuring".into());
        };
        let seconds = elapsed.as_secs_f64();
        let rate = latencies.len() as f64 / seconds;
        Ok(Self { rate, p50, p99, cores: cpu.over(seconds) })
    }

    /// The same if so many requests count as one.
    pub(crate) fn by(self, requests: f64) -> Self {
        Self { rate: self.rate / requests, ..self }
    }

    /// CPU time that the service and its Redis spend on a request, in microseconds.
    pub(crate) fn cost(&self) -> f64 {
        (self.cores.service + self.cores.redis) / self.rate * 1e6
    }
}

/// CPU time, in seconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cpu {
    pub(crate) generator: f64,
    pub(crate) service: f64,
    pub(crate) redis: f64,
    /// Of everything that runs on the machine.
    pub(crate) machine: f64,
}

impl Cpu {
    /// So far of the services, each counted once, and of the Redis behind each.
    pub(crate) fn of(services: &[&Process]) -> Result<Self> {
        let all: BTreeMap<_, _> = services.iter().map(|one| (one.address, one)).collect();
        let service = all.values().map(|one| one.cpu()).sum::<Result<f64>>()?;
        let redis = services.first().map_or(Ok(0.0), |one| one.redis_cpu())?;
        Ok(Self { generator: own_cpu()?, service, redis, machine: machine_cpu()? })
    }

    pub(crate) fn since(self, then: Self) -> Self {
        self.with(then, |now, then| now - then)
    }

    pub(crate) fn and(self, more: Self) -> Self {
        self.with(more, |some, more| some + more)
    }

    pub(crate) fn over(self, seconds: f64) -> Self {
        self.with(self, |cpu, _| cpu / seconds)
    }

    /// What takes no part in the measurement.
    pub(crate) fn others(self) -> f64 {
        (self.machine - self.generator - self.service - self.redis).max(0.0)
    }

    fn with(self, other: Self, each: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            generator: each(self.generator, other.generator),
            service: each(self.service, other.service),
            redis: each(self.redis, other.redis),
            machine: each(self.machine, other.machine),
        }
    }
}

/// The services' time since it started.
pub(crate) struct Meter<'a> {
    services: &'a [&'a Process],
    before: Cpu,
    started: Instant,
}

impl<'a> Meter<'a> {
    pub(crate) fn start(services: &'a [&'a Process]) -> Result<Self> {
        Ok(Self { services, before: Cpu::of(services)?, started: Instant::now() })
    }

    /// What was used until now.
    pub(crate) fn read(&self) -> Result<(Duration, Cpu)> {
        Ok((self.started.elapsed(), Cpu::of(self.services)?.since(self.before)))
    }
}

/// A number that was measured in several rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    pub(crate) fn of<T>(rounds: &[T], value: impl Fn(&T) -> f64) -> Self {
        Self::new(rounds.iter().map(value).collect())
    }

    /// What some values say together.
    pub(crate) fn new(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        let median = f64::midpoint(at(last / 2), at(last.div_ceil(2)));
        Self { median, least: at(0), most: at(last) }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ({:.2}–{:.2})", self.median, self.least, self.most)
    }
}

pub(crate) fn nanoseconds(time: Duration) -> u32 {
    u32::try_from(time.as_nanos()).unwrap_or(u32::MAX)
}
