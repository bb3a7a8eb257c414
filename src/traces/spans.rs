//! The spans: of a request, of a step of the store, of a call of an upstream; with their attributes.
//!
//! Names are those of the semantic conventions of OpenTelemetry for HTTP, and `keylatch.*` for what is this
//! service's own. The conventions also want the path and the whole URL of a request. They are left out, because they
//! have names and keys in them.

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, Uri};
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, TraceId, Tracer as _,
};
use opentelemetry::{Context, ContextGuard, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};

use super::trace_context::{self, TRACEPARENT, TRACESTATE};
use crate::metrics::{StoreOperation, StoreOutcome};
use keylatch_axum::Code;
use keylatch_core::store::{Effect, StoreError};

/// Begins spans.
#[derive(Debug, Clone)]
pub(crate) struct Tracer(SdkTracer);

/// What is known of a request when it begins.
#[derive(Debug)]
pub(crate) struct RequestHead<'a> {
    /// One of a few, as in the metrics.
    pub(crate) method: &'static str,
    /// The pattern of the route.
    pub(crate) route: Option<&'a str>,
    pub(crate) scheme: &'static str,
    /// Where the client sent it.
    pub(crate) host: Option<Authority>,
    /// The id that the log has for it.
    pub(crate) id: &'a HeaderValue,
}

impl Tracer {
    pub(super) fn new(tracer: SdkTracer) -> Self {
        Self(tracer)
    }

    /// Begins the span of a request, below that of its caller if the headers name one.
    pub(crate) fn start_request(&self, head: RequestHead<'_>, headers: &HeaderMap) -> RequestSpan {
        let caller = trace_context::read(headers);
        let continues = caller.is_some();
        let parent =
            caller.map_or_else(Context::new, |it| Context::new().with_remote_span_context(it));
        let method = verb(head.method);
        let name =
            head.route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}"));
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Server);
        let mut span = self.0.build_with_context(builder, &parent);
        if span.is_recording() {
            span.set_attributes(head.attributes());
        }
        RequestSpan { context: Context::new().with_span(span), continues }
    }

    /// Begins the span of a step of the store that the current request makes. `None` for what the service does by
    /// itself, and where the request is not sampled.
    pub(crate) fn start_step(
        &self,
        operation: StoreOperation,
        store: &'static str,
    ) -> Option<StepSpan> {
        Context::map_current(|context| {
            if !context.span().span_context().is_sampled() {
                return None;
            }
            let operation = <&str>::from(operation);
            let attributes = [
                KeyValue::new("keylatch.store.kind", store),
                KeyValue::new("keylatch.store.operation", operation),
            ];
            let builder = SpanBuilder::from_name(format!("store {operation}"))
                .with_kind(SpanKind::Internal)
                .with_attributes(attributes);
            Some(StepSpan(Box::new(self.0.build_with_context(builder, context))))
        })
    }
}

impl RequestHead<'_> {
    fn attributes(self) -> Vec<KeyValue> {
        let mut attributes = vec![
            KeyValue::new("http.request.method", method_name(self.method)),
            KeyValue::new("url.scheme", self.scheme),
        ];
        if let Some(route) = self.route {
            attributes.push(KeyValue::new("http.route", route.to_owned()));
        }
        if let Some(host) = &self.host {
            attributes.extend(server(host));
        }
        if let Ok(id) = self.id.to_str() {
            attributes.push(KeyValue::new("keylatch.request_id", id.to_owned()));
        }
        attributes
    }
}

/// The method in the name of a span.
fn verb(label: &'static str) -> &'static str {
    if label == "other" { "HTTP" } else { label }
}

/// The method as an attribute.
fn method_name(label: &'static str) -> &'static str {
    if label == "other" { "_OTHER" } else { label }
}

fn server(authority: &Authority) -> impl Iterator<Item = KeyValue> {
    let port = authority.port_u16();
    let port = port.map(|port| KeyValue::new("server.port", i64::from(port)));
    [KeyValue::new("server.address", authority.host().to_owned())].into_iter().chain(port)
}

/// The span of a request. It ends with the head of the answer, or when the client goes away before.
#[derive(Debug)]
pub(crate) struct RequestSpan {
    context: Context,
    /// Whether it is below that of a caller.
    continues: bool,
}

impl RequestSpan {
    /// Makes this the current request for as long as the guard lives.
    pub(crate) fn enter(&self) -> ContextGuard {
        self.context.clone().attach()
    }

    pub(crate) fn trace_id(&self) -> TraceId {
        self.context.span().span_context().trace_id()
    }

    /// What the call of an upstream is traced by, as an extension of the request.
    pub(crate) fn upstream(&self, tracer: &Tracer, method: &'static str) -> UpstreamTrace {
        let (tracer, context) = (tracer.clone(), self.context.clone());
        UpstreamTrace { tracer, context, method, continues: self.continues }
    }

    /// Ends it with the answer: the status, and the problem where it is one.
    pub(crate) fn end(&self, status: StatusCode, problem: Option<Code>) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        let code = problem.map(Code::slug);
        if let Some(code) = code {
            span.set_attribute(KeyValue::new("keylatch.problem.code", code));
        }
        if status.is_server_error() {
            let kind = code.map_or_else(|| status.as_str().to_owned(), str::to_owned);
            span.set_attribute(KeyValue::new("error.type", kind));
            span.set_status(Status::error(code.unwrap_or_default()));
        }
        span.end();
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        let span = self.context.span();
        if span.is_recording() {
            span.set_attribute(KeyValue::new("error.type", "client-gone"));
            span.end();
        }
    }
}

/// The span of a step of the store. A step whose caller does not await its end has no outcome.
#[derive(Debug)]
pub(crate) struct StepSpan(Box<Span>);

impl StepSpan {
    /// Ends it with what the step found.
    pub(crate) fn end(mut self, outcome: StoreOutcome, error: Option<&StoreError>) {
        self.0.set_attribute(KeyValue::new("keylatch.store.outcome", <&str>::from(outcome)));
        if let Some(error) = error {
            let effect = match error.effect() {
                Effect::NotExecuted => "not-executed",
                Effect::Unknown => "unknown",
            };
            self.0.set_attribute(KeyValue::new("error.type", effect));
            self.0.set_status(Status::error(""));
        }
        self.0.end();
    }
}

/// What the gateway needs to trace its call; an extension of each request to a guarded route that is traced.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamTrace {
    tracer: Tracer,
    context: Context,
    method: &'static str,
    continues: bool,
}

/// The span of a call of an upstream, which ends with the head of the upstream's answer.
#[derive(Debug)]
pub(crate) struct CallSpan(Box<Span>);

impl CallSpan {
    /// Begins the span of this call if the request is traced, and makes it the parent of what the upstream does.
    /// `resend` counts how often the request was sent before.
    pub(crate) fn start<B>(request: &mut Request<B>, origin: &Uri, resend: u32) -> Option<Self> {
        let trace = request.extensions_mut().remove::<UpstreamTrace>()?;
        let builder = SpanBuilder::from_name(verb(trace.method)).with_kind(SpanKind::Client);
        let mut span = trace.tracer.0.build_with_context(builder, &trace.context);
        span.set_attribute(KeyValue::new("http.request.method", method_name(trace.method)));
        span.set_attributes(origin.authority().into_iter().flat_map(server));
        if resend > 0 {
            span.set_attribute(KeyValue::new("http.request.resend_count", i64::from(resend)));
        }
        let headers = request.headers_mut();
        headers.remove(TRACEPARENT);
        if !trace.continues {
            // It belongs to a `traceparent` that was none.
            headers.remove(TRACESTATE);
        }
        headers.extend(trace_context::write(span.span_context()).map(|line| (TRACEPARENT, line)));
        Some(Self(Box::new(span)))
    }

    /// Ends it with the upstream's answer, or with the problem in its place.
    pub(crate) fn end(mut self, answer: Result<StatusCode, Code>) {
        let error = match answer {
            Ok(status) => {
                let number = i64::from(status.as_u16());
                self.0.set_attribute(KeyValue::new("http.response.status_code", number));
                let is_error = status.is_client_error() || status.is_server_error();
                is_error.then(|| status.as_str().to_owned())
            }
            Err(code) => {
                self.0.set_attribute(KeyValue::new("keylatch.problem.code", code.slug()));
                Some(code.slug().to_owned())
            }
        };
        if let Some(kind) = error {
            self.0.set_attribute(KeyValue::new("error.type", kind));
            self.0.set_status(Status::error(""));
        }
        self.0.end();
    }
}
