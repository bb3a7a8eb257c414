//! The queue between requests and the collector: bounded, and no request waits for it.
//!
//! A span that finds it full is dropped and counted, and so is a batch that the collector does not take. A batch
//! goes out when it is full or its first span has waited for the delay. At shutdown what is queued goes out at once.
//! Tested in `tests/api/traces.rs`.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter as _, SpanProcessor};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// How many spans are kept, and how they go out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batches {
    /// The most that wait.
    pub(super) queue: usize,
    /// The most that go out at once.
    pub(super) size: usize,
    /// How long a span may wait for others.
    pub(super) delay: Duration,
}

/// The two ends of a queue before `exporter`.
pub(super) fn span_queue(
    batches: Batches,
    exporter: SpanExporter,
    dropped: Counter,
) -> (SpanQueue, BatchExport) {
    let (sender, spans) = mpsc::channel(batches.queue);
    let dropped = DroppedSpans { counter: dropped, is_logged: Arc::default() };
    let queue = SpanQueue { sender, dropped: dropped.clone() };
    (queue, BatchExport { spans, exporter, batches, dropped })
}

/// Where spans go when they end.
#[derive(Debug)]
pub(super) struct SpanQueue {
    sender: mpsc::Sender<SpanData>,
    dropped: DroppedSpans,
}

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        match self.sender.try_send(span) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => self.dropped.count(1, "the queue is full"),
            Err(TrySendError::Closed(_)) => self.dropped.count(1, "the service ends"),
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The spans that the collector does not get.
#[derive(Debug, Clone)]
struct DroppedSpans {
    counter: Counter,
    is_logged: Arc<AtomicBool>,
}

impl DroppedSpans {
    /// Counts some, and logs the first.
    fn count(&self, spans: usize, cause: &str) {
        self.counter.inc_by(spans as u64);
        if !self.is_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                cause,
                "spans of traces are lost; from now on only keylatch_trace_spans_dropped_total says so"
            );
        }
    }
}

/// Takes spans from the queue to the collector.
#[derive(Debug)]
pub(super) struct BatchExport {
    spans: mpsc::Receiver<SpanData>,
    exporter: SpanExporter,
    batches: Batches,
    dropped: DroppedSpans,
}

impl BatchExport {
    /// Sends batches until nothing can make a span any more, or until `closing` and the queue is empty.
    pub(super) async fn run(mut self, closing: CancellationToken) {
        let mut batch = Vec::new();
        while self.fill(&mut batch, &closing).await {
            self.send(mem::take(&mut batch)).await;
        }
    }

    /// Awaits a batch that is full, has waited for long enough, or is the rest. Whether there was one.
    async fn fill(&mut self, batch: &mut Vec<SpanData>, closing: &CancellationToken) -> bool {
        let Batches { size, delay, .. } = self.batches;
        let mut end = Instant::now();
        while batch.len() < size {
            let room = size - batch.len();
            tokio::select! {
                biased;
                received = self.spans.recv_many(batch, room) => match received {
                    0 => return !batch.is_empty(),
                    all if all == batch.len() => end = Instant::now() + delay,
                    _ => {}
                },
                () = sleep_until(end), if !batch.is_empty() => return true,
                () = closing.cancelled(), if !self.spans.is_closed() => self.spans.close(),
            }
        }
        true
    }

    async fn send(&self, batch: Vec<SpanData>) {
        let spans = batch.len();
        if let Err(error) = self.exporter.export(batch).await {
            self.dropped.count(spans, &error.to_string());
        }
    }
}
