use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::MatchedPath;
use axum::http::{HeaderName, HeaderValue, Method, Request, Response};
use axum::response::IntoResponse;
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep};
use tower::{Layer, Service};

use super::origin::{OriginPolicy, Surface};
use super::problem::{Code, Problem};
use crate::metrics::Metrics;
use crate::telemetry::AccessLog;
use keylatch_axum::ProblemCause;
use keylatch_core::store::Effect;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest request id that is taken over from a client.
const MAX_REQUEST_ID: usize = 128;

/// What every request gets: an id, a deadline, a count, a place among those that are served at
/// once, a look at whose it is, and a log line if it deserves one.
///
/// One layer in place of one for each, because each costs 2 to 6 % of a request. It does not catch
/// panics, and it does not open a tracing span.
#[derive(Debug, Clone)]
pub struct ObserveLayer {
    shared: Arc<Shared>,
    deadline: Duration,
    surface: Surface,
}

impl ObserveLayer {
    /// Observes with a deadline of `deadline` for each request and room for `max_requests`.
    ///
    /// # Errors
    ///
    /// The operating system has no random bytes to give, which set the ids of this process apart.
    pub fn new(
        metrics: Arc<Metrics>,
        deadline: Duration,
        max_requests: usize,
    ) -> Result<Self, getrandom::Error> {
        let max_requests = i64::try_from(max_requests).unwrap_or(i64::MAX);
        let ids = RequestIds { process: getrandom::u32()?, next: AtomicU64::new(1) };
        let log = AccessLog::Errors;
        let slow = Duration::from_secs(1);
        let origins = OriginPolicy::default();
        let shared = Shared { metrics, max_requests, log, slow, ids, origins };
        Ok(Self { shared: Arc::new(shared), deadline, surface: Surface::Api })
    }

    /// Logs the requests that `log` names; slow is what takes longer than `slow`.
    #[must_use]
    pub fn with_access_log(mut self, log: AccessLog, slow: Duration) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.log = log;
            shared.slow = slow;
        }
        self
    }

    /// Refuses the requests that `origins` does not let pass.
    #[must_use]
    pub fn with_origin_policy(mut self, origins: OriginPolicy) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.origins = origins;
        }
        self
    }

    /// The same, with a deadline that is later by `wait`, for routes on which a client may wait.
    #[must_use]
    pub fn with_extra_time(&self, wait: Duration) -> Self {
        self.with_deadline(self.deadline + wait)
    }

    /// The same, with another deadline, for routes that take their time.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// The same over routes that take something else from web pages.
    #[must_use]
    pub(super) fn over(&self, surface: Surface) -> Self {
        Self { surface, ..self.clone() }
    }
}

#[derive(Debug)]
struct Shared {
    metrics: Arc<Metrics>,
    max_requests: i64,
    log: AccessLog,
    slow: Duration,
    ids: RequestIds,
    origins: OriginPolicy,
}

/// Ids that no other request has: a random number for the process and a count.
#[derive(Debug)]
struct RequestIds {
    process: u32,
    next: AtomicU64,
}

impl RequestIds {
    /// The client's id if it has a usable one, else a new one.
    fn of(&self, request: &Request<Body>) -> HeaderValue {
        let visible = |id: &&HeaderValue| {
            (1..=MAX_REQUEST_ID).contains(&id.len())
                && id.as_bytes().iter().all(u8::is_ascii_graphic)
        };
        if let Some(id) = request.headers().get(X_REQUEST_ID).filter(visible) {
            return id.clone();
        }
        let id = format!("{:08x}-{:x}", self.process, self.next.fetch_add(1, Ordering::Relaxed));
        // Hexadecimal digits and a hyphen are always a header value.
        HeaderValue::try_from(id).unwrap_or_else(|_| HeaderValue::from_static("-"))
    }
}

impl<S> Layer<S> for ObserveLayer {
    type Service = Observe<S>;

    fn layer(&self, inner: S) -> Observe<S> {
        Observe { inner, layer: self.clone() }
    }
}

/// The service of an [`ObserveLayer`].
#[derive(Debug, Clone)]
pub struct Observe<S> {
    inner: S,
    layer: ObserveLayer,
}

impl<S> Service<Request<Body>> for Observe<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Observed<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Observed<S::Future> {
        let ObserveLayer { shared, deadline, surface } = &self.layer;
        let before = shared.metrics.in_flight.inc();
        let record = Record {
            started: Instant::now(),
            method: method_label(request.method()),
            route: request.extensions().get::<MatchedPath>().cloned(),
            id: shared.ids.of(&request),
            shared: Arc::clone(shared),
        };
        let full = before >= shared.max_requests;
        // A full service is alive, and restarting it would not make it less full.
        let live = record.route.as_ref().is_some_and(|route| route.as_str() == "/livez");
        let refusal = if full && !live {
            shared.metrics.shed.inc();
            Some(overloaded())
        } else {
            shared.origins.check(&request, *surface).err()
        };
        let inner = refusal.is_none().then(|| self.inner.call(request));
        Observed { inner, refusal, limit: *deadline, deadline: None, record }
    }
}

pin_project! {
    /// The answer to come of an [`Observe`].
    pub struct Observed<F> {
        // None when the request is refused and not even tried.
        #[pin]
        inner: Option<F>,
        refusal: Option<Problem>,
        limit: Duration,
        // Set when the answer is not there at once.
        #[pin]
        deadline: Option<Sleep>,
        record: Record,
    }
}

impl<F, E> Future for Observed<F>
where
    F: Future<Output = Result<Response<Body>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let response = match this.inner.as_pin_mut().map(|inner| inner.poll(cx)) {
            None => {
                let refusal = this.refusal.take().unwrap_or_else(overloaded);
                refusal.with_retry().into_response()
            }
            Some(Poll::Ready(response)) => response?,
            Some(Poll::Pending) => {
                let end = this.record.started + *this.limit;
                if this.deadline.is_none() {
                    this.deadline.set(Some(tokio::time::sleep_until(end)));
                }
                ready!(this.deadline.as_pin_mut().map_or(Poll::Ready(()), |timer| timer.poll(cx)));
                too_slow()
            }
        };
        Poll::Ready(Ok(this.record.finish(response)))
    }
}

/// What is known of a request while it is answered.
struct Record {
    started: Instant,
    method: &'static str,
    route: Option<MatchedPath>,
    id: HeaderValue,
    shared: Arc<Shared>,
}

impl Drop for Record {
    fn drop(&mut self) {
        self.shared.metrics.in_flight.dec();
    }
}

impl Record {
    fn finish(&self, mut response: Response<Body>) -> Response<Body> {
        let shared = &self.shared;
        let took = self.started.elapsed();
        let status = response.status().as_u16();
        let route = self.route.as_ref().map_or("unmatched", MatchedPath::as_str);
        shared.metrics.request(self.method, route, status, took);
        let notable = response.status().is_server_error() || took >= shared.slow;
        if shared.log == AccessLog::All || (shared.log == AccessLog::Errors && notable) {
            self.log(&response, route, took);
        }
        response.headers_mut().insert(X_REQUEST_ID, self.id.clone());
        response
    }

    fn log(&self, response: &Response<Body>, route: &str, took: Duration) {
        let (method, status) = (self.method, response.status().as_u16());
        let duration_ms = took.as_secs_f64() * 1000.0;
        let request_id = self.id.to_str().unwrap_or_default();
        if response.status().is_server_error() {
            let cause = response.extensions().get::<ProblemCause>();
            let cause =
                cause.map(|ProblemCause(cause)| tracing::field::display(chain(cause.as_ref())));
            tracing::error!(method, route, status, duration_ms, request_id, cause, "request");
        } else {
            tracing::info!(method, route, status, duration_ms, request_id, "request");
        }
    }
}

/// An error and its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// The method as a label with a bounded number of values.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::PATCH => "PATCH",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

fn overloaded() -> Problem {
    Problem::new(Code::Overloaded, "The service has too many requests to answer.")
        .with_outcome(Effect::NotExecuted)
        .with_retry_after(Duration::from_secs(1))
}

fn too_slow() -> Response<Body> {
    Problem::new(Code::Timeout, "The request took longer than the service allows.")
        .with_outcome(Effect::Unknown)
        .with_retry_after(Duration::from_secs(1))
        .with_retry()
        .into_response()
}
