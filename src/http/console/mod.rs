//! The console: the page at `/` on which an operator sees what the service does, and does what is
//! to be done.
//!
//! The page is static and shows nothing of what clients do. Its scripts use the API as the user
//! whom the browser knows, so the console shows a user what the API shows the same user. Beside the
//! API it has what is for it alone, below `/console`: a glance at the service, one stream of the
//! held locks, who waits for a lock and how its earlier grants ended, and a record of a key. An API
//! client reads at `/` what it reads without a console. Tested in `tests/api/console.rs` and in
//! `tests/browser`, in the modules of the console.

mod glance;
mod held_locks;
mod lock;
mod records;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, FromRequestParts, Path};
use axum::http::header::Entry;
use axum::http::request::Parts as RequestParts;
use axum::http::{HeaderMap, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;

use super::api::Api;
use super::api::system::no_resource;
use super::assets::{File, JAVASCRIPT, POLICY, STYLE, file};
use super::extract::pairs;
use super::parts::{Part, ServedParts};
use super::problem::{Code, Problem};
use super::problem_pages::prefers_html;
use keylatch_core::lock::LockName;

/// The page and what is for it alone. Links and redirects are relative, because a proxy may have the
/// service below a path. With `shop` it leads to the toy shop.
pub(super) fn routes(shop: bool) -> Router<Arc<Api>> {
    let looks = Extension(Arc::new(held_locks::Looks::default()));
    Router::new()
        .route("/", get(move |serves, headers| index(serves, headers, shop)))
        .route("/assets/page.css", get(file(STYLE, include_str!("../../../assets/page.css"))))
        .route("/assets/console/{file}", get(asset))
        .route("/console/glance", get(glance::glance))
        .route("/console/locks", get(held_locks::locks).layer(looks))
        .route("/console/queue", get(lock::queue))
        .route("/console/history", get(lock::history))
        .route("/console/keys/{key}", get(records::record))
}

/// The page asks for an API key by itself: at the first challenge, `Basic`, a browser would put its
/// own box over it.
pub(super) async fn without_password_box(mut response: Response) -> Response {
    if let Entry::Occupied(mut challenges) = response.headers_mut().entry(header::WWW_AUTHENTICATE)
        && let Some(bearer) = challenges.iter().next_back().cloned()
    {
        challenges.insert(bearer);
    }
    response
}

/// A browser gets the console, or where that is not served the docs; every other client a few lines
/// that say where to look.
async fn index(serves: ServedParts, headers: HeaderMap, shop: bool) -> Response {
    if !prefers_html(&headers) {
        return greeting(serves).into_response();
    }
    if serves.have(Part::Console) {
        return page(serves, shop);
    }
    Redirect::to("docs/").into_response()
}

/// What a listener serves: a path and what is there.
const GREETING: [(Part, &str, &str); 5] = [
    (Part::Api, "/v1/info", "the store, and what it promises"),
    (Part::Api, "/v1/locks", "the held locks; a POST to /v1/locks/NAME takes one"),
    (Part::Docs, "/openapi.json", "every request, and /docs to try them in a browser"),
    (Part::Metrics, "/metrics", "the counters"),
    (Part::Console, "/problems", "what each problem means, and what to do"),
];

fn greeting(serves: ServedParts) -> impl IntoResponse {
    let rows = GREETING.into_iter().filter(|(part, ..)| serves.have(*part));
    let rows: String = rows.map(|(_, path, what)| format!("{path:<14} {what}\n")).collect();
    let first = concat!("keylatch ", env!("CARGO_PKG_VERSION"), "\n");
    ([(header::VARY, "Accept")], first.to_owned() + &rows)
}

fn page(serves: ServedParts, shop: bool) -> Response {
    let link = |part, path: &str, text: &str| {
        if !serves.have(part) {
            return String::new();
        }
        format!("<li><a href=\"{path}\">{text}</a></li>")
    };
    let demo = if shop { link(Part::Guards, "demo", "Demo") } else { String::new() };
    let links = link(Part::Docs, "docs/", "API") + &demo;
    let page = include_str!("../../../assets/console/console.html").replace("{{links}}", &links);
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-cache"),
        (header::VARY, "Accept"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, Html(page)).into_response()
}

/// The lock that the query names.
struct NamedLock(LockName);

impl<S: Sync> FromRequestParts<S> for NamedLock {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut RequestParts, _: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        let named = pairs(query).find(|(parameter, _)| parameter == "name");
        let name = named.and_then(|(_, name)| LockName::parse(&name).ok());
        let invalid = || Problem::new(Code::InvalidQuery, "`name` must be the name of a lock.");
        Ok(Self(name.ok_or_else(|| invalid().with_field("name"))?))
    }
}

/// The file of this name, if it is one of these.
macro_rules! one_of {
    ($wanted:expr; $($name:literal)+) => {
        match $wanted {
            $($name => Some(include_str!(concat!("../../../assets/console/", $name))),)+
            _ => None,
        }
    };
}

/// A file that the page loads.
async fn asset(Path(name): Path<String>) -> Result<File, Problem> {
    let text = one_of!(name.as_str();
        "console.css" "console.js" "api.js" "dom.js" "feed.js" "charts.js" "glance.js" "key.js"
        "keys.js" "lock.js" "locks.js" "observed.js" "problem.js" "records.js" "shortcuts.js");
    let kind = if name.ends_with(".css") { STYLE } else { JAVASCRIPT };
    Ok(file(kind, text.ok_or_else(no_resource)?))
}
