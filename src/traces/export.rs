//! The way to the collector: the batch processor and the exporter of the SDK, over the HTTP client
//! that the gateway uses.
//!
//! The processor has a thread of its own, and drops a span that its queue cannot hold, so no
//! request waits for it. Tested in `tests/cli/traces.rs`.

use std::sync::OnceLock;
use std::time::Duration;
use std::{env, io};

use async_trait::async_trait;
use axum::http::{Request, Response};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{OTEL_EXPORTER_OTLP_TIMEOUT_DEFAULT, SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use keylatch_client::https::{HttpsClient, Trust, https_client};

/// The most bytes of a response that are read.
const RESPONSE_LIMIT: usize = 64 * 1024;
/// How long the collector has at shutdown for the last spans.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// What begins the spans of this process, if it has traces.
pub(super) static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// What sends the spans of this process.
#[derive(Debug)]
pub struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// Sends spans from now on if they are wanted, as the variables of the process say.
    pub fn start(wanted: bool) -> io::Result<Self> {
        if !wanted {
            return Ok(Self(None));
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter()?)
            .with_resource(resource())
            .build();
        TRACER.get_or_init(|| provider.tracer("keylatch"));
        Ok(Self(Some(provider)))
    }

    /// Sends what is in the queue, for as long as the collector may take at shutdown.
    pub fn close(self) {
        // The SDK logs that the collector is late.
        let _ = self.0.map(|provider| provider.shutdown_with_timeout(FLUSH_TIME));
    }
}

/// Who sends the spans: the library, the version, and what the variables say.
fn resource() -> Resource {
    let name = env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
    Resource::builder_empty()
        .with_service_name("keylatch")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_detector(Box::new(EnvResourceDetector::new()))
        .with_attributes(name.map(|name| KeyValue::new("service.name", name)))
        .build()
}

/// What sends batches to the collector of the variables.
fn exporter() -> io::Result<SpanExporter> {
    let is_https = variable("ENDPOINT").is_some_and(|url| url.starts_with("https:"));
    let trust = match variable("CERTIFICATE") {
        _ if !is_https => Trust::None,
        Some(file) => Trust::Authorities(file.into()),
        None => Trust::System,
    };
    let millis = variable("TIMEOUT").and_then(|millis| millis.parse().ok());
    let client = CollectorClient {
        client: https_client(&trust)?,
        timeout: millis.map_or(OTEL_EXPORTER_OTLP_TIMEOUT_DEFAULT, Duration::from_millis),
        runtime: Builder::new_current_thread().enable_all().build()?,
    };
    // The error of the library has the URL in it, which may have a password.
    let rule = "OTEL_EXPORTER_OTLP_ENDPOINT must be a URL like `http://collector:4318`";
    let exporter = SpanExporter::builder().with_http().with_http_client(client).build();
    exporter.map_err(|_| io::Error::other(rule))
}

/// A variable of the exporter, for traces alone or for all signals.
fn variable(name: &str) -> Option<String> {
    let values = ["TRACES_", ""].map(|of| env::var(format!("OTEL_EXPORTER_OTLP_{of}{name}")));
    values.into_iter().flatten().find(|value| !value.is_empty())
}

/// Sends one batch from the processor's thread, and reads the response within a time.
#[derive(Debug)]
struct CollectorClient {
    client: HttpsClient<Full<Bytes>>,
    timeout: Duration,
    runtime: Runtime,
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let exchange = async {
            let (head, body) = self.client.request(request.map(Full::new)).await?.into_parts();
            let body = Limited::new(body, RESPONSE_LIMIT).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        self.runtime.block_on(async { timeout(self.timeout, exchange).await })?
    }
}
