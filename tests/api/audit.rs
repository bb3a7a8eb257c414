//! Goal: who broke a lease, who settled an outcome, and who was refused is found in the audit log afterwards,
//! with the words of the client and the id of the request, and without a secret.
//!
//! Method: the file of a service with identities, read line by line.

use std::path::PathBuf;

use keylatch_testkit::{Answer, Keyring, Service, eventually};
use reqwest::Method;
use serde_json::{Value, json};

const ALL: &str = "allow = [{ locks = \"\", may = [\"acquire\", \"read\", \"break\"] }, \
                   { keys = \"\", may = [\"use\", \"read\", \"resolve\"] }]";

/// A service with an audit log, and an identity that may do everything.
struct Fixture {
    service: Service,
    _keyring: Keyring,
    key: String,
    file: PathBuf,
}

impl Fixture {
    async fn start() -> Self {
        let mut keyring = Keyring::default();
        let key = keyring.add("ops", ALL);
        let file = keyring.path().with_file_name("audit.log");
        let mut config = keyring.config();
        config.log.audit = file.display().to_string();
        let service = Service::start_with(config).await;
        Self { service, _keyring: keyring, key, file }
    }

    async fn send(&self, method: Method, path: &str, id: &str, body: Value) -> Answer {
        let request = self.service.request(method, path).bearer_auth(&self.key);
        Answer::of(request.header("x-request-id", id).json(&body)).await
    }

    /// The lines of a request, as soon as there are so many.
    async fn lines(&self, id: &str, count: usize) -> Vec<Value> {
        let read = async || {
            let text = std::fs::read_to_string(&self.file).unwrap_or_default();
            let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            let lines: Vec<_> = lines.filter(|line| line["request_id"] == id).collect();
            (lines.len() >= count).then_some(lines)
        };
        let lines = eventually(read).await;
        assert_eq!(lines.len(), count, "{lines:?}");
        lines
    }
}

/// The members of a line but for the time, which has to be one.
fn members(line: &Value) -> Value {
    let mut line = line.clone();
    let at = line.as_object_mut().unwrap().remove("at").unwrap();
    at.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    line
}

#[tokio::test]
async fn break_is_written_before_and_after_with_who_and_why() {
    let fixture = Fixture::start().await;
    let lease = fixture.send(Method::POST, "/v1/locks/a", "create", json!({})).await;
    let fencing_token = &lease.json["fencing_token"];
    let body = json!({"fencing_token": fencing_token, "reason": "it hangs", "by": "ann"});
    let broken = fixture.send(Method::POST, "/v1/locks/a/break", "break-1", body.clone()).await;
    assert_eq!(broken.status, 200, "{broken:?}");
    let act = |id: &str, result: &str| {
        json!({"request_id": id, "identity": "ops", "act": "break", "lock": "a",
            "fencing_token": fencing_token, "by": "ops: ann", "reason": "it hangs", "result": result})
    };
    let lines = fixture.lines("break-1", 2).await;
    assert_eq!(members(&lines[0]), act("break-1", "asked"));
    assert_eq!(members(&lines[1]), act("break-1", "done"));
    let mut other = body;
    other["fencing_token"] = json!(7);
    let refused = fixture.send(Method::POST, "/v1/locks/a/break", "break-2", other).await;
    refused.is_problem(412, "fence-mismatch");
    assert_eq!(fixture.lines("break-2", 2).await[1]["result"], "refused");
    let text = std::fs::read_to_string(&fixture.file).unwrap();
    assert!(!text.contains(lease.json["token"].as_str().unwrap()), "{text}");
    assert!(!text.contains(&fixture.key), "{text}");
}

#[tokio::test]
async fn resolve_is_written_with_its_scope_who_and_why() {
    let fixture = Fixture::start().await;
    let begin = json!({"lease_ms": 100});
    let begun = fixture.send(Method::POST, "/v1/idempotency/order-1", "begin", begin).await;
    assert_eq!(begun.status, 201, "{begun:?}");
    let unknown = async || {
        let record = fixture.send(Method::GET, "/v1/idempotency/order-1", "look", json!({})).await;
        (record.json["state"] == "unknown").then_some(())
    };
    eventually(unknown).await;
    let body = json!({"outcome": "not-executed", "by": "ann", "reason": "asked the bank"});
    let path = "/v1/idempotency/order-1/resolve";
    let resolved = fixture.send(Method::POST, path, "resolve-1", body.clone()).await;
    assert_eq!(resolved.status, 204, "{resolved:?}");
    let lines = fixture.lines("resolve-1", 2).await;
    let expected = json!({"request_id": "resolve-1", "identity": "ops", "act": "resolve",
        "key": "order-1", "method": "", "path": "", "fencing_token": null,
        "outcome": "not-executed", "by": "ops: ann", "reason": "asked the bank", "result": "done"});
    assert_eq!(members(&lines[1]), expected);
    let again = fixture.send(Method::POST, path, "resolve-2", body).await;
    again.is_problem(404, "no-record");
    assert_eq!(fixture.lines("resolve-2", 2).await[1]["result"], "refused");
    let long = json!({"outcome": "not-executed", "reason": "a".repeat(257)});
    let long = fixture.send(Method::POST, path, "resolve-3", long).await;
    long.is_problem(400, "invalid-body");
    assert_eq!(long.json["field"], "reason");
}

#[tokio::test]
async fn request_that_is_refused_for_its_sender_is_written() {
    let fixture = Fixture::start().await;
    let stranger = fixture.service.request(Method::GET, "/v1/locks/a");
    let refused = Answer::of(stranger.header("x-request-id", "stranger")).await;
    refused.is_problem(401, "unauthenticated");
    let line = &fixture.lines("stranger", 1).await[0];
    assert_eq!(
        members(line),
        json!({"request_id": "stranger", "act": "refused", "method": "GET",
            "route": "/v1/locks/{name}", "status": 401})
    );
    let path = "/v1/idempotency/k?principal=other";
    fixture.send(Method::GET, path, "forbidden", json!({})).await.is_problem(403, "forbidden");
    let line = &fixture.lines("forbidden", 1).await[0];
    assert_eq!((&line["identity"], &line["status"]), (&json!("ops"), &json!(403)));
}

#[tokio::test]
async fn file_that_is_moved_away_is_followed_by_a_new_one_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;

    let fixture = Fixture::start().await;
    for id in ["first", "second"] {
        let request = fixture.service.request(Method::GET, "/v1/locks");
        Answer::of(request.header("x-request-id", id)).await.is_problem(401, "unauthenticated");
        fixture.lines(id, 1).await;
        let mode = std::fs::metadata(&fixture.file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::rename(&fixture.file, fixture.file.with_extension("old")).unwrap();
    }
}

#[tokio::test]
async fn file_that_cannot_be_written_is_an_error_at_start() {
    let mut config = Keyring::default().config();
    config.identities.clear();
    config.log.audit = "/nowhere/audit.log".to_owned();
    let error = keylatch::app::App::new(config).await.expect_err("there is no such directory");
    assert!(error.to_string().contains("/nowhere/audit.log"), "{error}");
}
