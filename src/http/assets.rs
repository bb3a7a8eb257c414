//! What browsers are given, out of the binary: the module `/assets/keylatch.js`, and the shop page
//! `/demo` on which to try it, where the toy shop is served.
//!
//! All pages have a policy under which nothing is loaded from elsewhere. Tested in
//! `tests/browser/pages.rs` and `tests/api/sandbox.rs`.

use axum::Router;
use axum::extract::RawQuery;
use axum::http::{HeaderName, header};
use axum::response::{Html, IntoResponse};
use axum::routing::get;

use super::problem::{Code, Problem};
use keylatch_core::lock::Token;

/// A file, and the headers that it is served with.
pub(super) type File = ([(HeaderName, &'static str); 3], &'static str);

/// A page of the service loads nothing from elsewhere, runs nothing that is written into it, and
/// stands in no frame.
pub(super) const POLICY: &str = "default-src 'self'; img-src 'self' data:; base-uri 'none'; \
     form-action 'self'; frame-ancestors 'none'";
/// The same for the Swagger UI, which writes styles into its page.
pub(super) const DOCS_POLICY: &str = "default-src 'self'; img-src 'self' data:; \
     style-src 'self' 'unsafe-inline'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
pub(super) const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

pub(super) const STYLE: &str = "text/css; charset=utf-8";

/// The module that pages load.
pub(super) fn module() -> Router {
    let types = include_str!("../../assets/keylatch.d.ts");
    Router::new()
        .route(
            "/assets/keylatch.js",
            get(file(JAVASCRIPT, include_str!("../../assets/keylatch.js"))),
        )
        // As plain text: a browser shows it, and a compiler goes by its name.
        .route("/assets/keylatch.d.ts", get(file("text/plain; charset=utf-8", types)))
}

/// The shop page and what it loads.
pub(super) fn shop() -> Router {
    Router::new()
        .route("/demo", get(demo))
        .route("/assets/demo.js", get(file(JAVASCRIPT, include_str!("../../assets/demo.js"))))
        .route("/assets/demo.css", get(file(STYLE, include_str!("../../assets/demo.css"))))
}

/// The shop page. Its form has a new key each time that it is loaded, for browsers without
/// JavaScript; these also read here that their order was placed.
async fn demo(RawQuery(query): RawQuery) -> Result<impl IntoResponse, Problem> {
    let key = Token::generate().map_err(|error| {
        Problem::new(Code::Internal, "No key could be made for the form.").caused_by(error)
    })?;
    let page = include_str!("../../assets/demo.html")
        .replace("{{idempotency_key}}", key.expose())
        .replace("{{order}}", &placed_order(query.as_deref().unwrap_or_default()));
    // Not `no-store`, which keeps a page out of the back-forward cache as well.
    let headers = [(header::CONTENT_SECURITY_POLICY, POLICY), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, Html(page)))
}

pub(super) fn file(content_type: &'static str, text: &'static str) -> File {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        // After an update of the service, a page has old files for at most this long.
        (header::CACHE_CONTROL, "public, max-age=300"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, text)
}

/// The `order` of the query, if it looks like the id of one: it goes into the page.
fn placed_order(query: &str) -> String {
    let order = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "order");
    let id = order.map(|(_, id)| id).filter(|id| {
        (1..=32).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    id.map(Into::into).unwrap_or_default()
}
