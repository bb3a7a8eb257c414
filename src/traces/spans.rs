//! The spans: of a request, of a step of the store, of a call of an upstream; with their
//! attributes.
//!
//! Names are those of the semantic conventions of OpenTelemetry for HTTP, and `keylatch.*` for what
//! is this service's own. The conventions also want the path and the whole URL of a request. They
//! are left out, because they have names and keys in them.

use axum::http::uri::Authority;
use axum::http::{HeaderValue, Request, StatusCode, Uri, header};
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{
    SpanBuilder, SpanKind, SpanRef, Status, TraceContextExt as _, Tracer as _,
};
use opentelemetry::{Context, ContextGuard, KeyValue, Value};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracer;

use super::export::TRACER;
use crate::metrics::{StoreOperation, StoreOutcome};
use keylatch_axum::Code;
use keylatch_core::store::{Effect, StoreError};

/// The span of a request. It ends with the head of the response, or when the client goes away
/// before.
#[derive(Debug)]
pub(crate) struct RequestSpan(Option<Context>);

impl RequestSpan {
    /// Begins the span below that of the caller, if the headers name one. The requests by which a
    /// machine looks after the service have none. The method is one of a few, as in the metrics.
    pub(crate) fn start<B>(
        request: &Request<B>,
        scheme: impl FnOnce() -> &'static str,
        (method, route): (&'static str, Option<&str>),
        id: &HeaderValue,
    ) -> Self {
        let Some(tracer) = TRACER.get() else { return Self(None) };
        if matches!(route, Some("/livez" | "/readyz" | "/metrics")) {
            return Self(None);
        }
        let headers = HeaderExtractor(request.headers());
        let caller = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
        let verb = known(method, "HTTP");
        let name = route.map_or_else(|| verb.to_owned(), |route| format!("{verb} {route}"));
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Server);
        let context = start(tracer, builder, &caller);
        let span = context.span();
        if span.is_recording() {
            span.set_attribute(KeyValue::new("http.request.method", known(method, "_OTHER")));
            span.set_attribute(KeyValue::new("url.scheme", scheme()));
            span.set_attributes(route.map(|route| KeyValue::new("http.route", route.to_owned())));
            let host = || request.headers().get(header::HOST)?.as_bytes().try_into().ok();
            set_server(&span, request.uri().authority().cloned().or_else(host).as_ref());
            let id = id.to_str().ok().map(str::to_owned);
            span.set_attributes(id.map(|id| KeyValue::new("keylatch.request_id", id)));
        }
        Self(Some(context))
    }

    /// Makes this the current request for as long as the guard lives.
    pub(crate) fn enter(&self) -> Option<ContextGuard> {
        self.0.clone().map(Context::attach)
    }

    pub(crate) fn trace_id(&self) -> Option<String> {
        self.0.as_ref().map(|context| context.span().span_context().trace_id().to_string())
    }

    /// Leaves with the request what the gateway needs to trace its calls.
    pub(crate) fn hand_on<B>(&self, method: &'static str, request: &mut Request<B>) {
        if let Some(context) = self.0.clone() {
            request.extensions_mut().insert(Caller { context, method });
        }
    }

    /// Ends it with the response: the status, and the problem if it is one.
    pub(crate) fn end(&self, status: StatusCode, problem: Option<Code>) {
        let (Some(context), code) = (&self.0, problem.map(Code::slug)) else { return };
        let span = context.span();
        set_status(&span, status);
        span.set_attributes(code.map(|code| KeyValue::new("keylatch.problem.code", code)));
        if status.is_server_error() {
            let kind = code.map_or_else(|| status.as_str().to_owned(), str::to_owned);
            fail(&span, kind, code.unwrap_or_default());
        }
        span.end();
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        if let Some(span) = self.0.as_ref().map(Context::span).filter(SpanRef::is_recording) {
            span.set_attribute(KeyValue::new("error.type", "client-gone"));
            span.end();
        }
    }
}

/// The span of a step of the store. A step whose caller does not await its end has no outcome.
pub(crate) struct StepSpan(Option<Context>);

impl StepSpan {
    /// Begins the span of a step that the current request makes. What the service does by itself
    /// has none, and neither has a request that is not sampled.
    pub(crate) fn start(operation: StoreOperation, store: &'static str) -> Self {
        let Some(tracer) = TRACER.get() else { return Self(None) };
        Self(Context::map_current(|request| {
            let operation = <&str>::from(operation);
            request.span().span_context().is_sampled().then(|| {
                let builder = SpanBuilder::from_name(format!("store {operation}"));
                let attributes = [
                    KeyValue::new("keylatch.store.kind", store),
                    KeyValue::new("keylatch.store.operation", operation),
                ];
                start(tracer, builder.with_attributes(attributes), request)
            })
        }))
    }

    /// Ends it with what the step found.
    pub(crate) fn end(self, outcome: StoreOutcome, error: Option<&StoreError>) {
        let Some(context) = self.0 else { return };
        let span = context.span();
        span.set_attribute(KeyValue::new("keylatch.store.outcome", <&str>::from(outcome)));
        match error.map(StoreError::effect) {
            Some(Effect::NotExecuted) => fail(&span, "not-executed", ""),
            Some(Effect::Unknown) => fail(&span, "unknown", ""),
            None => {}
        }
    }
}

/// The request that a call of an upstream belongs to; an extension of each request to a guarded
/// route that is traced.
#[derive(Debug, Clone)]
struct Caller {
    context: Context,
    method: &'static str,
}

/// The span of a call of an upstream, which ends with the head of the upstream's response.
pub(crate) struct CallSpan(Context);

impl CallSpan {
    /// Begins the span of this call if the request is traced, and makes it the parent of what the
    /// upstream does. `resend` counts how often the request was sent before.
    pub(crate) fn start<B>(request: &mut Request<B>, origin: &Uri, resend: u32) -> Option<Self> {
        let tracer = TRACER.get()?;
        let Caller { context, method } = request.extensions_mut().remove()?;
        let builder = SpanBuilder::from_name(known(method, "HTTP")).with_kind(SpanKind::Client);
        let call = start(tracer, builder, &context);
        let span = call.span();
        span.set_attribute(KeyValue::new("http.request.method", known(method, "_OTHER")));
        set_server(&span, origin.authority());
        if resend > 0 {
            span.set_attribute(KeyValue::new("http.request.resend_count", i64::from(resend)));
        }
        let headers = request.headers_mut();
        TraceContextPropagator::new().inject_context(&call, &mut HeaderInjector(headers));
        if headers.get("tracestate").is_some_and(HeaderValue::is_empty) {
            // The trace has none.
            headers.remove("tracestate");
        }
        Some(Self(call))
    }

    /// Ends it with the upstream's response, or with the problem in its place.
    pub(crate) fn end(self, response: Result<StatusCode, Code>) {
        let span = self.0.span();
        match response {
            Ok(status) => {
                set_status(&span, status);
                if status.is_client_error() || status.is_server_error() {
                    fail(&span, status.as_str().to_owned(), "");
                }
            }
            Err(code) => {
                span.set_attribute(KeyValue::new("keylatch.problem.code", code.slug()));
                fail(&span, code.slug(), "");
            }
        }
    }
}

fn start(tracer: &SdkTracer, builder: SpanBuilder, parent: &Context) -> Context {
    Context::new().with_span(tracer.build_with_context(builder, parent))
}

/// A method, or what the conventions call one that is none of the few.
fn known(method: &'static str, other: &'static str) -> &'static str {
    if method == "other" { other } else { method }
}

fn set_server(span: &SpanRef<'_>, authority: Option<&Authority>) {
    let Some(authority) = authority else { return };
    span.set_attribute(KeyValue::new("server.address", authority.host().to_owned()));
    let port = authority.port_u16().map(i64::from);
    span.set_attributes(port.map(|port| KeyValue::new("server.port", port)));
}

fn set_status(span: &SpanRef<'_>, status: StatusCode) {
    span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
}

fn fail(span: &SpanRef<'_>, kind: impl Into<Value>, message: &'static str) {
    span.set_attribute(KeyValue::new("error.type", kind));
    span.set_status(Status::error(message));
}
