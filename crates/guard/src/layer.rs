//! The tower layer: a request with a key runs once, and every repeat gets its response.
//!
//! The layer joins the parts: [`Submission`] reads the key and the fingerprint, the core's
//! [`IdempotencyService`] decides whether the work runs, and `response` turns what it found into an
//! answer. From its first step in the store on, a run ends also when its client goes away.
//! `tests` run the layer over HTTP on every store, and around an inner service that insists on
//! being polled ready.

use std::convert::Infallible;
use std::fmt;
use std::future::ready;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::Request;
use axum::http::HeaderName;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use tokio::sync::oneshot;
use tower::{Layer, Service, ServiceExt as _};

use crate::key_source::KeyKind;
use crate::observe::{self, Observed, WouldRefuse};
use crate::response::{self, request_id, with_source};
use crate::submission::{KeyedRequest, PrincipalFn, Submission, check_method};
use crate::{Guard, InvalidSetting, IssuedKeys, Problem, Records, with_resolve};
use keylatch_core::idempotency::{
    IdempotencyError, IdempotencyService, OnCrash, OnceRun, Principal, RecordScope, Run,
    RunRequest, Share,
};
use keylatch_core::store::{Store, StoreError};

/// The fencing token of a run, for the handler to hand to what it changes.
pub const IDEMPOTENCY_FENCE: HeaderName = HeaderName::from_static("idempotency-fence");

/// Runs each guarded request once, however often it is submitted under its `Idempotency-Key`, and
/// gives every repeat the first response.
///
/// The request that comes first reaches the inner service with the header `Idempotency-Fence` and,
/// as an extension, its [`FencingToken`](keylatch_core::lock::FencingToken). It runs to its end
/// also when its client goes away. [`RetentionPolicy`](crate::RetentionPolicy) says what becomes
/// of the key.
#[derive(Clone)]
pub struct IdempotencyLayer(Arc<LayerState>);

type ResolveUrlFn = Arc<dyn Fn(&RecordScope) -> String + Send + Sync>;
type AddressFn = fn(&Request) -> Option<IpAddr>;

/// What all clones of a layer share: the settings of its guard, and what is code beside them.
#[derive(Clone)]
struct LayerState {
    service: Arc<IdempotencyService>,
    guard: Guard,
    principal: PrincipalFn,
    issued: Option<IssuedKeys>,
    answer_timeout: Option<Duration>,
    resolve_url: Option<ResolveUrlFn>,
    /// The guard in whose shares the records count.
    name: Arc<str>,
    /// From which address a client comes.
    address: AddressFn,
    observer: Arc<dyn Fn(Observed) + Send + Sync>,
}

impl IdempotencyLayer {
    /// Guards by the records in `store`, each of whose steps may take 2 s.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::over(IdempotencyService::start(store, Duration::from_secs(2)))
    }

    /// Guards by a service that other layers use as well.
    pub fn over(service: Arc<IdempotencyService>) -> Self {
        Self(Arc::new(LayerState {
            service,
            guard: Guard::default(),
            principal: Arc::new(|_| Principal::None),
            issued: None,
            answer_timeout: None,
            resolve_url: None,
            name: Arc::default(),
            address: |_| None,
            observer: Arc::new(|_| {}),
        }))
    }

    /// Guards by these settings instead of the defaults.
    ///
    /// # Errors
    ///
    /// A setting is not as it must be.
    pub fn with_guard(self, guard: Guard) -> Result<Self, InvalidSetting> {
        guard.check()?;
        Ok(self.with(|state| state.guard = guard))
    }

    /// Gives each principal its own keys: the user or system for which a request comes, by an
    /// identity that outlives the refreshing of a credential.
    #[must_use]
    pub fn with_principal(
        self,
        user: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.with_principal_of(move |parts| user(parts).map_or(Principal::None, Principal::User))
    }

    /// The same, where the function also says of what kind the principal is.
    pub(crate) fn with_principal_of(
        self,
        principal: impl Fn(&Parts) -> Principal + Send + Sync + 'static,
    ) -> Self {
        self.with(|state| state.principal = Arc::new(principal))
    }

    /// Says what signs the keys of a guard that takes issued ones alone
    /// ([`KeySource::Issued`](crate::KeySource)); without it such a guard refuses every key.
    #[must_use]
    pub fn with_issued_keys(self, keys: Option<IssuedKeys>) -> Self {
        self.with(|state| state.issued = keys)
    }

    /// Limits how long a client waits for the whole response of a run. Then it gets 504, the
    /// outcome is unknown, and a response that comes within a lease from then on is stored
    /// nevertheless.
    #[must_use]
    pub fn with_answer_timeout(self, limit: Duration) -> Self {
        self.with(|state| state.answer_timeout = Some(limit))
    }

    /// Says where an operator settles the unknown outcome of a request, for the problem that says
    /// so (`resolve`). The function gets the scope of the request; a problem whose scope is not
    /// kept whole has no such member.
    #[must_use]
    pub fn with_resolve_url(
        self,
        resolve_url: impl Fn(&RecordScope) -> String + Send + Sync + 'static,
    ) -> Self {
        self.with(|state| state.resolve_url = Some(Arc::new(resolve_url)))
    }

    /// Counts the records as those of this guard, and there as those of the principal or, without
    /// one, of an address: none of either has all the room of the store.
    #[must_use]
    pub fn with_shares(self, guard: &str, address: AddressFn) -> Self {
        self.with(|state| (state.name, state.address) = (guard.into(), address))
    }

    /// Calls this for each request with what enforcing would have made of it, where the guard only
    /// observes ([`Mode::Observe`](crate::Mode)).
    #[must_use]
    pub fn with_observer(self, observer: impl Fn(Observed) + Send + Sync + 'static) -> Self {
        self.with(|state| state.observer = Arc::new(observer))
    }

    fn with(mut self, set: impl FnOnce(&mut LayerState)) -> Self {
        set(Arc::make_mut(&mut self.0));
        self
    }

    /// The records behind the layer: to look at one, list them by state, and settle unknown
    /// outcomes.
    pub fn records(&self) -> Records {
        Records(Arc::clone(&self.0.service))
    }

    /// Awaits the runs that are under way for at most `limit`, also those whose client has gone,
    /// and then leaves the others: their handlers are dropped, their outcome is unknown in the
    /// store, and their clients read 409 `outcome-unknown`. With
    /// [`OnCrash::Rerun`](keylatch_core::idempotency::OnCrash) the key is in progress until the
    /// lease ends, and the next request runs. No run begins afterwards.
    ///
    /// A program calls it when a signal ends it, while its server still serves the requests that it
    /// has:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use axum::{Router, routing::post};
    /// # use keylatch_axum::IdempotencyLayer;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let layer = IdempotencyLayer::new(keylatch_stores::memory());
    /// let orders = Router::new().route("/orders", post(async || "ordered")).layer(layer.clone());
    /// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    /// let shutdown = async {}; // SIGTERM, in a program that is no example.
    /// let (told, tell) = tokio::sync::oneshot::channel();
    /// let serving = axum::serve(listener, orders).with_graceful_shutdown(async {
    ///     shutdown.await;
    ///     let _ = told.send(());
    /// });
    /// let draining = async {
    ///     if tell.await.is_ok() {
    ///         layer.drain(Duration::from_secs(10)).await;
    ///     }
    /// };
    /// let (served, ()) = tokio::join!(serving.into_future(), draining);
    /// # served
    /// # }
    /// ```
    pub async fn drain(&self, limit: Duration) {
        self.0.service.drain(limit).await;
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("guard", &self.0.guard).finish_non_exhaustive()
    }
}

impl<I> Layer<I> for IdempotencyLayer {
    type Service = GuardService<I>;

    fn layer(&self, inner: I) -> GuardService<I> {
        GuardService { inner, layer: self.clone() }
    }
}

/// The service of an [`IdempotencyLayer`].
#[derive(Debug, Clone)]
pub struct GuardService<I> {
    inner: I,
    layer: IdempotencyLayer,
}

impl<I> Service<Request> for GuardService<I>
where
    I: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    I::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        // A fencing token is the layer's to give, never the client's.
        request.headers_mut().remove(IDEMPOTENCY_FENCE);
        let guard = &self.layer.0.guard;
        let observes = guard.observes();
        match check_method(guard, &request) {
            Err(_) if observes => drop(request.extensions_mut().insert(WouldRefuse)),
            Err(problem) => return Box::pin(ready(Ok(refuse(problem)))),
            Ok(()) if guard.guards(request.method()) => {}
            Ok(()) => return Box::pin(self.inner.call(request)),
        }
        // The one that was polled is ready, and its clone need not be.
        let next = self.inner.clone();
        let polled = std::mem::replace(&mut self.inner, next);
        let layer = self.layer.clone();
        if observes {
            return Box::pin(async move { Ok(layer.observe(polled, request).await) });
        }
        Box::pin(async move { Ok(layer.guard(polled, request).await) })
    }
}

impl IdempotencyLayer {
    async fn submission(&self, request: Request) -> Result<Submission, Problem> {
        let LayerState { guard, name, principal, issued, .. } = &*self.0;
        Submission::read(guard, name, principal, issued.as_ref(), request).await
    }

    async fn guard<I>(self, mut inner: I, request: Request) -> Response
    where
        I: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
        I::Future: Send + 'static,
    {
        let LayerState { service, guard, answer_timeout, resolve_url, name, .. } = &*self.0;
        let address = (self.0.address)(&request);
        let submission = self.submission(request).await;
        let KeyedRequest { request, mut ask, kind, is_coded, prefers_wait, spare } =
            match submission {
                Ok(Submission::Keyed(keyed)) => keyed,
                Ok(Submission::Unkeyed(request)) => {
                    let Ok(response) = inner.call(request).await;
                    return with_source(response, KeyKind::None);
                }
                Err(refusal) => return refuse(refusal),
            };
        ask.scope = in_share(ask.scope, name, address);
        let (key, scope) = (ask.key, ask.scope.clone());
        let of_answer = scope.clone();
        // One clone for all of the run, since each changes a count that all cores share.
        let of_run = self.clone();
        let (limit, lease, id) = (*answer_timeout, guard.lease(), request_id(request.headers()));
        let spare = spare.map(|spare| (inner.clone(), spare));
        let work = move |run: Run| async move {
            let answer = async move {
                let LayerState { service, guard, .. } = &*of_run.0;
                let Ok(response) = inner.call(with_fencing_token(*request, run)).await;
                response::run_result(response, guard, service, &of_answer).await
            };
            response::with_trail(response::in_time(Box::pin(answer), limit, lease).await, id)
        };
        let (wait, on_crash) = (ask.wait, ask.on_crash);
        let response = match service.once(ask, work).await {
            Ok(run) => response_of(run, kind, is_coded, on_crash),
            Err(error) => match spare.filter(|_| is_store_down(&error)) {
                Some((inner, request)) => return run_unguarded(inner, *request, error).await,
                None => Problem::from(error).with_retry().into_response(),
            },
        };
        let url = resolve_url.as_ref().filter(|_| scope.leads_to(&key));
        let leads_back = || url.map(|url| url(&scope));
        let response = with_source(with_resolve(response, leads_back), kind);
        if prefers_wait { response::with_applied_wait(response, wait) } else { response }
    }
}

impl IdempotencyLayer {
    /// Passes a request on as it came, and counts what enforcing would have made of it.
    async fn observe<I>(self, mut inner: I, request: Request) -> Response
    where
        I: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
        I::Future: Send + 'static,
    {
        let address = (self.0.address)(&request);
        let (parts, body) = request.into_parts();
        let read = match parts.extensions.get::<WouldRefuse>() {
            Some(WouldRefuse) => Err(body),
            None => observe::read_ahead(body, self.0.guard.body_limits()).await,
        };
        let (request, submission) = match read {
            Ok(body) => {
                let of_body = || Request::from_parts(parts.clone(), body.clone().into());
                let submission = self.submission(of_body()).await;
                if let Ok(Submission::Keyed(KeyedRequest { mut ask, kind, .. })) = submission {
                    ask.scope = in_share(ask.scope, &self.0.name, address);
                    observe::make_observed(&mut ask);
                    return self.observe_run(inner, (ask, kind), [of_body(), of_body()]).await;
                }
                (of_body(), submission.map_err(|refusal| Observed::of_refusal(&refusal)))
            }
            Err(body) => (Request::from_parts(parts, body), Err(Observed::Unreadable)),
        };
        if let Err(observed) = submission {
            self.note(observed);
        }
        let Ok(response) = inner.call(request).await;
        response
    }

    /// Runs one of two copies of a request: beside its record, or without one.
    async fn observe_run<I>(
        self,
        mut inner: I,
        (ask, kind): (RunRequest, KeyKind),
        [request, spare]: [Request; 2],
    ) -> Response
    where
        I: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
        I::Future: Send + 'static,
    {
        let (unpolled, of_run) = (inner.clone(), self.clone());
        let (client, mut sent) = oneshot::channel();
        let work = move |_| async move {
            of_run.note(Observed::First);
            let Ok(response) = inner.call(request).await;
            let result = observe::observed_result(&response, &of_run.0.guard);
            drop(client.send(response));
            result
        };
        let run = self.0.service.once(ask, work).await;
        match (sent.try_recv(), run) {
            (Ok(response), _) => response,
            (Err(_), Ok(OnceRun::Ran { .. } | OnceRun::Interrupted)) => {
                response::interrupted_run_response(OnCrash::Unknown)
            }
            (Err(_), run) => {
                self.note(Observed::of_run(run, kind));
                let Ok(response) = unpolled.oneshot(spare).await;
                response
            }
        }
    }

    fn note(&self, observed: Observed) {
        use Observed::{First, KeyRequired, Unobserved, Unreadable};
        if !matches!(observed, First | KeyRequired | Unreadable | Unobserved) {
            let (guard, outcome) = (&*self.0.name, <&str>::from(observed));
            tracing::info!(guard, outcome, "enforcing would not have run a request again");
        }
        (self.0.observer)(observed);
    }
}

/// The response to a request whose key was not asked for.
fn refuse(problem: Problem) -> Response {
    with_source(problem.with_retry().into_response(), KeyKind::None)
}

/// The scope in the share of its principal or, without one, of an address.
fn in_share(scope: RecordScope, guard: &str, address: Option<IpAddr>) -> RecordScope {
    let share = match scope.principal() {
        Principal::None => Share::of(guard, address),
        principal => Share::of(guard, principal.to_string()),
    };
    scope.in_share(share)
}

/// Whether the store cannot be reached, so that this instance has begun nothing.
fn is_store_down(error: &IdempotencyError) -> bool {
    matches!(error, IdempotencyError::Store(StoreError::Unreachable(_)))
}

/// The response to a request that runs although no store keeps that it does.
async fn run_unguarded<I>(inner: I, request: Request, error: IdempotencyError) -> Response
where
    I: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
{
    tracing::warn!(%error, "the store cannot be used: a request runs unguarded, and so does its retry");
    let Ok(mut response) = inner.oneshot(request).await;
    response.extensions_mut().insert(RanUnguarded);
    with_source(response, KeyKind::None)
}

/// In the extensions of a response: its request ran without its key, because the store could not be
/// used.
#[derive(Debug, Clone, Copy)]
pub struct RanUnguarded;

fn response_of(
    run: OnceRun<Response>,
    kind: KeyKind,
    is_coded: bool,
    on_crash: OnCrash,
) -> Response {
    match run {
        OnceRun::Ran { answer, kept } => response::with_expiry(answer, kept),
        OnceRun::Found(view) => response::repeat_response(view),
        OnceRun::Reused(view) if kind == KeyKind::OncePer => response::already_done_response(view),
        OnceRun::Reused(view) => response::reused_key_response(&view, is_coded),
        OnceRun::Interrupted => response::interrupted_run_response(on_crash),
    }
}

fn with_fencing_token(mut request: Request, run: Run) -> Request {
    request.headers_mut().insert(IDEMPOTENCY_FENCE, run.fencing_token.get().into());
    request.extensions_mut().insert(run.fencing_token);
    request
}
