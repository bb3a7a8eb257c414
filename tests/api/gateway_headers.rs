//! Goal: a client takes no header of keylatch's from what the upstream reads, and adds no second one.
//!
//! Method: raw requests with every header that such a client would send, and what the upstream has of them.

use std::collections::BTreeSet;

use axum::http::HeaderMap;
use keylatch_testkit::{RawConnection, Shop};

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
    let connection = "Connection: Idempotency-Fence, Idempotency-Key, X-User\r\n\
                      X-User: ada\r\nAccept-Encoding: br\r\n";
    let headers = order_with(&shop, "k-1", connection).await;
    assert_eq!(
        values(&headers, "idempotency-fence").len(),
        1,
        "the run is not fenced: {headers:?}"
    );
    assert_eq!(values(&headers, "idempotency-key"), ["k-1"], "{headers:?}");
    assert_eq!(values(&headers, "x-user"), ["ada"], "{headers:?}");
    assert!(
        values(&headers, "accept-encoding").is_empty(),
        "not every client reads it: {headers:?}"
    );
}

#[tokio::test]
async fn header_with_underscores_is_no_second_header_of_keylatch() {
    let shop = shop_of_people().await;
    let twins = "X-User: ada\r\nIdempotency_Fence: 9007199254740991\r\nidempotency_key: k-9\r\n\
                 X_User: eve\r\nX_Mine: a\r\n";
    let headers = order_with(&shop, "k-1", twins).await;
    let names: BTreeSet<_> = headers.keys().map(|name| name.as_str().replace('_', "-")).collect();
    assert_eq!(
        names.len(),
        headers.keys_len(),
        "CGI makes one variable of two headers: {headers:?}"
    );
    assert_eq!(values(&headers, "x_mine"), ["a"], "{headers:?}");
}
