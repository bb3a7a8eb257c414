//! The way to the collector: OTLP by HTTP and protobuf, over the HTTP client that the gateway uses.
//!
//! The library makes the messages; this sends them with the authorities that the settings name. An answer of the
//! collector is read to a small limit. Tested in `tests/api/traces.rs`.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::{Request, Response};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use tokio::time::timeout;

use super::Settings;
use keylatch_client::https::{HttpsClient, Trust, https_client};

/// The most bytes of an answer that are read.
const ANSWER_LIMIT: usize = 64 * 1024;

/// Spans cannot be sent at all.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// The certificates by which the collector is to be known cannot be read.
    #[error("the certificates for the collector of traces: {0}")]
    Certificates(#[from] io::Error),
    /// The exporter takes one of the settings for wrong.
    #[error("the collector of traces: {0}")]
    Exporter(#[from] ExporterBuildError),
}

/// What sends batches to the collector of the settings.
///
/// # Errors
///
/// The certificates by which the collector is to be known cannot be read.
pub(super) fn exporter(settings: &Settings) -> Result<SpanExporter, CollectorError> {
    let trust = match (&settings.authorities, settings.endpoint.scheme_str()) {
        (_, Some("http")) => Trust::None,
        (Some(file), _) => Trust::Authorities(file.clone()),
        (None, _) => Trust::System,
    };
    let client = CollectorClient { client: https_client(&trust, None)?, timeout: settings.timeout };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(settings.endpoint.to_string())
        .with_headers(settings.headers.clone())
        .with_timeout(settings.timeout)
        .with_http_client(client)
        .build()?;
    Ok(exporter)
}

/// Sends one batch, and reads the answer within a time.
#[derive(Debug)]
struct CollectorClient {
    client: HttpsClient<Full<Bytes>>,
    timeout: Duration,
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let exchange = async {
            let (head, body) = self.client.request(request.map(Full::new)).await?.into_parts();
            let body = Limited::new(body, ANSWER_LIMIT).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        let answer = timeout(self.timeout, exchange).await;
        let answer = answer.unwrap_or_else(|late| Err(late.into()));
        // The exporter keeps to itself why there is none.
        answer
            .inspect_err(|error| tracing::debug!(%error, "the collector of traces gives no answer"))
    }
}
