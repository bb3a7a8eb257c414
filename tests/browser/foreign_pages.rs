//! Goal: a page of another origin neither runs a script in the service's own origin nor reads or
//! changes what is there, also where its name was made to lead to the service (DNS rebinding).
//!
//! Method: such a page in a real browser, served by a service of the test's own, submits forms and
//! fetches. The rules on each header are in `tests/api/foreign_pages.rs` and `tests/api/hosts.rs`.

use axum::body::Body;
use axum::http::Response;
use keylatch_testkit::{Answer, Browser, Page, Service, Upstream};
use reqwest::Method;
use serde_json::{Value, json};

use crate::console::note_violations;

const FORM: &str = "application/x-www-form-urlencoded";
/// The form field in which a stranger hides the answer that the service is to give later, and its
/// value.
const RESOLUTION: [&str; 2] = [
    r#"{"outcome":"completed","answer":{"status":200,"headers":{"Content-Type":"text/html"},"body":"<p>theirs</p><script>document.title='theirs'</script>"#,
    r#""}}"#,
];
const ORDER: [[&str; 2]; 4] =
    [["amount", "1"], ["currency", "EUR"], ["fail", "503"], ["idempotency_key", "k-1"]];
const RESOLVE: &str = "/v1/idempotency/k-1/resolve?method=POST&path=/v1/orders";

#[tokio::test]
async fn page_of_a_rebound_name_reads_nothing() {
    let (service, browser) = (Service::start("memory:").await, Browser::start().await);
    service.create("deploy", &json!({"owner": "canary"})).await;
    let origin = format!("http://evil.example:{}", service.address.port());
    let page = browser.open(&format!("{origin}/v1/locks")).await;
    assert_eq!(page.eval("location.origin").await, origin, "the browser went there");
    let text = page.eval("document.body.innerText").await;
    let text = text.as_str().expect("a text");
    assert!(text.contains("misdirected-request") && !text.contains("canary"), "{text}");
    let create = "fetch('/v1/locks/mine', {method: 'POST'}).then(({status}) => status)";
    assert_eq!(page.eval(create).await, 421);
    service.look("mine").await.is_problem(404, "lock-not-held");
}

/// Submits a form on the page that is open, and waits for the service's answer.
async fn submit(
    page: &Page,
    service: &Service,
    path: &str,
    kind: &str,
    fields: &[[&str; 2]],
) -> Value {
    let action = format!("http://{}{path}", service.address);
    let form = json!({"action": action, "method": "post", "enctype": kind});
    let fields = json!(fields);
    page.eval(&format!(
        "(() => {{
            const form = Object.assign(document.createElement('form'), {form});
            for (const [name, value] of {fields}) {{
                form.append(Object.assign(document.createElement('input'), {{name, value}}));
            }}
            document.body.append(form);
            form.submit();
        }})()"
    ))
    .await;
    page.until(&format!(
        "location.href === '{action}' && document.readyState === 'complete'
            && performance.getEntriesByType('navigation')[0]?.responseEnd > 0"
    ))
    .await;
    page.eval("document.body.innerText").await
}

#[tokio::test]
async fn foreign_page_runs_no_script_in_our_origin() {
    let (service, browser) = (Service::start("memory:").await, Browser::start().await);
    let foreign = Upstream::start().await;
    foreign.answers(|_| {
        let page = Response::builder().header("Content-Type", "text/html");
        page.body(Body::from("<p>A page of another origin</p>")).expect("a page")
    });
    let port = foreign.address.port();
    // A foreign site, and another origin of the same one.
    for host in ["evil.example", "127.0.0.1"] {
        let origin = format!("http://{host}:{port}");
        let page = browser.open(&origin).await;
        for (path, kind, fields) in [
            ("/v1/orders", FORM, &ORDER[..]),
            (RESOLVE, "text/plain", &[RESOLUTION]),
            ("/v1/orders", FORM, &ORDER),
        ] {
            page.goto(&origin).await;
            let text = submit(&page, &service, path, kind, fields).await;
            let text = text.as_str().expect("a text");
            assert!(text.contains("cross-origin"), "{origin} {path}: {text}");
        }
        assert_ne!(page.eval("document.title").await, "theirs");
        page.goto(&origin).await;
        let url = format!("http://{}/v1/locks/deploy", service.address);
        page.eval(&format!(
            "fetch('{url}', {{method: 'POST', mode: 'no-cors', body: '{{}}'}}).then(() => 0)"
        ))
        .await;
    }
    service.look("deploy").await.is_problem(404, "lock-not-held");
    service.get(&RESOLVE.replace("/resolve", "")).await.is_problem(404, "no-record");
}

#[tokio::test]
async fn foreign_response_runs_no_script() {
    let (service, browser) = (Service::start("memory:").await, Browser::start().await);
    // A program that is no browser resolves what the own page's form has ordered.
    let page = browser.open(&format!("http://{}/livez", service.address)).await;
    let failed = submit(&page, &service, "/v1/orders", FORM, &ORDER).await;
    assert!(failed.as_str().expect("a text").contains("failed, as asked"), "{failed}");
    let resolve = service.request(Method::POST, RESOLVE).body(RESOLUTION.concat());
    assert_eq!(Answer::of(resolve).await.status, 200);
    page.goto(&format!("http://{}/livez", service.address)).await;
    let text = submit(&page, &service, "/v1/orders", FORM, &ORDER).await;
    assert_eq!(text, "theirs", "the answer is served");
    assert_ne!(page.eval("document.title").await, "theirs", "and its script is not run");
    assert_eq!(page.eval("window.origin").await, "null", "nor is it of the service's origin");
}

#[tokio::test]
async fn own_pages_keep_to_their_content_policy() {
    let (service, browser) = (Service::start("memory:").await, Browser::start().await);
    let page = browser.open("about:blank").await;
    note_violations(&page).await;
    for (path, is_shown) in [
        ("/docs/", "document.querySelectorAll('.opblock').length > 20"),
        ("/problems/lock-held", "document.body.innerText.includes('lock-held')"),
    ] {
        let policy = service.get(path).await.header("content-security-policy").to_owned();
        for part in ["default-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        page.goto(&format!("http://{}{path}", service.address)).await;
        page.until(is_shown).await;
        assert_eq!(page.eval("violations").await, json!([]), "{path}");
    }
    // The page can still do what it is for: a request from the Swagger UI passes.
    let create = "fetch('/v1/locks/deploy', {method: 'POST', body: '{}',
        headers: {'Content-Type': 'application/json'}}).then(({status}) => status)";
    assert_eq!(page.eval(create).await, 201);
}
