//! Goal: who was granted, released, lost or broke a lock, who settled or erased an outcome, and who
//! was refused is found in the audit log afterwards, with the words of the client and the id of the
//! request, and without a secret.
//!
//! Method: the file of a service with identities, read line by line.

use std::path::PathBuf;

use keylatch::config::Config;
use keylatch_testkit::{Answer, EventStream, Keyring, Service, Shop, Upstream, eventually};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

const ALL: &str = "allow = [{ locks = \"\", may = [\"acquire\", \"read\", \"break\"] }, \
                   { keys = \"\", may = [\"use\", \"read\", \"resolve\", \"erase\"] }]";

/// A service with an audit log, and an identity that may do everything.
struct Fixture {
    service: Service,
    _keyring: Keyring,
    key: String,
    file: PathBuf,
}

impl Fixture {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(set: impl FnOnce(&mut Config)) -> Self {
        let mut keyring = Keyring::default();
        let key = keyring.add("ops", ALL);
        let file = keyring.path().with_file_name("audit.log");
        let mut config = keyring.config();
        config.log.audit = file.display().to_string();
        set(&mut config);
        let service = Service::start_with(config).await;
        Self { service, _keyring: keyring, key, file }
    }

    async fn send(&self, method: Method, path: &str, id: &str, body: Value) -> Answer {
        let request = self.service.request(method, path).bearer_auth(&self.key);
        Answer::of(request.header("x-request-id", id).json(&body)).await
    }

    fn file_of_strangers(&self) -> PathBuf {
        self.file.with_extension("log.strangers")
    }

    /// All lines so far.
    fn all(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// None of these, nor the API key, is in the file.
    fn has_no_secret(&self, tokens: &[&str]) {
        let text = std::fs::read_to_string(&self.file).unwrap();
        for secret in tokens.iter().chain([&self.key.as_str()]) {
            assert!(!text.contains(secret), "{text}");
        }
    }

    /// The lines of a request, as soon as there are so many.
    async fn lines(&self, id: &str, count: usize) -> Vec<Value> {
        let read = async || {
            let lines: Vec<_> =
                self.all().into_iter().filter(|line| line["request_id"] == id).collect();
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
    assert_eq!(fixture.lines("break-2", 3).await[1]["result"], "refused");
    fixture.has_no_secret(&[lease.json["token"].as_str().unwrap()]);
}

#[tokio::test]
async fn resolve_is_written_with_its_scope_who_and_why() {
    let fixture = Fixture::start().await;
    let begin = json!({"lease_ms": 1500});
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
    let line = |fencing_token: &Value, result: &str| {
        json!({"request_id": "resolve-1", "identity": "ops", "act": "resolve",
            "key": "order-1", "method": "", "path": "", "fencing_token": fencing_token,
            "outcome": "not-executed", "by": "ops: ann", "reason": "asked the bank", "result": result})
    };
    assert_eq!(members(&lines[0]), line(&Value::Null, "asked"));
    assert_eq!(members(&lines[1]), line(&begun.json["fencing_token"], "done"));
    let again = fixture.send(Method::POST, path, "resolve-2", body).await;
    again.is_problem(404, "no-record");
    assert_eq!(fixture.lines("resolve-2", 3).await[1]["result"], "refused");
    let long = json!({"outcome": "not-executed", "reason": "a".repeat(257)});
    let long = fixture.send(Method::POST, path, "resolve-3", long).await;
    long.is_problem(400, "invalid-body");
    assert_eq!(long.json["field"], "reason");
}

/// Strangers can make as many lines as they like, and these go where they push out nothing.
#[tokio::test]
async fn request_that_is_refused_for_its_sender_is_written_and_that_of_a_stranger_apart() {
    let fixture = Fixture::start().await;
    let stranger = fixture.service.request(Method::GET, "/v1/locks/a");
    let refused = Answer::of(stranger.header("x-request-id", "stranger")).await;
    refused.is_problem(401, "unauthenticated");
    let path = "/v1/idempotency/k?principal=other";
    fixture.send(Method::GET, path, "forbidden", json!({})).await.is_problem(403, "forbidden");
    let line = &fixture.lines("forbidden", 1).await[0];
    assert_eq!((&line["identity"], &line["status"]), (&json!("ops"), &json!(403)));
    assert_eq!(acts(&fixture, "stranger", 0).await, [json!(null); 0]);
    let of_strangers = async || std::fs::read_to_string(fixture.file_of_strangers()).ok();
    // It is JSON as a whole, and so the one line.
    let line = eventually(async || serde_json::from_str(&of_strangers().await?).ok()).await;
    assert_eq!(
        members(&line),
        json!({"request_id": "stranger", "act": "refused", "method": "GET",
            "route": "/v1/locks/{name}", "status": 401, "code": "unauthenticated", "lock": "a"})
    );
}

#[tokio::test]
async fn file_that_cannot_be_written_is_an_error_at_start() {
    let mut config = Keyring::default().config();
    config.identities.clear();
    config.log.audit = "/nowhere/audit.log".to_owned();
    let error = keylatch::app::App::new(config).await.expect_err("there is no such directory");
    assert!(error.to_string().contains("/nowhere/audit.log"), "{error}");
}

/// What each line says was done, without when and by which request.
async fn acts(fixture: &Fixture, id: &str, count: usize) -> Vec<Value> {
    let mut lines = fixture.lines(id, count).await;
    for line in &mut lines {
        let line = line.as_object_mut().unwrap();
        assert!(line.remove("at").is_some() && line.remove("request_id").is_some());
    }
    lines
}

#[tokio::test]
async fn grant_and_release_are_written_with_who_which_and_the_fencing_token() {
    let fixture = Fixture::start().await;
    let body = json!({"owner": "runner 7", "ttl_ms": 60_000});
    let lease = fixture.send(Method::POST, "/v1/locks/a%2Fb", "create", body.clone()).await;
    assert_eq!(lease.status, 201, "{lease:?}");
    let fencing_token = lease.fencing_token();
    let owner = &lease.json["owner"];
    let with_token = async |method: Method, id: &str, body: &Value| {
        let request = fixture.service.request(method, "/v1/locks/a%2Fb");
        let request = request.bearer_auth(&fixture.key).header("Lock-Token", lease.token());
        Answer::of(request.header("x-request-id", id).json(body)).await
    };
    assert_eq!(with_token(Method::POST, "again", &body).await.status, 200);
    assert_eq!(with_token(Method::PUT, "renew", &json!({})).await.status, 200);
    assert_eq!(with_token(Method::DELETE, "release", &json!({})).await.status, 204);
    let grant = json!({"identity": "ops", "act": "grant", "lock": "a/b",
        "fencing_token": fencing_token, "owner": owner});
    assert_eq!(acts(&fixture, "create", 1).await, [grant]);
    let released = &acts(&fixture, "release", 1).await[0];
    assert!(released["held_ms"].as_u64().is_some_and(|millis| millis < 60_000), "{released}");
    let release = json!({"identity": "ops", "act": "release", "lock": "a/b",
        "fencing_token": fencing_token, "held_ms": released["held_ms"]});
    assert_eq!(*released, release);
    // The lines are in order, so those of a repeat and of a renewal would be there.
    assert_eq!(acts(&fixture, "again", 0).await, [json!(null); 0]);
    assert_eq!(acts(&fixture, "renew", 0).await, [json!(null); 0]);
    fixture.has_no_secret(&[&lease.token()]);
}

#[tokio::test]
async fn locks_of_a_set_have_a_line_each() {
    let fixture = Fixture::start().await;
    let body = json!({"names": ["a", "b"]});
    let set = fixture.send(Method::POST, "/v1/locks", "create", body).await;
    assert_eq!(set.status, 201, "{set:?}");
    let fences: Vec<_> = (0..2).map(|index| &set.json["locks"][index]["fencing_token"]).collect();
    let token = set.json["token"].as_str().unwrap();
    let release = fixture.service.request(Method::DELETE, "/v1/locks?name=b&name=a");
    let release = release.bearer_auth(&fixture.key).header("Lock-Token", token);
    assert_eq!(Answer::of(release.header("x-request-id", "release")).await.status, 204);
    let named = |lines: &[Value]| {
        let of = |line: &Value| {
            (line["act"].clone(), line["lock"].clone(), line["fencing_token"].clone())
        };
        lines.iter().map(of).collect::<Vec<_>>()
    };
    let line = |act: &str, lock: &str, fence: &Value| (json!(act), json!(lock), fence.clone());
    let granted = named(&acts(&fixture, "create", 2).await);
    assert_eq!(granted, [line("grant", "a", fences[0]), line("grant", "b", fences[1])]);
    let released = named(&acts(&fixture, "release", 2).await);
    assert_eq!(released, [line("release", "b", fences[1]), line("release", "a", fences[0])]);
    fixture.has_no_secret(&[token]);
}

#[tokio::test]
async fn hold_is_written_from_its_grant_to_its_release_or_loss() {
    let fixture = Fixture::start().await;
    let hold = async |lock: &str, id: &str| {
        let request = fixture.service.request(Method::POST, &format!("/v1/locks/{lock}/hold"));
        let request = request.bearer_auth(&fixture.key).header("x-request-id", id);
        EventStream::of(request.json(&json!({"ttl_ms": 60_000}))).await
    };
    let mut events = hold("a", "gone").await;
    let acquired = events.next("acquired").await;
    drop(events);
    let lines = acts(&fixture, "gone", 2).await;
    for (line, act) in lines.iter().zip(["grant", "release"]) {
        assert_eq!((&line["act"], &line["lock"]), (&json!(act), &json!("a")), "{line}");
        assert_eq!(line["fencing_token"], acquired.fencing_token(), "{line}");
        assert_eq!(line["identity"], "ops", "{line}");
    }
    let request = fixture.service.request(Method::POST, "/v1/locks/b/hold");
    let request = request.bearer_auth(&fixture.key).header("x-request-id", "lost");
    let mut events = EventStream::of(request.json(&json!({"ttl_ms": 3000}))).await;
    let acquired = events.next("acquired").await;
    let release = fixture.service.request(Method::DELETE, "/v1/locks/b").bearer_auth(&fixture.key);
    let release = release.header("Lock-Token", acquired.token()).header("x-request-id", "taken");
    assert_eq!(Answer::of(release).await.status, 204);
    events.next("lost").await;
    let lost = &acts(&fixture, "lost", 2).await[1];
    let expected = json!({"identity": "ops", "act": "lost", "lock": "b",
        "fencing_token": acquired.fencing_token(), "reason": "not_held"});
    assert_eq!(*lost, expected);
    fixture.has_no_secret(&[acquired.token()]);
}

#[tokio::test]
async fn expiry_is_written_once_by_the_step_that_sees_it() {
    let fixture = Fixture::start().await;
    let body = json!({"ttl_ms": 1500, "owner": "runner 7"});
    let lease = fixture.send(Method::POST, "/v1/locks/a", "create", body).await;
    let next = async || {
        let next = fixture.send(Method::POST, "/v1/locks/a", "next", json!({})).await;
        (next.status == 201).then_some(())
    };
    eventually(next).await;
    let expired = async || {
        let expired = fixture.all().into_iter().find(|line| line["act"] == "expiry")?;
        Some(expired)
    };
    let mut expired = eventually(expired).await;
    let ended_at = expired["ended_at"].take();
    ended_at.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let expected = json!({"act": "expiry", "lock": "a", "fencing_token": lease.fencing_token(),
        "owner": "ops: runner 7", "ended_at": null, "held_ms": 1500});
    assert_eq!(members(&expired), expected);
    fixture.send(Method::DELETE, "/v1/locks/none", "last", json!({})).await;
    acts(&fixture, "last", 1).await;
    let expiries = fixture.all().into_iter().filter(|line| line["act"] == "expiry").count();
    assert_eq!(expiries, 1);
}

#[tokio::test]
async fn erasure_is_written_before_and_after() {
    let fixture = Fixture::start().await;
    let begun = fixture.send(Method::POST, "/v1/idempotency/k", "begin", json!({})).await;
    let done = fixture.service.request(Method::PUT, "/v1/idempotency/k").bearer_auth(&fixture.key);
    let done = done.header("Lock-Token", begun.token()).json(&json!({"status": 200, "body": "b"}));
    assert!(Answer::of(done).await.status.is_success());
    let path = "/v1/idempotency/k/answer";
    let erased = fixture.send(Method::DELETE, path, "erase", json!({})).await;
    assert_eq!(erased.status, 204, "{erased:?}");
    let line = |result: &str| {
        json!({"identity": "ops", "act": "erase", "key": "k", "method": "", "path": "",
            "result": result})
    };
    assert_eq!(acts(&fixture, "erase", 2).await, [line("asked"), line("done")]);
    fixture.has_no_secret(&[&begun.token()]);
}

#[tokio::test]
async fn refusals_are_written_with_their_code_and_what_they_are_about() {
    let fixture = Fixture::start().await;
    fixture.send(Method::POST, "/v1/locks/a%2Fb", "holder", json!({})).await;
    let held = fixture.send(Method::POST, "/v1/locks/a%2Fb", "held", json!({})).await;
    held.is_problem(409, "lock-held");
    let refused = json!({"identity": "ops", "act": "refused", "method": "POST",
        "route": "/v1/locks/{name}", "status": 409, "code": "lock-held", "lock": "a/b"});
    assert_eq!(acts(&fixture, "held", 1).await, [refused]);
    let nothing = fixture.send(Method::PUT, "/v1/idempotency/k", "no-token", json!({})).await;
    nothing.is_problem(428, "token-required");
    let line = &acts(&fixture, "no-token", 1).await[0];
    assert_eq!((&line["code"], &line["key"]), (&json!("token-required"), &json!("k")));
    let none = fixture.send(Method::GET, "/v1/locks/none", "read", json!({})).await;
    none.is_problem(404, "lock-not-held");
    fixture.send(Method::DELETE, "/v1/locks/none", "last", json!({})).await;
    acts(&fixture, "last", 1).await;
    assert_eq!(acts(&fixture, "read", 0).await, [json!(null); 0], "a read is refused nothing");
}

/// A terminal that shows the file would do what they say.
#[tokio::test]
async fn characters_that_move_a_terminal_are_escaped() {
    let fixture = Fixture::start().await;
    let path = "/v1/locks/%7F%C2%9B31m%E2%80%AEa%E2%80%A8%1B%C3%A9%F3%A0%80%81";
    fixture.send(Method::POST, path, "moves", json!({})).await.is_problem(400, "invalid-name");
    let line = &acts(&fixture, "moves", 1).await[0];
    assert_eq!(line["lock"], "\u{7f}\u{9b}31m\u{202e}a\u{2028}\u{1b}\u{e9}\u{e0001}");
    let text = std::fs::read_to_string(&fixture.file).unwrap();
    assert!(text.contains(r"\u007f\u009b31m\u202ea\u2028\u001bé\udb40\udc01"), "{text}");
}

/// The service behind a guard refuses people whose password is wrong, and that is its own affair.
#[tokio::test]
async fn answer_of_an_upstream_is_no_refusal() {
    let upstream = Upstream::start().await;
    upstream.answers(|_| (StatusCode::FORBIDDEN, "not with this password"));
    let guard = Shop::guard(&upstream.url());
    let fixture = Fixture::start_with(|config| config.guard = vec![guard]).await;
    let login = fixture.service.order("k").header("x-request-id", "login");
    let answer = Answer::of(login).await;
    assert_eq!((answer.status.as_u16(), answer.text.as_str()), (403, "not with this password"));
    fixture.send(Method::DELETE, "/v1/locks/none", "last", json!({})).await;
    acts(&fixture, "last", 1).await;
    assert_eq!(acts(&fixture, "login", 0).await, [json!(null); 0]);
}
