//! What happens to every request: it gets an id, a count among those that are served at once, a
//! look at which page and which identity it is of, a deadline, and a log line if it deserves one.
//!
//! It is one layer in place of one for each, because each costs 2 to 6 % of a request; the parts
//! follow the layer. It does not catch panics. A request beyond the limit of load is answered 503
//! before any work, because a queue of requests that no client waits for any more would only grow.
//! The deadline sets its timer only where the answer is not there at once, because a timer costs
//! more than most requests take. The log line has no path, no token and no key of a client, only
//! the pattern of the route.
//!
//! Invariant: every response has an `X-Request-Id`, also that to a request that was refused. Tested
//! in `tests/api/connections.rs`, `logging.rs`, `secrets.rs` and `system.rs`.

use std::cell::Cell;
use std::error::Error;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::MatchedPath;
use axum::http::{HeaderValue, Method, Request, Response, header};
use axum::response::IntoResponse;
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};
use tower::{Layer, Service};

use super::X_REQUEST_ID;
use super::audit::{Act, RequestId, Subject, is_refusal, write};
use super::origin::{ConnectionInfo, OriginPolicy, RouteClass};
use super::parts::{Part, ServedParts};
use super::pass_through::OWN;
use super::problem::{Code, Problem, forbidden, overloaded, quota_exceeded, unauthenticated};
use super::system;
use crate::access::{
    Authenticator, CertificateNames, Identity, KEYLATCH_AUTHORIZATION, RefusalPause,
    RefusedCredential,
};
use crate::audit::AuditLog;
use crate::metrics::{Metrics, RouteDurations};
use crate::telemetry::AccessLog;
use crate::traces::RequestSpan;
use keylatch_axum::gateway::{Admission, ErrorPage, TrustedProxy, wants_page};
use keylatch_axum::{GuardAccess, ProblemCause, ProblemCode, RanUnguarded, name_no_source};
use keylatch_core::store::Effect;

/// Why a page of this origin does not get what is for identities.
const OF_GUARDED_PAGE: &str = "A page of this host sent this, and services behind guards have pages here. The API and the \
     console are for pages of a listener without `guards`. Nothing was done.";
/// The longest id of a client that is used.
const MAX_ID_LEN: usize = 128;

/// The one layer around every route.
#[derive(Debug, Clone)]
pub struct RequestLayer {
    shared: Arc<RequestRules>,
    deadline: Duration,
    class: RouteClass,
    /// What lets requests in at a guarded route.
    admission: Option<Arc<Admission>>,
    /// The histograms of the route that this layer is around. There are none before its first
    /// request.
    durations: RouteDurations,
}

/// What all layers have in common: what they ask of requests, and where they say what became of
/// them.
#[derive(Debug)]
pub(crate) struct RequestRules {
    pub(crate) metrics: Arc<Metrics>,
    /// How many requests are served at once.
    pub(crate) max_requests: i64,
    /// Which requests are logged.
    pub(crate) log: AccessLog,
    /// From this time on a request is slow.
    pub(crate) slow: Duration,
    pub(crate) origins: OriginPolicy,
    /// Whether pages of guarded services are of an origin at which identities use the API.
    pub(crate) has_guarded_pages: bool,
    /// Who knows which identity a client of the API is.
    pub(crate) authenticator: Option<Arc<Authenticator>>,
    /// Where it is written which requests are refused.
    pub(crate) audit: Option<Arc<AuditLog>>,
}

impl RequestLayer {
    /// A layer with a deadline of `deadline` for each request.
    pub(crate) fn new(shared: RequestRules, deadline: Duration) -> Self {
        let (shared, class) = (Arc::new(shared), RouteClass::Api);
        Self { shared, deadline, class, admission: None, durations: RouteDurations::default() }
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
    pub(super) fn over(&self, class: RouteClass) -> Self {
        Self { class, ..self.clone() }
    }

    /// The same over a guarded route that lets requests in so.
    #[must_use]
    pub(super) fn with_admission(&self, admission: Admission) -> Self {
        Self { admission: Some(Arc::new(admission)), ..self.clone() }
    }

    /// Counts a request, and finds out whether it may pass: the service has room, the listener
    /// serves the route, and the page and the identity may send the request.
    fn admit(
        self: &Arc<Self>,
        request: &mut Request<Body>,
    ) -> (RequestTicket, Result<(), Problem>) {
        let (started, shared, class) = (Instant::now(), &self.shared, self.class);
        // Taken out and not cloned: no handler reads it, and all cores share the count of its
        // clones.
        let path = request.extensions_mut().remove::<MatchedPath>();
        let route = path.as_ref().map(MatchedPath::as_str);
        let route = route.map(|route| route.strip_prefix(OWN).unwrap_or(route));
        let urgency = Urgency::of(request, class, route);
        let (in_flight, others) = InFlight::begin(Arc::clone(self));
        let admitted = shared.make_room(others, urgency, ConnectionInfo::of(request));
        let (method, id) = (method_label(request.method()), id_of(request));
        let scheme = || ConnectionInfo::of(request).map_or("http", ConnectionInfo::scheme);
        let span = RequestSpan::start(request, scheme, (method, route), &id);
        let passed = admitted.and_then(|()| shared.origins.check(request, class, route));
        let passed = passed.or_else(|why| self.refuse(request, why));
        let passed = passed.and_then(|()| self.find(request, route));
        let passed = passed.and_then(|()| self.identify(request, route));
        let (mut identity, mut subject) = (None, None);
        if shared.audit.is_some() {
            identity = ConnectionInfo::identity(request.extensions()).cloned();
            subject = route.and_then(|route| Subject::of(route, request.uri()));
            request.extensions_mut().insert(RequestId(id.clone()));
        }
        let wants_page = class != RouteClass::Api && wants_page(request.headers());
        let ticket = RequestTicket {
            started,
            method,
            route: path,
            id,
            span,
            identity,
            subject,
            wants_page,
            names_source: self.names_source(request.method()),
            in_flight,
        };
        if class != RouteClass::Api {
            ticket.prepare_forwarding(request);
        }
        let let_in = |()| self.admission.as_ref().map_or(Ok(()), |guard| guard.admit(request));
        (ticket, passed.and_then(let_in))
    }

    /// Refuses a request, unless its guard only observes.
    fn refuse(&self, request: &mut Request<Body>, why: Problem) -> Result<(), Problem> {
        match &self.admission {
            Some(guard) => guard.refuse(request, why),
            None => Err(why),
        }
    }

    fn names_source(&self, method: &Method) -> bool {
        self.admission.as_ref().is_some_and(|guard| guard.names_source(method))
    }

    /// The setting that lets a guarded request pass which was refused so, for the log.
    fn setting_behind(&self, code: Code) -> Option<&'static str> {
        match code {
            _ if self.class == RouteClass::Api => None,
            Code::PayloadTooLarge => Some("body_limit_bytes of the guard"),
            Code::CrossOrigin => Some("cors.allow_origins, or cross_origin of the guard"),
            _ => None,
        }
    }

    /// The response, with a page in place of a problem.
    fn with_page(&self, response: Response<Body>) -> Response<Body> {
        match &self.admission {
            Some(admission) => admission.page().show(response),
            None => ErrorPage::default().show(response),
        }
    }

    /// Whether the route is there for clients of the listener that the request came to.
    fn find(&self, request: &Request<Body>, route: Option<&str>) -> Result<(), Problem> {
        let serves =
            ConnectionInfo::of(request).map_or(ServedParts::ALL, |connection| connection.serves);
        let has_pages = self.shared.has_guarded_pages;
        let serves = if has_pages { serves.beside_guarded_pages() } else { serves };
        let is_served = match self.class {
            _ if serves == ServedParts::ALL => true,
            RouteClass::Guard | RouteClass::Callback => serves.have(Part::Guards),
            RouteClass::Api => route.is_none_or(|route| serves.have_route(route)),
        };
        if is_served { Ok(()) } else { Err(system::no_resource()) }
    }

    /// Whether a page of a guarded service may have made a browser send the request.
    fn is_of_guarded_page(&self, request: &Request<Body>) -> bool {
        let serves = ConnectionInfo::of(request)
            .is_none_or(|connection| connection.serves.have(Part::Guards));
        serves && self.shared.has_guarded_pages && self.shared.origins.is_of_own_page(request)
    }

    /// Finds out which identity sends the request, and leaves it with its connection. A route for
    /// identities is for no others, for no page that may be of a guarded service, and for none
    /// that sends more than it may.
    fn identify(&self, request: &mut Request<Body>, route: Option<&str>) -> Result<(), Problem> {
        let Some(authenticator) = &self.shared.authenticator else { return Ok(()) };
        let guard_access = self.admission.as_ref().map(|admission| admission.access());
        let (header, name) = match (self.class, guard_access) {
            (RouteClass::Api, _) if route.is_none_or(is_open) => return Ok(()),
            (RouteClass::Api, _) if self.is_of_guarded_page(request) => {
                return Err(forbidden(OF_GUARDED_PAGE).with_field("Origin"));
            }
            (RouteClass::Api, _) => (header::AUTHORIZATION, "Authorization"),
            (_, Some(GuardAccess::Identity)) => (KEYLATCH_AUTHORIZATION, "Keylatch-Authorization"),
            _ => return Ok(()),
        };
        let certificate = request.extensions().get::<Arc<CertificateNames>>();
        let certificate = certificate.map(AsRef::as_ref);
        let identity = authenticator.identify(request.headers(), &header, certificate);
        let identity = identity.map_err(|why| match why {
            RefusedCredential::NoIssuerKeys => {
                overloaded("The service does not have the keys of the issuer yet.")
            }
            why => unauthenticated(why, name),
        })?;
        if let Err(refusal) = identity.meter.admit_request() {
            if self.shared.is_half_free() {
                request.extensions_mut().insert(identity.meter.pause(refusal));
            }
            return Err(quota_exceeded(refusal));
        }
        let connection =
            request.extensions_mut().get_or_insert_with(ConnectionInfo::at_another_server);
        connection.identity = Some(identity);
        Ok(())
    }
}

/// Whether a route is open to clients without an identity: it shows nothing of what clients do. A
/// new route is not, unless it stands here.
fn is_open(route: &str) -> bool {
    let pages = ["/", "/livez", "/readyz", "/openapi.json", "/problems", "/demo", "/docs"];
    pages.contains(&route)
        || route == "/problems/{code}"
        || route.starts_with("/docs/")
        || route.starts_with("/assets/")
}

impl<S> Layer<S> for RequestLayer {
    type Service = RequestService<S>;

    fn layer(&self, inner: S) -> RequestService<S> {
        RequestService { inner, layer: Arc::new(self.clone()) }
    }
}

/// The service of a [`RequestLayer`].
#[derive(Debug, Clone)]
pub struct RequestService<S> {
    inner: S,
    layer: Arc<RequestLayer>,
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

    fn call(&mut self, mut request: Request<Body>) -> RequestFuture<S::Future> {
        let (ticket, passed) = self.layer.admit(&mut request);
        let deadline = Deadline::new(ticket.started + self.layer.deadline);
        match passed {
            Ok(()) => {
                let inner = Some(self.inner.call(request));
                RequestFuture { inner, refusal: None, pause: None, deadline, ticket }
            }
            Err(refusal) => {
                let pause = request.extensions_mut().remove::<RefusalPause>();
                let end = pause.as_ref().map(|pause| ticket.started + pause.lasts);
                let deadline = end.map_or(deadline, Deadline::new);
                RequestFuture { inner: None, refusal: Some(refusal), pause, deadline, ticket }
            }
        }
    }
}

pin_project! {
    /// The response to come of a [`RequestService`].
    pub struct RequestFuture<F> {
        // None when the request is refused and not even tried.
        #[pin]
        inner: Option<F>,
        refusal: Option<Problem>,
        // The refusal waits until the deadline where there is one.
        pause: Option<RefusalPause>,
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
        let mut this = self.project();
        if this.pause.is_some() {
            ready!(this.deadline.as_mut().poll_over(cx));
            *this.pause = None;
        }
        let _current = this.ticket.span.enter();
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
    span: RequestSpan,
    /// Who sent it, where there is an audit log to say so.
    identity: Option<Arc<Identity>>,
    /// The lock or key in its path, where there is an audit log to name it.
    subject: Option<Subject>,
    /// Whether a person reads the response, in a browser and of a guarded route.
    wants_page: bool,
    /// Whether the response says where the key of the request comes from.
    names_source: bool,
    in_flight: InFlight,
}

impl RequestTicket {
    /// Gives the request what the gateway and the service behind a guard know it by.
    fn prepare_forwarding(&self, request: &mut Request<Body>) {
        // The service behind a guard logs the same id.
        request.headers_mut().insert(X_REQUEST_ID, self.id.clone());
        let shared = self.in_flight.shared();
        if shared.origins.trusts(request) {
            request.extensions_mut().insert(TrustedProxy);
        }
        self.span.hand_on(self.method, request);
    }

    /// The response as it goes out, counted and logged.
    fn close(&self, mut response: Response<Body>) -> Response<Body> {
        let (took, shared) = (self.started.elapsed(), self.in_flight.shared());
        let route = self.route.as_ref().map_or("unmatched", MatchedPath::as_str);
        let status = response.status().as_u16();
        let at = (self.method, route, &self.in_flight.0.durations);
        shared.metrics.request(at, status, took);
        let code = response.extensions().get().map(|ProblemCode(code, _)| *code);
        if let Some(code) = code {
            shared.metrics.problem(code);
        }
        if response.extensions().get::<RanUnguarded>().is_some() {
            shared.metrics.unguarded.inc();
        }
        let setting = code.and_then(|code| self.in_flight.0.setting_behind(code));
        let (method, id, span) = (self.method, &self.id, &self.span);
        shared.log_request(AccessEntry { method, route, id, span, took, setting }, &response);
        span.end(response.status(), code);
        if let (Some(audit), Some(code)) = (&shared.audit, code)
            && is_refusal(self.method, code)
        {
            let (subject, code) = (self.subject.clone(), code.slug());
            let (method, route) = (self.method, route.to_owned());
            let is_stranger = shared.authenticator.is_some() && self.identity.is_none();
            let act = Act::Refused { method, route, status, code, subject, is_stranger };
            write(audit, &self.id, self.identity.as_deref(), &act, None);
        }
        response.headers_mut().insert(X_REQUEST_ID, self.id.clone());
        if self.names_source {
            name_no_source(&mut response);
        }
        if self.wants_page { self.in_flight.0.with_page(response) } else { response }
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

thread_local! {
    /// The next id that this thread gives. Each begins at a random number, which sets the ids of
    /// threads and of processes apart; a number that all threads count on would go from core to
    /// core with each request.
    static NEXT_ID: Cell<u64> = Cell::new(RandomState::new().hash_one(()));
}

/// The id of a request. That of a client has 1 to 128 visible ASCII characters.
fn id_of(request: &Request<Body>) -> HeaderValue {
    let is_usable = |id: &&HeaderValue| {
        (1..=MAX_ID_LEN).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    if let Some(id) = request.headers().get(X_REQUEST_ID).filter(is_usable) {
        return id.clone();
    }
    // A number, because formatting text would be 3 % of a request.
    NEXT_ID.replace(NEXT_ID.get().wrapping_add(1)).into()
}

/// How much of the service a request may find in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Urgency {
    /// All of it: a full service is alive, and restarting it would not make it less full.
    Health,
    /// Up to the limit: it ends or keeps a lease or a run, so it makes room.
    End,
    /// All but the last tenth, so that no number of runs and waits keeps the others out.
    Other,
}

impl Urgency {
    fn of(request: &Request<Body>, class: RouteClass, route: Option<&str>) -> Self {
        if class != RouteClass::Api {
            return Self::Other;
        }
        let route = route.unwrap_or_default();
        match *request.method() {
            _ if route == "/livez" => Self::Health,
            Method::DELETE | Method::PUT => Self::End,
            Method::POST if route.ends_with("/renew") || route.ends_with("/break") => Self::End,
            _ => Self::Other,
        }
    }
}

impl RequestRules {
    /// Lets a request in beside so many others.
    fn make_room(
        &self,
        others: i64,
        urgency: Urgency,
        connection: Option<&ConnectionInfo>,
    ) -> Result<(), Problem> {
        if urgency == Urgency::Other && connection.is_some_and(|connection| connection.is_surplus) {
            // Its connection was counted as shed.
            return Err(overloaded("The service has too many connections."));
        }
        let room = match urgency {
            Urgency::Health => i64::MAX,
            Urgency::End => self.max_requests,
            Urgency::Other => self.max_requests - self.max_requests / 10,
        };
        if others < room {
            return Ok(());
        }
        self.metrics.shed.inc();
        Err(overloaded("The service has too many requests."))
    }

    /// Whether a request may be kept for longer than its response takes.
    fn is_half_free(&self) -> bool {
        self.metrics.in_flight.get() < self.max_requests / 2
    }

    /// Writes the line of a request, if it is to have one.
    fn log_request(&self, entry: AccessEntry<'_>, response: &Response<Body>) {
        let is_notable = response.status().is_server_error()
            || entry.took >= self.slow
            || entry.setting.is_some();
        let is_logged = match self.log {
            AccessLog::All => true,
            AccessLog::Errors => is_notable,
            AccessLog::Off => false,
        };
        if is_logged {
            write_line(entry, response);
        }
    }
}

/// A request that is being served under a layer, counted until this is dropped.
#[derive(Debug)]
struct InFlight(Arc<RequestLayer>);

impl InFlight {
    /// Counts a request. Gives how many others there are.
    fn begin(layer: Arc<RequestLayer>) -> (Self, i64) {
        let others = layer.shared.metrics.in_flight.inc();
        (Self(layer), others)
    }

    fn shared(&self) -> &RequestRules {
        &self.0.shared
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.shared().metrics.in_flight.dec();
    }
}

pin_project! {
    /// The time at which a request is answered 503, whatever it has come to.
    #[derive(Debug)]
    struct Deadline {
        end: Instant,
        #[pin]
        timer: Option<Sleep>,
    }
}

impl Deadline {
    fn new(end: Instant) -> Self {
        Self { end, timer: None }
    }

    /// Ready with the problem when the time is over.
    fn poll_over(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Problem> {
        let mut this = self.project();
        if this.timer.is_none() {
            this.timer.set(Some(sleep_until(*this.end)));
        }
        let timer = this.timer.as_pin_mut();
        timer.map_or(Poll::Ready(()), |timer| timer.poll(cx)).map(|()| too_slow())
    }
}

fn too_slow() -> Problem {
    Problem::new(Code::Timeout, "The request took longer than the service allows.")
        .with_outcome(Effect::Unknown)
        .with_retry_after(Duration::from_secs(1))
}

/// What a log line says of a request.
#[derive(Debug, Clone, Copy)]
struct AccessEntry<'a> {
    method: &'static str,
    /// The pattern of the route.
    route: &'a str,
    id: &'a HeaderValue,
    span: &'a RequestSpan,
    took: Duration,
    /// The setting that would have let it pass.
    setting: Option<&'static str>,
}

fn write_line(entry: AccessEntry<'_>, response: &Response<Body>) {
    let AccessEntry { method, route, id, span, took, setting } = entry;
    let status = response.status().as_u16();
    let duration_ms = took.as_secs_f64() * 1000.0;
    let request_id = id.to_str().unwrap_or_default();
    let trace_id = span.trace_id();
    if response.status().is_server_error() {
        let cause = response.extensions().get::<ProblemCause>();
        let cause = cause.map(|ProblemCause(cause)| tracing::field::display(chain(cause.as_ref())));
        tracing::error!(method, route, status, duration_ms, request_id, trace_id, cause, "request");
    } else {
        tracing::info!(
            method,
            route,
            status,
            duration_ms,
            request_id,
            trace_id,
            setting,
            "request"
        );
    }
}

/// An error and its causes, on one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
