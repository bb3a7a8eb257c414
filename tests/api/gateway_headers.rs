//! Goal: a client takes no header of keylatch's from what the upstream reads, adds no second one, and passes
//! for no other client; and no answer shows where the upstream is.
//!
//! Method: raw requests with every header that such a client would send, and what the upstream has of them.

use std::collections::BTreeSet;

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

#[tokio::test]
async fn header_with_underscores_is_no_second_header_of_keylatch() {
    let shop = shop_of_people().await;
    let twins = "X-User: ada\r\nIdempotency_Fence: 9007199254740991\r\nidempotency_key: k-9\r\n\
                 X_User: eve\r\nX_Forwarded-For: 6.6.6.6\r\nX_Request_Id: 6\r\nX_Mine: a\r\n";
    let headers = order_with(&shop, "k-1", twins).await;
    let names: BTreeSet<_> = headers.keys().map(|name| name.as_str().replace('_', "-")).collect();
    assert_eq!(
        names.len(),
        headers.keys_len(),
        "CGI makes one variable of two headers: {headers:?}"
    );
    assert_eq!(values(&headers, "x_mine"), ["a"], "{headers:?}");
}

#[tokio::test]
async fn forwarding_headers_of_a_client_are_not_believed() {
    let upstream = Upstream::start().await;
    let mut config = config("memory:");
    config.server.trusted_proxies = vec!["10.0.0.0/8".to_owned()];
    let (path, to) = ("/orders".to_owned(), upstream.url());
    config.guard = vec![Guard { path, upstream: to, ..Guard::default() }];
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
    let (path, to) = ("/orders".to_owned(), upstream.url());
    config.guard = vec![Guard { path, upstream: to, ..Guard::default() }];
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
