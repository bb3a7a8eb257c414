//! What was measured of one subject in one round, and what several rounds say together.
//!
//! A slice has a rate, latencies and the time of the processors. The value of several slices is
//! their median; their spread is printed beside it, so that a reader sees how far to trust it.

use std::time::Duration;

use crate::Result;

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

    /// CPU time that the service and its Redis spend on a request, in microseconds.
    pub(crate) fn cost(&self) -> f64 {
        (self.cores.service + self.cores.redis) / self.rate * 1e6
    }
}

/// CPU time, in seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpu {
    pub(crate) generator: f64,
    pub(crate) service: f64,
    pub(crate) redis: f64,
    /// Of everything that runs on the machine.
    pub(crate) machine: f64,
}

impl Cpu {
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

/// A number that was measured in several rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    pub(crate) fn of(slices: &[Slice], value: impl Fn(&Slice) -> f64) -> Self {
        Self::new(slices.iter().map(value).collect())
    }

    /// Of the ratios of each round, which suffer less from noise that comes and goes than the
    /// ratio of the medians.
    pub(crate) fn of_ratios(
        slices: &[Slice],
        others: &[Slice],
        ratio: impl Fn(&Slice, &Slice) -> f64,
    ) -> Self {
        let pairs = slices.iter().zip(others);
        Self::new(pairs.map(|(slice, other)| ratio(slice, other)).collect())
    }

    /// The rate of each round as a part of that of others.
    pub(crate) fn of_rates(slices: &[Slice], others: &[Slice]) -> Self {
        Self::of_ratios(slices, others, |slice, other| slice.rate / other.rate)
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
