//! `traceparent` and `tracestate` (W3C Trace Context): which span of a caller a request belongs to.
//!
//! The propagator of `opentelemetry_sdk` also takes what the standard has for invalid, such as ids that are too
//! short, so keylatch reads the line itself. Tested in `tests/api/traces.rs`.

use std::str::FromStr as _;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

pub(super) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(super) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The caller's span. `None` where the headers name none, several, or what is none.
pub(super) fn read(headers: &HeaderMap) -> Option<SpanContext> {
    let mut lines = headers.get_all(TRACEPARENT).iter();
    let (line, None) = (lines.next()?.to_str().ok()?, lines.next()) else { return None };
    let mut fields = line.splitn(5, '-');
    let mut field = |length| fields.next().filter(|field| is_lower_hex(field, length));
    let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
    if version == "ff" || (version == "00" && fields.next().is_some()) {
        return None;
    }
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let caller = SpanContext::new(trace, span, flags, true, state(headers));
    caller.is_valid().then_some(caller)
}

fn is_lower_hex(field: &str, length: usize) -> bool {
    field.len() == length && field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// What other tracers have to say of the trace; nothing where that is not understood.
fn state(headers: &HeaderMap) -> TraceState {
    let lines = headers.get_all(TRACESTATE).iter().filter_map(|line| line.to_str().ok());
    TraceState::from_str(&lines.collect::<Vec<_>>().join(",")).unwrap_or_default()
}

/// The line that makes a span the parent of what is called.
pub(super) fn write(span: &SpanContext) -> Option<HeaderValue> {
    let (trace, id, flags) = (span.trace_id(), span.span_id(), span.trace_flags());
    HeaderValue::try_from(format!("00-{trace}-{id}-{flags:02x}")).ok()
}
