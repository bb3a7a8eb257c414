//! Goal: the console, the pages of problems and the document of the API work where a proxy has the
//! service below a path.
//!
//! Method: the whole service behind a proxy that takes the path off, in a real browser.

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use keylatch::app::App;
use keylatch_testkit::{Answer, Browser, config};
use serde_json::json;
use tokio::net::TcpListener;
use tower::ServiceExt as _;

use crate::console::shows;

const PREFIX: &str = "/tools/keylatch";

/// The URL of a service below the path.
async fn service() -> String {
    let app = App::new(config("memory:")).await.expect("the store opens").router();
    let proxy = Router::new().fallback(async move |mut request: Request| {
        let path = request.uri().path_and_query().expect("a path").as_str();
        let own = path.strip_prefix(PREFIX).and_then(|path| path.parse().ok());
        let Some(own) = own else { return StatusCode::NOT_FOUND.into_response() };
        *request.uri_mut() = own;
        app.clone().oneshot(request).await.into_response()
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async { axum::serve(listener, proxy).await });
    format!("http://{address}{PREFIX}")
}

#[tokio::test]
async fn pages_work_below_a_path() {
    let url = service().await;
    let create = reqwest::Client::new().post(format!("{url}/v1/locks/deploy"));
    let held = Answer::of(create.json(&json!({"owner": "ci runner 7", "ttl_ms": 60_000}))).await;
    assert_eq!(held.status, 201, "{held:?}");
    let browser = Browser::start().await;
    let page = browser.open(&format!("{url}/")).await;
    page.until("Boolean(document.querySelector('nav a[href=\"#/locks\"]'))").await;
    page.click("nav a[href='#/locks']", 1).await;
    shows(&page, "ci runner 7").await;
    let command = format!("document.body.textContent.includes('{url}/v1/locks?')");
    assert_eq!(page.eval(&command).await, true, "a command for a shell");
    page.click("a[href='#/locks/deploy']", 1).await;
    shows(&page, "Earlier grants").await;
    page.click("nav a[href$='problems']", 1).await;
    shows(&page, "Every error is a document").await;
    page.click("a[href$='/problems/lock-held']", 1).await;
    shows(&page, "What to do").await;
    // To the console, and to the redirect of the API page.
    page.click("header a", 1).await;
    shows(&page, "At a glance").await;
    page.goto(&format!("{url}/docs")).await;
    shows(&page, "Create a lock").await;
    assert_eq!(page.eval("location.pathname").await, format!("{PREFIX}/docs/"));
}
