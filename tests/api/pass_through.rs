//! Goal: a whole app stands behind keylatch, and no request walks around a guard of it.
//!
//! Method: a service on a listener for guards alone and one for the rest, and raw requests for
//! every spelling of a guarded path that some server reads as that path.

use keylatch::app::{App, bind};
use keylatch::config::Config;
use keylatch::http::{Guard, ListenerSettings, Part, PassThrough, ServedParts};
use keylatch_testkit::{Answer, Api, RawConnection, Upstream, config};
use reqwest::Method;
use tokio_util::sync::{CancellationToken, DropGuard};

/// An app behind a guard of `/orders`.
struct Site {
    upstream: Upstream,
    api: Api,
    other: Api,
    _closing: DropGuard,
}

impl Site {
    async fn open(set: impl FnOnce(&mut Config)) -> Self {
        let upstream = Upstream::start().await;
        let mut config = config("memory:");
        config.guard = vec![Guard {
            path: "/orders".to_owned(),
            upstream: upstream.url(),
            principal_header: "X-User".to_owned(),
            require_principal: false,
            ..Guard::default()
        }];
        config.gateway = PassThrough { upstream: upstream.url() };
        config.listener = [vec![Part::Guards], vec![Part::Api, Part::Metrics]]
            .map(|serves| ListenerSettings {
                address: "127.0.0.1:0".to_owned(),
                serves: ServedParts::from(serves),
                ..ListenerSettings::default()
            })
            .to_vec();
        set(&mut config);
        let bound = bind(&mut config).await.expect("they listen");
        let at = |place: usize| Api::at(bound[place].settings.address.parse().expect("an address"));
        let (api, other, closing) = (at(0), at(1), CancellationToken::new());
        let app = App::new(config).await.expect("an app");
        tokio::spawn(app.serve_on(bound, closing.clone().cancelled_owned()));
        Self { upstream, api, other, _closing: closing.drop_guard() }
    }

    async fn post(&self, path: &str) -> Answer {
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
        RawConnection::sending(self.api.address, &head).await.answer().await
    }
}

#[tokio::test]
async fn what_no_guard_names_passes_through() {
    let site = Site::open(|_| {}).await;
    for (run, path) in (1..).zip([
        "/",
        "/cart?a=1",
        "/v1/locks/a",
        "/console",
        "/docs",
        "/livez",
        "/demo",
        "/ordersheet",
        "/my/orders",
        "/v1.0/orders",
        "/order",
    ]) {
        site.post(path).await.is_run(run);
        assert_eq!(site.upstream.last().uri.to_string(), path);
    }
    site.api.get("/assets/keylatch.js").await.is_run(12);
    site.api.get("/orders.js").await.is_run(13);
    let head =
        "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    RawConnection::sending(site.api.address, head).await.answer().await.is_run(14);
    assert_eq!(site.upstream.last().headers["upgrade"], "websocket");
    site.post("/orders").await.is_problem(400, "key-required");
    // The other listener is as it was.
    site.other.get("/cart").await.is_problem(404, "not-found");
    assert_eq!(site.other.get("/v1/locks").await.status, 200);
    assert_eq!(site.upstream.runs(), 14);
}

#[tokio::test]
async fn paths_of_keylatch_are_below_their_own_one() {
    let site = Site::open(|_| {}).await;
    for path in [
        "/livez",
        "/readyz",
        "/problems",
        "/problems/key-required",
        "/assets/keylatch.js",
        "/assets/page.css",
    ] {
        let answer = site.api.get(&format!("/.keylatch{path}")).await;
        assert_eq!(answer.status, 200, "{path}");
    }
    for path in
        ["", "/", "/x", "/v1/locks", "/metrics", "/console/records", "/docs", "/openapi.json"]
    {
        site.api.get(&format!("/.keylatch{path}")).await.is_problem(404, "not-found");
    }
    let refusal = site.post("/orders").await;
    let link = "</.keylatch/problems/key-required>; rel=\"describedby\"; type=\"text/html\"";
    assert_eq!(refusal.header("link"), link, "{refusal:?}");
    assert_eq!(refusal.json["type"], "/.keylatch/problems/key-required");
    assert_eq!(site.upstream.runs(), 0);
}

/// What some server reads as `/orders`, or what no two servers read alike.
const SPELLINGS: [&str; 43] = [
    "//shop.example/orders",
    "/\\shop.example/orders",
    "/%2fshop.example/orders",
    "//orders",
    "/./orders",
    "/%6frders",
    "/%6Frders/1",
    "/order%73",
    "/%2forders",
    "/%2Forders/1",
    "/%5corders",
    "/\\orders",
    "/orders%2f1",
    "/orders%5c1",
    "/orders;x=1",
    "/;x/orders",
    "/.;/orders",
    "/orders%3bx",
    "/orders%3fa=1",
    "/orders%23a",
    "/orders.",
    "/orders%20",
    "/orders%2e",
    "/%20/orders",
    "/%256frders",
    "/%25256frders",
    "/orders%00",
    "/orders%2500.txt",
    "/%c0%aforders",
    "/ord%F9ers",
    "/100%25",
    "/a/../orders",
    "/a/%2e%2e/orders",
    "/a/..;/orders",
    "/a/..%2forders",
    "/Orders",
    "/ORDERS/1",
    "/order%C5%BF",
    "/orders.json",
    "/index.php/orders",
    "/app/index.PHP/Orders/1",
    "/cgi-bin/shop.cgi/orders",
    "/.//orders.xml",
];

#[tokio::test]
async fn other_spelling_of_a_guarded_path_does_not_pass() {
    let site = Site::open(|_| {}).await;
    for path in SPELLINGS {
        let answer = site.post(path).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.json["code"]),
            (404, &"not-found".into()),
            "{path}"
        );
    }
    assert_eq!(site.upstream.runs(), 0);
}

#[tokio::test]
async fn method_that_stands_for_another_does_not_pass() {
    let site = Site::open(|_| {}).await;
    for (method, header) in [
        ("post", "X-A: 1"),
        ("Patch", "X-A: 1"),
        ("GET", "X-HTTP-Method-Override: POST"),
        ("POST", "X-HTTP-Method: PATCH"),
        ("PUT", "X-Method-Override: POST"),
    ] {
        let head = format!(
            "{method} /cart HTTP/1.1\r\nHost: localhost\r\n{header}\r\nContent-Length: 0\r\n\r\n"
        );
        let answer = RawConnection::sending(site.api.address, &head).await.answer().await;
        assert_eq!(answer.status, 405, "{method} {header}: {answer:?}");
    }
    let star = "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n";
    RawConnection::sending(site.api.address, star)
        .await
        .answer()
        .await
        .is_problem(404, "not-found");
    assert_eq!(site.upstream.runs(), 0);
}

#[tokio::test]
async fn only_a_proxy_says_whose_request_passes() {
    let own = |request: reqwest::RequestBuilder| {
        request
            .header("X-User", "eve")
            .header("X-Original-URL", "/orders")
            .header("Idempotency-Fence", "9")
            .header("X_User", "eve")
            .header("X-App", "1")
            .header("Connection", "X-User")
    };
    for (proxies, user) in [(vec!["127.0.0.1".to_owned()], Some("eve")), (Vec::new(), None)] {
        let site = Site::open(|config| config.server.trusted_proxies = proxies).await;
        Answer::of(own(site.api.request(Method::POST, "/cart"))).await.is_run(1);
        let headers = site.upstream.last().headers;
        assert_eq!(headers.get("x-user").map(|user| user.to_str().unwrap()), user);
        for gone in ["x-original-url", "x-rewrite-url", "idempotency-fence", "x_user"] {
            assert!(!headers.contains_key(gone), "{gone}");
        }
        assert_eq!(headers["x-app"], "1");
    }
}

/// A bank sends the customer's browser to the app, which guards itself against foreign pages.
#[tokio::test]
async fn app_decides_on_foreign_pages_itself() {
    let site = Site::open(|_| {}).await;
    let of_bank = |path| {
        let request = site.api.request(Method::POST, path).header("Sec-Fetch-Site", "cross-site");
        request
            .header("Origin", "https://bank.example")
            .header("Idempotency-Key", "k")
            .header("Content-Type", "application/x-www-form-urlencoded")
            .body("a=1")
    };
    Answer::of(of_bank("/callback")).await.is_run(1);
    Answer::of(of_bank("/orders")).await.is_problem(403, "cross-origin");
}
