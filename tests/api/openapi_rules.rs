//! Goal: generators of clients take the OpenAPI document as it is.
//!
//! Method: rules over the whole document, each of which some generator needs.

use std::collections::BTreeSet;

use keylatch::http::{Document, Extras};
use keylatch_core::idempotency::IdempotencyKey;
use keylatch_core::lock::{EntryName, LockName, Token};
use serde_json::{Map, Value, json};

use crate::openapi::{document, operations, published};

#[test]
fn member_is_optional_or_nullable_and_not_both() {
    for (place, object) in objects() {
        for (name, member) in members(&object) {
            let is_required = array(&object["required"]).any(|one| one == name);
            let is_one = is_required || !has_null(member);
            assert!(is_one, "{place}: {name} may be absent and null");
            assert!(
                member.get("default").is_none(),
                "{place}: {name} has a default, which has clients send it"
            );
        }
    }
}

#[test]
fn fencing_tokens_are_numbers_that_every_reader_keeps() {
    let mut seen = 0;
    for (place, object) in objects() {
        for (name, member) in members(&object) {
            if name == "fencing_token" {
                seen += 1;
                assert_eq!(member["maximum"], json!((1_u64 << 53) - 1), "{place}");
            }
        }
    }
    assert!(seen > 5, "{seen}");
}

/// The names of what programs decide by.
const WORDS: [&str; 13] = [
    "code", "how", "kind", "method", "mode", "on_crash", "outcome", "phase", "reason", "retry",
    "role", "state", "tier",
];
/// Texts all the same: what a person gave as a reason, and a method of the guarded routes, which
/// HTTP names.
const TEXTS: [(&str, &str); 9] = [
    ("BreakLock", "reason"),
    ("BreakNote", "reason"),
    ("EndWait", "reason"),
    ("FailRecord", "reason"),
    ("GrantEnd", "reason"),
    ("ResolveRecord", "reason"),
    ("SettlementNote", "reason"),
    ("ListedRecord", "method"),
    ("IssueKey", "method"),
];

#[test]
fn words_that_programs_decide_by_are_enumerated() {
    let document = document();
    let schemas = &document["components"]["schemas"];
    let mut seen = 0;
    for (place, object) in objects() {
        for (name, member) in members(&object) {
            if WORDS.contains(&name) && !TEXTS.contains(&(&*place, name)) {
                let reference = member["$ref"].as_str().and_then(|path| path.rsplit('/').next());
                let member = reference.map_or(member, |reference| &schemas[reference]);
                assert!(array(&member["enum"]).count() > 1, "{place}.{name}: {member}");
                seen += 1;
            }
        }
    }
    assert!(seen > 15, "{seen}");
    for (method, path, operation) in operations(&document) {
        for parameter in array(&operation["parameters"]) {
            let name = parameter["name"].as_str().expect("a name");
            if WORDS.contains(&name) && name != "method" {
                let words = array(&parameter["schema"]["enum"]).count();
                assert!(words > 1, "{method} {path}: {parameter}");
            }
        }
    }
}

#[test]
fn parameters_are_as_long_as_the_rules_allow() {
    let document = document();
    let schema = |path: &str, method: &str, name: &str| {
        let mut all = array(&document["paths"][path][method]["parameters"]);
        let found = all.find(|parameter| parameter["name"] == name).expect("a parameter");
        (found["schema"]["minLength"].clone(), found["schema"]["maxLength"].clone())
    };
    let token = (json!(Token::MIN_CHARS), json!(Token::MAX_CHARS));
    assert_eq!(schema("/v1/locks/{name}", "put", "Lock-Token"), token);
    assert_eq!(schema("/v1/locks/{name}/hold", "post", "Lock-Token"), token);
    let name = (json!(1), json!(LockName::MAX_BYTES));
    assert_eq!(schema("/v1/locks/{name}", "post", "name"), name);
    assert_eq!(schema("/v1/locks/{name}", "get", "name"), name);
    let entry = (json!(1), json!(EntryName::MAX_BYTES));
    assert_eq!(schema("/v1/locks/{name}", "delete", "entry"), entry);
    let key = (json!(1), json!(IdempotencyKey::MAX_CHARS));
    assert_eq!(schema("/v1/idempotency/{key}", "post", "key"), key);
}

#[test]
fn enumerations_with_a_name_share_no_word() {
    let mut seen = BTreeSet::new();
    for (name, schema) in document()["components"]["schemas"].as_object().expect("schemas") {
        for word in array(&schema["enum"]) {
            assert!(
                seen.insert(word.to_string()),
                "{name}: {word} is a constant of another one in Go"
            );
        }
    }
    assert!(!seen.is_empty());
}

#[test]
fn no_schema_is_one_of_several() {
    for key in ["oneOf", "anyOf", "allOf"] {
        walk(&document()["components"], &mut |value| {
            assert!(
                value[key].is_null(),
                "{key}, of which generators make what does not compile: {value}"
            );
        });
    }
}

#[test]
fn body_that_may_be_absent_is_a_reference() {
    let document = document();
    for (method, path, operation) in operations(&document) {
        let body = &operation["requestBody"];
        if body.is_null() {
            continue;
        }
        let schema = &body["content"]["application/json"]["schema"];
        assert!(schema["$ref"].is_string(), "{method} {path}: {schema}");
        assert!(body["required"].is_boolean(), "{method} {path}: {body}");
    }
}

#[test]
fn operation_is_named_by_a_verb_and_a_noun() {
    let document = document();
    for (method, path, operation) in operations(&document) {
        let id = operation["operationId"].as_str().expect("an id");
        let is_plain = id.chars().all(|c| c.is_ascii_alphanumeric());
        let nouns = id.chars().filter(char::is_ascii_uppercase).count();
        assert!(
            is_plain && id.starts_with(char::is_lowercase) && nouns > 0,
            "{method} {path}: {id}"
        );
        let statuses = operation["responses"].as_object().expect("responses");
        assert!(statuses.keys().any(|status| status.starts_with('4')), "{method} {path}");
    }
}

#[test]
fn every_event_of_a_stream_has_a_schema() {
    let document = document();
    for (path, method, events) in [
        ("/v1/locks/{name}/hold", "post", "waiting acquired renewed lost refused"),
        (
            "/v1/locks/{name}/events",
            "get",
            "snapshot acquired renewed broken released expired lagged closing",
        ),
    ] {
        let content = &document["paths"][path][method]["responses"]["200"]["content"];
        let schema = &content["text/event-stream"]["schema"];
        let named: BTreeSet<_> = members(&schema["contentSchema"]).map(|(name, _)| name).collect();
        assert_eq!(named, events.split(' ').collect(), "{method} {path}");
    }
}

#[test]
fn every_component_is_used() {
    let document = published();
    let mut used = BTreeSet::new();
    walk(&document, &mut |value| {
        used.extend(value["$ref"].as_str().map(str::to_owned));
    });
    for (kind, all) in document["components"].as_object().expect("components") {
        for name in all.as_object().expect("a kind of components").keys() {
            let path = format!("#/components/{kind}/{name}");
            assert!(kind == "securitySchemes" || used.contains(&path), "{path}");
        }
    }
}

#[test]
fn document_says_whose_it_is_and_where() {
    let document = document();
    assert!(document["info"]["contact"]["name"].is_string());
    assert_eq!(document["servers"][0]["url"], "/");
    assert_eq!(tags(&document), ["locks", "idempotency", "guarded", "system"]);
    let committed_tags = serde_json::to_value(committed()).expect("a document");
    assert_eq!(
        tags(&committed_tags),
        ["locks", "idempotency", "system"],
        "guarded has no operation"
    );
    let text = serde_json::to_string(&committed()).expect("a document");
    assert!(!text.contains(r#""/v1/orders":"#), "the toy shop is in the committed document");
}

#[test]
fn every_list_says_whether_it_is_in_order() {
    let document = document();
    let paths = document["paths"].as_object().expect("paths");
    let operations = paths.values().flat_map(|path| path.as_object().expect("operations").values());
    let lists = operations.filter(|operation| {
        array(&operation["parameters"]).any(|parameter| parameter["name"] == "cursor")
    });
    let mut count = 0;
    for list in lists {
        let text = list["description"].as_str().unwrap_or_default().replace('\n', " ");
        let words = match list["operationId"].as_str() {
            Some("listLocks") => {
                &["in the order of", "On Redis and Redlock there is no order", "ZooKeeper"][..]
            }
            _ => &["in no order"],
        };
        for words in words {
            assert!(text.contains(words), "{words}: {text}");
        }
        count += 1;
    }
    assert_eq!(count, 2);
}

fn tags(document: &Value) -> Vec<&str> {
    array(&document["tags"]).filter_map(|tag| tag["name"].as_str()).collect()
}

/// The document that is committed, in its order.
fn committed() -> Document {
    keylatch::http::openapi(Extras { guards: &[], sandbox: false })
}

/// Every schema that has members, with where it is.
fn objects() -> Vec<(String, Value)> {
    let schemas = &document()["components"]["schemas"];
    let mut found = Vec::new();
    for (name, schema) in schemas.as_object().expect("schemas") {
        walk(schema, &mut |value| {
            if value["properties"].is_object() {
                found.push((name.clone(), value.clone()));
            }
        });
    }
    found
}

fn members(object: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let members = object["properties"].as_object().into_iter().flat_map(Map::iter);
    members.map(|(name, member)| (name.as_str(), member))
}

fn has_null(member: &Value) -> bool {
    let types = array(&member["type"]).any(|one| one == "null");
    types || array(&member["oneOf"]).any(|one| one["type"] == "null")
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn walk(value: &Value, visit: &mut impl FnMut(&Value)) {
    visit(value);
    match value {
        Value::Object(object) => object.values().for_each(|one| walk(one, visit)),
        Value::Array(all) => all.iter().for_each(|one| walk(one, visit)),
        _ => {}
    }
}
