//! The service that a command asks: one request, its response within a deadline and a bound.
//!
//! A command is over when its answer is, so it keeps no connection and tries nothing twice. A
//! response that is no problem of keylatch's is reported as that of something else. Tested in
//! `tests/cli/lock_commands.rs`.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::{Method, Request, Response};
use keylatch_client::{Body, Builder, Client, Error, Token};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{Failure, ServiceArguments};

/// How long a response may take that waits for no other client.
const LIMIT: Duration = Duration::from_secs(10);
/// The largest answer that is read, in bytes: a page of records with long paths.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
pub(super) struct Service {
    url: String,
    client: Client,
}

pub(super) struct Ask<'a> {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) token: Option<&'a Token>,
    pub(super) body: Vec<u8>,
}

impl Ask<'_> {
    pub(super) fn new(method: Method, path: String) -> Self {
        Self { method, path, token: None, body: Vec::new() }
    }

    /// A request that reads something.
    pub(super) fn get(path: String) -> Self {
        Self::new(Method::GET, path)
    }

    /// The same by the holder of a lock.
    pub(super) fn with_token(self, token: &Token) -> Ask<'_> {
        Ask { method: self.method, path: self.path, body: self.body, token: Some(token) }
    }

    /// The same with JSON that says what to do.
    pub(super) fn with_json(self, body: &impl Serialize) -> Result<Self, Failure> {
        let body =
            serde_json::to_vec(body).map_err(|error| Failure::Arguments(error.to_string()))?;
        Ok(Self { body, ..self })
    }
}

/// What the service answered, as JSON; empty where it has nothing to say.
pub(super) struct Reply(Bytes);

impl Service {
    /// The service that the arguments name, with the key and the authorities of the environment.
    pub(super) fn new(arguments: &ServiceArguments) -> Result<Self, Failure> {
        let url = arguments.server.clone();
        let client = Client::builder(&url).with_env().and_then(Builder::build);
        let client = client.map_err(|error| Failure::Client { server: url.clone(), error })?;
        Ok(Self { url, client })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Why the client could not find something out.
    pub(super) fn failure(&self, error: Error) -> Failure {
        Failure::Client { server: self.url.clone(), error }
    }

    /// Sends a request, and reads the whole response.
    pub(super) async fn ask(&self, ask: Ask<'_>) -> Result<Reply, Failure> {
        let answered = async {
            let response = self.open(ask).await?;
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            body.map(|body| Reply(body.to_bytes())).map_err(|error| self.unanswered(&error))
        };
        timeout(LIMIT, answered)
            .await
            .unwrap_or_else(|_| Err(self.unanswered("no response came in time")))
    }

    /// Sends a request, and gives the response when it begins. A problem is a failure.
    pub(super) async fn open(&self, ask: Ask<'_>) -> Result<Response<Body>, Failure> {
        let mut request = Request::builder().method(ask.method).uri(ask.path);
        if let Some(token) = ask.token {
            request = request.header("lock-token", token.expose());
        }
        if !ask.body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        let request = request.body(Bytes::from(ask.body));
        let request = request.map_err(|error| Failure::Arguments(error.to_string()))?;
        let sent = timeout(LIMIT, self.client.send(request)).await;
        let sent = sent.map_err(|_| self.unanswered("no response came in time"))?;
        let response = sent.map_err(|error| self.failure(error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = timeout(LIMIT, Limited::new(response.into_body(), MAX_ANSWER).collect()).await;
        let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
        Err(match serde_json::from_slice(&body) {
            Ok(problem) => Failure::Problem(problem),
            Err(_) => Failure::Foreign(status),
        })
    }

    /// The service gave no response, or part of one.
    pub(super) fn unanswered(&self, why: &(impl ToString + ?Sized)) -> Failure {
        self.failure(Error::Unanswered(why.to_string()))
    }
}

impl Reply {
    /// Whether the service has nothing to say.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The response as the API has it.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }

    /// The response as a value.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.0).map_err(Failure::Malformed)
    }
}
