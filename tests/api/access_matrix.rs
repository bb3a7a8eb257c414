//! Goal: every operation of the service asks for the identity and the permission that it should: no
//! operation is open by oversight, and no permission opens another one's door.
//!
//! Method: each operation of the OpenAPI document and each route of the console, by clients without
//! a key and by identities that may do one act each, on names within and outside of their prefix.
//! The table says what each operation needs, and an operation that is not in it fails the test. A
//! guard for identities asks for any.

use std::collections::BTreeSet;

use keylatch::http::{Extras, GuardAccess};
use keylatch_testkit::{Answer, Keyring, Service, Shop, Upstream, config};
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
    /// An act on some idempotency keys, whichever.
    AnyKey(&'static str),
    /// An act on the store as a whole.
    Store(&'static str),
}

use Need::{AnyKey, Identity, Key, Lock, Open, Set, Store};

const NEEDS: [(&str, &str, Need); 35] = [
    ("post", "/v1/locks/{name}", Lock("acquire")),
    ("put", "/v1/locks/{name}", Lock("acquire")),
    ("delete", "/v1/locks/{name}", Lock("acquire")),
    ("get", "/v1/locks/{name}", Lock("read")),
    ("post", "/v1/locks/{name}/hold", Lock("acquire")),
    ("get", "/v1/locks/{name}/events", Lock("read")),
    ("get", "/v1/locks/{name}/history", Lock("read")),
    ("post", "/v1/locks/{name}/break", Lock("break")),
    ("post", "/v1/locks/{name}/end-wait", Lock("break")),
    ("get", "/v1/locks", Lock("read")),
    ("post", "/v1/locks", Set("acquire")),
    ("put", "/v1/locks", Set("acquire")),
    ("delete", "/v1/locks", Set("acquire")),
    ("post", "/v1/idempotency/{key}", Key("use")),
    ("put", "/v1/idempotency/{key}", Key("use")),
    ("delete", "/v1/idempotency/{key}", Key("use")),
    ("post", "/v1/idempotency/{key}/renew", Key("use")),
    ("post", "/v1/idempotency/{key}/fail", Key("use")),
    ("get", "/v1/idempotency/{key}", Key("read")),
    ("post", "/v1/idempotency/{key}/resolve", Key("resolve")),
    ("delete", "/v1/idempotency/{key}/answer", Key("erase")),
    // It has what the identity may read.
    ("get", "/v1/idempotency", AnyKey("read")),
    // A key of no name that the client could choose.
    ("post", "/v1/idempotency-keys", AnyKey("use")),
    ("get", "/v1/info", Identity),
    ("get", "/v1/backup", Store("backup")),
    ("get", "/metrics", Store("metrics")),
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

/// What the routes of the console ask for, which are not in the document.
const CONSOLE: [(&str, Need); 8] = [
    ("/", Open),
    ("/assets/page.css", Open),
    ("/assets/console/console.js", Open),
    ("/console/glance", Identity),
    ("/console/locks?prefix={name}", Lock("read")),
    ("/console/queue?name={name}", Lock("read")),
    ("/console/history?name={name}", Lock("read")),
    ("/console/keys/{key}", Key("read")),
];

/// Every act on a lock, on a key and on the store; an identity for each may do that alone, below
/// `in/` where it is one by name.
const ACTS: [(&str, &str); 9] = [
    ("locks", "acquire"),
    ("locks", "read"),
    ("locks", "break"),
    ("keys", "use"),
    ("keys", "read"),
    ("keys", "resolve"),
    ("keys", "erase"),
    ("store", "backup"),
    ("store", "metrics"),
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

/// Identities that may do one act each, and their keys.
fn identities(keyring: &mut Keyring) -> [((&'static str, &'static str), String); ACTS.len()] {
    ACTS.map(|(kind, act)| {
        let names = if kind == "store" { String::new() } else { format!("{kind} = \"in/\",") };
        let allow = format!("allow = [{{ {names} may = [\"{act}\"] }}]");
        ((kind, act), keyring.add(&format!("{kind}-{act}"), &allow))
    })
}

/// How one who may do this act alone is refused.
fn refusal(need: Need, act: (&str, &str), name: &str) -> Option<(u16, &'static str)> {
    let is_permitted = match need {
        Open | Identity => true,
        Lock(needed) | Set(needed) => act == ("locks", needed) && name == "in/1",
        Key(needed) => act == ("keys", needed) && name == "in/1",
        AnyKey(needed) => act == ("keys", needed),
        Store(needed) => act == ("store", needed),
    };
    (!is_permitted).then_some((403, "forbidden"))
}

/// How one without a key is refused.
fn refusal_without_a_key(need: Need) -> Option<(u16, &'static str)> {
    (need != Open).then_some((401, "unauthenticated"))
}

#[tokio::test]
async fn every_operation_asks_for_what_the_table_says() {
    let mut keyring = Keyring::default();
    let keys = identities(&mut keyring);
    let service = Service::start_with(keyring.config()).await;
    for (method, path, need) in NEEDS {
        let operation = (method, path);
        for name in ["in/1", "out/1"] {
            let what = format!("{method} {path} {name} without a key");
            let expected = refusal_without_a_key(need);
            is_as(&send(&service, operation, name, None).await, expected, &what);
            for (act, key) in &keys {
                let what = format!("{method} {path} {name} as {act:?}");
                let expected = refusal(need, *act, name);
                is_as(&send(&service, operation, name, Some(key)).await, expected, &what);
            }
        }
    }
}

#[tokio::test]
async fn every_route_of_the_console_asks_for_what_the_table_says() {
    let mut keyring = Keyring::default();
    let keys = identities(&mut keyring);
    let service = Service::start_with(keyring.config()).await;
    let get = async |path: &str, name: &str, key: Option<&str>| {
        let target = path.replace("{name}", name).replace("{key}", &name.replace('/', "%2F"));
        let request = service.request(Method::GET, &target).header("accept", "text/html");
        let request = key.iter().fold(request, |request, key| request.bearer_auth(key));
        let answer = request.send().await.expect("an answer");
        match answer.status().as_u16() {
            // What is permitted may be a stream without an end.
            401 | 403 => {
                let status = answer.status().as_u16();
                let body: Value = answer.json().await.expect("a problem");
                Some((status, body["code"].as_str().unwrap_or_default().to_owned()))
            }
            _ => None,
        }
    };
    for (path, need) in CONSOLE {
        for name in ["in/1", "out/1"] {
            let expected = |refusal: Option<(u16, &str)>| {
                refusal.map(|(status, code)| (status, code.to_owned()))
            };
            let without = get(path, name, None).await;
            assert_eq!(without, expected(refusal_without_a_key(need)), "{path} {name}");
            for (act, key) in &keys {
                let found = get(path, name, Some(key)).await;
                assert_eq!(found, expected(refusal(need, *act, name)), "{path} {name} as {act:?}");
            }
        }
    }
}

#[tokio::test]
async fn guard_for_identities_asks_for_any_of_them_on_each_path_and_method() {
    let (mut keyring, upstream) = (Keyring::default(), Upstream::start().await);
    let keys = identities(&mut keyring);
    let mut config = keyring.config();
    config.guard = vec![Shop::guard(&upstream.url())];
    config.guard[0].access = GuardAccess::Identity;
    let service = Service::start_with(config).await;
    let send = async |method: &str, path: &str, header: &str, key: &str| {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = service.request(method, path).header("idempotency-key", "k");
        Answer::of(request.header(header, format!("Bearer {key}"))).await
    };
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
        for path in ["/orders", "/orders/", "/orders/in/1", "/orders?name=in/1"] {
            let what = format!("{method} {path}");
            // That header is the upstream's, whatever it has.
            let as_api = send(method, path, "authorization", &keys[0].1).await;
            is_as(&as_api, refusal_without_a_key(Identity), &what);
            let wrong = send(method, path, "keylatch-authorization", "kl_wrong").await;
            is_as(&wrong, refusal_without_a_key(Identity), &what);
            for (_, key) in &keys {
                is_as(&send(method, path, "keylatch-authorization", key).await, None, &what);
            }
        }
    }
    assert!(upstream.seen().iter().all(|run| !run.headers.contains_key("keylatch-authorization")));
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
