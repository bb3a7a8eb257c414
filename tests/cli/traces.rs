//! Goal: a collector of OpenTelemetry reads how a request went, as part of its caller's trace; no
//! name, key or token gets there; and no request waits for a collector, or fails with it.
//!
//! Method: the command as a process, since the SDK reads the variables of a process; a collector of
//! the test's own, which keeps what the service sends; an upstream that keeps its headers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Deref;

use axum::http::{HeaderMap, StatusCode};
use keylatch::http::MissingKey;
use keylatch_testkit::opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use keylatch_testkit::opentelemetry_proto::tonic::common::v1::KeyValue;
use keylatch_testkit::opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use keylatch_testkit::opentelemetry_proto::tonic::trace::v1::ResourceSpans;
use keylatch_testkit::opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use keylatch_testkit::opentelemetry_proto::tonic::trace::v1::status::StatusCode as SpanStatus;
use keylatch_testkit::prost::Message as _;
use keylatch_testkit::{
    Answer, Api, Authority, EventStream, Process, Service, Shop, Upstream, created, eventually,
};
use reqwest::{Method, RequestBuilder};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpSocket;

use crate::{KEYLATCH, is};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// A `traceparent` of the caller's span, sampled or not.
fn caller(flags: &str) -> String {
    format!("00-{TRACE}-{CALLER}-{flags}")
}

/// A span as the collector reads it; ids in hexadecimal.
#[derive(Debug, Clone)]
struct Span {
    name: String,
    kind: SpanKind,
    trace: String,
    id: String,
    parent: String,
    attributes: HashMap<String, String>,
    is_error: bool,
    message: String,
}

impl Span {
    fn attribute(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }
}

/// What collects traces, over HTTP.
struct Collector(Upstream);

impl Collector {
    async fn start() -> Self {
        let http = Upstream::start().await;
        http.answers(|_| StatusCode::OK);
        Self(http)
    }

    /// A service with default settings and these variables whose traces come here.
    async fn service_with(&self, others: &[(&str, &str)]) -> Traced {
        Traced::start(&self.0.url(), others, "").await
    }

    /// A service whose traces come here, and that guards `/orders` in front of an upstream, with
    /// other settings.
    async fn guard_with(&self, upstream: &str, others: &str) -> Traced {
        let guard = format!("[[guard]]\npath = \"/orders\"\nupstream = \"{upstream}\"\n{others}\n");
        Traced::start(&self.0.url(), &[], &guard).await
    }

    /// All that arrived.
    fn exports(&self) -> Vec<ResourceSpans> {
        let bodies = self.0.seen().into_iter().map(|request| request.body);
        let exports = bodies.map(|body| ExportTraceServiceRequest::decode(body).expect("OTLP"));
        exports.flat_map(|export| export.resource_spans).collect()
    }

    fn spans(&self) -> Vec<Span> {
        let scopes = self.exports().into_iter().flat_map(|all| all.scope_spans);
        scopes.flat_map(|scope| scope.spans).map(span).collect()
    }

    /// Waits for the first span of this name.
    async fn span(&self, name: &str) -> Span {
        eventually(async || self.spans().into_iter().find(|span| span.name == name)).await
    }
}

fn span(sent: keylatch_testkit::opentelemetry_proto::tonic::trace::v1::Span) -> Span {
    let status = sent.status.clone().unwrap_or_default();
    Span {
        kind: sent.kind(),
        name: sent.name,
        trace: hex(&sent.trace_id),
        id: hex(&sent.span_id),
        parent: hex(&sent.parent_span_id),
        attributes: texts(sent.attributes),
        is_error: status.code() == SpanStatus::Error,
        message: status.message,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn texts(attributes: Vec<KeyValue>) -> HashMap<String, String> {
    let text = |value| match value {
        AnyValue::StringValue(text) => text,
        AnyValue::IntValue(number) => number.to_string(),
        other => panic!("neither a text nor a number: {other:?}"),
    };
    let attributes = attributes.into_iter();
    let pairs = attributes.filter_map(|KeyValue { key, value, .. }| Some((key, value?.value?)));
    pairs.map(|(key, value)| (key, text(value))).collect()
}

/// A process whose traces go to a URL soon.
struct Traced {
    api: Api,
    process: Process,
    _folder: TempDir,
}

impl Traced {
    /// Starts one with other variables, and with these settings.
    async fn start(collector: &str, others: &[(&str, &str)], settings: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("keylatch.toml");
        std::fs::write(&file, settings).expect("a file");
        let soon = [("OTEL_EXPORTER_OTLP_ENDPOINT", collector), ("OTEL_BSP_SCHEDULE_DELAY", "10")];
        let file = file.to_str().expect("a path");
        // Of a variable that is there twice, the last counts.
        let process = KEYLATCH.serve(&["--config", file], &[&soon, others].concat()).await;
        Self { api: Api::at(process.address), process, _folder: folder }
    }
}

impl Deref for Traced {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

/// A collector, and a service with default settings whose traces go there.
async fn traced() -> (Collector, Traced) {
    let collector = Collector::start().await;
    let service = collector.service_with(&[]).await;
    (collector, service)
}

/// The same with an upstream behind its guard.
async fn guarded() -> (Collector, Upstream, Traced) {
    let (collector, upstream) = (Collector::start().await, Upstream::start().await);
    let service = collector.guard_with(&upstream.url(), "").await;
    (collector, upstream, service)
}

/// `POST /v1/locks/{name}` of a caller that has a span.
fn create(service: &Api, name: &str, traceparent: &str) -> RequestBuilder {
    let request = service.request(Method::POST, &format!("/v1/locks/{name}"));
    request.header("traceparent", traceparent).json(&json!({}))
}

/// The parts of the only `traceparent` of a request: trace, parent, flags.
fn traceparent(headers: &HeaderMap) -> [String; 3] {
    let lines: Vec<_> = headers.get_all("traceparent").iter().collect();
    let [line] = lines.as_slice() else { panic!("one traceparent: {lines:?}") };
    let fields: Vec<_> = line.to_str().expect("text").split('-').map(str::to_owned).collect();
    let [version, trace, parent, flags] = fields.try_into().expect("four fields");
    assert_eq!(version, "00");
    [trace, parent, flags]
}

/// The URL of a port that refuses connections for as long as the socket lives.
fn refusing() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let address = socket.local_addr().expect("an address");
    (socket, format!("http://{address}"))
}

#[tokio::test]
async fn request_belongs_to_span_of_caller_and_store_step_to_request() {
    let (collector, service) = traced().await;
    let created = Answer::of(create(&service, "a", &caller("01"))).await;
    assert_eq!(created.status, 201);
    let request = collector.span("POST /v1/locks/{name}").await;
    assert_eq!((request.trace.as_str(), request.parent.as_str()), (TRACE, CALLER));
    assert_eq!((request.kind, request.is_error), (SpanKind::Server, false));
    for (key, value) in [
        ("http.request.method", "POST"),
        ("http.route", "/v1/locks/{name}"),
        ("http.response.status_code", "201"),
        ("url.scheme", "http"),
        ("server.address", "127.0.0.1"),
        ("server.port", &service.address.port().to_string()),
        ("keylatch.request_id", created.header("x-request-id")),
        ("keylatch.problem.code", ""),
        ("error.type", ""),
    ] {
        assert_eq!(request.attribute(key), value, "{key}");
    }
    let step = collector.span("store acquire").await;
    assert_eq!((&step.trace, &step.parent), (&request.trace, &request.id));
    assert_eq!((step.kind, step.is_error), (SpanKind::Internal, false));
    let kind = step.attribute("keylatch.store.kind");
    let operation = step.attribute("keylatch.store.operation");
    let outcome = step.attribute("keylatch.store.outcome");
    assert_eq!((kind, operation, outcome), ("memory", "acquire", "done"));
}

#[tokio::test]
async fn upstream_reads_call_of_gateway_as_its_parent() {
    let (collector, upstream, service) = guarded().await;
    let order = service.order("k-1").header("traceparent", caller("01"));
    Answer::of(order.header("tracestate", "a=1,b=2")).await.is_run(1);
    let headers = upstream.last().headers;
    let call = collector.span("POST").await;
    let request = collector.span("POST /orders").await;
    assert_eq!(traceparent(&headers), [TRACE.to_owned(), call.id.clone(), "01".to_owned()]);
    assert_eq!(headers["tracestate"], "a=1,b=2");
    assert_eq!((call.kind, call.is_error), (SpanKind::Client, false));
    assert_eq!((&call.trace, &call.parent), (&request.trace, &request.id));
    assert_eq!(call.attribute("http.response.status_code"), "201");
    assert_eq!(call.attribute("server.port"), upstream.address.port().to_string());
    for step in ["store begin_record", "store complete_record"] {
        assert_eq!(collector.span(step).await.parent, request.id, "{step}");
    }
    assert_eq!((request.trace.as_str(), request.parent.as_str()), (TRACE, CALLER));
}

#[tokio::test]
async fn request_without_caller_begins_a_trace() {
    let (collector, upstream, service) = guarded().await;
    service.buy("k-1").await.is_run(1);
    service.buy("k-2").await.is_run(2);
    let [first, second] = [0, 1].map(|run| traceparent(&upstream.seen()[run].headers));
    assert_ne!(first[0], second[0]);
    assert_eq!((first[2].as_str(), second[2].as_str()), ("01", "01"));
    let request = collector.span("POST /orders").await;
    assert_eq!((&request.trace, request.parent.as_str()), (&first[0], ""));
}

#[tokio::test]
async fn invalid_traceparent_counts_as_none() {
    let (_collector, upstream, service) = guarded().await;
    let invalid = [
        "",
        "none",
        &format!("00-{TRACE}-{CALLER}"),
        &format!("00-{TRACE}-{CALLER}-01-more"),
        &format!("ff-{TRACE}-{CALLER}-01"),
        &format!("00-{}-{CALLER}-01", TRACE.to_uppercase()),
        &format!("00-{}-{CALLER}-01", "0".repeat(32)),
        &format!("00-{TRACE}-{}-01", "0".repeat(16)),
    ];
    for (run, line) in invalid.into_iter().enumerate() {
        let order = service.order(&format!("k-{run}")).header("traceparent", line);
        Answer::of(order.header("tracestate", "a=1")).await.is_run(run + 1);
        let headers = upstream.last().headers;
        assert_ne!(traceparent(&headers)[0], TRACE, "{line}");
        assert!(!headers.contains_key("tracestate"), "{line}: it belongs to another trace");
    }
    let later =
        service.order("later").header("traceparent", format!("01-{TRACE}-{CALLER}-01-more"));
    Answer::of(later).await;
    assert_eq!(traceparent(&upstream.last().headers)[0], TRACE, "a later version has more fields");
}

#[tokio::test]
async fn unsampled_caller_exports_nothing_and_is_passed_on() {
    let (collector, upstream, service) = guarded().await;
    let order = service.order("k-1").header("traceparent", caller("00"));
    Answer::of(order.header("tracestate", "a=1")).await.is_run(1);
    let headers = upstream.last().headers;
    let [trace, _, flags] = traceparent(&headers);
    assert_eq!((trace.as_str(), flags.as_str()), (TRACE, "00"));
    assert_eq!(headers["tracestate"], "a=1");
    // Spans arrive in the order in which they end.
    service.create("a", &json!({})).await;
    collector.span("POST /v1/locks/{name}").await;
    let spans = collector.spans();
    assert!(spans.iter().all(|span| span.trace != TRACE), "{spans:?}");
}

#[tokio::test]
async fn no_attribute_has_a_name_a_key_or_a_token() {
    let (collector, _upstream, service) = guarded().await;
    let body = json!({"owner": "secret-owner", "ttl_ms": 60_000});
    let token = service.create("secret-name", &body).await.token();
    service.create("secret-name", &body).await;
    service.renew("secret-name", &token, &json!({})).await;
    service.get("/v1/locks?prefix=secret-prefix").await;
    service.get("/v1/locks/secret-name").await;
    service.get("/secret-path?of=secret-query").await;
    service.create_set_as(&["secret-one", "secret-two"], "secret-token-of-a-set", &body).await;
    service.release("secret-name", &token).await;
    let odd = Method::from_bytes(b"SECRET").expect("a method");
    Answer::of(service.request(odd, "/orders/secret-path")).await;
    service.get("/v1/idempotency/secret-key?method=POST&path=/orders").await;
    service.buy("secret-key").await.is_run(2);
    service.buy("secret-key").await.is_replay_of(2);
    service.get("/v1/info").await;
    collector.span("GET /v1/info").await;
    assert!(collector.spans().len() > 20, "{:?}", collector.spans());
    for request in collector.0.seen() {
        let sent = String::from_utf8_lossy(&request.body).to_lowercase();
        assert!(!sent.contains("secret"), "{sent}");
        assert!(!sent.contains(&token.to_lowercase()), "{sent}");
    }
}

#[tokio::test]
async fn failed_call_is_an_error_with_code_of_problem() {
    let collector = Collector::start().await;
    let (_socket, upstream) = refusing();
    let service = collector.guard_with(&upstream, "").await;
    service.buy("k-1").await.is_refusal(502, "upstream-unreachable", "same-key");
    let request = collector.span("POST /orders").await;
    assert!(request.is_error);
    assert_eq!(request.message, "upstream-unreachable");
    assert_eq!(request.attribute("http.response.status_code"), "502");
    assert_eq!(request.attribute("keylatch.problem.code"), "upstream-unreachable");
    assert_eq!(request.attribute("error.type"), "upstream-unreachable");
    let call = collector.span("POST").await;
    assert!(call.is_error);
    assert_eq!(call.attribute("error.type"), "upstream-unreachable");
    assert_eq!(call.attribute("http.response.status_code"), "");
}

/// That another client holds the lock is no failure.
#[tokio::test]
async fn refusal_has_code_of_problem_and_is_no_error() {
    let (collector, service) = traced().await;
    let token = service.create("a", &json!({})).await.token();
    service.create("a", &json!({})).await.is_problem(409, "lock-held");
    service.release("a", &token).await;
    collector.span("DELETE /v1/locks/{name}").await;
    let spans = collector.spans();
    let refused = spans.iter().find(|span| span.attribute("http.response.status_code") == "409");
    let refused = refused.expect("the span of the refusal");
    assert_eq!(
        (refused.attribute("keylatch.problem.code"), refused.is_error),
        ("lock-held", false)
    );
    assert_eq!(refused.attribute("error.type"), "");
    let of_refused = |span: &&Span| span.parent == refused.id;
    let step = spans.iter().find(of_refused).expect("the step of the refusal");
    assert_eq!(step.attribute("keylatch.store.outcome"), "held");
}

#[tokio::test]
async fn log_line_has_trace_of_request() {
    let collector = Collector::start().await;
    let service = collector.service_with(&[("KEYLATCH_LOG_ACCESS", "all")]).await;
    Answer::of(create(&service, "a", &caller("01"))).await;
    service.process.logs(&format!("\"trace_id\":\"{TRACE}\""), 1).await;
}

#[tokio::test]
async fn stream_span_ends_with_head_of_answer() {
    let (collector, service) = traced().await;
    let watch = service.request(Method::GET, "/v1/locks/a/events");
    let mut events = EventStream::of(watch).await;
    let span = collector.span("GET /v1/locks/{name}/events").await;
    assert_eq!(span.attribute("http.response.status_code"), "200");
    // The stream is still there.
    events.next("snapshot").await;
    service.create("a", &json!({})).await;
    events.next("acquired").await;
}

#[tokio::test]
async fn span_of_waiting_request_ends_when_its_client_goes() {
    let (collector, service) = traced().await;
    let token = service.create("a", &json!({"ttl_ms": 600_000})).await.token();
    let waiting = create(&service, "a", &caller("01")).json(&json!({"wait_ms": 60_000})).send();
    let waiting = tokio::spawn(waiting);
    service.has_in_hand(1).await;
    waiting.abort();
    let gone = eventually(async || {
        let mut spans = collector.spans().into_iter();
        spans.find(|span| span.trace == TRACE && span.kind == SpanKind::Server)
    });
    let gone = gone.await;
    assert_eq!(gone.attribute("error.type"), "client-gone");
    assert_eq!(gone.attribute("http.response.status_code"), "");
    assert_eq!(service.release("a", &token).await.status, 204);
}

#[tokio::test]
async fn run_whose_client_has_gone_has_its_call() {
    let (collector, upstream, service) = guarded().await;
    upstream.hold();
    let order = tokio::spawn(service.order("k-1").send());
    upstream.begun(1).await;
    order.abort();
    let request = collector.span("POST /orders").await;
    assert_eq!(request.attribute("error.type"), "client-gone");
    upstream.resume();
    let call = collector.span("POST").await;
    assert_eq!((&call.parent, call.is_error), (&request.id, false));
}

#[tokio::test]
async fn each_try_is_a_call_of_its_own() {
    let (collector, upstream) = (Collector::start().await, Upstream::start().await);
    let service = collector.guard_with(&upstream.url(), "upstream_idempotent = true").await;
    upstream.answers(|request| {
        assert!(request.run > 1, "the first try gets no answer");
        created(request.run)
    });
    service.buy("k-1").await.is_run(2);
    let request = collector.span("POST /orders").await;
    let spans = collector.spans();
    let calls: Vec<_> = spans.iter().filter(|span| span.kind == SpanKind::Client).collect();
    let [first, second] = calls.as_slice() else { panic!("two calls: {calls:?}") };
    assert_eq!((first.attribute("error.type"), first.is_error), ("outcome-unknown", true));
    assert_eq!((second.attribute("http.request.resend_count"), second.is_error), ("1", false));
    let parents =
        upstream.seen().into_iter().map(|request| traceparent(&request.headers)[1].clone());
    assert_eq!(parents.collect::<Vec<_>>(), [first.id.clone(), second.id.clone()]);
    assert_eq!((&first.parent, &second.parent), (&request.id, &request.id));
}

#[tokio::test]
async fn probes_and_scrapes_have_no_span() {
    let (collector, service) = traced().await;
    for path in ["/livez", "/readyz", "/metrics"] {
        service.get(path).await;
    }
    service.get("/v1/info").await;
    collector.span("GET /v1/info").await;
    let spans = collector.spans();
    let roots = spans.iter().filter(|span| span.parent.is_empty());
    assert_eq!(roots.map(|span| span.name.as_str()).collect::<Vec<_>>(), ["GET /v1/info"]);
}

#[tokio::test]
async fn absent_collector_fails_no_request_and_is_logged() {
    let (_socket, url) = refusing();
    let service = Traced::start(&url, &[], "").await;
    for times in 1..=2 {
        let lease = service.create("a", &json!({})).await;
        assert_eq!(service.release("a", &lease.token()).await.status, 204);
        service.process.logs("telemetry data will be lost", times).await;
    }
}

#[tokio::test]
async fn slow_collector_loses_what_its_queue_cannot_hold() {
    let collector = Collector::start().await;
    collector.0.hold();
    let size = [("OTEL_BSP_MAX_QUEUE_SIZE", "2"), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")];
    let service = collector.service_with(&size).await;
    // Each has two spans: one of all is on its way, two wait.
    for _ in 0..5 {
        assert_eq!(service.get("/v1/locks").await.status, 200);
    }
    service.process.logs("SpanDroppingStarted", 1).await;
    collector.0.resume();
    eventually(async || (collector.spans().len() >= 3).then_some(())).await;
}

#[tokio::test]
async fn queued_spans_are_sent_at_shutdown() {
    let collector = Collector::start().await;
    let service = collector.service_with(&[("OTEL_BSP_SCHEDULE_DELAY", "1000000")]).await;
    service.create("a", &json!({})).await;
    assert_eq!(collector.0.runs(), 0);
    assert_eq!(service.process.ended_by("-TERM").await.code, Some(0));
    let names: Vec<_> = collector.spans().into_iter().map(|span| span.name).collect();
    assert_eq!(names, ["store acquire", "POST /v1/locks/{name}"]);
}

#[tokio::test]
async fn collector_that_hangs_does_not_hold_the_shutdown() {
    let collector = Collector::start().await;
    collector.0.hold();
    let service = collector.service_with(&[("OTEL_EXPORTER_OTLP_TIMEOUT", "1000000")]).await;
    service.create("a", &json!({})).await;
    collector.0.begun(1).await;
    assert_eq!(service.process.ended_by("-TERM").await.code, Some(0));
}

#[tokio::test]
async fn collector_reads_headers_and_resource_of_the_variables() {
    let collector = Collector::start().await;
    let below = format!("{}/below/", collector.0.url());
    let variables = [
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a%20b, authorization=Basic eA=="),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,deployment.environment.name=test"),
        ("OTEL_SERVICE_NAME", "locks"),
    ];
    let service = Traced::start(&below, &variables, "").await;
    service.get("/v1/locks").await;
    collector.0.begun(1).await;
    let request = collector.0.last();
    assert_eq!((request.method, request.uri.path()), (Method::POST, "/below/v1/traces"));
    assert_eq!(request.headers["content-type"], "application/x-protobuf");
    assert_eq!(request.headers["x-tenant"], "a b");
    assert_eq!(request.headers["authorization"], "Basic eA==");
    let resource = collector.exports().remove(0).resource.expect("a resource");
    let resource = texts(resource.attributes);
    assert_eq!(resource["service.name"], "locks");
    assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(resource["deployment.environment.name"], "test");
}

#[tokio::test]
async fn endpoint_of_traces_is_used_as_it_is() {
    let collector = Collector::start().await;
    let own = format!("{}/own?tenant=a", collector.0.url());
    let variables =
        [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", own.as_str()), ("OTEL_SERVICE_NAME", "")];
    let service = Traced::start("http://unused.invalid", &variables, "").await;
    service.get("/v1/locks").await;
    collector.0.begun(1).await;
    assert_eq!(collector.0.last().uri, "/own?tenant=a");
    let resource = collector.exports().remove(0).resource.expect("a resource");
    assert_eq!(texts(resource.attributes)["service.name"], "keylatch");
}

/// A keylatch with TLS stands before the collector.
#[tokio::test]
async fn collector_behind_tls_is_known_by_the_authority_of_the_variables() {
    let (collector, authority) = (Collector::start().await, Authority::default());
    let mut config = keylatch_testkit::config("memory:");
    config.tls = authority.serve();
    config.guard = vec![Shop::guard(&collector.0.url())];
    config.guard[0].path = "/v1/traces".to_owned();
    config.guard[0].missing_key = MissingKey::Pass;
    let front = Service::start_with(config).await;
    let url = format!("https://localhost:{}", front.address.port());
    let file = authority.ca_file();
    let trusted = [("OTEL_EXPORTER_OTLP_CERTIFICATE", file.to_str().expect("a path"))];
    let service = Traced::start(&url, &trusted, "").await;
    service.get("/v1/locks").await;
    collector.span("GET /v1/locks").await;
}

#[tokio::test]
async fn process_with_a_collector_that_cannot_be_used_does_not_start() {
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "secret:4318")];
    let ended = KEYLATCH.run_with(&["serve", "--store", "memory:"], &variables).await;
    is(&ended, 1, &["traces: OTEL_EXPORTER_OTLP_ENDPOINT must be"]);
    assert!(!ended.stderr.contains("secret"), "{ended:?}");
    let authorities = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:4318"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file.pem"),
    ];
    is(&KEYLATCH.run_with(&["config", "check"], &authorities).await, 1, &["/no/such/file.pem"]);
}
