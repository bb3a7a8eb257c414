//! Goal: every operation of the service asks for the identity and the permission that it should: no
//! operation is open by oversight, and no permission opens another one's door.
//!
//! Method: each operation of the OpenAPI document, by clients without a key and by identities that may do
//! one act each, on names within and outside of their prefix. The table says what each operation needs, and
//! an operation that is not in it fails the test.

use std::collections::BTreeSet;

use keylatch::http::Extras;
use keylatch_testkit::{Answer, Keyring, Service, config};
use reqwest::Method;
use serde_json::{Value, json};

/// What an operation asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Nothing.
    Open,
    /// An identity, whatever it may do.
    Identity,
    /// An act on a lock.
    Lock(&'static str),
    /// An act on each lock of a set.
    Set(&'static str),
    /// An act on an idempotency key.
    Key(&'static str),
    /// A copy of the store.
    Backup,
}

use Need::{Backup, Identity, Key, Lock, Open, Set};

const NEEDS: [(&str, &str, Need); 32] = [
    ("post", "/v1/locks/{name}", Lock("acquire")),
    ("put", "/v1/locks/{name}", Lock("acquire")),
    ("delete", "/v1/locks/{name}", Lock("acquire")),
    ("get", "/v1/locks/{name}", Lock("read")),
    ("post", "/v1/locks/{name}/hold", Lock("acquire")),
    ("get", "/v1/locks/{name}/events", Lock("read")),
    ("get", "/v1/locks/{name}/history", Lock("read")),
    ("post", "/v1/locks/{name}/break", Lock("break")),
    ("get", "/v1/locks", Lock("read")),
    ("post", "/v1/locks", Set("acquire")),
    ("put", "/v1/locks", Set("acquire")),
    ("delete", "/v1/locks", Set("acquire")),
    ("post", "/v1/idempotency/{key}", Key("use")),
    ("put", "/v1/idempotency/{key}", Key("use")),
    ("delete", "/v1/idempotency/{key}", Key("use")),
    ("post", "/v1/idempotency/{key}/renew", Key("use")),
    ("get", "/v1/idempotency/{key}", Key("read")),
    ("post", "/v1/idempotency/{key}/resolve", Key("resolve")),
    ("delete", "/v1/idempotency/{key}/answer", Key("erase")),
    // It has what the identity may read.
    ("get", "/v1/idempotency", Identity),
    ("get", "/v1/info", Identity),
    ("get", "/v1/backup", Backup),
    ("get", "/metrics", Identity),
    ("get", "/livez", Open),
    ("get", "/readyz", Open),
    ("get", "/problems/{code}", Open),
    // The toy shop, which is for end users, as every guarded route is unless told otherwise.
    ("post", "/v1/orders", Open),
    ("get", "/v1/orders", Open),
    ("get", "/v1/orders/{id}", Open),
    ("post", "/v1/payments", Open),
    ("get", "/v1/payments", Open),
    ("get", "/v1/payments/{id}", Open),
];

/// Every act on a lock, on a key and on the store; an identity for each may do that alone, below `in/` where it
/// is one by name.
const ACTS: [(&str, &str); 8] = [
    ("locks", "acquire"),
    ("locks", "read"),
    ("locks", "break"),
    ("keys", "use"),
    ("keys", "read"),
    ("keys", "resolve"),
    ("keys", "erase"),
    ("store", "backup"),
];

/// A request for an operation about a name.
async fn send(
    service: &Service,
    (method, path): (&str, &str),
    name: &str,
    key: Option<&str>,
) -> Answer {
    let escaped = name.replace('/', "%2F");
    let mut target = path.to_owned();
    for part in ["{name}", "{key}", "{id}", "{code}"] {
        target = target.replace(part, &escaped);
    }
    target += &match (method, path) {
        ("get", "/v1/locks") => format!("?prefix={name}"),
        ("delete", "/v1/locks") => format!("?name=in/other&name={name}"),
        ("get", "/v1/locks/{name}/events") => "?limit=1".to_owned(),
        _ => String::new(),
    };
    let http_method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
    let mut request = service.request(http_method, &target);
    request = request.header("lock-token", "a-token-of-the-clients-own");
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    if path == "/v1/locks" && method != "delete" && method != "get" {
        request = request.json(&json!({"names": ["in/other", name]}));
    } else if path.ends_with("/hold") {
        request = request.json(&json!({"max_hold_ms": 1}));
    } else if path.ends_with("/break") {
        request = request.json(&json!({"reason": "it hangs", "fencing_token": 7}));
    } else if path.ends_with("/resolve") {
        request = request.json(&json!({"outcome": "not-executed"}));
    }
    Answer::of(request).await
}

/// Whether the answer is a refusal of the door with this code, and no other answer is.
#[track_caller]
fn is_as(answer: &Answer, expected: Option<(u16, &str)>, what: &str) {
    let code = answer.json["code"].as_str().unwrap_or_default();
    let refusal =
        matches!(code, "unauthenticated" | "forbidden").then_some((answer.status.as_u16(), code));
    assert_eq!(refusal, expected, "{what}: {answer:?}");
}

#[tokio::test]
async fn every_operation_asks_for_what_the_table_says() {
    let mut keyring = Keyring::default();
    let keys = ACTS.map(|(kind, act)| {
        let names = if kind == "store" { String::new() } else { format!("{kind} = \"in/\",") };
        let allow = format!("allow = [{{ {names} may = [\"{act}\"] }}]");
        ((kind, act), keyring.add(&format!("{kind}-{act}"), &allow))
    });
    let service = Service::start_with(keyring.config()).await;
    for (method, path, need) in NEEDS {
        let operation = (method, path);
        for name in ["in/1", "out/1"] {
            let what = format!("{method} {path} {name} without a key");
            let expected = (need != Open).then_some((401, "unauthenticated"));
            is_as(&send(&service, operation, name, None).await, expected, &what);
            for ((kind, act), key) in &keys {
                let is_permitted = match need {
                    Open | Identity => true,
                    Lock(needed) | Set(needed) => (*kind, *act, name) == ("locks", needed, "in/1"),
                    Key(needed) => (*kind, *act, name) == ("keys", needed, "in/1"),
                    Backup => *act == "backup",
                };
                let expected = (!is_permitted).then_some((403, "forbidden"));
                let what = format!("{method} {path} {name} as {kind} {act}");
                is_as(&send(&service, operation, name, Some(key)).await, expected, &what);
            }
        }
    }
}

#[test]
fn every_operation_is_in_the_table() {
    let extras = Extras { guards: &config("memory:").guard, sandbox: true };
    let document = serde_json::to_value(keylatch::http::openapi(extras)).unwrap();
    let paths = document["paths"].as_object().unwrap().iter();
    let documented: BTreeSet<(&str, &str, bool)> = paths
        .flat_map(|(path, item)| {
            item.as_object()
                .unwrap()
                .iter()
                .map(move |(method, operation)| (&**method, &**path, asks_for_key(operation)))
        })
        .collect();
    let table = NEEDS.iter().map(|(method, path, need)| (*method, *path, *need != Open)).collect();
    assert_eq!(documented, table, "each operation, and whether its document asks for a key");
}

fn asks_for_key(operation: &Value) -> bool {
    operation["security"].as_array().is_some_and(|ways| !ways.is_empty())
}
