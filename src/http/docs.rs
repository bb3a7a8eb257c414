//! Swagger UI at `/docs`, on a page of the service's own: its title, and a width
//! that fits a phone.
//!
//! Everything is in the binary, and the page's policy loads nothing from elsewhere. Invariant:
//! however many clients do not read a file or the document, it is in memory once. Tested in
//! `tests/api/system.rs`, `slow_readers.rs` and `tests/browser/openapi_page.rs`.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderValue, header};
use axum::middleware::map_response;
use axum::response::{Html, IntoResponse as _, Redirect, Response};
use axum::routing::get;
use utoipa_swagger_ui::Config;

use super::assets::{DOCS_POLICY, JAVASCRIPT, file};
use super::openapi::Document;
use super::problem::{Code, Problem};

/// The Swagger UI, and the document that it shows.
///
/// # Errors
///
/// A value of the document cannot be written as JSON.
pub(super) fn pages(document: &Document) -> serde_json::Result<Router> {
    let document = Bytes::from(serde_json::to_string(document)? + "\n");
    let document = async move || ([(header::CONTENT_TYPE, "application/json")], document);
    let index = Html(include_str!("../../assets/docs.html"));
    let start = file(JAVASCRIPT, include_str!("../../assets/docs.js"));
    Ok(Router::new()
        .route("/docs", get(async || Redirect::to("docs/")))
        .route("/docs/", get(index))
        .route("/docs/index.html", get(index))
        .route("/docs/start.js", get(start))
        .route("/docs/{*rest}", get(part_of_swagger_ui))
        .route("/openapi.json", get(document))
        .layer(map_response(with_policy)))
}

/// A file of Swagger UI. One that it does not have is a problem like every other.
async fn part_of_swagger_ui(Path(rest): Path<String>) -> Result<Response, Problem> {
    // It puts this into the page of its own, which is not served.
    let config = Arc::new(Config::from("/openapi.json"));
    let found = utoipa_swagger_ui::serve(&rest, config).ok().flatten();
    let found = found.ok_or_else(|| Problem::new(Code::NotFound, "There is no such page."))?;
    let bytes = match found.bytes {
        Cow::Borrowed(bytes) => Bytes::from_static(bytes),
        Cow::Owned(bytes) => bytes.into(),
    };
    let mut response = ([(header::CONTENT_TYPE, found.content_type)], bytes).into_response();
    if found.gzpipped {
        let gzip = HeaderValue::from_static("gzip");
        response.headers_mut().insert(header::CONTENT_ENCODING, gzip);
    }
    Ok(response)
}

async fn with_policy(mut response: Response) -> Response {
    let policy = HeaderValue::from_static(DOCS_POLICY);
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}
