use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;

use keylatch::app::App;
use keylatch::config::{Config, Flags};
use reqwest::header::HeaderMap;
use reqwest::redirect::Policy;
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The default configuration with a store.
pub(crate) fn config(store: &str) -> Config {
    let flags = Flags { store: Some(store.to_owned()), ..Flags::default() };
    Config::load(&flags, []).expect("the defaults are valid")
}

/// A service on a free port, in the test's own process; it ends with the test.
#[derive(Debug)]
pub(crate) struct Service {
    api: Api,
    _guard: DropGuard,
}

impl Service {
    /// A service over the store at `url`, with default settings.
    pub(crate) async fn start(url: &str) -> Self {
        Self::start_with(config(url)).await
    }

    pub(crate) async fn start_with(config: Config) -> Self {
        Self::start_at("127.0.0.1:0", config).await
    }

    /// The same on another address; it is asked on loopback.
    pub(crate) async fn start_at(address: &str, config: Config) -> Self {
        let app = App::new(config).await.expect("the store opens");
        let listener = TcpListener::bind(address).await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let closing = CancellationToken::new();
        tokio::spawn(app.serve(listener, closing.clone().cancelled_owned()));
        Self { api: Api::at(address), _guard: closing.drop_guard() }
    }
}

impl Deref for Service {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

/// The API of a service at some address, be it in the test's process or in one of its own.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) address: SocketAddr,
    client: Client,
}

impl Api {
    pub(crate) fn at(address: SocketAddr) -> Self {
        Self {
            address,
            client: Client::builder()
                .no_proxy()
                .redirect(Policy::none())
                .build()
                .expect("a client"),
        }
    }

    /// A request; `path` is used as it is, so it has to be percent-encoded.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.address))
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        Answer::of(self.request(Method::GET, path)).await
    }

    /// `POST /v1/locks/{name}` with a JSON body.
    pub(crate) async fn create(&self, name: &str, body: &Value) -> Answer {
        Answer::of(self.request(Method::POST, &lock(name)).json(body)).await
    }

    /// The same with a token of the client's own.
    pub(crate) async fn create_as(&self, name: &str, token: &str, body: &Value) -> Answer {
        let request = self.request(Method::POST, &lock(name)).header("Lock-Token", token);
        Answer::of(request.json(body)).await
    }

    pub(crate) async fn renew(&self, name: &str, token: &str, body: &Value) -> Answer {
        let request = self.request(Method::PUT, &lock(name)).header("Lock-Token", token);
        Answer::of(request.json(body)).await
    }

    pub(crate) async fn release(&self, name: &str, token: &str) -> Answer {
        Answer::of(self.request(Method::DELETE, &lock(name)).header("Lock-Token", token)).await
    }

    pub(crate) async fn look(&self, name: &str) -> Answer {
        self.get(&lock(name)).await
    }
}

fn lock(name: &str) -> String {
    format!("/v1/locks/{name}")
}

/// What the service answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The body as JSON; `Null` where it is none.
    pub(crate) json: Value,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) async fn of(request: RequestBuilder) -> Self {
        Self::try_of(request).await.expect("the service answers")
    }

    /// The same where the service may be gone before it has answered.
    pub(crate) async fn try_of(request: RequestBuilder) -> reqwest::Result<Self> {
        let response = request.send().await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await?;
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Self { status, headers, json, text })
    }

    /// The token of a lease.
    pub(crate) fn token(&self) -> String {
        self.json["token"].as_str().unwrap_or_else(|| panic!("a lease: {self:?}")).to_owned()
    }

    /// The fencing token of a lease or a lock.
    pub(crate) fn fence(&self) -> u64 {
        self.json["fencing_token"].as_u64().unwrap_or_else(|| panic!("a lease: {self:?}"))
    }

    /// A header as text; empty where there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("a header of text"))
    }

    /// Asserts that this is a problem with everything that a problem has.
    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16, code: &str) {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        assert_eq!(self.json["code"], code, "{self:?}");
        assert_eq!(self.json["type"], format!("/problems/{code}"), "{self:?}");
        assert_eq!(self.json["status"], status, "{self:?}");
        for member in ["title", "detail"] {
            assert!(self.json[member].as_str().is_some_and(|text| !text.is_empty()), "{self:?}");
        }
        assert!(self.headers.contains_key("x-request-id"), "{self:?}");
    }
}
