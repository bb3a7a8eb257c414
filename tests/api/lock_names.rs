//! Goal: two names are one lock exactly if they are the same bytes.
//!
//! Method: names that a URL, a store or a reader could take for something else, on each store.

use keylatch_testkit::{Answer, RawConnection, Service, store_test};
use reqwest::Url;
use serde_json::json;

/// Spellings in a path, and the names that they spell.
const SPELLINGS: [(&str, &str); 29] = [
    ("a", "a"),
    ("A", "A"),
    ("a%2Fb", "a/b"),
    ("a%252Fb", "a%2Fb"),
    ("%2F", "/"),
    ("%2E", "."),
    ("%2E%2E", ".."),
    ("%2E%2E%2F%2E%2E%2Fetc", "../../etc"),
    ("...", "..."),
    ("{}", "{}"),
    ("%7B0%7D", "{0}"),
    ("%7B3f%7D:fence", "{3f}:fence"),
    ("%20", " "),
    ("a%20b", "a b"),
    ("a+b", "a+b"),
    ("100%25", "100%"),
    ("%2525", "%25"),
    ("%3F", "?"),
    ("%23", "#"),
    ("a%3Fb=c%23d", "a?b=c#d"),
    ("*", "*"),
    ("%5Ba-z%5D%5C%22", "[a-z]\\\""),
    ("a;b=c,d", "a;b=c,d"),
    ("caf%C3%A9", "café"),
    ("cafe%CC%81", "cafe\u{301}"),
    ("%F0%9F%94%92", "🔒"),
    ("%E2%80%AE", "\u{202e}"),
    ("null", "null"),
    ("locks", "locks"),
];

#[store_test(memory)]
async fn name_is_the_decoded_path(service: &Service) {
    for (path, name) in SPELLINGS {
        let path = format!("/v1/locks/{path}");
        let created = send_request(service, "POST", &path).await;
        assert_eq!(created.status, 201, "{path}: {created:?}");
        assert_eq!(created.json["name"], name, "{path}");
        let seen = send_request(service, "GET", &path).await;
        assert_eq!((seen.status.as_u16(), &seen.json["name"]), (200, &json!(name)), "{path}");
        assert_eq!(seen.fencing_token(), created.fencing_token(), "{path}");
    }
}

#[store_test(memory)]
async fn location_leads_to_the_lock(service: &Service) {
    for (path, name) in SPELLINGS {
        let created = send_request(service, "POST", &format!("/v1/locks/{path}")).await;
        let location = created.header("location");
        let seen = send_request(service, "GET", location).await;
        assert_eq!(seen.json["name"], name, "{path} at {location}");
        assert_eq!(seen.fencing_token(), created.fencing_token(), "{path} at {location}");
        // A client removes `.` and `..` from a URL (RFC 3986, section 5.2.4).
        let dots = location.split('/').any(|segment| [".", ".."].contains(&segment));
        assert!(!dots, "{path} at {location}");
        // The clients that browsers are remove them percent-encoded, too, and no URL helps them.
        if ![".", ".."].contains(&name) {
            let base = Url::parse("http://keylatch/v1/locks/anything").unwrap();
            assert_eq!(base.join(location).unwrap().path(), location, "{path}");
        }
    }
}

#[store_test(service)]
async fn name_has_up_to_255_bytes(service: &Service) {
    for name in ["a".repeat(255), "€".repeat(85)] {
        let created = service.create(&name, &json!({})).await;
        assert_eq!(created.status, 201, "{created:?}");
        assert_eq!(created.json["name"], name.as_str());
        assert_eq!(
            service.get(created.header("location")).await.fencing_token(),
            created.fencing_token()
        );
        let longer = service.create(&format!("{name}a"), &json!({})).await;
        longer.is_problem(400, "invalid-name");
        assert_eq!(longer.json["field"], "name");
    }
}

/// A request whose path stays as it is: clients make `/v1/` of `/v1/locks/%2E%2E`.
async fn send_request(service: &Service, method: &str, path: &str) -> Answer {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    RawConnection::sending(service.address, &head).await.answer().await
}
