//! Traces: each request is a span, its store steps and calls of an upstream are spans below it, and a collector of
//! OpenTelemetry reads them over OTLP.
//!
//! The variables of OpenTelemetry turn them on ([`Settings`]). Spans, samplers and the protocol are those of the
//! `opentelemetry` crates. The queue before the collector is keylatch's own: it drops a span rather than let a
//! request wait, and counts what it drops. The batch processor of the crates keeps that number to itself, has a
//! thread of its own, and blocks at shutdown. Without an endpoint there is no [`Tracer`], and each place where a
//! span would begin or end costs a branch.
//!
//! Invariant: no attribute has a path, a lock's name, a key or a token, but the pattern of the route. Tested in
//! `tests/api/traces.rs` and `tests/cli/traces.rs`.

mod collector;
mod queue;
mod settings;
mod spans;
mod trace_context;

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::TelemetryResourceDetector;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanExporter as _};
use prometheus_client::metrics::counter::Counter;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use collector::CollectorError;
pub use settings::Settings;
pub(crate) use spans::{CallSpan, RequestHead, RequestSpan, Tracer};

use queue::span_queue;

/// How long the collector has at shutdown for the last spans.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// The traces of a service: who makes spans, and the task that sends them.
#[derive(Debug)]
pub(crate) struct Traces {
    tracer: Tracer,
    exporting: JoinHandle<()>,
    closing: CancellationToken,
}

impl Traces {
    /// Begins to send spans as the settings say. `dropped` counts those that do not arrive.
    ///
    /// # Errors
    ///
    /// The certificates by which the collector is to be known cannot be read.
    pub(crate) fn start(settings: &Settings, dropped: Counter) -> Result<Self, CollectorError> {
        let resource = resource(settings);
        let mut exporter = collector::exporter(settings)?;
        exporter.set_resource(&resource);
        let (queue, export) = span_queue(settings.batches, exporter, dropped);
        let provider = SdkTracerProvider::builder()
            .with_sampler(settings.sampler.clone())
            .with_resource(resource)
            .with_span_processor(queue)
            .build();
        let tracer = Tracer::new(provider.tracer("keylatch"));
        let closing = CancellationToken::new();
        let exporting = tokio::spawn(export.run(closing.clone()));
        Ok(Self { tracer, exporting, closing })
    }

    /// Whether [`Traces::start`] would succeed.
    ///
    /// # Errors
    ///
    /// It would not.
    pub(crate) fn check(settings: &Settings) -> Result<(), CollectorError> {
        collector::exporter(settings).map(drop)
    }

    /// What begins the spans.
    pub(crate) fn tracer(&self) -> Tracer {
        self.tracer.clone()
    }

    /// Sends what is in the queue, for as long as the collector may take at shutdown.
    pub(crate) async fn close(mut self) {
        self.closing.cancel();
        if timeout(FLUSH_TIME, &mut self.exporting).await.is_err() {
            self.exporting.abort();
            tracing::warn!("the collector of traces did not take the last spans in time");
        }
    }
}

/// Who sends the spans: the attributes of the variables, the version and the library.
fn resource(settings: &Settings) -> Resource {
    let attributes = settings.resource.iter().cloned();
    Resource::builder_empty()
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attributes(attributes.map(|(key, value)| KeyValue::new(key, value)))
        .build()
}
