//! Goal: a client takes no header of keylatch's from what the upstream reads, adds no second one,
//! and passes for no other client; and no answer shows where the upstream is.
//!
//! Method: raw requests with every header that such a client would send, and what the upstream has
//! of them.

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use keylatch::config::Config;
use keylatch::http::Guard;
use keylatch_testkit::{
    Answer, Authority, RawConnection, Service, Shop, Upstream, config, connect_tls,
};

/// Sends `POST /orders` under a key, with more headers, and gives those that the upstream has.
async fn order_with(shop: &Shop, key: &str, headers: &str) -> HeaderMap {
    let head = format!(
        "POST /orders HTTP/1.1\r\nHost: localhost:7070\r\nIdempotency-Key: {key}\r\n{headers}\
         Content-Length: 2\r\n\r\n{{}}"
    );
    let answer = RawConnection::sending(shop.address, &head).await.answer().await;
    assert_eq!(answer.status, 201, "{answer:?}");
    shop.upstream.last().headers
}

fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    headers.get_all(name).iter().map(|value| value.to_str().expect("text")).collect()
}

/// A shop that knows people by `X-User`, which a proxy on this machine sets.
async fn shop_of_people() -> Shop {
    Shop::open_with("memory:", |guard| guard.principal_header = "X-User".to_owned()).await
}

#[tokio::test]
async fn client_strips_no_header_of_keylatch() {
    let shop = shop_of_people().await;
    let connection = "Connection: Idempotency-Fence, Idempotency-Key, X-User, X-Forwarded-For, X-Request-Id\r\n\
                      X-User: ada\r\nAccept-Encoding: br\r\n";
    let headers = order_with(&shop, "k-1", connection).await;
    assert_eq!(
        values(&headers, "idempotency-fence").len(),
        1,
        "the run is not fenced: {headers:?}"
    );
    assert_eq!(values(&headers, "idempotency-key"), ["k-1"], "{headers:?}");
    assert_eq!(values(&headers, "x-user"), ["ada"], "{headers:?}");
    assert_eq!(values(&headers, "x-forwarded-for"), ["127.0.0.1"], "{headers:?}");
    assert_eq!(values(&headers, "x-request-id").len(), 1, "{headers:?}");
    assert!(
        values(&headers, "accept-encoding").is_empty(),
        "not every client reads it: {headers:?}"
    );
}

/// CGI, WSGI and PHP take `_`, and some `.`, for `-`.
#[tokio::test]
async fn name_that_a_server_may_take_for_another_is_dropped() {
    let shop = shop_of_people().await;
    let odd = "X-User: ada\r\nIdempotency_Fence: 9007199254740991\r\nidempotency_key: k-9\r\n\
               X_User: eve\r\nX_Forwarded-For: 6.6.6.6\r\nX_Request_Id: 6\r\nX_Mine: a\r\n\
               Content_Encoding: gzip\r\nX.User: eve\r\nX!Mine: a\r\nX-Mine2: a\r\n";
    let headers = order_with(&shop, "k-1", odd).await;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    for name in headers.keys() {
        assert!(name.as_str().chars().all(is_plain), "{name}: {headers:?}");
    }
    assert_eq!(values(&headers, "x-mine2"), ["a"], "{headers:?}");
    assert_eq!(values(&headers, "x-user"), ["ada"], "{headers:?}");
}

#[tokio::test]
async fn header_of_keylatch_reaches_no_upstream() {
    let shop = shop_of_people().await;
    let own = "X-User: ada\r\nKeylatch-Authorization: Bearer kl_0\r\nKeylatch-Any: 1\r\n\
               Idempotent-Replayed: true\r\nIdempotent-Body: not-kept\r\n\
               Idempotency-Key-Expires: never\r\nPreference-Applied: wait=1\r\n";
    let headers = order_with(&shop, "k-1", own).await;
    for name in headers.keys().map(|name| name.as_str()) {
        let is_own = name.starts_with("keylatch-") || name.starts_with("idempotent-");
        assert!(!is_own && name != "preference-applied", "{name}: {headers:?}");
        assert_ne!(name, "idempotency-key-expires", "{headers:?}");
    }
}

#[tokio::test]
async fn mark_of_an_upstream_does_not_pass_for_keylatchs() {
    let shop = Shop::open("memory:").await;
    shop.upstream.answers(|_| {
        Response::builder()
            .status(201)
            .header("Idempotent-Replayed", "true")
            .header("Idempotent-Body", "not-kept")
            .header("Idempotency-Key-Expires", "never")
            .header("Preference-Applied", "wait=9")
            .header("Keylatch-Any", "1")
            .body(Body::empty())
            .expect("an answer")
    });
    for (method, replayed, expires) in [("GET", "", 0), ("POST", "", 1), ("POST", "true", 1)] {
        let head = format!(
            "{method} /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k-1\r\n\
             Content-Length: 0\r\n\r\n"
        );
        let answer = RawConnection::sending(shop.address, &head).await.answer().await;
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(answer.header("idempotent-replayed"), replayed, "{answer:?}");
        for gone in ["idempotent-body", "preference-applied", "keylatch-any"] {
            assert_eq!(answer.header(gone), "", "{gone}: {answer:?}");
        }
        let all = answer.headers.get_all("idempotency-key-expires");
        assert_eq!(all.iter().count(), expires, "{method}: {answer:?}");
        assert!(all.iter().all(|value| value != "never"), "{answer:?}");
    }
}

/// What else says who a client is, and upstreams believe of a proxy.
const CLAIMS: &str = "Proxy: http://6.6.6.6\r\nCF-Connecting-IP: 6.6.6.6\r\nClient-IP: 6.6.6.6\r\n\
    X-Remote-User: root\r\nRemote-User: root\r\nX-Forwarded: for=6.6.6.6\r\nX-Forwarded-User: root\r\n\
    X-Forwarded-Prefix: /evil\r\nX-Forwarded-Port: 1\r\nX-Real-IP: 6.6.6.6\r\nTrue-Client-IP: 6.6.6.6\r\n\
    X-Original-URL: /admin\r\nX-Rewrite-URL: /admin\r\nX-Cluster-Client-IP: 6.6.6.6\r\n";

/// Most proxies pass on what a client wrote there, so a trusted one is believed in what all of them
/// set.
#[tokio::test]
async fn claim_beside_those_of_a_proxy_is_not_believed() {
    for trusted in ["127.0.0.0/8", "10.0.0.0/8"] {
        let upstream = Upstream::start().await;
        let mut config = config("memory:");
        config.server.trusted_proxies = vec![trusted.to_owned()];
        config.guard = vec![Guard {
            drop_headers: vec!["X-Tenant".to_owned()],
            ..Shop::guard(&upstream.url())
        }];
        let service = Service::start_with(config).await;
        let head = format!(
            "POST /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k-1\r\n{CLAIMS}\
             X-Tenant: other\r\nX-Trace: 1\r\nContent-Length: 0\r\n\r\n"
        );
        RawConnection::sending(service.address, &head).await.answer().await.is_run(1);
        let headers = upstream.last().headers;
        let claimed = CLAIMS.lines().filter_map(|line| line.split_once(':'));
        for name in claimed.map(|(name, _)| name).chain(["X-Tenant"]) {
            assert!(values(&headers, name).is_empty(), "{name} by {trusted}: {headers:?}");
        }
        assert_eq!(values(&headers, "x-trace"), ["1"], "{headers:?}");
    }
}

#[tokio::test]
async fn header_of_the_principal_is_believed_of_a_trusted_proxy_whatever_its_name() {
    let shop = Shop::open_with("memory:", |guard| {
        guard.principal_header = "X-Forwarded-User".to_owned();
    })
    .await;
    let names = "X-Forwarded-User: ada\r\nX-Forwarded-Email: ada@a.example\r\n";
    let headers = order_with(&shop, "k-1", names).await;
    assert_eq!(values(&headers, "x-forwarded-user"), ["ada"], "{headers:?}");
    assert!(values(&headers, "x-forwarded-email").is_empty(), "{headers:?}");
}

#[tokio::test]
async fn forwarding_headers_of_a_client_are_not_believed() {
    let upstream = Upstream::start().await;
    let mut config = config("memory:");
    config.server.trusted_proxies = vec!["10.0.0.0/8".to_owned()];
    config.guard = vec![Shop::guard(&upstream.url())];
    let service = Service::start_with(config).await;
    let request = service
        .order("k-1")
        .header("X-Forwarded-For", "6.6.6.6")
        .header("X-Forwarded-Host", "evil.example")
        .header("X-Forwarded-Proto", "https")
        .header("X-Forwarded-Prefix", "/evil")
        .header("X-Real-IP", "6.6.6.6")
        .header("Forwarded", "for=6.6.6.6;host=evil.example");
    Answer::of(request).await.is_run(1);
    let headers = upstream.last().headers;
    let host = service.address.to_string();
    assert_eq!(values(&headers, "x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(values(&headers, "x-forwarded-host"), [&*host]);
    assert_eq!(values(&headers, "x-forwarded-proto"), ["http"]);
    assert_eq!(
        values(&headers, "forwarded"),
        [format!("for=127.0.0.1;host=\"{host}\";proto=http")]
    );
    for gone in ["x-real-ip", "x-forwarded-prefix"] {
        assert!(values(&headers, gone).is_empty(), "{gone}: {headers:?}");
    }
}

#[tokio::test]
async fn forwarding_headers_of_a_trusted_proxy_are_continued() {
    let shop = Shop::open("memory:").await;
    let proxy = "X-Forwarded-For: 2001:db8::7, 203.0.113.9\r\nX-Forwarded-Host: shop.example\r\n\
                 X-Forwarded-Proto: https\r\nForwarded: for=6.6.6.6\r\n";
    let headers = order_with(&shop, "k-1", proxy).await;
    assert_eq!(values(&headers, "x-forwarded-for"), ["2001:db8::7, 203.0.113.9, 127.0.0.1"]);
    assert_eq!(values(&headers, "x-forwarded-host"), ["shop.example"]);
    assert_eq!(values(&headers, "x-forwarded-proto"), ["https"]);
    // Most proxies pass on the `Forwarded` of a client, so it is made of what they do set.
    let forwarded =
        "for=\"[2001:db8::7]\";host=\"shop.example\";proto=https, for=203.0.113.9, for=127.0.0.1";
    assert_eq!(values(&headers, "forwarded"), [forwarded]);
}

#[tokio::test]
async fn request_over_tls_is_one_of_https_to_the_upstream() {
    let authority = Authority::default();
    let upstream = Upstream::start().await;
    let mut config = Config { tls: authority.serve(), ..config("memory:") };
    config.server.trusted_proxies = vec!["10.0.0.0/8".to_owned()];
    config.guard = vec![Shop::guard(&upstream.url())];
    let service = Service::start_with(config).await;
    let mut wire = connect_tls(service.address, &authority.client(&[], None)).await;
    for head in [
        "GET /orders HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k-1\r\n\
         X-Forwarded-Proto: http\r\nContent-Length: 0\r\n\r\n",
    ] {
        wire.send(head).await;
        assert_eq!(wire.answer().await.status, 201, "{head}");
        let headers = upstream.last().headers;
        assert_eq!(values(&headers, "x-forwarded-proto"), ["https"], "{head}");
        assert_eq!(
            values(&headers, "forwarded"),
            ["for=127.0.0.1;host=\"localhost\";proto=https"],
            "{head}"
        );
    }
}

#[tokio::test]
async fn upstream_reads_the_id_of_the_request() {
    let shop = Shop::open("memory:").await;
    let answer = Answer::of(shop.order("k-1").header("X-Request-Id", "trace-7")).await;
    assert_eq!(answer.header("x-request-id"), "trace-7");
    assert_eq!(values(&shop.upstream.last().headers, "x-request-id"), ["trace-7"]);
    let answer = shop.get("/orders").await;
    assert_eq!(
        values(&shop.upstream.last().headers, "x-request-id"),
        [answer.header("x-request-id")]
    );
}

#[tokio::test]
async fn redirect_does_not_show_the_upstream() {
    let shop = Shop::open("memory:").await;
    let own = shop.upstream.address;
    for (number, (location, seen)) in (1..).zip([
        (format!("http://{own}/orders/1?a=b#c"), "/orders/1?a=b#c".to_owned()),
        (format!("HTTP://{own}"), "/".to_owned()),
        (format!("//{own}/orders/1"), "/orders/1".to_owned()),
        (format!("http://{own}?a=b"), "/?a=b".to_owned()),
        // As it is, a browser would go to that host.
        (format!("http://{own}//evil.example/"), "/.//evil.example/".to_owned()),
        (format!("http://{own}.evil.example/"), format!("http://{own}.evil.example/")),
        ("/orders/1".to_owned(), "/orders/1".to_owned()),
        ("https://bank.example/pay".to_owned(), "https://bank.example/pay".to_owned()),
    ]) {
        shop.upstream.answers(move |_| {
            let answer = Response::builder().status(303).header("Location", &location);
            answer.header("Content-Location", &location).body(Body::empty()).expect("an answer")
        });
        for replayed in ["", "true"] {
            let answer = shop.buy(&format!("k-{number}")).await;
            assert_eq!(answer.header("idempotent-replayed"), replayed, "{answer:?}");
            assert_eq!(answer.header("location"), seen);
            assert_eq!(answer.header("content-location"), seen);
        }
    }
}
