//! Goal: no line of the log, at any level, has a token, a name, an owner, a body or a password.
//!
//! Method: requests that are full of a mark that nothing else contains, to every endpoint, with
//! success and without; then a search for the mark.

use std::net::SocketAddr;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use futures_util::future::join_all;
use keylatch::config::Config;
use keylatch::http::{AccessLog, Guard};
use keylatch_testkit::{
    Answer, Api, LogCapture, Proxy, RawConnection, RedisServer, Service, Upstream, config,
    post_head, redis_test,
};
use reqwest::{Method, RequestBuilder};

use crate::KEYLATCH;

/// A client whose every request is full of a mark that nothing else contains.
struct MarkedClient {
    api: Api,
    mark: String,
}

/// The mark, for what must not be logged.
fn mark() -> String {
    format!("{:016x}", getrandom::u64().expect("random bytes"))
}

impl MarkedClient {
    fn new(address: SocketAddr, mark: &str) -> Self {
        Self { api: Api::at(address), mark: mark.to_owned() }
    }

    /// The token of the lock's holder.
    fn token(&self) -> String {
        format!("{}-token-of-the-holder", self.mark)
    }

    fn lock(&self) -> String {
        format!("/v1/locks/{}-name", self.mark)
    }

    fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let request = self.api.request(method, path);
        let secret = format!("Bearer {}-header", self.mark);
        request
            .header("Authorization", &secret)
            .header("Cookie", &secret)
            .header("User-Agent", secret)
    }

    /// Sends a request and checks its answer's status.
    async fn send(&self, status: u16, method: &str, path: &str, token: &str, body: &str) {
        let mut request = self.request(method, path).body(body.to_owned());
        if !token.is_empty() {
            request = request.header("Lock-Token", token);
        }
        let answer = Answer::of(request).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {path} {body:.80}: {answer:?}");
    }

    /// Every endpoint, with and without success. Gives a token that the service made.
    async fn everywhere(&self) -> String {
        let (mark, lock, holder) = (&self.mark, &self.lock(), &self.token());
        let stranger = &format!("{mark}-token-of-a-stranger");
        let body = &format!(r#"{{"owner":"{mark}-owner"}}"#);
        self.send(201, "POST", lock, holder, body).await;
        self.send(200, "POST", lock, holder, body).await;
        self.send(409, "POST", lock, stranger, body).await;
        self.send(409, "POST", lock, "", body).await;
        self.send(200, "GET", lock, holder, "").await;
        self.send(200, "GET", &format!("/v1/locks?prefix={mark}"), "", "").await;
        self.send(200, "PUT", lock, holder, "").await;
        for method in ["PUT", "DELETE"] {
            self.send(412, method, lock, stranger, "").await;
            self.send(428, method, lock, "", "").await;
            self.send(400, method, lock, &format!("{mark}!"), "").await;
        }
        self.bad_requests().await;
        self.guarded_requests("/v1/orders").await;
        self.records().await;
        self.send(204, "DELETE", lock, holder, "").await;
        self.send(404, "DELETE", lock, holder, "").await;
        self.send(404, "PUT", lock, holder, "").await;
        self.send(404, "GET", lock, holder, "").await;
        for path in ["/livez", "/readyz", "/metrics", "/v1/info", "/openapi.json", "/docs/"] {
            self.send(200, "GET", &format!("{path}?{mark}={mark}"), holder, body).await;
        }
        let token = Answer::of(self.request("POST", lock)).await.token();
        self.send(200, "PUT", lock, &token, "").await;
        self.send(204, "DELETE", lock, &token, "").await;
        token
    }

    async fn bad_requests(&self) {
        let (mark, lock, holder) = (&self.mark, &self.lock(), &self.token());
        for body in [
            format!(r#"{{"{mark}-field":1}}"#),
            format!(r#"{{"ttl_ms":"{mark}-ttl"}}"#),
            format!(r#"{{"owner":"{}"}}"#, mark.repeat(20)),
            format!(r#"{{"owner":"{mark}\n"}}"#),
            format!("{mark}-no-json"),
            format!("[\"{mark}\"]"),
        ] {
            self.send(400, "POST", lock, holder, &body).await;
        }
        for path in [
            format!("/v1/locks/{}", mark.repeat(20)),
            format!("/v1/locks/{mark}%0A"),
            format!("/v1/locks/{mark}%FF"),
            format!("/v1/locks?limit={mark}"),
            format!("/v1/locks?cursor={mark}"),
            format!("/v1/locks?{mark}=1"),
        ] {
            self.send(400, "GET", &path, holder, "").await;
        }
        self.send(413, "POST", lock, holder, &mark.repeat(5000)).await;
        self.send(405, "PATCH", lock, holder, mark).await;
        self.send(405, "BREW", lock, holder, mark).await;
        self.send(404, "GET", &format!("/{mark}"), holder, "").await;
        self.send(404, "GET", &format!("/problems/{mark}"), holder, "").await;
    }

    /// Sends an order under a key and checks its answer's status.
    async fn order(&self, status: u16, path: &str, key: &str, body: &str) {
        let path = format!("{path}?{0}={0}-query", self.mark);
        let request = self.request("POST", &path).header("Idempotency-Key", key);
        let answer = Answer::of(request.body(body.to_owned())).await;
        assert_eq!(answer.status.as_u16(), status, "{path} {key} {body}: {answer:?}");
    }

    /// Guarded requests to the sandbox, or to a service that takes the same orders.
    async fn guarded_requests(&self, path: &str) {
        let mark = &self.mark;
        let item = format!(r#""amount":1,"currency":"EUR","items":[{{"name":"{mark}-item"}}]"#);
        let (order, fails) = (format!("{{{item}}}"), format!("{{{item},\"fail\":500}}"));
        let (one, two) = (&format!("{mark}-key"), &format!("\"{mark}-other\""));
        self.order(201, path, one, &order).await;
        self.order(201, path, one, &order).await;
        self.order(422, path, one, &fails).await;
        self.order(500, path, two, &fails).await;
        self.order(409, path, two, &fails).await;
        for key in [format!("{mark} {mark}"), format!("\"{mark}"), mark.repeat(16)] {
            self.order(400, path, &key, &order).await;
        }
        let form = self.request("POST", path).header("Content-Type", FORM);
        let answer =
            Answer::of(form.body(format!("idempotency_key={mark}%20{mark}&a={mark}"))).await;
        answer.is_refusal(400, "invalid-key", "new-key");
        self.send(400, "POST", path, "", mark).await;
        self.order(413, path, mark, &mark.repeat(70_000)).await;
    }

    /// The life of a record by the API.
    async fn records(&self) {
        let (mark, holder) = (&self.mark, &self.token());
        let stranger = &format!("{mark}-token-of-a-stranger");
        let (key, scope) = (format!("/v1/idempotency/{mark}-key"), format!("principal={mark}"));
        let record = &format!("{key}?method=POST&path=/{mark}&{scope}");
        let begin = &format!(r#"{{"fingerprint":"{mark}-fingerprint"}}"#);
        let result = &format!(r#"{{"headers":{{"x-{mark}":"{mark}"}},"body":"{mark}-body"}}"#);
        self.send(201, "POST", record, holder, begin).await;
        self.send(201, "POST", record, holder, begin).await;
        self.send(409, "POST", record, stranger, begin).await;
        self.send(422, "POST", record, stranger, "").await;
        self.send(412, "PUT", record, stranger, result).await;
        self.send(200, "PUT", record, holder, result).await;
        self.send(200, "POST", record, stranger, begin).await;
        self.send(200, "GET", record, "", "").await;
        self.send(412, "DELETE", record, stranger, "").await;
        self.send(404, "GET", &format!("{key}?path={mark}"), "", "").await;
        self.send(400, "GET", &format!("{key}%09"), "", "").await;
        self.send(400, "GET", &format!("{key}?{mark}={mark}"), "", "").await;
        let other = format!("{{\"outcome\":\"{mark}\"}}");
        self.send(400, "POST", &format!("{key}/resolve"), "", &other).await;
        let orders = format!("/v1/idempotency/{mark}-other/resolve?method=POST&path=/v1/orders");
        let outcome = format!(r#"{{"outcome":"completed","answer":{result}}}"#);
        self.send(200, "POST", &orders, "", &outcome).await;
    }

    /// What no HTTP client sends.
    async fn broken_requests(&self) {
        let (mark, lock, address) = (&self.mark, self.lock(), self.api.address);
        let half = format!("{}{mark}", post_head(&lock, 1000));
        let answer = RawConnection::sending(address, &half).await.answer().await;
        answer.is_problem(408, "request-timeout");
        let many = format!("X-{mark}: {mark}\r\n").repeat(100);
        for head in [
            format!("GET {lock} HTTP/1.1\r\n{many}\r\n"),
            format!("GET {lock} HTTP/1.1\r\nX: {}\r\n\r\n", mark.repeat(2000)),
            format!("{mark} {mark}\r\n\r\n"),
        ] {
            let mut wire = RawConnection::connect(address).await;
            wire.try_send(&head).await;
            wire.rest().await;
        }
    }

    /// Every endpoint that needs the store, all at once, while there is none.
    async fn without_a_store(&self) {
        let (lock, holder) = (&self.lock(), &self.token());
        let list = &format!("/v1/locks?prefix={}", self.mark);
        let body = &format!(r#"{{"owner":"{}-owner"}}"#, self.mark);
        let key = &format!("{}-key", self.mark);
        let record = &format!("/v1/idempotency/{key}");
        let requests = [
            ("POST", lock.as_str(), body.as_str()),
            ("PUT", lock, ""),
            ("DELETE", lock, ""),
            ("GET", lock, ""),
            ("GET", list, ""),
            ("GET", "/readyz", ""),
            ("POST", record, ""),
            ("PUT", record, ""),
            ("GET", record, ""),
        ];
        let refused =
            requests.map(|(method, path, body)| self.send(503, method, path, holder, body));
        tokio::join!(
            join_all(refused),
            self.order(503, "/v1/orders", key, body),
            self.send(200, "GET", "/v1/info", holder, ""),
        );
    }
}

const FORM: &str = "application/x-www-form-urlencoded";

/// Logs everything.
fn verbose(store: &str) -> Config {
    let mut config = config(store);
    "trace".clone_into(&mut config.log.level);
    config.log.access = AccessLog::All;
    config.server.body_timeout_ms = 300;
    // A log of everything makes a store slow.
    (config.store_timeout_ms, config.redis.connect_timeout_ms) = (60_000, 60_000);
    config
}

/// Logs everything, and waits for a store that is gone no longer than it takes to see that.
fn verbose_and_impatient(store: &str) -> Config {
    let mut config = verbose(store);
    (config.store_timeout_ms, config.redis.connect_timeout_ms) = (300, 300);
    config
}

/// Asserts that the log has lines, and none with any of `secrets`.
#[track_caller]
fn keeps(secrets: &[&str], log: &str) {
    assert!(log.lines().count() > 20, "there is hardly any log: {log}");
    let tells = |line: &&str| secrets.iter().any(|secret| line.contains(secret));
    let told: Vec<_> = log.lines().filter(tells).collect();
    assert!(told.is_empty(), "{told:#?}");
}

#[tokio::test]
async fn no_secret_is_logged_on_local_stores() {
    let directory = tempfile::tempdir().expect("a directory");
    let embedded = |name: &str| format!("embedded:{}", directory.path().join(name).display());
    for (store, json) in [
        ("memory:".to_owned(), true),
        ("memory:".to_owned(), false),
        (embedded("json"), true),
        (embedded("text"), false),
    ] {
        let (config, mark) = (verbose(&store), mark());
        let log = LogCapture::start(&config, json);
        let service = Service::start_with(config).await;
        let client = MarkedClient::new(service.address, &mark);
        let token = client.everywhere().await;
        client.broken_requests().await;
        tracing::trace!("the end");
        assert!(log.text().lines().any(|line| line.contains("TRACE") && line.contains("the end")));
        keeps(&[&mark, &token], &log.text());
    }
}

#[redis_test]
async fn no_secret_is_logged_on_redis() {
    for json in [true, false] {
        let mark = mark();
        let password = format!("{mark}-password");
        let mut redis = RedisServer::start_with(&["--requirepass", &password]).await;
        let proxy = Proxy::start(redis.address()).await;
        let url = proxy.url().replace("redis://", &format!("redis://:{password}@"));
        let config = verbose(&url);
        let log = LogCapture::start(&config, json);
        let service = Service::start_with(config).await;
        let token = MarkedClient::new(service.address, &mark).everywhere().await;
        let service = Service::start_with(verbose_and_impatient(&url)).await;
        let client = MarkedClient::new(service.address, &mark);
        proxy.lose_answers();
        client.without_a_store().await;
        proxy.refuse();
        client.without_a_store().await;
        redis.kill().await;
        proxy.forward();
        client.without_a_store().await;
        assert!(log.text().contains("DEBUG"), "a higher level: {}", log.text());
        keeps(&[&mark, &token], &log.text());
    }
}

#[tokio::test]
async fn no_secret_is_logged_by_the_gateway() {
    let (mut config, mark) = (verbose("memory:"), mark());
    let upstream = Upstream::start().await;
    for (path, to) in [("/orders", upstream.url()), ("/gone", "http://127.0.0.1:1".to_owned())] {
        let (path, principal_header) = (path.to_owned(), "authorization".to_owned());
        config.guard.push(Guard { path, upstream: to, principal_header, ..Guard::default() });
    }
    config.server.hosts.push(mark.clone());
    let log = LogCapture::start(&config, true);
    let service = Service::start_with(config).await;
    let client = MarkedClient::new(service.address, &mark);
    let secret = format!("{mark}-of-the-upstream");
    upstream.answers(move |seen| {
        let fails = seen.body.windows(4).any(|word| word == b"fail");
        let answer = Response::builder().status(if fails { 500 } else { 201 });
        let answer = answer.header("Set-Cookie", &secret).header("Location", &secret);
        answer.body(Body::from(secret.clone())).expect("an answer")
    });
    client.guarded_requests("/orders").await;
    client.order(502, &format!("/gone/{mark}"), &mark, &mark).await;
    upstream.answers(|_| -> StatusCode { panic!("told to") });
    client.order(504, &format!("/orders/{mark}"), &mark, &mark).await;
    client.order(409, &format!("/orders/{mark}"), &mark, &mark).await;
    let _half = RawConnection::sending(service.address, &format!("POST /orders/{mark} HTTP/1.1\r\nHost: {mark}\r\nAuthorization: {mark}\r\nIdempotency-Key: {mark}\r\nContent-Length: 999\r\n\r\n{mark}")).await;
    client.api.has_in_hand(1).await;
    keeps(&[&mark], &log.text());
}

#[redis_test]
async fn no_secret_is_logged_by_the_process() {
    let mark = mark();
    let password = format!("{mark}-password");
    let redis = RedisServer::start_with(&["--requirepass", &password]).await;
    let proxy = Proxy::start(redis.address()).await;
    let store = proxy.url().replace("redis://", &format!("redis://:{password}@"));
    let verbose = |store_timeout: &'static str| {
        [
            ("KEYLATCH_STORE", store.as_str()),
            ("KEYLATCH_LOG_LEVEL", "trace"),
            ("KEYLATCH_LOG_ACCESS", "all"),
            ("KEYLATCH_SERVER_BODY_TIMEOUT_MS", "300"),
            ("KEYLATCH_STORE_TIMEOUT_MS", store_timeout),
            ("KEYLATCH_REDIS_CONNECT_TIMEOUT_MS", store_timeout),
        ]
    };
    let patient = KEYLATCH.serve(&[], &verbose("60000")).await;
    let client = MarkedClient::new(patient.address, &mark);
    let token = client.everywhere().await;
    client.broken_requests().await;
    let impatient = KEYLATCH.serve(&[], &verbose("300")).await;
    let client = MarkedClient::new(impatient.address, &mark);
    proxy.lose_answers();
    client.without_a_store().await;
    proxy.refuse();
    client.without_a_store().await;
    let (patient, impatient) = (patient.ended_by("-TERM").await, impatient.ended_by("-TERM").await);
    for ended in [patient, impatient] {
        // A process that logged less would hide what it says at the other levels.
        assert!(ended.stderr.contains(r#""message":"the log begins""#), "{}", ended.stderr);
        keeps(&[&mark, &token], &ended.stderr);
        assert_eq!(ended.stdout, "");
    }
}

#[redis_test]
async fn foreign_redis_data_is_not_logged() {
    const BREAK: &str = "for _, key in ipairs(redis.call('KEYS', '*:lock:*')) do \
                           redis.call('SET', key, ARGV[1] .. ARGV[2]) \
                         end";
    let redis = RedisServer::start().await;
    let (config, mark) = (verbose(&redis.url()), mark());
    let log = LogCapture::start(&config, true);
    let service = Service::start_with(config).await;
    let client = MarkedClient::new(service.address, &mark);
    let token = client.everywhere().await;
    // Shorter than a row, and longer.
    for before in ["", "a version of sixteen bytes"] {
        client.send(201, "POST", &client.lock(), &client.token(), "").await;
        let () = redis.run(&["EVAL", BREAK, "0", before, &mark]).await;
        client.send(503, "GET", &client.lock(), "", "").await;
        client.send(503, "PUT", &client.lock(), &client.token(), "").await;
        client.request("GET", "/v1/locks").send().await.expect("an answer");
        let () = redis.run(&["FLUSHALL"]).await;
    }
    keeps(&[&mark, &token], &log.text());
}
