//! What the service did in the last minutes, for people who look at it now: the console draws it.
//!
//! Each response and each step of the store is counted in the bucket of its duration, two buckets
//! for each doubling. Every few seconds the counts become a sample and begin at zero again, so a
//! sample costs what its numbers take, however much was served. The counters of `/metrics` are
//! others, and never go back.
//!
//! Invariant: each answer is in one sample. Tested below, and over HTTP in `tests/api/console.rs`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

/// How long a sample takes.
pub(crate) const SAMPLE: Duration = Duration::from_secs(5);
/// How many samples are kept: ten minutes of them.
const SAMPLES: usize = 120;
/// Up to 2^24 microseconds, which is longer than most requests may take.
const BUCKETS: usize = 48;

/// What the service does now and did in the last minutes.
#[derive(Debug, Default)]
pub(crate) struct RollingStats {
    answers: Durations,
    steps: Durations,
    refused: AtomicU64,
    failed: AtomicU64,
    samples: Mutex<VecDeque<Sample>>,
}

/// What the service did for as long as a sample takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Sample {
    /// Requests that were answered.
    pub(crate) requests: u64,
    /// Those of them that were answered with 4xx.
    pub(crate) refused: u64,
    /// Those of them that were answered with 5xx.
    pub(crate) failed: u64,
    /// The time from a request's head to its response's in microseconds, of the middle request; a
    /// wait for a lock is part of it. Absent where there was no request.
    pub(crate) p50_us: Option<u64>,
    /// The same of the slowest of a hundred.
    pub(crate) p99_us: Option<u64>,
    /// The time of a step of the store likewise.
    pub(crate) step_p50_us: Option<u64>,
    /// The same of the slowest of a hundred.
    pub(crate) step_p99_us: Option<u64>,
}

impl RollingStats {
    /// Counts a response.
    pub(crate) fn count_answer(&self, status: u16, took: Duration) {
        self.answers.count(took);
        match status {
            400..500 => self.refused.fetch_add(1, Ordering::Relaxed),
            500.. => self.failed.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// Counts a step of the store.
    pub(crate) fn count_step(&self, took: Duration) {
        self.steps.count(took);
    }

    /// Makes samples until it is dropped.
    pub(crate) async fn sample_all(&self) {
        let mut ticks = interval(SAMPLE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            self.sample();
        }
    }

    /// The samples, oldest first.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    fn sample(&self) {
        let (answers, steps) = (self.answers.take(), self.steps.take());
        let sample = Sample {
            requests: answers.iter().sum(),
            refused: self.refused.swap(0, Ordering::Relaxed),
            failed: self.failed.swap(0, Ordering::Relaxed),
            p50_us: percentile(&answers, 50),
            p99_us: percentile(&answers, 99),
            step_p50_us: percentile(&steps, 50),
            step_p99_us: percentile(&steps, 99),
        };
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back(sample);
    }
}

/// How many there were of each duration.
#[derive(Debug)]
struct Durations([AtomicU64; BUCKETS]);

impl Default for Durations {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl Durations {
    fn count(&self, took: Duration) {
        self.0[bucket(took)].fetch_add(1, Ordering::Relaxed);
    }

    /// The counts since the last time.
    fn take(&self) -> [u64; BUCKETS] {
        self.0.each_ref().map(|count| count.swap(0, Ordering::Relaxed))
    }
}

/// The bucket of a duration: two for each doubling of its microseconds.
fn bucket(took: Duration) -> usize {
    let micros = took.as_micros().max(1);
    let doublings = micros.ilog2();
    let is_upper_half = doublings > 0 && micros >> (doublings - 1) & 1 == 1;
    (doublings as usize * 2 + usize::from(is_upper_half)).min(BUCKETS - 1)
}

/// The microseconds in the middle of a bucket.
fn micros(bucket: usize) -> u64 {
    let doubling = 1_u64 << (bucket / 2);
    let quarters = if bucket.is_multiple_of(2) { 5 } else { 7 };
    (doubling * quarters / 4).max(1)
}

/// The duration below which this percentage of the counted ones are.
fn percentile(counts: &[u64; BUCKETS], percent: u64) -> Option<u64> {
    let all: u64 = counts.iter().sum();
    let wanted = (all * percent).div_ceil(100).max(1);
    let mut below = 0;
    let found = counts.iter().position(|count| {
        below += count;
        below >= wanted
    });
    found.map(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_within_a_quarter_of_the_duration() {
        for micros in [1_u64, 2, 3, 7, 90, 1_000, 12_345, 999_999, 5_000_000] {
            let durations = Durations::default();
            durations.count(Duration::from_micros(micros));
            let found = percentile(&durations.take(), 50).unwrap();
            let (least, most) = (micros * 3 / 4, micros * 5 / 4);
            assert!((least..=most.max(1)).contains(&found), "{micros}: {found}");
        }
    }

    #[test]
    fn percentile_tells_the_slow_from_the_others() {
        let durations = Durations::default();
        for _ in 0..98 {
            durations.count(Duration::from_micros(100));
        }
        for _ in 0..2 {
            durations.count(Duration::from_secs(1));
        }
        let counts = durations.take();
        assert!(percentile(&counts, 50).unwrap() < 200);
        assert!(percentile(&counts, 99).unwrap() > 700_000);
        assert_eq!(percentile(&durations.take(), 99), None);
    }

    #[test]
    fn sample_has_what_came_since_the_one_before() {
        let recent = RollingStats::default();
        for status in [200, 404, 409, 503] {
            recent.count_answer(status, Duration::from_millis(1));
        }
        recent.sample();
        recent.count_answer(201, Duration::from_millis(1));
        recent.sample();
        let samples = recent.samples();
        let counts: Vec<_> =
            samples.iter().map(|sample| (sample.requests, sample.refused, sample.failed)).collect();
        assert_eq!(counts, [(4, 2, 1), (1, 0, 0)]);
    }

    #[test]
    fn old_samples_make_room() {
        let recent = RollingStats::default();
        for _ in 0..SAMPLES + 5 {
            recent.sample();
        }
        assert_eq!(recent.samples().len(), SAMPLES);
    }
}
