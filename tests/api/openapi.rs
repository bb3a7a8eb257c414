//! Goal: the OpenAPI document says what the service does, and all of it.
//!
//! Method: the document against the code, which has every status of every operation, and every
//! documented example against the service.

use std::collections::BTreeSet;
use std::path::Path;

use keylatch::config::Config;
use keylatch::http::{Document, Extras, Guard, GuardAccess};
use keylatch_testkit::{Answer, Service, config};
use reqwest::Method;
use serde_json::{Map, Value, json};

/// What has no example that works by itself: a fencing token and an id are given only by creating,
/// and an outcome becomes unknown only by a failure.
const BY_HAND: [(&str, &str); 8] = [
    // `memory:` gives no copy.
    ("get", "/v1/backup"),
    // Nothing signs keys.
    ("post", "/v1/idempotency-keys"),
    ("post", "/v1/locks/{name}/break"),
    ("post", "/v1/locks/{name}/end-wait"),
    ("post", "/v1/idempotency/{key}/fail"),
    ("post", "/v1/idempotency/{key}/resolve"),
    ("get", "/v1/orders/{id}"),
    ("get", "/v1/payments/{id}"),
];

/// The other operations in an order in which each one's example works.
const TOUR: [(&str, &str); 28] = [
    ("post", "/v1/locks/{name}"),
    ("get", "/v1/locks/{name}"),
    ("get", "/v1/locks"),
    ("post", "/v1/locks"),
    ("put", "/v1/locks"),
    ("delete", "/v1/locks"),
    ("put", "/v1/locks/{name}"),
    ("get", "/v1/locks/{name}/history"),
    ("delete", "/v1/locks/{name}"),
    ("post", "/v1/locks/{name}/hold"),
    ("get", "/v1/locks/{name}/events"),
    ("post", "/v1/idempotency/{key}"),
    ("get", "/v1/idempotency/{key}"),
    ("post", "/v1/idempotency/{key}/renew"),
    ("delete", "/v1/idempotency/{key}"),
    ("post", "/v1/idempotency/{key}"),
    ("put", "/v1/idempotency/{key}"),
    ("delete", "/v1/idempotency/{key}/answer"),
    ("get", "/v1/idempotency"),
    ("post", "/v1/orders"),
    ("get", "/v1/orders"),
    ("post", "/v1/payments"),
    ("get", "/v1/payments"),
    ("get", "/v1/info"),
    ("get", "/livez"),
    ("get", "/readyz"),
    ("get", "/metrics"),
    ("get", "/problems/{code}"),
];

#[test]
fn committed_document_matches_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi/openapi.json");
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    // The toy shop is no part of the API.
    let code = keylatch::http::openapi(Extras { guards: &[], sandbox: false });
    let code = code.to_pretty_json().expect("a document") + "\n";
    let differs = committed.lines().zip(code.lines()).position(|(was, is)| was != is);
    assert!(
        committed == code,
        "openapi/openapi.json is not what the code makes (line {:?}): run `make openapi`",
        differs.map(|line| line + 1)
    );
}

#[test]
fn every_operation_has_id_summary_and_tag() {
    let document = document();
    let tags = document["tags"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        let id = operation["operationId"].as_str().unwrap_or_default();
        assert!(!id.is_empty() && ids.insert(id), "{method} {path}: {id:?}");
        assert!(!operation["summary"].as_str().unwrap_or_default().is_empty(), "{method} {path}");
        let tag = &operation["tags"][0];
        assert!(tags.iter().any(|known| known["name"] == *tag), "{method} {path}: {tag}");
    }
}

#[test]
fn every_response_documents_its_headers() {
    let document = document();
    for (method, path, operation) in operations(&document) {
        for (status, response) in operation["responses"].as_object().unwrap() {
            let mut expected = BTreeSet::from(["X-Request-Id"]);
            match (method, path, status.as_str()) {
                ("post", "/v1/locks/{name}", "201") => expected.extend(["Location", "Lock-Token"]),
                ("post" | "put", "/v1/locks/{name}", "200") => expected.extend(["Lock-Token"]),
                ("post", "/v1/locks", "200" | "201") | ("put", "/v1/locks", "200") => {
                    expected.extend(["Lock-Token"]);
                }
                ("post", "/v1/locks/{name}/hold", "200") => expected.extend(["Lock-Token"]),
                ("post", "/v1/idempotency/{key}", "201") => expected.extend(["Lock-Token"]),
                ("post", "/v1/orders" | "/v1/payments", "201") => {
                    expected.extend(["Location", "Idempotency-Key-Expires"]);
                }
                _ => {}
            }
            if ["409", "429", "503"].contains(&status.as_str()) {
                expected.insert("Retry-After");
            }
            if status == "401" {
                expected.insert("WWW-Authenticate");
            }
            assert_eq!(keys(&response["headers"]), expected, "{method} {path} {status}");
        }
    }
}

#[test]
fn every_error_is_documented_as_a_problem() {
    let document = document();
    let problem = json!({"$ref": "#/components/schemas/Problem"});
    for (method, path, operation) in operations(&document) {
        for (status, response) in operation["responses"].as_object().unwrap() {
            if status.starts_with('2') {
                continue;
            }
            let content = &response["content"];
            assert_eq!(keys(content), BTreeSet::from(["application/problem+json"]));
            let content = &content["application/problem+json"];
            assert_eq!(content["schema"], problem, "{method} {path} {status}");
            for (code, example) in content["examples"].as_object().unwrap() {
                assert_eq!(example["value"]["code"], *code, "{method} {path} {status}");
                assert_eq!(example["value"]["status"].to_string(), *status);
            }
        }
    }
    let required = document["components"]["schemas"]["Problem"]["required"].as_array().unwrap();
    for member in ["type", "title", "status", "detail", "code"] {
        assert!(required.contains(&json!(member)), "{member}");
    }
}

#[test]
fn every_operation_that_asks_for_a_key_documents_the_schemes() {
    let document = document();
    let schemes = &document["components"]["securitySchemes"];
    for (name, scheme) in [("apiKey", "bearer"), ("password", "basic")] {
        assert_eq!(
            (&schemes[name]["type"], &schemes[name]["scheme"]),
            (&json!("http"), &json!(scheme))
        );
    }
    let any = json!([{"apiKey": []}, {"password": []}, {}]);
    for (method, path, operation) in operations(&document) {
        let asks = operation["responses"]["401"].is_object();
        let expected = if asks { any.clone() } else { json!([]) };
        assert_eq!(operation["security"], expected, "{method} {path}");
    }
}

#[test]
fn guard_that_asks_for_an_identity_documents_its_header() {
    let mut guarded = config("memory:");
    for (path, access) in [("/orders", GuardAccess::Identity), ("/open", GuardAccess::Public)] {
        let upstream = "http://orders.internal:8080".to_owned();
        guarded.guard.push(Guard { path: path.to_owned(), upstream, access, ..Guard::default() });
    }
    let document = serde_json::to_value(openapi(&guarded)).expect("a document");
    let (asks, open) = (&document["paths"]["/orders"]["post"], &document["paths"]["/open"]["post"]);
    assert_eq!(asks["security"], json!([{"guardKey": []}]));
    assert!(asks["responses"]["401"].is_object() && !open["responses"]["401"].is_object());
    assert_eq!(open["security"], json!([]));
    let scheme = &document["components"]["securitySchemes"]["guardKey"];
    assert_eq!(
        (&scheme["in"], &scheme["name"]),
        (&json!("header"), &json!("keylatch-authorization"))
    );
}

#[test]
fn every_reference_resolves() {
    let document = published();
    let mut references = Vec::new();
    collect_references(&document, &mut references);
    assert!(!references.is_empty());
    for reference in references {
        let pointer = reference.strip_prefix('#').expect("a reference within the document");
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

/// Sends the example of every operation, twice where it may be repeated.
#[tokio::test]
async fn every_example_works_as_documented() {
    let service = Service::start("memory:").await;
    let document = document();
    let all: BTreeSet<_> = operations(&document).map(|(method, path, _)| (method, path)).collect();
    let tour: BTreeSet<_> = TOUR.into_iter().chain(BY_HAND).collect();
    assert_eq!(all, tour, "the tour goes everywhere");
    for (method, path) in TOUR {
        let operation = &document["paths"][path][method];
        let answer = press(&service, method, path, operation).await;
        let status = answer.status.as_str();
        assert!(answer.status.is_success(), "{method} {path}: {answer:?}");
        let response = &operation["responses"][status];
        assert!(response.is_object(), "{method} {path}: {status} is not documented");
        assert_is_as_documented(&document, response, &answer);
        if method == "post" {
            let again = press(&service, method, path, operation).await;
            let replayed = again.header("idempotent-replayed") == "true";
            // A run that is begun again is still to be done.
            let is_begun = path == "/v1/idempotency/{key}";
            let same = if replayed || is_begun || again.text.is_empty() { status } else { "200" };
            assert_eq!(again.status.as_str(), same, "pressed again: {again:?}");
            assert_is_as_documented(&document, &operation["responses"][same], &again);
        }
    }
}

#[tokio::test]
async fn document_is_served() {
    let service = Service::start("memory:").await;
    let served = service.get("/openapi.json").await;
    assert_eq!((served.status.as_u16(), &served.json), (200, &published()));
    assert_eq!(served.header("content-type"), "application/json");
}

#[tokio::test]
async fn docs_are_served_from_the_binary() {
    let service = Service::start("memory:").await;
    let docs = service.get("/docs").await;
    assert_eq!((docs.status.as_u16(), docs.header("location")), (303, "docs/"));
    for path in ["/docs/", "/docs/index.html"] {
        let page = service.get(path).await;
        assert_eq!(page.status, 200, "{path}");
        assert!(page.header("content-type").starts_with("text/html"), "{path}");
        assert!(page.text.contains("swagger-ui-bundle.js"), "{path}");
        // A page that loads anything from elsewhere would not work without the Internet.
        for elsewhere in ["src=\"http", "src=\"//", "rel=\"stylesheet\" href=\"http"] {
            assert!(!page.text.contains(elsewhere), "{path}: {elsewhere}");
        }
    }
    let initializer = service.get("/docs/start.js").await;
    assert!(initializer.text.contains("/openapi.json"), "{}", initializer.text);
    // Else the page asks a validator of the Internet about the document at every other host than
    // localhost.
    let asks_none = initializer.text.contains("validatorUrl: 'none'");
    assert!(asks_none, "{}", initializer.text);
    for file in ["swagger-ui-bundle.js", "swagger-ui.css", "swagger-ui-standalone-preset.js"] {
        let asset = service.get(&format!("/docs/{file}")).await;
        assert_eq!(asset.status, 200, "{file}");
        assert!(asset.text.len() > 10_000, "{file}: {} bytes", asset.text.len());
    }
    service.get("/docs/nothing.js").await.is_problem(404, "not-found");
}

/// The document of the service with its built-in shop.
fn openapi(config: &Config) -> Document {
    keylatch::http::openapi(Extras { guards: &config.guard, sandbox: true })
}

pub(crate) fn published() -> Value {
    serde_json::to_value(openapi(&config("memory:"))).expect("a document")
}

/// The document with each reference to a response, an example or a header replaced by what it leads
/// to.
pub(crate) fn document() -> Value {
    let published = published();
    let mut document = published.clone();
    inline(&published, &mut document["components"]);
    let components = document["components"].take();
    inline(&json!({"components": &components}), &mut document["paths"]);
    document["components"] = components;
    document
}

fn inline(document: &Value, value: &mut Value) {
    let is_schema = |path: &str| path.starts_with("#/components/schemas/");
    if let Some(path) = value["$ref"].as_str().filter(|path| !is_schema(path)) {
        let found = document.pointer(&path[1..]).unwrap_or_else(|| panic!("{path} is missing"));
        *value = found.clone();
    }
    match value {
        Value::Object(object) => object.values_mut().for_each(|one| inline(document, one)),
        Value::Array(all) => all.iter_mut().for_each(|one| inline(document, one)),
        _ => {}
    }
}

/// Method, path and operation.
pub(crate) fn operations(document: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    let paths = document["paths"].as_object().expect("paths");
    paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().expect("operations").iter();
        methods.map(move |(method, operation)| (method.as_str(), path.as_str(), operation))
    })
}

fn keys(object: &Value) -> BTreeSet<&str> {
    object.as_object().into_iter().flat_map(Map::keys).map(String::as_str).collect()
}

fn collect_references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(object) => {
            found.extend(object.get("$ref").and_then(Value::as_str));
            object.values().for_each(|value| collect_references(value, found));
        }
        Value::Array(array) => array.iter().for_each(|value| collect_references(value, found)),
        _ => {}
    }
}

/// Sends the request that Swagger UI does when nothing but its button is pressed.
async fn press(service: &Service, method: &str, path: &str, operation: &Value) -> Answer {
    let (mut url, mut query, mut headers) = (path.to_owned(), Vec::new(), Vec::new());
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap();
        let example = [&parameter["example"], &parameter["schema"]["default"]];
        let Some(value) = example.into_iter().find(|value| !value.is_null()) else {
            assert_ne!(parameter["required"], true, "{method} {path}: {name} has no example");
            continue;
        };
        let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match (parameter["in"].as_str().unwrap(), value.as_array()) {
            ("path", _) => url = url.replace(&format!("{{{name}}}"), &plain(value)),
            // One parameter for each value.
            ("query", Some(values)) => {
                query.extend(values.iter().map(|value| format!("{name}={}", plain(value))));
            }
            ("query", None) => query.push(format!("{name}={}", plain(value))),
            _ => headers.push((name, plain(value))),
        }
    }
    let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
    let mut request = service.request(method, &format!("{url}?{}", query.join("&")));
    for (name, value) in headers {
        request = request.header(name, value);
    }
    if let Some(body) = operation["requestBody"]["content"].get("application/json") {
        request = request.json(body.get("example").expect("a body has an example"));
    }
    Answer::of(request).await
}

/// Asserts that an answer has the headers and the members that the document says it has.
#[track_caller]
fn assert_is_as_documented(document: &Value, response: &Value, answer: &Answer) {
    for header in keys(&response["headers"]) {
        assert_ne!(answer.header(header), "", "{header}: {answer:?}");
    }
    let Some((kind, content)) = response["content"].as_object().and_then(|all| all.iter().next())
    else {
        return assert_eq!(answer.text, "");
    };
    assert!(answer.header("content-type").starts_with(kind), "{kind}: {answer:?}");
    let Some(schema) = resolve(document, &content["schema"]) else { return };
    let has = keys(&answer.json);
    let is_of = |schema: &Value| {
        let required = schema["required"].as_array().into_iter().flatten();
        let mut required = required.filter_map(Value::as_str);
        has.is_subset(&keys(&schema["properties"])) && required.all(|member| has.contains(member))
    };
    let one_of = schema["oneOf"].as_array().into_iter().flatten();
    let mut one_of = one_of.filter_map(|one| resolve(document, one));
    assert!(is_of(schema) || one_of.any(is_of), "{has:?} is not as in {schema}");
}

/// The schema that a reference leads to.
fn resolve<'a>(document: &'a Value, schema: &Value) -> Option<&'a Value> {
    document.pointer(schema["$ref"].as_str()?.strip_prefix('#')?)
}
