//! Goal: a request goes around no guard by the spelling of its method, nor by a header that stands
//! in for one.
//!
//! Method: raw requests as lenient servers read them: Django and Werkzeug take `post` for POST, and
//! Rails, Django and Express have middleware that takes the method out of a header.

use keylatch_testkit::{Answer, RawConnection, Shop};

/// Sends a request without a body, and with these header lines.
async fn send(shop: &Shop, method: &str, lines: &str) -> Answer {
    let head =
        format!("{method} /orders HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: 0\r\n\r\n");
    RawConnection::sending(shop.address, &head).await.answer().await
}

#[tokio::test]
async fn guarded_method_in_another_spelling_is_refused() {
    let shop = Shop::open("memory:").await;
    for method in ["post", "Post", "pOST", "patch"] {
        for lines in ["", "Idempotency-Key: k-1\r\n"] {
            send(&shop, method, lines).await.is_refusal(405, "method-not-allowed", "new-key");
        }
    }
    assert_eq!(shop.upstream.runs(), 0);
    // Nothing guards these, in whatever spelling.
    for (run, method) in (1..).zip(["PUT", "get", "delete", "PURGE"]) {
        send(&shop, method, "").await.is_run(run);
        assert_eq!(shop.upstream.last().method, method);
    }
}

#[tokio::test]
async fn header_that_stands_in_for_a_method_is_refused() {
    let shop = Shop::open("memory:").await;
    for header in ["X-HTTP-Method-Override", "x-http-method", "X-Method-Override"] {
        for method in ["GET", "PUT", "POST"] {
            for value in ["POST", "DELETE", ""] {
                let lines = format!("Idempotency-Key: k-1\r\n{header}: {value}\r\n");
                let refused = send(&shop, method, &lines).await;
                assert_eq!(refused.status, 405, "{method} {lines}: {refused:?}");
            }
        }
    }
    assert_eq!(shop.upstream.runs(), 0);
}
