//! What every request gets: an id, a deadline, a count among those that are served at once, a look at
//! whose it is, and a log line if it deserves one.
//!
//! It is one layer in place of one for each, because each costs 2 to 6 % of a request; the concepts are
//! in files of their own behind it. It does not catch panics, and it does not open a tracing span.
//! Invariant: every answer has an `X-Request-Id`, also that to a request that was refused. Tested in
//! `tests/api/connections.rs`, `logging.rs` and `system.rs`.

mod access_log;
mod deadline;
mod id;
mod load;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::MatchedPath;
use axum::http::{HeaderValue, Method, Request, Response};
use axum::response::IntoResponse;
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower::{Layer, Service};

use self::access_log::{AccessEntry, AccessLogger};
use self::deadline::Deadline;
use self::id::{RequestIds, X_REQUEST_ID};
use self::load::{InFlight, LoadLimit};
use super::origin::{OriginPolicy, Surface};
use super::problem::Problem;
use crate::metrics::Metrics;
use crate::telemetry::AccessLog;

/// The one layer around every route.
#[derive(Debug, Clone)]
pub struct RequestLayer {
    shared: Arc<Shared>,
    deadline: Duration,
    surface: Surface,
}

#[derive(Debug)]
struct Shared {
    metrics: Arc<Metrics>,
    ids: RequestIds,
    load: LoadLimit,
    logger: AccessLogger,
    origins: OriginPolicy,
}

impl RequestLayer {
    /// A layer with a deadline of `deadline` for each request and room for `max_requests`.
    ///
    /// # Errors
    ///
    /// The operating system has no random bytes to give, which set the ids of this process apart.
    pub fn new(
        metrics: Arc<Metrics>,
        deadline: Duration,
        max_requests: usize,
    ) -> Result<Self, getrandom::Error> {
        let shared = Shared {
            ids: RequestIds::new()?,
            load: LoadLimit::new(Arc::clone(&metrics), max_requests),
            logger: AccessLogger { log: AccessLog::Errors, slow: Duration::from_secs(1) },
            origins: OriginPolicy::default(),
            metrics,
        };
        Ok(Self { shared: Arc::new(shared), deadline, surface: Surface::Api })
    }

    /// Logs the requests that `log` names; slow is what takes longer than `slow`.
    #[must_use]
    pub fn with_access_log(mut self, log: AccessLog, slow: Duration) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.logger = AccessLogger { log, slow };
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

impl<S> Layer<S> for RequestLayer {
    type Service = RequestService<S>;

    fn layer(&self, inner: S) -> RequestService<S> {
        RequestService { inner, layer: self.clone() }
    }
}

/// The service of a [`RequestLayer`].
#[derive(Debug, Clone)]
pub struct RequestService<S> {
    inner: S,
    layer: RequestLayer,
}

impl<S> Service<Request<Body>> for RequestService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = RequestFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> RequestFuture<S::Future> {
        let RequestLayer { shared, deadline, surface } = &self.layer;
        let route = request.extensions().get::<MatchedPath>().cloned();
        let (in_flight, admitted) = shared.load.admit(route.as_ref().map(MatchedPath::as_str));
        let ticket = RequestTicket {
            started: Instant::now(),
            method: method_label(request.method()),
            route,
            id: shared.ids.id_of(&request),
            shared: Arc::clone(shared),
            _in_flight: in_flight,
        };
        let passed = admitted.and_then(|()| shared.origins.check(&request, *surface));
        let refusal = passed.err();
        let inner = refusal.is_none().then(|| self.inner.call(request));
        let deadline = Deadline::new(ticket.started + *deadline);
        RequestFuture { inner, refusal, deadline, ticket }
    }
}

pin_project! {
    /// The answer to come of a [`RequestService`].
    pub struct RequestFuture<F> {
        // None when the request is refused and not even tried.
        #[pin]
        inner: Option<F>,
        refusal: Option<Problem>,
        #[pin]
        deadline: Deadline,
        ticket: RequestTicket,
    }
}

impl<F, E> Future for RequestFuture<F>
where
    F: Future<Output = Result<Response<Body>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let answer = match this.refusal.take() {
            Some(refusal) => Err(refusal),
            None => match this.inner.as_pin_mut().map(|inner| inner.poll(cx)) {
                Some(Poll::Ready(response)) => Ok(response?),
                Some(Poll::Pending) | None => Err(ready!(this.deadline.poll_over(cx))),
            },
        };
        let response = answer.unwrap_or_else(|problem| problem.with_retry().into_response());
        Poll::Ready(Ok(this.ticket.close(response)))
    }
}

/// What is known of a request while it is answered.
#[derive(Debug)]
struct RequestTicket {
    started: Instant,
    method: &'static str,
    route: Option<MatchedPath>,
    id: HeaderValue,
    shared: Arc<Shared>,
    _in_flight: InFlight,
}

impl RequestTicket {
    /// The answer as it goes out, counted and logged.
    fn close(&self, mut response: Response<Body>) -> Response<Body> {
        let took = self.started.elapsed();
        let route = self.route.as_ref().map_or("unmatched", MatchedPath::as_str);
        let status = response.status().as_u16();
        self.shared.metrics.request(self.method, route, status, took);
        let entry = AccessEntry { method: self.method, route, id: &self.id, took };
        self.shared.logger.log(entry, &response);
        response.headers_mut().insert(X_REQUEST_ID, self.id.clone());
        response
    }
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
