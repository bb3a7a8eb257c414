//! Goal: a page of another origin, which can make a browser send requests, changes nothing; own
//! pages, allowed origins and programs that are no browser are not in its way.
//!
//! Method: requests with the headers that a browser adds, on every kind of route, and a look at the
//! state behind them. What a real browser sends is in `tests/browser/foreign_pages.rs`.

use axum::body::Body;
use axum::http::Response;
use keylatch::http::CrossOrigin;
use keylatch_testkit::{Answer, Service, Shop, config};
use reqwest::Method;
use serde_json::json;

const SHOP: &str = "https://shop.example";
const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/json";
const RESOLVE: &str = "/v1/idempotency/k-1/resolve?method=POST&path=/v1/orders";

/// What changes something, on every kind of route.
const CHANGES: [(Method, &str); 9] = [
    (Method::POST, "/v1/locks/deploy"),
    (Method::PUT, "/v1/locks/deploy"),
    (Method::DELETE, "/v1/locks/deploy"),
    (Method::POST, "/v1/locks/deploy/hold"),
    (Method::POST, "/v1/idempotency/k-1"),
    (Method::POST, RESOLVE),
    (Method::POST, "/v1/orders"),
    (Method::PATCH, "/v1/payments"),
    (Method::POST, "/nowhere"),
];

/// A request with headers; an empty value is none.
async fn send_request(
    service: &Service,
    method: &Method,
    path: &str,
    headers: &[(&str, &str)],
) -> Answer {
    let mut request = service.request(method.clone(), path);
    for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
        request = request.header(*name, *value);
    }
    Answer::of(request).await
}

/// The status of a create of a lock by what a browser says of the page.
async fn create(service: &Service, site: &str, origin: &str) -> u16 {
    let headers = [("Sec-Fetch-Site", site), ("Origin", origin)];
    let answer = send_request(service, &Method::POST, "/v1/locks/deploy", &headers).await;
    answer.status.as_u16()
}

#[tokio::test]
async fn foreign_page_changes_nothing() {
    let service = Service::start("memory:").await;
    let lease = service.create("report", &json!({})).await;
    let other_port = format!("http://{}:1", service.address.ip());
    let other_scheme = format!("https://{}", service.address);
    for (site, origin) in [
        ("cross-site", SHOP),
        ("same-site", &*other_port),
        ("cross-site", ""),
        ("cross-site", "null"),
        ("anything", ""),
        ("", SHOP),
        ("", "null"),
        ("", &other_port),
        ("", &other_scheme),
        ("", "http://localhost"),
    ] {
        for (method, path) in &CHANGES {
            let headers =
                [("Sec-Fetch-Site", site), ("Origin", origin), ("Idempotency-Key", "k-1")];
            let refused = send_request(&service, method, path, &headers).await;
            refused.is_problem(403, "cross-origin");
            assert_eq!(refused.json["retry"], "never", "{refused:?}");
            let detail = refused.json["detail"].as_str().unwrap_or_default();
            assert!(detail.contains("`cors.allow_origins`"), "{refused:?}");
        }
        let token = lease.token();
        let headers = [("Sec-Fetch-Site", site), ("Origin", origin), ("Lock-Token", &*token)];
        let refused = send_request(&service, &Method::DELETE, "/v1/locks/report", &headers).await;
        refused.is_problem(403, "cross-origin");
        // What changes nothing is answered; without CORS the page does not read it.
        assert_eq!(send_request(&service, &Method::GET, "/v1/locks", &headers).await.status, 200);
    }
    service.look("deploy").await.is_problem(404, "lock-not-held");
    assert_eq!(service.look("report").await.status, 200);
    assert_eq!(service.get("/v1/orders").await.json["orders"], json!([]));
    service.get("/v1/idempotency/k-1").await.is_problem(404, "no-record");
}

/// A page takes the one place of a copy, or places of streams, by an image whose answer it never
/// sees.
#[tokio::test]
async fn foreign_page_takes_no_place_that_others_need() {
    let service = Service::start("memory:").await;
    let own = [("Sec-Fetch-Site", "same-origin")];
    let foreign = [("Sec-Fetch-Site", "cross-site")];
    let watch = "/v1/locks/deploy/events?limit=1";
    for (path, status) in [("/v1/backup", 501), (watch, 200), ("/console/locks", 200)] {
        let refused = send_request(&service, &Method::GET, path, &foreign).await;
        refused.is_problem(403, "cross-origin");
        let served = service.request(Method::GET, path).header(own[0].0, own[0].1).send().await;
        assert_eq!(served.expect("an answer").status(), status, "{path}");
    }
}

#[tokio::test]
async fn duplicate_origin_headers_are_foreign() {
    let service = Service::start("memory:").await;
    let own = service.url();
    for (header, value, other) in
        [("Sec-Fetch-Site", "same-origin", "cross-site"), ("Origin", &*own, SHOP)]
    {
        for values in [[value, other], [other, value], [value, value]] {
            let headers = values.map(|value| (header, value));
            let refused = send_request(&service, &Method::POST, "/v1/locks/deploy", &headers).await;
            refused.is_problem(403, "cross-origin");
        }
    }
}

#[tokio::test]
async fn own_pages_and_non_browsers_pass() {
    let service = Service::start("memory:").await;
    let own = service.url();
    for (site, origin) in
        [("", ""), ("same-origin", &*own), ("same-origin", "null"), ("none", ""), ("", &own)]
    {
        let status = create(&service, site, origin).await;
        assert!([201, 409].contains(&status), "{site} {origin}: {status}");
    }
}

#[tokio::test]
async fn allowed_origins_pass() {
    let mut one = config("memory:");
    one.cors.allow_origins = vec![SHOP.to_owned()];
    let one = Service::start_with(one).await;
    assert_eq!(create(&one, "cross-site", SHOP).await, 201);
    assert_eq!(create(&one, "", SHOP).await, 409);
    for origin in ["https://other.example", "https://shop.example.evil.example", "null", ""] {
        assert_eq!(create(&one, "cross-site", origin).await, 403, "{origin}");
    }
    let mut all = config("memory:");
    all.cors.allow_origins = vec!["*".to_owned()];
    let all = Service::start_with(all).await;
    assert_eq!(create(&all, "cross-site", SHOP).await, 201);
    assert_eq!(create(&all, "cross-site", "null").await, 409);
}

#[tokio::test]
async fn origin_named_by_a_trusted_proxy_is_our_own() {
    let mut config = config("memory:");
    let trusting = Service::start_with(config.clone()).await;
    config.server.trusted_proxies = vec!["192.0.2.0/24".to_owned()];
    let wary = Service::start_with(config).await;
    for (origin, proto, host, status) in [
        (SHOP, "https", "shop.example", 201),
        (SHOP, "https", "Shop.example:443", 409),
        (SHOP, "https, http", "shop.example, inner.example", 409),
        (SHOP, "http", "shop.example", 403),
        (SHOP, "", "shop.example", 403),
        (SHOP, "https", "other.example", 403),
        (SHOP, "https", "", 403),
        ("http://shop.example", "", "shop.example", 409),
    ] {
        let headers =
            [("Origin", origin), ("X-Forwarded-Proto", proto), ("X-Forwarded-Host", host)];
        let answer = send_request(&trusting, &Method::POST, "/v1/locks/deploy", &headers).await;
        assert_eq!(answer.status, status, "{headers:?}");
        let answer = send_request(&wary, &Method::POST, "/v1/locks/deploy", &headers).await;
        answer.is_problem(403, "cross-origin");
    }
}

#[tokio::test]
async fn page_must_send_json_as_json() {
    let service = Service::start("memory:").await;
    let own = service.url();
    let send = async |path: &str, origin: &str, media_type: &str, body: &'static str| {
        let request = service.request(Method::POST, path).header("Idempotency-Key", "k-1");
        let mut request = request.body(body);
        for (name, value) in [("Origin", origin), ("Content-Type", media_type)] {
            if !value.is_empty() {
                request = request.header(name, value);
            }
        }
        Answer::of(request).await
    };
    let refused = ["", "text/plain", "text/plain;charset=UTF-8", "TEXT/PLAIN"];
    for path in ["/v1/locks/deploy", "/v1/idempotency/k-1", RESOLVE, "/v1/orders"] {
        for media_type in refused {
            let answer = send(path, &own, media_type, "{}").await;
            answer.is_problem(415, "unsupported-media-type");
            assert_eq!(answer.json["field"], "Content-Type");
        }
    }
    for media_type in [FORM, "multipart/form-data; boundary=x", "application/jsonp", "a, b"] {
        let answer = send("/v1/locks/deploy", &own, media_type, "{}").await;
        answer.is_problem(415, "unsupported-media-type");
    }
    service.look("deploy").await.is_problem(404, "lock-not-held");
    // A body that is not there has no type, and a program that is no browser says what it likes.
    assert_eq!(send("/v1/locks/a", &own, "", "").await.status, 201);
    assert_eq!(
        send("/v1/locks/b", &own, "Application/JSON; charset=utf-8", "{}").await.status,
        201
    );
    assert_eq!(send("/v1/locks/c", "", "text/plain", "{}").await.status, 201);
    let form = "amount=1&currency=EUR";
    assert_eq!(send("/v1/orders", &own, FORM, form).await.status, 201);
}

#[tokio::test]
async fn guard_passes_media_types_that_browsers_preflight() {
    let shop = Shop::open("memory:").await;
    let own = shop.url();
    for (key, media_type) in [("k-1", JSON), ("k-2", "image/png"), ("k-3", "application/x-thing")] {
        let order = shop.request(Method::POST, "/orders").header("Idempotency-Key", key);
        let order = order.header("Origin", &own).header("Content-Type", media_type);
        assert_eq!(Answer::of(order.body("{}")).await.status, 201, "{media_type}");
    }
}

#[tokio::test]
async fn guard_for_callbacks_takes_requests_of_any_page() {
    let shop = Shop::open_with("memory:", |guard| guard.cross_origin = CrossOrigin::Pass).await;
    for (key, media_type) in [("k-1", FORM), ("k-2", "text/plain")] {
        let order = shop.request(Method::POST, "/orders").header("Idempotency-Key", key);
        let order = order.header("Origin", "https://bank.example").body("paid=yes");
        let order = order.header("Content-Type", media_type).header("Sec-Fetch-Site", "cross-site");
        assert_eq!(Answer::of(order).await.status, 201, "{media_type}");
    }
    let lock = shop.request(Method::POST, "/v1/locks/deploy").header("Origin", SHOP);
    Answer::of(lock).await.is_problem(403, "cross-origin");
}

#[tokio::test]
async fn replay_of_a_client_chosen_response_is_sandboxed() {
    let shop = Shop::open("memory:").await;
    shop.upstream.answers(|_| {
        let answer = Response::builder().status(500).header("Content-Type", "text/html");
        answer.body(Body::from("<p>ours</p>")).expect("an answer")
    });
    assert_eq!(shop.buy("k-1").await.status, 500);
    let headers = json!({
        "Content-Type": "text/html", "X-Content-Type-Options": "sniff",
        "Content-Security-Policy": "sandbox allow-scripts",
    });
    let answer = json!({"status": 200, "headers": headers, "body": "<p>theirs</p>"});
    let path = "/v1/idempotency/k-1/resolve?method=POST&path=/orders";
    let resolve = shop.request(Method::POST, path);
    let resolve = resolve.json(&json!({"outcome": "completed", "answer": answer}));
    assert_eq!(Answer::of(resolve).await.status, 200);
    let repeat = shop.buy("k-1").await;
    assert_eq!((repeat.status.as_u16(), &*repeat.text), (200, "<p>theirs</p>"));
    assert_eq!(repeat.header("x-content-type-options"), "nosniff");
    let policies: Vec<_> = repeat.headers.get_all("content-security-policy").iter().collect();
    assert!(policies.iter().any(|policy| *policy == "sandbox"), "all of them hold: {policies:?}");

    // A program that begins it again reads what was chosen, to do with it as it likes.
    let begin = shop.request(Method::POST, "/v1/idempotency/k-3");
    let token = Answer::of(begin).await.token();
    let complete = shop.request(Method::PUT, "/v1/idempotency/k-3").header("Lock-Token", token);
    let complete = complete.json(&json!({"headers": {"Content-Type": "text/html"}, "body": "a"}));
    assert_eq!(Answer::of(complete).await.status, 200);
    let found = Answer::of(shop.request(Method::POST, "/v1/idempotency/k-3")).await;
    assert_eq!(found.json["answer"]["headers"], json!({"content-type": ["text/html"]}));

    shop.upstream.answers(|_| Response::new(Body::from("<p>ours</p>")));
    for _ in 0..2 {
        let answer = shop.buy("k-2").await;
        assert_eq!((&*answer.text, answer.header("content-security-policy")), ("<p>ours</p>", ""));
    }
}
