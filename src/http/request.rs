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
use std::future::poll_fn;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::MatchedPath;
use axum::http::{HeaderValue, Method, Request, Response, header};
use axum::response::IntoResponse;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep_until, timeout_at};
use tower::{Layer, Service};
use tracing::field::display;

use super::X_REQUEST_ID;
use super::api::system;
use super::audit::{Act, RequestId, Subject, is_refusal, write};
use super::guards::OWN;
use super::origin::{ConnectionInfo, OriginPolicy, RouteClass};
use super::parts::{Part, ServedParts};
use super::problem::{
    Code, Problem, forbidden, lead_below, overloaded, quota_exceeded, unauthenticated,
};
use crate::access::{
    Authenticator, Identity, KEYLATCH_AUTHORIZATION, RefusalPause, RefusedCredential,
};
use crate::audit::AuditLog;
use crate::metrics::{Metrics, RouteDurations};
use crate::telemetry::AccessLog;
use crate::traces::RequestSpan;
use keylatch_axum::gateway::{Admission, ErrorPage, TrustedProxy, wants_page};
use keylatch_axum::{GuardAccess, ProblemCause, ProblemCode, RanUnguarded, name_no_source};
use keylatch_core::store::Effect;
use keylatch_core::store::chain;

/// Why a page of this origin does not get what is for identities.
const OF_GUARDED_PAGE: &str = "A page of this host sent this, and services behind guards have pages here. The API and the \
     console are for pages of a listener without `guards`. Nothing was done.";
/// The longest id of a client that is used.
const MAX_ID_LEN: usize = 128;

/// The one layer around every route.
#[derive(Debug, Clone)]
pub struct RequestLayer {
    pub(super) shared: Arc<RequestRules>,
    /// How long a request may take.
    pub(super) deadline: Duration,
    /// What the routes take from web pages.
    pub(super) class: RouteClass,
    /// What lets requests in at a guarded route.
    pub(super) admission: Option<Arc<Admission>>,
    /// The histograms of the route that this layer is around. There are none before its first
    /// request.
    pub(super) durations: RouteDurations,
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

    /// Counts a request, and finds out whether it may pass.
    fn admit(
        self: &Arc<Self>,
        request: &mut Request<Body>,
    ) -> (RequestTicket, Result<(), Problem>) {
        let (started, class) = (Instant::now(), self.class);
        // Taken out and not cloned: no handler reads it, and all cores share the count of its
        // clones.
        let path = request.extensions_mut().remove::<MatchedPath>();
        let route = path.as_ref().map(MatchedPath::as_str);
        let route = route.map(|route| route.strip_prefix(OWN).unwrap_or(route));
        let others = self.shared.metrics.in_flight.inc();
        let (method, id) = (method_label(request.method()), id_of(request));
        let scheme = || ConnectionInfo::of(request).map_or("http", ConnectionInfo::scheme);
        let span = RequestSpan::start(request, scheme, (method, route), &id);
        let passed = self.check(request, route, others);
        let (mut identity, mut subject) = (None, None);
        if self.shared.audit.is_some() {
            identity = ConnectionInfo::identity(request.extensions()).cloned();
            subject = route.and_then(|route| Subject::of(route, request.uri()));
            request.extensions_mut().insert(RequestId(id.clone()));
        }
        let admission = self.admission.as_ref();
        let ticket = RequestTicket {
            started,
            method,
            route: path,
            id,
            span,
            identity,
            subject,
            prefix: self.shared.origins.prefix(request),
            wants_page: class != RouteClass::Api && wants_page(request.headers()),
            names_source: admission.is_some_and(|guard| guard.names_source(request.method())),
            layer: Arc::clone(self),
        };
        if class != RouteClass::Api {
            ticket.prepare_forwarding(request);
        }
        let let_in = |()| admission.map_or(Ok(()), |guard| guard.admit(request));
        (ticket, passed.and_then(let_in))
    }

    /// The checks of a request beside so many others, in their order: the service has room, the
    /// page may send it, the listener serves the route, and the identity may send it.
    fn check(
        &self,
        request: &mut Request<Body>,
        route: Option<&str>,
        others: i64,
    ) -> Result<(), Problem> {
        self.shared.make_room(request, self.class, route, others)?;
        if let Err(why) = self.shared.origins.check(request, self.class, route) {
            match &self.admission {
                // One that only observes refuses nothing.
                Some(guard) => guard.refuse(request, why)?,
                None => return Err(why),
            }
        }
        self.find(request, route)?;
        self.identify(request, route)
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
        let connection = ConnectionInfo::of(request);
        let certificate = connection.and_then(|connection| connection.certificate.as_deref());
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
        let connection = request.extensions_mut().get_or_insert_default::<ConnectionInfo>();
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
    S: Service<Request<Body>, Response = Response<Body>, Future: Send + 'static>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let (ticket, passed) = self.layer.admit(&mut request);
        let end = ticket.started + self.layer.deadline;
        let answering = match passed {
            Ok(()) => Ok(self.inner.call(request)),
            Err(refusal) => Err((refusal, request.extensions_mut().remove::<RefusalPause>())),
        };
        Box::pin(async move {
            let answer = match answering {
                Ok(answering) => match ticket.follow(timeout_at(end, answering)).await {
                    Ok(response) => Ok(response?),
                    Err(_) => Err(too_slow()),
                },
                Err((refusal, pause)) => {
                    if let Some(pause) = &pause {
                        sleep_until(ticket.started + pause.lasts).await;
                    }
                    Err(refusal)
                }
            };
            let response = answer.unwrap_or_else(|problem| problem.with_retry().into_response());
            Ok(ticket.close(response))
        })
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
    /// The path below which a proxy has the service.
    prefix: Option<String>,
    /// Whether a person reads the response, in a browser and of a guarded route.
    wants_page: bool,
    /// Whether the response says where the key of the request comes from.
    names_source: bool,
    layer: Arc<RequestLayer>,
}

impl RequestTicket {
    /// Gives the request what the gateway and the service behind a guard know it by.
    fn prepare_forwarding(&self, request: &mut Request<Body>) {
        // The service behind a guard logs the same id.
        request.headers_mut().insert(X_REQUEST_ID, self.id.clone());
        if self.layer.shared.origins.trusts(request) {
            request.extensions_mut().insert(TrustedProxy);
        }
        self.span.hand_on(self.method, request);
    }

    /// Runs the request as the current one of its traces.
    async fn follow<F: Future>(&self, answering: F) -> F::Output {
        let mut answering = pin!(answering);
        poll_fn(|cx| {
            let _current = self.span.enter();
            answering.as_mut().poll(cx)
        })
        .await
    }

    /// The response as it goes out, counted and logged.
    fn close(&self, mut response: Response<Body>) -> Response<Body> {
        let (took, shared) = (self.started.elapsed(), &self.layer.shared);
        let (method, route) = (self.method, self.route());
        let status = response.status().as_u16();
        shared.metrics.request((method, route, &self.layer.durations), status, took);
        let code = response.extensions().get().map(|ProblemCode(code, _)| *code);
        if let Some(code) = code {
            shared.metrics.problem(code);
        }
        if response.extensions().get::<RanUnguarded>().is_some() {
            shared.metrics.unguarded.inc();
        }
        self.log(&response, took, code.and_then(|code| self.layer.setting_behind(code)));
        self.span.end(response.status(), code);
        if let (Some(audit), Some(code)) = (&shared.audit, code)
            && is_refusal(method, code)
        {
            let (subject, code, route) = (self.subject.clone(), code.slug(), route.to_owned());
            let is_stranger = shared.authenticator.is_some() && self.identity.is_none();
            let act = Act::Refused { method, route, status, code, subject, is_stranger };
            write(audit, Some(&self.id), self.identity.as_deref(), &act, None);
        }
        response.headers_mut().insert(X_REQUEST_ID, self.id.clone());
        if self.names_source {
            name_no_source(&mut response);
        }
        if let Some(prefix) = &self.prefix {
            response = lead_below(prefix, response);
        }
        match &self.layer.admission {
            _ if !self.wants_page => response,
            Some(admission) => admission.page().show(response),
            None => ErrorPage::default().show(response),
        }
    }

    /// The pattern of the route.
    fn route(&self) -> &str {
        self.route.as_ref().map_or("unmatched", MatchedPath::as_str)
    }

    /// Writes the line of the request, if it is to have one. `setting` would have let it pass.
    fn log(&self, response: &Response<Body>, took: Duration, setting: Option<&'static str>) {
        let (shared, has_failed) = (&self.layer.shared, response.status().is_server_error());
        let is_logged = match shared.log {
            AccessLog::All => true,
            AccessLog::Errors => has_failed || took >= shared.slow || setting.is_some(),
            AccessLog::Off => false,
        };
        if !is_logged {
            return;
        }
        let (method, route, status) = (self.method, self.route(), response.status().as_u16());
        let duration_ms = took.as_secs_f64() * 1000.0;
        let request_id = self.id.to_str().unwrap_or_default();
        let trace_id = self.span.trace_id();
        let cause = response.extensions().get::<ProblemCause>().filter(|_| has_failed);
        let cause = cause.map(|ProblemCause(cause)| display(chain(cause.as_ref())));
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    method,
                    route,
                    status,
                    duration_ms,
                    request_id,
                    trace_id,
                    cause,
                    setting,
                    "request"
                )
            };
        }
        if has_failed { line!(error) } else { line!(info) }
    }
}

impl Drop for RequestTicket {
    fn drop(&mut self) {
        self.layer.shared.metrics.in_flight.dec();
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

impl RequestRules {
    /// Lets a request in beside so many others, if there is room for such a one.
    fn make_room(
        &self,
        request: &Request<Body>,
        class: RouteClass,
        route: Option<&str>,
        others: i64,
    ) -> Result<(), Problem> {
        let route = route.filter(|_| class == RouteClass::Api).unwrap_or_default();
        // A full service is alive, and restarting it would not make it less full.
        if route == "/livez" {
            return Ok(());
        }
        let keeps_or_ends = match *request.method() {
            Method::DELETE | Method::PUT => class == RouteClass::Api,
            Method::POST => route.ends_with("/renew") || route.ends_with("/break"),
            _ => false,
        };
        let is_surplus = ConnectionInfo::of(request).is_some_and(|it| it.is_surplus);
        if is_surplus && !keeps_or_ends {
            // Its connection was counted as shed.
            return Err(overloaded("The service has too many connections."));
        }
        // The last tenth is for what keeps or ends a lease or a run, which makes room: no number of
        // runs and waits keeps it out.
        let reserved = if keeps_or_ends { 0 } else { self.max_requests / 10 };
        let room = self.max_requests - reserved;
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
}

fn too_slow() -> Problem {
    Problem::new(Code::Timeout, "The request took longer than the service allows.")
        .with_outcome(Effect::Unknown)
        .with_retry_after(Duration::from_secs(1))
}
