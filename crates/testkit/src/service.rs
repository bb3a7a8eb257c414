//! The service in the test's own process, its HTTP API, and what it answers.
//!
//! It is the whole service on a free port, so that a test sees what a client sees, while the test's
//! clock and log are the service's too. `program.rs` starts it as a process.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;

use keylatch::app::App;
use keylatch::config::{Config, Flags};
use keylatch::error::Error;
use keylatch::metrics::Metrics;
use keylatch_core::store::Store;
use reqwest::header::HeaderMap;
use reqwest::redirect::Policy;
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Proxy, RedisServer, eventually};

/// How long a step of a store and a connection to it may take, in milliseconds: no load of a
/// machine reaches it.
pub(crate) const PATIENCE_MS: u64 = 60_000;

/// The configuration of a test that is not about a store's time limits: the default one, in which
/// they are long.
pub fn config(store: &str) -> Config {
    let mut config = default_config(store);
    config.store_timeout_ms = PATIENCE_MS;
    config.postgres.connect_timeout_ms = PATIENCE_MS;
    config.etcd.connect_timeout_ms = PATIENCE_MS;
    config.redis.connect_timeout_ms = PATIENCE_MS;
    // The most that it takes.
    config.zookeeper.connect_timeout_ms = 3000;
    config
}

/// The default configuration with the store at a URL: a node of it that is silent is soon left.
pub fn default_config(store: &str) -> Config {
    let flags = Flags { store: Some(store.to_owned()), ..Flags::default() };
    Config::load(&flags, []).expect("the defaults are valid")
}

/// A service on a free port, in the test's own process; it ends with the test.
#[derive(Debug)]
pub struct Service {
    api: Api,
    closing: DropGuard,
    serving: JoinHandle<Result<(), Error>>,
}

impl Service {
    /// A service over the store at `url`, with the settings of [`config`].
    pub async fn start(url: &str) -> Self {
        Self::start_with(config(url)).await
    }

    /// A service over the store at `url`, with the settings of [`default_config`].
    pub async fn by_default(url: &str) -> Self {
        Self::start_with(default_config(url)).await
    }

    /// A service with a configuration of the test's.
    pub async fn start_with(config: Config) -> Self {
        Self::start_at("127.0.0.1:0", config).await
    }

    /// The same on another address; requests go to it on loopback.
    pub async fn start_at(address: &str, config: Config) -> Self {
        Self::serve(address, App::new(config).await.expect("the store opens")).await
    }

    /// A service with default settings over a store that is open, which others may share.
    pub async fn over(store: Arc<dyn Store>) -> Self {
        Self::over_with(store, config("memory:")).await
    }

    /// The same with other settings; the store in them is not opened.
    pub async fn over_with(store: Arc<dyn Store>, config: Config) -> Self {
        let app = App::with_store(config, store, Arc::new(Metrics::new()));
        Self::serve("127.0.0.1:0", app.expect("a service")).await
    }

    /// A service in memory with other settings than those of [`config`].
    pub async fn set(set: impl FnOnce(&mut Config)) -> Self {
        let mut config = config("memory:");
        set(&mut config);
        Self::start_with(config).await
    }

    /// A Redis, and a service over it.
    pub async fn on_redis() -> (RedisServer, Self) {
        let redis = RedisServer::start().await;
        let service = Self::start(&redis.url()).await;
        (redis, service)
    }

    /// A Redis, a proxy in front of it, and a service that reaches it through the proxy.
    pub async fn by_proxy_to_redis() -> (RedisServer, Proxy, Self) {
        let redis = RedisServer::start().await;
        let proxy = Proxy::start(redis.address()).await;
        let service = Self::start(&proxy.url()).await;
        (redis, proxy, service)
    }

    /// A service in memory, and a proxy in front of it.
    pub async fn behind_proxy() -> (Self, Proxy) {
        let service = Self::start("memory:").await;
        let proxy = Proxy::start(service.address.to_string()).await;
        (service, proxy)
    }

    async fn serve(address: &str, app: App) -> Self {
        let listener = TcpListener::bind(address).await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let closing = CancellationToken::new();
        let serving = tokio::spawn(app.serve(listener, closing.clone().cancelled_owned()));
        Self { api: Api::at(address), closing: closing.drop_guard(), serving }
    }

    /// Shuts the service down, and returns when its store is closed.
    pub async fn stop(self) {
        drop(self.closing);
        self.serving.await.expect("the service does not panic").expect("the listener works");
    }
}

impl Deref for Service {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

/// The HTTP API of a service, in the test's process or in another one.
#[derive(Debug)]
pub struct Api {
    /// Where the service listens.
    pub address: SocketAddr,
    client: Client,
}

impl Api {
    /// The API of the service at an address.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address,
            client: Client::builder()
                .no_proxy()
                .redirect(Policy::none())
                .build()
                .expect("a client"),
        }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A request; `path` is percent-encoded already.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.address))
    }

    /// `GET path`.
    pub async fn get(&self, path: &str) -> Answer {
        Answer::of(self.request(Method::GET, path)).await
    }

    /// The value of a series of `/metrics`, such as `keylatch_http_streams{kind="hold"}`; 0 where
    /// there is none.
    pub async fn metric(&self, series: &str) -> u64 {
        let metrics = self.get("/metrics").await.text;
        let value = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
        metrics.lines().find_map(value).unwrap_or(0)
    }

    /// Waits until a series has this value.
    #[track_caller]
    pub fn reaches(&self, series: &str, value: u64) -> impl Future<Output = ()> {
        eventually(async move || (self.metric(series).await == value).then_some(()))
    }

    /// `POST /v1/locks/{name}` with a JSON body.
    pub async fn create(&self, name: &str, body: &Value) -> Answer {
        Answer::of(self.request(Method::POST, &lock(name)).json(body)).await
    }

    /// A grant of a lock, however long it takes until there is one.
    #[track_caller]
    pub fn granted(&self, name: &str) -> impl Future<Output = Answer> {
        eventually(async || Some(self.create(name, &json!({})).await).filter(|a| a.status == 201))
    }

    /// `POST /v1/locks/{name}` with a token of the client's own.
    pub async fn create_as(&self, name: &str, token: &str, body: &Value) -> Answer {
        let request = self.request(Method::POST, &lock(name)).header("Lock-Token", token);
        Answer::of(request.json(body)).await
    }

    /// `PUT /v1/locks/{name}`.
    pub async fn renew(&self, name: &str, token: &str, body: &Value) -> Answer {
        let request = self.request(Method::PUT, &lock(name)).header("Lock-Token", token);
        Answer::of(request.json(body)).await
    }

    /// `DELETE /v1/locks/{name}`.
    pub async fn release(&self, name: &str, token: &str) -> Answer {
        Answer::of(self.request(Method::DELETE, &lock(name)).header("Lock-Token", token)).await
    }

    /// Breaks the lease of a grant because it hangs, which succeeds.
    pub async fn break_lease(&self, name: &str, fencing_token: u64) {
        let request = self.request(Method::POST, &format!("{}/break", lock(name)));
        let body = json!({"reason": "it hangs", "fencing_token": fencing_token});
        assert_eq!(Answer::of(request.json(&body)).await.status, 200);
    }

    /// Waits until so many wait for a lock that is held.
    #[track_caller]
    pub fn has_waiting(&self, name: &str, waiting: impl Into<Value>) -> impl Future<Output = ()> {
        let waiting = waiting.into();
        eventually(async move || (self.look(name).await.json["waiting"] == waiting).then_some(()))
    }

    /// Waits until a lock is free.
    #[track_caller]
    pub fn is_free(&self, name: &str) -> impl Future<Output = ()> {
        eventually(async move || (self.look(name).await.status == 404).then_some(()))
    }

    /// `POST /v1/locks` with a token of the client's own.
    pub async fn create_set_as(&self, names: &[&str], token: &str, body: &Value) -> Answer {
        let request = self.request(Method::POST, "/v1/locks").header("Lock-Token", token);
        Answer::of(request.json(&with_names(names, body))).await
    }

    /// `PUT /v1/locks`.
    pub async fn renew_set(&self, names: &[&str], token: &str, body: &Value) -> Answer {
        let request = self.request(Method::PUT, "/v1/locks").header("Lock-Token", token);
        Answer::of(request.json(&with_names(names, body))).await
    }

    /// `DELETE /v1/locks`; the names need no escape.
    pub async fn release_set(&self, names: &[&str], token: &str) -> Answer {
        let query: Vec<_> = names.iter().map(|name| format!("name={name}")).collect();
        let path = format!("/v1/locks?{}", query.join("&"));
        Answer::of(self.request(Method::DELETE, &path).header("Lock-Token", token)).await
    }

    /// `GET /v1/locks/{name}`.
    pub async fn look(&self, name: &str) -> Answer {
        self.get(&lock(name)).await
    }
}

/// The body of a request for several locks.
fn with_names(names: &[&str], body: &Value) -> Value {
    let mut body = body.clone();
    body["names"] = names.into();
    body
}

fn lock(name: &str) -> String {
    format!("/v1/locks/{name}")
}

/// A whole answer of the service.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// The body as JSON; `Null` where it is none.
    pub json: Value,
    /// The body as text.
    pub text: String,
}

impl Answer {
    /// Sends a request and reads the answer, which has to come.
    pub async fn of(request: RequestBuilder) -> Self {
        Self::try_of(request).await.expect("the service answers")
    }

    /// Sends a request to a service that may end before it has answered.
    pub async fn try_of(request: RequestBuilder) -> reqwest::Result<Self> {
        let response = request.send().await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await?;
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Self { status, headers, json, text })
    }

    /// The token of a lease.
    pub fn token(&self) -> String {
        self.json["token"].as_str().unwrap_or_else(|| panic!("a lease: {self:?}")).to_owned()
    }

    /// The fencing token of a lease or a lock.
    pub fn fencing_token(&self) -> u64 {
        self.json["fencing_token"].as_u64().unwrap_or_else(|| panic!("a lease: {self:?}"))
    }

    /// A header as text; empty where there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("a header of text"))
    }

    /// Asserts that this is a problem document with every member that such a document has.
    #[track_caller]
    pub fn is_problem(&self, status: u16, code: &str) {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        assert_eq!(self.json["code"], code, "{self:?}");
        let page = self.json["type"].as_str();
        assert!(page.is_some_and(|at| at.ends_with(&format!("/problems/{code}"))), "{self:?}");
        assert_eq!(self.json["status"], status, "{self:?}");
        for member in ["title", "detail"] {
            assert!(self.json[member].as_str().is_some_and(|text| !text.is_empty()), "{self:?}");
        }
        assert!(self.headers.contains_key("x-request-id"), "{self:?}");
    }
}
