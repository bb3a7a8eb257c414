//! The service at the other end: requests with a deadline, to one URL or the next, and their
//! retries.
//!
//! What comes back is a response, or the reason why there is none: whether nothing was sent, or
//! something was and its effect is unknown. A request that got no connection goes to the next URL
//! at once; a URL whose store is another one is refused. A [`Target`](crate::target::Target) reads
//! what a success says. What something else than keylatch refused, such as a proxy, is judged by
//! its status alone.

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
use keylatch_core::retry::random_part_of;
use keylatch_wire::{Code, ProblemDocument, Retry};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::Error;
use crate::builder::{Builder, RESPONSE_TIMEOUT};
use crate::clock::BootInstant;
use crate::error::not_keylatch;
use crate::node::Node;
use crate::transport::Body;

/// How long one request waits at the service. The next request keeps the place in the queue.
pub(crate) const REQUEST_WAIT: Duration = Duration::from_secs(50);
/// The largest answer that is read, in bytes: a kept one may be of any size that a service is
/// configured for.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
const AGENT: &str = concat!("keylatch-rust/", env!("CARGO_PKG_VERSION"));

/// What may stand in a path segment or a query as it is. A dot may not: `..` would be a step in the
/// path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

/// A service, and the connections to it.
pub(crate) struct Connection {
    nodes: Vec<Node>,
    /// Which node answered last.
    current: AtomicUsize,
    /// The store of the nodes, once one has said which.
    store: OnceLock<String>,
    pub(crate) settings: Builder,
    authorization: Option<HeaderValue>,
    /// What ends guards, waits and runs that were dropped.
    pub(crate) endings: TaskTracker,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.nodes.iter().map(|node| &node.base)).finish()
    }
}

/// A request of the API.
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

    /// A step of the same thing: what comes behind its path.
    pub(crate) fn then(&self, method: Method, step: &str) -> Self {
        let path = format!("{}{step}", self.path);
        Self { method, path, body: Bytes::new(), ..self.clone() }
    }

    /// With a query of these members.
    pub(crate) fn with_query<'a>(self, members: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let members = members.map(|(name, value)| format!("{name}={}", plain(value)));
        Self { query: members.collect::<Vec<_>>().join("&"), ..self }
    }

    pub(crate) fn with_token(self, token: &Token) -> Self {
        Self { token: Some(token.clone()), ..self }
    }

    pub(crate) fn with_body(self, json: &Value) -> Self {
        Self { body: json.to_string().into(), ..self }
    }

    /// The request that asks the service to wait for so long.
    pub(crate) fn request(&self, wait: Duration) -> Result<Request<Full<Bytes>>, Error> {
        let mark = if self.query.is_empty() { "" } else { "?" };
        let mut request = Request::builder()
            .method(&self.method)
            .uri(format!("{}{mark}{}", self.path, self.query))
            .header("content-type", "application/json");
        if let Some(token) = &self.token {
            let mut token = HeaderValue::try_from(token.expose()).map_err(|_| not_keylatch())?;
            token.set_sensitive(true);
            request = request.header("lock-token", token);
        }
        if !wait.is_zero() {
            let seconds = wait.as_millis().div_ceil(1000);
            request = request.header("prefer", format!("wait={seconds}"));
        }
        let request = request.body(Full::new(self.body.clone()));
        request.map_err(|error| Error::Unreachable(error.to_string()))
    }
}

/// What the service answered: the body of a 200 or 201, none of a 204, or anything else.
pub(crate) type Answer = Result<Bytes, Refusal>;

/// The response to a request that may have been sent several times.
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    /// When the try was sent that was answered.
    pub(crate) sent: BootInstant,
    /// Whether an earlier try may have been carried out.
    pub(crate) in_doubt: bool,
}

/// A refusal or a failure.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) retry_after: Option<Duration>,
    /// `None` where something else than keylatch answered.
    pub(crate) problem: Option<Box<ProblemDocument>>,
}

impl Connection {
    /// New connections to a service. None is opened yet.
    pub(crate) fn open(settings: Builder) -> Result<Arc<Self>, Error> {
        let (nodes, authorization) = (settings.nodes()?, settings.authorization()?);
        let (current, store, endings) = (AtomicUsize::new(0), OnceLock::new(), TaskTracker::new());
        Ok(Arc::new(Self { nodes, current, store, settings, authorization, endings }))
    }

    pub(crate) fn now(&self) -> BootInstant {
        self.settings.clock.now()
    }

    /// Sends a request, and gives up after `limit`, which holds for the response's body as well.
    pub(crate) async fn send(&self, call: &Call, limit: Duration) -> Result<Answer, Error> {
        self.send_request(call.request(Duration::ZERO)?, limit).await
    }

    async fn send_request(
        &self,
        mut request: Request<Full<Bytes>>,
        limit: Duration,
    ) -> Result<Answer, Error> {
        let connected = capture_connection(&mut request);
        let node = self.current.load(Ordering::Relaxed);
        let answered = async { read(self.forward(request).await?).await };
        let answer = timeout(limit, answered).await.unwrap_or_else(|_| {
            let is_sent = connected.connection_metadata().is_some();
            Err(if is_sent { Error::late() } else { Error::unconnected() })
        });
        if answer.is_err() {
            // The next try goes to another URL, unless this one has done so.
            let (next, order) = ((node + 1) % self.nodes.len(), Ordering::Relaxed);
            let _ = self.current.compare_exchange(node, next, order, order);
        }
        answer
    }

    /// The response to a request that is safe to repeat, also where earlier ones were lost. While
    /// the same thing is under way elsewhere, it waits at the service for `wait`. The last response
    /// may be a passing refusal.
    pub(crate) async fn ask(&self, call: &Call, wait: Duration) -> Result<Reply, Error> {
        self.ask_for(call, wait, Duration::ZERO).await
    }

    /// The same, which is tried for as long as `patience` beyond the wait.
    pub(crate) async fn ask_for(
        &self,
        call: &Call,
        wait: Duration,
        patience: Duration,
    ) -> Result<Reply, Error> {
        let timeout = self.settings.timeout;
        let wait_end = self.now() + wait;
        let end = wait_end + timeout.max(patience);
        let mut in_doubt = false;
        loop {
            let (sent, wait) = (self.now(), wait_end.left().min(REQUEST_WAIT));
            let limit = (wait + timeout).min(end.left());
            let reply = self.send_request(call.request(wait)?, limit).await;
            let after = match &reply {
                Ok(Err(refusal)) if refusal.is_passing() => {
                    in_doubt = true;
                    let is_over = refusal.is(Code::RequestInProgress) && wait_end.left().is_zero();
                    if is_over { None } else { Some(refusal.retry_after) }
                }
                Ok(_) => None,
                Err(no_reply) => {
                    in_doubt |= matches!(no_reply, Error::Unanswered(_));
                    Some(None)
                }
            };
            let pause = after.map(pause);
            // A try that has no time would say less than this one.
            match pause.filter(|pause| end.left() > *pause + timeout / 5) {
                None => {
                    let reply = if in_doubt { reply.map_err(Error::in_doubt) } else { reply };
                    return Ok(Reply { answer: reply?, sent, in_doubt });
                }
                // A wait at the service was the pause.
                Some(_) if !wait.is_zero() && (sent + wait).left().is_zero() => {}
                Some(pause) => sleep(pause).await,
            }
        }
    }

    /// Sends a request whose URI is a path, and gives the response when it begins.
    pub(crate) async fn forward(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Body>, Error> {
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
    ) -> Result<Response<Body>, Error> {
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
        let trace =
            self.settings.traceparent.as_ref().and_then(|of| HeaderValue::try_from(of()?).ok());
        if let Some(trace) = trace {
            headers.insert("traceparent", trace);
        }
        (node.exchange)(request).await
    }

    /// Two URLs of one client lead to one store. Two stores would be two holders.
    async fn check_store(&self, node: &Node) -> Result<(), Error> {
        if self.nodes.len() == 1 || node.is_known.load(Ordering::Relaxed) {
            return Ok(());
        }
        let unsent = |why: &str| Error::Unreachable(format!("{}: {why}", node.base));
        let request = Call::new(Method::GET, "/v1/info").request(Duration::ZERO)?;
        let info = async { read(self.send_to(node, request).await?).await };
        // Time is left for the next URL.
        let info = timeout(self.settings.timeout / 2, info).await;
        let info = match info.unwrap_or_else(|_| Err(Error::late())) {
            Ok(Ok(info)) => info,
            Ok(Err(refusal)) if refusal.is_passing() => {
                return Err(unsent(&refusal.to_string()));
            }
            Ok(Err(_)) => Bytes::new(),
            Err(Error::Unreachable(why) | Error::Unanswered(why)) => return Err(unsent(&why)),
            Err(error) => return Err(error),
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

/// A text as a path segment or a value of a query.
pub(crate) fn plain(text: &str) -> impl fmt::Display {
    utf8_percent_encode(text, PLAIN)
}

/// The pause before a request is repeated: as long as the service asks for, and some more, so that
/// those that lost the same service do not all come back at once.
pub(crate) fn pause(retry_after: Option<Duration>) -> Duration {
    let jitter = Duration::from_millis(100) + random_part_of(Duration::from_millis(300));
    retry_after.unwrap_or_default() + jitter
}

/// What a response refuses, whose body is read here.
pub(crate) async fn refusal_of(answer: Response<Body>) -> Result<Refusal, Error> {
    let read = timeout(RESPONSE_TIMEOUT, read(answer)).await;
    read.unwrap_or_else(|_| Err(Error::late()))?.err().ok_or_else(not_keylatch)
}

impl Refusal {
    /// The refusal that a stream says.
    pub(crate) fn of(problem: ProblemDocument) -> Self {
        let status = StatusCode::from_u16(problem.status).unwrap_or_default();
        Self { status, retry_after: None, problem: Some(Box::new(problem)) }
    }

    /// The problem that the service names, as an error, be it a passing one or not.
    pub(crate) fn into_problem(self) -> Error {
        match self.problem {
            Some(problem) => Error::Problem(problem),
            None => self.into(),
        }
    }

    /// Whether it is a problem with this code.
    pub(crate) fn is(&self, code: Code) -> bool {
        self.problem.as_ref().is_some_and(|problem| problem.is(code))
    }

    /// Whether the service itself refused the request, and so has changed nothing.
    pub(crate) fn is_without_effect(&self) -> bool {
        self.problem.is_some() && self.status.is_client_error()
    }

    /// Whether the service refused to let a request wait that asked to wait for `wait`: what the
    /// token has of the locks already is in its own way, and no release of another client changes
    /// that.
    pub(crate) fn is_final(&self, wait: Duration) -> bool {
        let problem = self.problem.as_ref().filter(|problem| problem.is(Code::LockHeld));
        !wait.is_zero() && problem.is_some_and(|problem| problem.waited_ms.is_none())
    }

    /// Whether the service does not let a client wait for so long.
    pub(crate) fn is_of_wait(&self) -> bool {
        self.problem.as_ref().is_some_and(|problem| problem.field.as_deref() == Some("wait_ms"))
    }

    /// The pause before the next try of a request that was sent then, to wait for `wait`. A wait
    /// that was granted is over, and the next one begins at once.
    pub(crate) fn pause_after(&self, sent: BootInstant, wait: Duration) -> Duration {
        if !self.is(Code::LockHeld) {
            return pause(self.retry_after);
        }
        let has_waited = !wait.is_zero() && (sent + wait).left().is_zero();
        if has_waited { Duration::ZERO } else { pause(None) }
    }

    /// Whether the same request may succeed later: by the table of problems or, where it does not
    /// know the code, by the status.
    pub(crate) fn is_passing(&self) -> bool {
        if let Some(code) = self.problem.as_deref().and_then(ProblemDocument::known_code) {
            return code.retry() == Retry::SameKey;
        }
        let waits = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
        self.status.is_server_error() || waits.contains(&self.status)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            Some(problem) => write!(f, "{}: {}", self.status, problem.detail),
            None => write!(f, "{}, which keylatch did not answer", self.status),
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        if refusal.is_passing() {
            return Self::Unavailable(refusal.to_string());
        }
        match refusal.problem {
            Some(problem) => Self::Problem(problem),
            None => Self::Refused(refusal.to_string()),
        }
    }
}

async fn read(response: Response<Body>) -> Result<Answer, Error> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    let body = body.map_err(|error| Error::Unanswered(error.to_string()))?.to_bytes();
    if matches!(head.status, StatusCode::OK | StatusCode::CREATED | StatusCode::NO_CONTENT) {
        return Ok(Ok(body));
    }
    let problem: Option<Box<ProblemDocument>> = serde_json::from_slice(&body).ok();
    let seconds = head.headers.get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
    let millis = problem.as_ref().and_then(|problem| problem.retry_after_ms);
    let retry_after = millis.map(Duration::from_millis).or(seconds.map(Duration::from_secs));
    Ok(Err(Refusal { status: head.status, retry_after, problem }))
}
