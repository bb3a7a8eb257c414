//! A histogram on which each thread counts for itself.
//!
//! Each request and each step of the store is an observation. If all threads changed the same numbers, those would go
//! from core to core each time, and with a lock they took a twentieth of a request's time. So a thread changes only its
//! own numbers, and a scrape adds up those of all threads. The numbers of a thread that has ended stay, and a later
//! thread counts on with them: there are as many as there were threads at once.
//!
//! Invariant: an observation is in each scrape that begins after it. One that is under way may be in its bucket and not
//! yet in the sum. Tested below, and over HTTP in
//! `tests/api/metrics_page.rs`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};
use thread_local::ThreadLocal;

/// How many bounds a histogram has.
const BOUNDS: usize = 10;

/// A histogram with these upper bounds of its buckets, and a bucket above them. Clones are the same histogram.
#[derive(Debug, Clone)]
pub(super) struct ThreadHistogram {
    bounds: &'static [f64; BOUNDS],
    threads: Arc<ThreadLocal<Observations>>,
}

/// What one thread observed. The numbers of two threads share no line of a cache.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Observations {
    buckets: [AtomicU64; BOUNDS + 1],
    /// The bits of an `f64`. One thread at a time writes it, so a load and a store lose nothing.
    sum: AtomicU64,
}

impl ThreadHistogram {
    /// A histogram without observations.
    pub(super) fn new(bounds: &'static [f64; BOUNDS]) -> Self {
        Self { bounds, threads: Arc::default() }
    }

    /// Counts `value`.
    pub(super) fn observe(&self, value: f64) {
        let own = self.threads.get_or_default();
        let bucket = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(BOUNDS);
        own.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let sum = f64::from_bits(own.sum.load(Ordering::Relaxed)) + value;
        own.sum.store(sum.to_bits(), Ordering::Relaxed);
    }
}

impl EncodeMetric for ThreadHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let mut buckets: Vec<_> = bounds.map(|bound| (bound, 0)).collect();
        let mut sum = 0.0;
        for of_thread in self.threads.iter() {
            sum += f64::from_bits(of_thread.sum.load(Ordering::Relaxed));
            for ((_, count), more) in buckets.iter_mut().zip(&of_thread.buckets) {
                *count += more.load(Ordering::Relaxed);
            }
        }
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for ThreadHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::registry::Registry;

    use super::*;

    fn text(metric: impl EncodeMetric + fmt::Debug + Send + Sync + 'static) -> String {
        let mut registry = Registry::default();
        registry.register("it", "It", metric);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn observations_of_all_threads_are_printed_as_those_of_one() {
        static TO_TEN: [f64; BOUNDS] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0];
        const THREADS: usize = 4;
        let (histogram, whole) = (ThreadHistogram::new(&TO_TEN), Histogram::new(TO_TEN));
        let values = [0.0, 1.0, 1.5, 9.5, 10.0, 10.5, 1e9];
        // A thread that ends leaves its numbers to the next one.
        let observed = Barrier::new(THREADS);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    values.into_iter().for_each(|value| histogram.observe(value));
                    observed.wait();
                });
            }
        });
        (0..THREADS).for_each(|_| values.into_iter().for_each(|value| whole.observe(value)));
        assert_eq!(histogram.threads.iter().count(), THREADS);
        assert_eq!(text(histogram), text(whole));
    }
}
