//! Goal: a person whose browser sent a guarded request reads in plain words what became of it.
//!
//! Method: each refusal twice, for a browser and for a program, and what differs between the two;
//! templates of the test's own; the log.

use keylatch::http::{Guard, KeyPart};
use keylatch_testkit::{Answer, LogCapture, Shop, config, guard_orders};
use reqwest::{Method, RequestBuilder};

const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
const NOT_DONE: &str = "Nothing was done.";
const NOT_NOW: &str = "Nothing was done now. If you sent this before, it may have been done then:";
const UNDER_WAY: &str =
    "We have your order and are still working on it. Please do not send it again.";
const UNKNOWN: &str = "We do not know yet whether this was done.";
const DONE: &str = "This was done before, and it was not done again.";

/// Sends a request that is refused as a browser does and as a program does. The page says
/// `message`, and all but the body is the same.
async fn is_page(request: RequestBuilder, status: u16, message: &str) -> Answer {
    let again = request.try_clone().expect("a body in memory");
    let page = Answer::of(request.header("Accept", BROWSER)).await;
    assert_eq!(page.status.as_u16(), status, "{page:?}");
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8", "{page:?}");
    assert!(page.text.contains(message) && page.text.contains("<!doctype html>"), "{page:?}");
    assert!(!page.text.contains("resolve") && !page.text.contains("{{"), "{page:?}");
    let problem = Answer::of(again.header("Accept", "application/json, text/html")).await;
    assert_eq!(problem.status.as_u16(), status, "{problem:?}");
    assert_eq!(problem.header("content-type"), "application/problem+json", "{problem:?}");
    let names = |answer: &Answer| {
        let mut names: Vec<_> = answer.headers.keys().map(ToString::to_string).collect();
        names.sort();
        names
    };
    assert_eq!(names(&page), names(&problem));
    for same in ["retry-after", "link", "connection", "idempotency-key-source"] {
        assert_eq!(page.header(same), problem.header(same), "{same}");
    }
    problem
}

#[tokio::test]
async fn refusal_says_that_nothing_was_done() {
    let shop = Shop::open_with("memory:", |guard| guard.body_limit_bytes = 40).await;
    let order = |key| shop.order(key);
    is_page(shop.request(Method::POST, "/orders"), 400, NOT_DONE).await;
    is_page(order("k").header("Sec-Fetch-Site", "cross-site"), 403, NOT_DONE).await;
    shop.buy("k").await.is_run(1);
    is_page(order("k").body("{}"), 422, NOT_NOW).await;
    is_page(order("large").body("a".repeat(41)), 413, NOT_DONE).await;
    is_page(shop.request(Method::POST, "/orders/..%20/a"), 404, NOT_DONE).await;
    // A response of the shop is its own.
    let own = Answer::of(order("new").header("Accept", BROWSER)).await;
    own.is_run(2);
}

#[tokio::test]
async fn person_who_is_not_signed_in_reads_that_nothing_was_done() {
    let shop =
        Shop::open_with("memory:", |guard| guard.principal_header = "X-User".to_owned()).await;
    let problem = is_page(shop.order("k").header("Connection", "x"), 401, NOT_DONE).await;
    assert_eq!(problem.header("idempotency-key-source"), "none", "{problem:?}");
    let detail = problem.json["detail"].as_str().expect("text");
    for named in ["x-user", "principal_header", "server.trusted_proxies"] {
        assert!(detail.contains(named), "{detail}");
    }
}

#[tokio::test]
async fn second_click_reads_that_the_first_is_under_way() {
    let shop = Shop::open("memory:").await;
    shop.upstream.hold();
    let first = shop.upstream.holding(shop.order("k")).await;
    is_page(shop.order("k"), 409, UNDER_WAY).await;
    shop.upstream.resume();
    first.await.expect("an answer").is_run(1);
}

#[tokio::test]
async fn unknown_outcome_is_said_to_be_unknown() {
    let shop = Shop::open("memory:").await;
    shop.upstream.answers(|_| -> String { panic!("the connection breaks") });
    let first = Answer::of(shop.order("k").header("Accept", BROWSER)).await;
    assert_eq!(first.status, 504, "{first:?}");
    assert!(first.text.contains(UNKNOWN), "{first:?}");
    let problem = is_page(shop.order("k"), 409, UNKNOWN).await;
    assert!(problem.json["resolve"].is_string(), "{problem:?}");
}

#[tokio::test]
async fn shop_that_is_away_has_done_nothing() {
    let shop = guard_orders("memory:", "http://127.0.0.1:9", |_| {}).await;
    is_page(shop.order("k"), 502, NOT_DONE).await;
    is_page(shop.request(Method::GET, "/orders"), 502, NOT_DONE).await;
}

#[tokio::test]
async fn what_was_done_before_is_said_to_be_done() {
    let shop = Shop::open_with("memory:", |guard| guard.once_per = vec![KeyPart::Path]).await;
    shop.buy("k").await.is_run(1);
    is_page(shop.order("k").body("{}"), 409, DONE).await;
}

#[tokio::test]
async fn page_of_a_shop_is_in_its_own_language() {
    let page = "<!-- not-done: Nichts <passiert> & \"gut\" -->\n<html lang=\"de\"><p class=\"{{outcome}}\">{{message}}</p>{{status}} {{code}}";
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), page).expect("it is written");
    let set = |guard: &mut Guard| guard.error_page = file.path().display().to_string();
    let shop = Shop::open_with("memory:", set).await;
    let browser = |request: RequestBuilder| Answer::of(request.header("Accept", BROWSER));
    let refused = browser(shop.request(Method::POST, "/orders")).await;
    let shown =
        "<p class=\"not-done\">Nichts &lt;passiert&gt; &amp; &quot;gut&quot;</p>400 key-required";
    assert!(refused.text.ends_with(shown), "{refused:?}");
    // What the template does not say is said in keylatch's words.
    shop.upstream.answers(|_| -> String { panic!("the connection breaks") });
    let unknown = browser(shop.order("k")).await;
    assert!(
        unknown.text.contains(UNKNOWN) && unknown.text.ends_with("504 outcome-unknown"),
        "{unknown:?}"
    );
}

#[tokio::test]
async fn log_names_the_setting_behind_a_refusal() {
    let log = LogCapture::start(&config("memory:"), true);
    let shop = Shop::open_with("memory:", |guard| guard.body_limit_bytes = 4).await;
    Answer::of(shop.order("k")).await.is_problem(413, "payload-too-large");
    Answer::of(shop.order("k").header("Sec-Fetch-Site", "cross-site"))
        .await
        .is_problem(403, "cross-origin");
    Answer::of(shop.request(Method::POST, "/orders")).await.is_problem(400, "key-required");
    let settings: Vec<_> = log.requests().into_iter().map(|line| line["setting"].clone()).collect();
    assert_eq!(
        settings,
        ["body_limit_bytes of the guard", "cors.allow_origins, or cross_origin of the guard"]
    );
}
