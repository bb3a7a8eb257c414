//! The HTTP surface: what is served where, and how a request becomes a call of the core.
//!
//! A handler parses, calls one method of a service, and maps the reply; the one middleware
//! (`request.rs`) does what is the same for all. Errors become rows of one table (`problem.rs`).
//! Each listener serves the parts that its configuration names. Tested in `tests/api`.

mod api;
mod assets;
mod audit;
mod caller;
mod console;
mod docs;
mod extract;
pub(crate) mod guards;
mod openapi;
mod origin;
mod parts;
mod problem;
mod problem_pages;
mod request;
mod revocation;
mod sandbox;
mod server;

use std::io;
use std::iter::zip;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderName, Method, Uri};
use axum::middleware::map_response;
use axum::routing::{any, get};
use serde_json::{Value, json};
use tower::util::MapResponseLayer;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::map_response_body::MapResponseBodyLayer;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use self::api::{backup, breaks, issued_keys, locks, record_list, records, sets, streams, system};
use self::guards::{Guards, settled};
use self::openapi::routes;
use keylatch_axum::InvalidSetting;
use keylatch_core::idempotency::IdempotencyService;

pub use api::record_counts::RecordCounter;
pub use api::{Api, Backups, Streams};
pub use guards::PassThrough;
pub use keylatch_axum::{
    BodyLimits, CrossOrigin, DeriveKey, FieldName, Guard, GuardAccess, KeyPart, KeySource,
    MissingKey, Mode, OnStoreDown, Settle,
};
pub use openapi::Document;
pub use origin::{Cors, OriginPolicy};
pub use parts::{Part, ServedParts};
pub use problem::{Code, Problem};
pub(crate) use request::RequestRules;
pub use request::{RequestLayer, RequestService};
pub use sandbox::SandboxMode;
pub use server::{
    AcceptedConnection, BoundListener, Listener, ListenerSettings, ServeError, Server, Settings,
    SocketIo, StreamSocket, TlsFileError, TlsFiles, TlsSettings, UnixSocket,
};
pub(crate) use server::{HandedSockets, Routes, reachable};

/// The header that has the id of a request, in requests and in responses.
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

pub use crate::telemetry::AccessLog;

/// What is served beside the API itself.
#[derive(Debug, Clone, Copy)]
pub struct Extras<'a> {
    /// The guarded routes of the configuration.
    pub guards: &'a [Guard],
    /// Whether the toy shop is served. A guard on one of its paths takes that path.
    pub sandbox: bool,
}

/// Every route of the service.
///
/// Guards and the toy shop are served only where there are records.
pub fn router(
    api: Api,
    extras: Extras<'_>,
    (cors, passes): (&Cors, &PassThrough),
    requests: &RequestLayer,
) -> io::Result<Router> {
    let extras = Extras { sandbox: extras.sandbox && api.records.is_some(), ..extras };
    let guards = Guards::new(extras.guards, passes, requests)?;
    let (mut guarded, mut shop) = (Router::new(), Router::new());
    if let Some(records) = &api.records {
        guards.settle(records, &api.locks, &settled::observer(&api))?;
        guarded = guards.routes(records, api.issued_keys.as_ref(), &api.metrics)?;
        shop = shop_routes(extras, records, requests).map_err(io::Error::other)?;
    }
    let max_wait = api.max_wait;
    let api = Arc::new(api);
    let (long_poll, document) = long_poll_routes().split_for_parts();
    let long_poll =
        long_poll.method_not_allowed_fallback(method_not_allowed).with_state(Arc::clone(&api));
    let (short, rest) = short_routes().split_for_parts();
    let own = short
        .route("/v1/locks/", any(locks::empty_name))
        .with_state(Arc::clone(&api))
        .merge(assets::module())
        .merge(if extras.sandbox { assets::shop() } else { Router::new() })
        .route("/problems", get(problem_pages::list))
        .merge(docs::pages(&extras.document(document.merge_from(rest)))?)
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(system::not_found);
    // A client may wait before its request takes its time.
    let waiting = RequestLayer { deadline: requests.deadline + max_wait, ..requests.clone() };
    let long_poll = layered(long_poll, waiting);
    let console = console::routes(extras.sandbox).with_state(api);
    let console = console.method_not_allowed_fallback(method_not_allowed);
    let console = layered(console, requests.clone());
    let console = console.layer(map_response(console::without_password_box));
    let own = layered(own, requests.clone()).merge(console);
    let of_app =
        guards.rest()?.map(|rest| rest.merge(guarded.clone()).nest(guards::OWN, own.clone()));
    let all = own.merge(long_poll).merge(guarded).merge(shop);
    Ok(match of_app {
        Some(of_app) => guards::by_listener(with_cors(all, cors), with_cors(of_app, cors)),
        None => with_cors(all, cors),
    })
}

fn with_cors(routes: Router, cors: &Cors) -> Router {
    match cors.layer() {
        Some(cors) => routes.layer((cors, MapResponseLayer::new(origin::remove_cors_headers))),
        None => routes,
    }
}

/// The routes of the toy shop, guarded as well.
fn shop_routes(
    extras: Extras<'_>,
    records: &Arc<IdempotencyService>,
    requests: &RequestLayer,
) -> Result<Router, InvalidSetting> {
    let class = CrossOrigin::Refuse.into();
    let of_shop = RequestLayer { deadline: sandbox::deadline(), class, ..requests.clone() };
    let mut shop = sandbox::routers(records, |path| !extras.serves_shop_at(path));
    shop.try_fold(Router::new(), |all, one| Ok(all.merge(layered(one?, of_shop.clone()))))
}

/// The routes with what is the same for all around them.
fn layered(router: Router, requests: RequestLayer) -> Router {
    // One layer of three: axum boxes a request's future again for each call of `layer`.
    router.layer((
        requests,
        MapResponseBodyLayer::new(Body::new),
        CatchPanicLayer::custom(problem::of_panic),
    ))
}

/// The OpenAPI document of the service with these routes beside its own.
pub fn openapi(extras: Extras<'_>) -> Document {
    extras.document(long_poll_routes().into_openapi().merge_from(short_routes().into_openapi()))
}

impl Extras<'_> {
    fn serves_shop_at(&self, path: &str) -> bool {
        self.sandbox && self.guards.iter().all(|guard| guard.path != path)
    }

    /// The whole document, where `own` is that of the API itself.
    fn document(&self, own: OpenApi) -> Document {
        let shop = sandbox::document(|path| !self.serves_shop_at(path));
        openapi::complete(own.merge_from(guards::document(self.guards)).merge_from(shop))
    }
}

/// The routes on which a client may wait for a lock or the end of a run, and what else has their
/// paths.
fn long_poll_routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(
            locks::create_lock,
            locks::renew_lock,
            locks::release_lock,
            locks::get_lock
        ))
        .routes(routes!(
            sets::create_lock_set,
            sets::renew_lock_set,
            sets::release_lock_set,
            locks::list_locks
        ))
        .routes(routes!(
            records::begin_idempotency,
            records::complete_idempotency,
            records::abandon_idempotency,
            records::get_idempotency
        ))
}

/// The others.
fn short_routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(breaks::break_lock))
        .routes(routes!(breaks::end_lock_wait))
        .routes(routes!(breaks::get_lock_history))
        .routes(routes!(streams::hold_lock))
        .routes(routes!(streams::watch_lock))
        .routes(routes!(record_list::list_idempotency))
        .routes(routes!(issued_keys::issue_idempotency_key))
        .routes(routes!(records::renew_idempotency))
        .routes(routes!(records::fail_idempotency))
        .routes(routes!(records::resolve_idempotency))
        .routes(routes!(records::erase_idempotency_answer))
        .routes(routes!(system::get_info))
        .routes(routes!(backup::get_backup))
        .routes(routes!(system::get_liveness))
        .routes(routes!(system::get_readiness))
        .routes(routes!(system::get_metrics))
        .routes(routes!(problem_pages::get_problem_page))
}

/// Refuses a method, and says which ones the resource takes.
async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    let detail = match methods_of(uri.path()) {
        Some(methods) => format!("The resource does not take {method}; use {methods}."),
        None => {
            format!("The resource does not take {method}; the Allow header says what it takes.")
        }
    };
    Problem::new(Code::MethodNotAllowed, detail)
}

/// The methods that a path of the API takes, as its document has them.
fn methods_of(path: &str) -> Option<String> {
    static DOCUMENT: LazyLock<Value> =
        LazyLock::new(|| json!(openapi(Extras { guards: &[], sandbox: true })));
    let is_of = |template: &str| {
        template.split('/').count() == path.split('/').count()
            && zip(template.split('/'), path.split('/'))
                .all(|(part, found)| part.starts_with('{') || part == found)
    };
    let (_, item) = DOCUMENT["paths"].as_object()?.iter().find(|(path, _)| is_of(path))?;
    Some(item.as_object()?.keys().map(|key| key.to_uppercase()).collect::<Vec<_>>().join(", "))
}
