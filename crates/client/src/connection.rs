//! The service at the other end: requests with a deadline, to one URL or the next, and their
//! retries.
//!
//! A request that got no connection goes to the next URL at once; a URL whose store is another one
//! is refused. [`Tries`] of a request go on until there is a response for good: what others have is
//! tried until the wait is over, and a failure is outlasted for as long as a response may take, or
//! the wait if that is longer. A long wait is made of several requests, each shorter than what
//! proxies let a silent connection live for; the token keeps the place in the queue between them.
//! Tested in `tests/api/rust_client.rs` and `tests/api/rust_client_ends.rs`.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{AUTHORIZATION, CONNECTION, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::client::legacy::connect::capture_connection;
use keylatch_core::lock::Token;
use keylatch_wire::{Code, ProblemDocument, millis};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::builder::Builder;
use crate::clock::BootInstant;
use crate::error::passes;
use crate::node::Node;
use crate::transport::Body;
use crate::{Error, Result};

/// In bytes: a kept answer may be of any size that a service is configured for.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
const REQUEST_WAIT: Duration = Duration::from_secs(50);
/// Below this, a service that refuses to let the client wait is polled instead.
const MIN_REQUEST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait that the clock can count: some hundred years.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
const AGENT: &str = concat!("keylatch-rust/", env!("CARGO_PKG_VERSION"));

/// What may stand in a path as it is. A dot may not: `..` would be a step in it.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

pub(crate) struct Connection {
    nodes: Vec<Node>,
    /// Which node answered last.
    current: AtomicUsize,
    /// The store of the nodes, once one has said which.
    store: OnceLock<String>,
    pub(crate) settings: Builder,
    authorization: Option<HeaderValue>,
    pub(crate) endings: TaskTracker,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.nodes.iter().map(|node| &node.base)).finish()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Call {
    method: Method,
    path: String,
    query: String,
    token: Option<Token>,
    body: Bytes,
}

impl Call {
    pub(crate) fn new(method: Method, path: impl Into<String>) -> Self {
        let (query, body) = (String::new(), Bytes::new());
        Self { method, path: path.into(), query, token: None, body }
    }

    /// A step of the same thing.
    pub(crate) fn then(&self, method: Method, step: &str) -> Self {
        let path = format!("{}{step}", self.path);
        Self { method, path, body: Bytes::new(), ..self.clone() }
    }

    pub(crate) fn with_query<'a>(self, members: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let members = members.map(|(name, value)| format!("{name}={}", escape(value)));
        Self { query: members.collect::<Vec<_>>().join("&"), ..self }
    }

    pub(crate) fn with_token(self, token: &Token) -> Self {
        Self { token: Some(token.clone()), ..self }
    }

    pub(crate) fn with_body(self, json: &Value) -> Self {
        Self { body: json.to_string().into(), ..self }
    }

    pub(crate) fn request(&self, wait: Duration) -> Result<Request<Full<Bytes>>> {
        let mark = if self.query.is_empty() { "" } else { "?" };
        let mut request = Request::builder()
            .method(&self.method)
            .uri(format!("{}{mark}{}", self.path, self.query))
            .header("content-type", "application/json");
        if let Some(token) = &self.token {
            request = request
                .header("lock-token", secret("", token.expose()).ok_or_else(Error::not_keylatch)?);
        }
        if !wait.is_zero() {
            let seconds = wait.as_millis().div_ceil(1000);
            request = request.header("prefer", format!("wait={seconds}"));
        }
        let request = request.body(Full::new(self.body.clone()));
        request.map_err(|error| Error::Unreachable(error.to_string()))
    }
}

/// Why a try has not succeeded.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    pub(crate) retry_after: Option<Duration>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, retry_after: None }
    }
}

impl Connection {
    pub(crate) fn open(settings: Builder) -> Result<Arc<Self>> {
        let no_key = "the API key has characters that no key has, or is empty";
        let bearer = |key: &String| secret("Bearer ", key).ok_or(Error::Settings(no_key));
        let authorization = settings.api_key.as_ref().map(bearer).transpose()?;
        let nodes = settings.nodes()?;
        let (current, store, endings) = (AtomicUsize::new(0), OnceLock::new(), TaskTracker::new());
        Ok(Arc::new(Self { nodes, current, store, settings, authorization, endings }))
    }

    pub(crate) fn now(&self) -> BootInstant {
        self.settings.clock.now()
    }

    /// The body of a success. The service may wait for `wait`, and the response, with its body, has
    /// to come within `limit`.
    pub(crate) async fn send(
        &self,
        call: &Call,
        wait: Duration,
        limit: Duration,
    ) -> Result<Bytes, Failure> {
        let mut request = call.request(wait)?;
        let connected = capture_connection(&mut request);
        let node = self.current.load(Ordering::Relaxed);
        let sent = Instant::now();
        let answered = async { read(self.forward(request).await?).await };
        let answer = timeout(limit, answered).await.unwrap_or_else(|_| {
            let is_sent = connected.connection_metadata().is_some();
            let unsent = || Error::Unreachable("no connection was made in time".to_owned());
            Err(if is_sent { Error::late() } else { unsent() }.into())
        });
        let failure = answer.as_ref().err().map(|failure| &failure.error);
        if failure.is_some_and(|error| error.is_unsent() || matches!(error, Error::Unanswered(_))) {
            // The next try goes to another URL, unless this one has done so.
            let (next, order) = ((node + 1) % self.nodes.len(), Ordering::Relaxed);
            let _ = self.current.compare_exchange(node, next, order, order);
        }
        let (method, path, took) = (&call.method, &call.path, sent.elapsed());
        tracing::debug!(%method, path, ?took, ?failure, "a request");
        answer
    }

    /// The tries of a request for which the caller waits so long, and which is worth `patience`.
    pub(crate) fn tries(&self, wait: Duration, patience: Duration) -> Tries<'_> {
        let (start, timeout) = (self.now(), self.settings.timeout);
        let end = start + wait.min(MAX_WAIT);
        let patience = end.max(start + timeout.max(patience));
        Tries {
            connection: self,
            end,
            patience,
            deadline: patience.max(end + timeout),
            left: self.settings.retries,
            longest: REQUEST_WAIT,
            last: (start, Duration::ZERO),
            in_doubt: false,
        }
    }

    /// The pause before a request is retried: as long as the service asks for, and some more.
    pub(crate) fn pause(&self, retry_after: Option<Duration>) -> Duration {
        (self.settings.pause)().saturating_add(retry_after.unwrap_or_default())
    }

    /// The document of a success, of a request that is safe to retry.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, call: &Call) -> Result<T> {
        let body = self.done(call, Duration::ZERO).await.map_err(Error::unavailable)?;
        serde_json::from_slice(&body).map_err(|_| Error::not_keylatch())
    }

    /// The body of a success, of a request that is safe to retry: for as long as `patience`.
    pub(crate) async fn done(&self, call: &Call, patience: Duration) -> Result<Bytes> {
        let mut tries = self.tries(Duration::ZERO, patience);
        loop {
            let (wait, limit) = tries.next();
            match self.send(call, wait, limit).await {
                Ok(body) => return Ok(body),
                Err(failure) => tries.failed(failure).await?,
            }
        }
    }

    /// Sends a request whose URI is a path, and gives the response when it begins.
    pub(crate) async fn forward(&self, request: Request<Full<Bytes>>) -> Result<Response<Body>> {
        let (first, mut unsent) = (self.current.load(Ordering::Relaxed), Vec::new());
        let mut is_other = false;
        for index in (first..self.nodes.len()).chain(0..first) {
            let Some(node) = self.nodes.get(index) else { break };
            let sent = async {
                self.check_store(node).await?;
                self.send_to(node, request.clone()).await
            };
            match sent.await {
                Err(Error::Unreachable(why)) => unsent.push(why),
                Err(Error::OtherStore(why)) => {
                    unsent.push(why);
                    is_other = true;
                }
                reply => {
                    self.current.store(index, Ordering::Relaxed);
                    return reply;
                }
            }
        }
        let why = unsent.join("; ");
        Err(if is_other { Error::OtherStore(why) } else { Error::Unreachable(why) })
    }

    async fn send_to(
        &self,
        node: &Node,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Body>> {
        let uri = format!("{}{}", node.base, request.uri());
        *request.uri_mut() = uri.parse().map_err(|_| Error::Unreachable("it is no path".into()))?;
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        if let Some(key) = &self.authorization {
            headers.insert(AUTHORIZATION, key.clone());
        }
        if self.settings.closes {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let trace = self.settings.traceparent.as_ref().and_then(|of| of());
        if let Some(trace) = trace.and_then(|trace| HeaderValue::try_from(trace).ok()) {
            headers.insert("traceparent", trace);
        }
        (node.exchange)(request).await
    }

    /// Two URLs of one client lead to one store. Two stores would be two holders.
    async fn check_store(&self, node: &Node) -> Result<()> {
        if self.nodes.len() == 1 || node.is_known.load(Ordering::Relaxed) {
            return Ok(());
        }
        let request = Call::new(Method::GET, "/v1/info").request(Duration::ZERO)?;
        let info = async { read(self.send_to(node, request).await?).await };
        // Time is left for the next URL.
        let info = timeout(self.settings.timeout / 2, info).await;
        let info = match info.unwrap_or_else(|_| Err(Error::late().into())) {
            Ok(info) => info,
            Err(Failure { error, .. }) if error.is_passing() => {
                return Err(Error::Unreachable(format!("{}: {error}", node.base)));
            }
            // It does not tell this client.
            Err(_) => Bytes::new(),
        };
        let info: Value = serde_json::from_slice(&info).unwrap_or_default();
        if let Some(id) = info["store"]["id"].as_str() {
            let other = self.store.get_or_init(|| id.to_owned());
            if id != other {
                let why = format!("its store is {id}, and that of the others {other}");
                return Err(Error::OtherStore(format!("{}: {why}", node.base)));
            }
        }
        node.is_known.store(true, Ordering::Relaxed);
        Ok(())
    }
}

pub(crate) struct Tries<'a> {
    connection: &'a Connection,
    end: BootInstant,
    /// Until when a failure is outlasted.
    patience: BootInstant,
    /// When the last response has to be there.
    deadline: BootInstant,
    left: u32,
    /// For how long the service lets a request wait, as far as is known.
    longest: Duration,
    /// When the last try was sent, and for how long it was to wait.
    last: (BootInstant, Duration),
    /// Whether an earlier try may have been carried out.
    pub(crate) in_doubt: bool,
}

impl Tries<'_> {
    /// For how long the service may let the next try wait, and how long that may take in all.
    pub(crate) fn next(&mut self) -> (Duration, Duration) {
        let wait = Duration::from_millis(millis(self.end.left().min(self.longest)));
        self.last = (self.connection.now(), wait);
        (wait, (wait + self.connection.settings.timeout).min(self.deadline.left()))
    }

    /// Pauses before the next try. The error is that there is none.
    pub(crate) async fn failed(&mut self, failure: Failure) -> Result<()> {
        let Failure { error, retry_after } = failure;
        let (sent, wait) = self.last;
        let problem = error.problem().filter(|_| !wait.is_zero());
        if problem.is_some_and(|problem| problem.field.as_deref() == Some("wait_ms")) {
            let shorter = self.longest / 4;
            self.longest = if shorter < MIN_REQUEST_WAIT { Duration::ZERO } else { shorter };
            return Ok(());
        }
        self.in_doubt |= error.may_be_done();
        // The service did not let it wait: what the token has of the locks already is in its own
        // way, and no release of another client changes that.
        let was_not_let = problem.is_some_and(|it| it.is(Code::LockHeld) && it.waited_ms.is_none());
        let until = match &error {
            error if was_not_let || !error.is_passing() => sent,
            error if error.is_busy() => self.end,
            _ => self.patience,
        };
        let is_busy = error.is_busy();
        // An earlier try may have been carried out.
        let last = |error: Error| match error {
            Error::Unreachable(why) if self.in_doubt => Err(Error::Unanswered(why)),
            error => Err(error),
        };
        if until.left().is_zero() || !is_busy && self.left == 0 {
            return last(error);
        }
        // A wait that was granted is over, and the next one begins at once.
        let has_waited = !wait.is_zero() && (sent + wait).left().is_zero();
        let pause = match retry_after.filter(|_| !error.is(Code::LockHeld)) {
            _ if is_busy && has_waited => Duration::ZERO,
            after if is_busy => self.connection.pause(after).min(until.left()),
            after => self.connection.pause(after),
        };
        // A try that has no time would say less than this one.
        let needed = pause.saturating_add(self.connection.settings.timeout / 5);
        if until.left() < pause || self.deadline.left() < needed {
            return last(error);
        }
        self.left -= u32::from(!is_busy);
        tracing::debug!(why = %error, "a request is tried again");
        sleep(pause).await;
        Ok(())
    }
}

/// A header that no log shows; `None` where the word has characters that no header may have.
fn secret(scheme: &str, word: &str) -> Option<HeaderValue> {
    let is_word = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic());
    let mut secret = HeaderValue::try_from(format!("{scheme}{word}")).ok()?;
    secret.set_sensitive(true);
    is_word.then_some(secret)
}

/// A text as a path segment or a value of a query, such as a name in a path of
/// [`Client::send`](crate::Client::send).
#[must_use]
pub fn escape(text: &str) -> impl fmt::Display {
    utf8_percent_encode(text, PLAIN)
}

/// The body of a success, or what the response refuses.
pub(crate) async fn read(response: Response<Body>) -> Result<Bytes, Failure> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    let body = body.map_err(|error| Error::Unanswered(error.to_string()))?.to_bytes();
    if matches!(head.status, StatusCode::OK | StatusCode::CREATED | StatusCode::NO_CONTENT) {
        return Ok(body);
    }
    let problem: Option<Box<ProblemDocument>> = serde_json::from_slice(&body).ok();
    let seconds = head.headers.get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
    let millis = problem.as_ref().and_then(|problem| problem.retry_after_ms);
    let retry_after = millis.map(Duration::from_millis).or(seconds.map(Duration::from_secs));
    let foreign = format!("{}, which keylatch did not answer", head.status);
    let error = match problem {
        Some(problem) => Error::Problem(problem),
        None if passes(head.status.as_u16()) => Error::Unavailable(foreign),
        None => Error::Refused(foreign),
    };
    Err(Failure { error, retry_after })
}
