//! The service at the other end: one request about locks, with a deadline.
//!
//! What comes back is an answer, or the reason why there is none: whether nothing was sent, or
//! something was and its effect is unknown. A [`Target`](crate::target::Target) reads what a success
//! says. What something else than keylatch refused, such as a proxy, is judged by its status alone.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::ResponseFuture;
use keylatch_core::lock::Token;
use keylatch_wire::{Code, ProblemDocument, Retry};
use tokio::time::timeout;

use crate::Error;
use crate::api_key::ApiKey;
use crate::error::not_keylatch;
use crate::https::{HttpsClient, Trust, https_client};
use crate::security::Security;
use crate::unix::{UnixClient, unix_client};

/// How long an answer may take, beyond what the service was asked to wait.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before a request is repeated, unless the service asks for a longer one.
pub(crate) const PAUSE: Duration = Duration::from_millis(250);
/// The largest answer that is read, in bytes: a kept one may be of any size that a service is configured for.
const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// A service, and the connections to it.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    http: Http,
    /// The URL without the path of a request and without a slash at its end.
    base: String,
    api_key: Option<ApiKey>,
    traceparent: Option<Traceparent>,
}

/// What says to which trace a request belongs.
#[derive(Clone)]
struct Traceparent(Arc<dyn Fn() -> Option<String> + Send + Sync>);

impl fmt::Debug for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Traceparent(..)")
    }
}

/// The connections to a service.
#[derive(Debug, Clone)]
enum Http {
    Network(HttpsClient<Full<Bytes>>),
    Unix(UnixClient<Full<Bytes>>),
}

impl Http {
    fn request(&self, request: Request<Full<Bytes>>) -> ResponseFuture {
        match self {
            Self::Network(client) => client.request(request),
            Self::Unix(client) => client.request(request),
        }
    }
}

/// What the service answered.
#[derive(Debug)]
pub(crate) enum Answer {
    /// 200 or 201, with this body.
    Content(Bytes),
    /// 204.
    Done,
    /// Anything else.
    Refusal(Refusal),
}

/// A refusal or a failure.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) retry_after: Option<Duration>,
    /// `None` where something else than keylatch answered.
    pub(crate) problem: Option<Box<ProblemDocument>>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum NoReply {
    /// Nothing was sent.
    Unsent(String),
    /// Something was sent, and its effect is unknown.
    Unknown(String),
}

impl Connection {
    /// A connection to the service at `url`, which is not opened yet.
    pub(crate) fn new(url: &str, security: Security) -> Result<Self, Error> {
        let Security { api_key, authorities, certificate } = security;
        let (base, transport) = parse(url)?;
        let trust = match (transport, authorities) {
            (Transport::Unix(path), _) => {
                let http = Http::Unix(unix_client(path));
                return Ok(Self { http, base, api_key, traceparent: None });
            }
            (Transport::Clear, _) => Trust::None,
            (Transport::Tls, Some(file)) => Trust::Authorities(file),
            (Transport::Tls, None) => Trust::System,
        };
        let http =
            Http::Network(https_client(&trust, certificate.as_ref()).map_err(Error::Certificates)?);
        Ok(Self { http, base, api_key, traceparent: None })
    }

    /// The same connections, whose requests belong to the trace that `of` gives.
    pub(crate) fn with_traceparent(
        &self,
        of: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { traceparent: Some(Traceparent(Arc::new(of))), ..self.clone() }
    }

    /// Sends a request to `path`, and gives up after `limit`, which holds for the answer's body as
    /// well.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        token: &Token,
        body: Vec<u8>,
        limit: Duration,
    ) -> Result<Answer, NoReply> {
        let uri = format!("{}{path}", self.base);
        let request = request(method, uri, token, body);
        let request = request.map_err(|error| NoReply::Unsent(error.to_string()))?;
        let answered = async { read(self.respond(request).await?).await };
        let late = || NoReply::Unknown("no answer came in time".to_owned());
        timeout(limit, answered).await.unwrap_or_else(|_| Err(late()))
    }

    /// Sends a request whose URI is a path, and gives the answer when it begins.
    pub(crate) async fn forward(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, NoReply> {
        let uri = format!("{}{}", self.base, request.uri());
        *request.uri_mut() = uri.parse().map_err(|_| NoReply::Unsent("it is no path".into()))?;
        self.respond(request).await
    }

    async fn respond(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, NoReply> {
        if let Some(key) = &self.api_key {
            request.headers_mut().insert(AUTHORIZATION, key.bearer());
        }
        let trace = self.traceparent.as_ref().and_then(|of| HeaderValue::try_from((of.0)()?).ok());
        if let Some(trace) = trace {
            request.headers_mut().insert("traceparent", trace);
        }
        self.http.request(request).await.map_err(|error| {
            let cause = cause(&error);
            if error.is_connect() { NoReply::Unsent(cause) } else { NoReply::Unknown(cause) }
        })
    }
}

fn request(
    method: Method,
    uri: String,
    token: &Token,
    body: Vec<u8>,
) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
    let mut token = HeaderValue::from_str(token.expose())?;
    token.set_sensitive(true);
    Request::builder()
        .method(method)
        .uri(uri)
        .header("lock-token", token)
        .header("content-type", "application/json")
        .body(Full::from(body))
}

/// What an answer refuses, whose body is read here.
pub(crate) async fn refusal_of(answer: Response<Incoming>) -> Result<Refusal, Error> {
    let read = timeout(ANSWER_TIMEOUT, read(answer)).await;
    match read.unwrap_or_else(|_| Err(NoReply::Unknown("no answer came in time".to_owned())))? {
        Answer::Refusal(refusal) => Ok(refusal),
        Answer::Content(_) | Answer::Done => Err(not_keylatch()),
    }
}

impl Refusal {
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

    /// Whether the service refused to let a request wait that asked to wait for `wait`: what the token
    /// has of the locks already is in its own way, and no release of another client changes that.
    pub(crate) fn is_final(&self, wait: Duration) -> bool {
        let problem = self.problem.as_ref().filter(|problem| problem.is(Code::LockHeld));
        !wait.is_zero() && problem.is_some_and(|problem| problem.waited_ms.is_none())
    }

    /// Whether the same request may succeed later: by the table of problems or, where it does not
    /// know the code, by the status.
    pub(crate) fn is_passing(&self) -> bool {
        let code = self.problem.as_deref().and_then(ProblemDocument::known_code);
        match code {
            Some(code) => code.retry() == Retry::SameKey,
            None => {
                let waits = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
                self.status.is_server_error() || waits.contains(&self.status)
            }
        }
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

impl From<NoReply> for Error {
    fn from(no_reply: NoReply) -> Self {
        match no_reply {
            NoReply::Unsent(cause) => Self::Unreachable(cause),
            NoReply::Unknown(cause) => Self::Unanswered(cause),
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

/// How a service is reached.
#[derive(Debug, PartialEq, Eq)]
enum Transport {
    Clear,
    Tls,
    Unix(PathBuf),
}

/// A URL without a slash at its end, and how its service is reached; `http` where it has no scheme.
fn parse(url: &str) -> Result<(String, Transport), Error> {
    if let Some(path) = url.strip_prefix("unix:") {
        return match path {
            "" => Err(Error::Url("must have the path of a socket behind unix:")),
            path => Ok(("http://localhost".to_owned(), Transport::Unix(path.into()))),
        };
    }
    let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let uri: Uri = url.parse().map_err(|_| Error::Url("is not a URL"))?;
    let transport = match uri.scheme_str() {
        Some("http") => Transport::Clear,
        Some("https") => Transport::Tls,
        _ => return Err(Error::Url("must begin with http://, https:// or unix:")),
    };
    if uri.authority().is_none_or(|host| host.as_str().contains('@')) {
        return Err(Error::Url("must not hold a user or a password"));
    }
    if uri.query().is_some() || url.contains('#') {
        return Err(Error::Url("must end with its path"));
    }
    Ok((url.trim_end_matches('/').to_owned(), transport))
}

async fn read(response: Response<Incoming>) -> Result<Answer, NoReply> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    let body = body.map_err(|error| NoReply::Unknown(error.to_string()))?.to_bytes();
    let refusal = |problem: Option<ProblemDocument>| {
        let seconds =
            head.headers.get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
        let millis = problem.as_ref().and_then(|problem| problem.retry_after_ms);
        let retry_after = millis.map(Duration::from_millis).or(seconds.map(Duration::from_secs));
        let problem = problem.map(Box::new);
        Answer::Refusal(Refusal { status: head.status, retry_after, problem })
    };
    Ok(match head.status {
        StatusCode::OK | StatusCode::CREATED => Answer::Content(body),
        StatusCode::NO_CONTENT => Answer::Done,
        _ => refusal(serde_json::from_slice(&body).ok()),
    })
}

/// The innermost cause of an error, which says what happened; hyper's own text does not.
fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, problem: Option<ProblemDocument>) -> Refusal {
        let status = StatusCode::from_u16(status).unwrap();
        Refusal { status, retry_after: None, problem: problem.map(Box::new) }
    }

    #[test]
    fn errors_follow_the_table_of_problems() {
        for code in Code::all() {
            let problem = ProblemDocument::new(code, "Of this request.");
            let error = Error::from(refusal(code.status(), Some(problem)));
            let is_unavailable = matches!(error, Error::Unavailable(_));
            assert_eq!(is_unavailable, code.retry() == Retry::SameKey, "{code:?}: {error}");
            assert_eq!(error.retry() == Retry::SameKey, is_unavailable, "{code:?}");
            assert!(error.to_string().ends_with("Of this request."), "{error}");
        }
    }

    #[test]
    fn status_decides_where_something_else_answered() {
        for (status, is_passing) in
            [(404, false), (408, true), (429, true), (501, true), (502, true)]
        {
            let refusal = refusal(status, None);
            assert_eq!(refusal.is_passing(), is_passing, "{status}");
            assert!(refusal.to_string().ends_with("which keylatch did not answer"), "{refusal}");
        }
        let mut newer = ProblemDocument::new(Code::StoreUnavailable, "A newer service.");
        newer.code = "store-on-holiday".into();
        assert!(refusal(503, Some(newer)).is_passing());
    }
}
