//! Traces: each request is a span, its store steps and calls of an upstream are spans below it, and
//! a collector of OpenTelemetry gets them over OTLP.
//!
//! An endpoint in the variables of OpenTelemetry turns them on. Spans, samplers, batches and the
//! reading of the other variables are the SDK's. Without an endpoint the process has no tracer, and
//! each place where a span would begin or end costs a branch. A build without the feature `traces`
//! has functions that do nothing.
//!
//! Invariant: no attribute has a path, a lock's name, a key or a token, but the pattern of the
//! route. Tested in `tests/cli/traces.rs`.

#[cfg(not(feature = "traces"))]
mod absent;
#[cfg(feature = "traces")]
mod export;
#[cfg(feature = "traces")]
mod spans;

#[cfg(not(feature = "traces"))]
pub use absent::Traces;
#[cfg(not(feature = "traces"))]
pub(crate) use absent::{CallSpan, RequestSpan, StepSpan};
#[cfg(feature = "traces")]
pub use export::Traces;
#[cfg(feature = "traces")]
pub(crate) use spans::{CallSpan, RequestSpan, StepSpan};

/// Whether these variables of a process ask for traces.
pub(crate) fn are_wanted(environment: &[(String, String)]) -> bool {
    let value = |name: &str| {
        let found = environment.iter().find(|(of, _)| of == name);
        found.map_or("", |(_, value)| value.as_str())
    };
    let endpoints = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
    endpoints.iter().any(|name| !value(name).is_empty())
        && value("OTEL_TRACES_EXPORTER") != "none"
        && !value("OTEL_SDK_DISABLED").eq_ignore_ascii_case("true")
}
