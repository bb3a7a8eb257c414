use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::http::uri::Scheme;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tokio::time::timeout;

use crate::Error;
use keylatch_core::lock::{LockName, Token};

/// What may stand in a path segment as it is. A dot may not: `..` would be a step in the path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');
/// How long a connection may stay unused: shorter than what servers close theirs after.
const POOL_IDLE: Duration = Duration::from_secs(3);
/// The largest answer that is read.
const MAX_ANSWER: usize = 64 * 1024;

/// The service at the other end: one method a request, each with a deadline.
#[derive(Debug)]
pub(crate) struct Wire {
    http: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// The URL without the path of a request and without a slash at its end.
    base: String,
}

/// What the service answered.
#[derive(Debug)]
pub(crate) enum Answer {
    /// 200 or 201.
    Lease(Lease),
    /// 204.
    Done,
    /// Anything else.
    Problem(Problem),
}

/// What a lease says that its holder counts on.
#[derive(Debug, Deserialize)]
pub(crate) struct Lease {
    pub(crate) fencing_token: u64,
    waited_ms: u64,
    valid_for_ms: u64,
}

impl Lease {
    /// How long after the sending of the request the lease is exclusive.
    pub(crate) fn valid_from_sending(&self) -> Duration {
        Duration::from_millis(self.waited_ms.saturating_add(self.valid_for_ms))
    }
}

/// A refusal or a failure.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: ProblemBody,
}

/// What is read of a problem's body; nothing where something else than keylatch answered.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ProblemBody {
    pub(crate) code: String,
    pub(crate) detail: String,
    pub(crate) field: Option<String>,
    pub(crate) holder: Option<HolderBody>,
    retry_after_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct HolderBody {
    pub(crate) owner: Option<String>,
    pub(crate) fencing_token: u64,
    pub(crate) expires_in_ms: u64,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Silence {
    /// Nothing was sent.
    Unsent(String),
    /// Something was, and what became of it is not known.
    Unknown(String),
}

impl Wire {
    pub(crate) fn new(url: &str) -> Result<Self, Error> {
        let (base, is_https) = parse(url)?;
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        let tls = HttpsConnectorBuilder::new();
        let provider = rustls::crypto::ring::default_provider();
        let tls = if is_https {
            tls.with_provider_and_native_roots(provider).map_err(Error::Certificates)?
        } else {
            // Where TLS is not spoken a machine without certificates will do.
            let roots = rustls::RootCertStore::empty();
            let config = rustls::ClientConfig::builder_with_provider(provider.into())
                .with_safe_default_protocol_versions()
                .map_err(|error| Error::Certificates(io::Error::other(error)))?;
            tls.with_tls_config(config.with_root_certificates(roots).with_no_client_auth())
        };
        let connector = tls.https_or_http().enable_http1().wrap_connector(connector);
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_idle_timeout(POOL_IDLE)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self { http, base })
    }

    /// Sends a request about a lock, and gives up after `limit`, which holds for the answer's body
    /// as well.
    pub(crate) async fn ask(
        &self,
        method: Method,
        name: &LockName,
        token: &Token,
        body: String,
        limit: Duration,
    ) -> Result<Answer, Silence> {
        let request = self.request(method, name, token, body);
        let request = request.map_err(|error| Silence::Unsent(error.to_string()))?;
        let answered = async {
            let response = self.http.request(request).await.map_err(|error| {
                let cause = cause(&error);
                if error.is_connect() { Silence::Unsent(cause) } else { Silence::Unknown(cause) }
            })?;
            read(response).await
        };
        let late = || Silence::Unknown("no answer came in time".to_owned());
        timeout(limit, answered).await.unwrap_or_else(|_| Err(late()))
    }

    fn request(
        &self,
        method: Method,
        name: &LockName,
        token: &Token,
        body: String,
    ) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let segment = utf8_percent_encode(name.as_str(), SEGMENT);
        let mut token = HeaderValue::from_str(token.expose())?;
        token.set_sensitive(true);
        Request::builder()
            .method(method)
            .uri(format!("{}/v1/locks/{segment}", self.base))
            .header("lock-token", token)
            .header("content-type", "application/json")
            .body(Full::from(body))
    }
}

impl Problem {
    /// Whether it has this code of the service's table.
    pub(crate) fn is(&self, code: &str) -> bool {
        self.body.code == code
    }

    /// Whether the same request may succeed a little later.
    pub(crate) fn is_passing(&self) -> bool {
        self.status.is_server_error()
            || matches!(self.status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.body.detail.as_str() {
            "" => write!(f, "{}, which keylatch did not answer", self.status),
            detail => write!(f, "{}: {detail}", self.status),
        }
    }
}

impl From<Silence> for Error {
    fn from(silence: Silence) -> Self {
        let (Silence::Unsent(cause) | Silence::Unknown(cause)) = silence;
        Self::Unreachable(cause)
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        let text = problem.to_string();
        if problem.is_passing() { Self::Unavailable(text) } else { Self::Refused(text) }
    }
}

/// A URL without a slash at its end, and whether it is of `https`; `http` where it has no scheme.
fn parse(url: &str) -> Result<(String, bool), Error> {
    let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let uri: Uri = url.parse().map_err(|_| Error::Url("is not a URL"))?;
    if ![Some(&Scheme::HTTP), Some(&Scheme::HTTPS)].contains(&uri.scheme()) {
        return Err(Error::Url("must begin with http:// or https://"));
    }
    if uri.authority().is_none_or(|host| host.as_str().contains('@')) {
        return Err(Error::Url("must not hold a user or a password"));
    }
    if uri.query().is_some() || url.contains('#') {
        return Err(Error::Url("must end with its path"));
    }
    Ok((url.trim_end_matches('/').to_owned(), uri.scheme() == Some(&Scheme::HTTPS)))
}

async fn read(response: Response<hyper::body::Incoming>) -> Result<Answer, Silence> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    let body = body.map_err(|error| Silence::Unknown(error.to_string()))?.to_bytes();
    let problem = |body: ProblemBody| {
        let seconds =
            head.headers.get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
        let millis = body.retry_after_ms.map(Duration::from_millis);
        let retry_after = millis.or(seconds.map(Duration::from_secs));
        Answer::Problem(Problem { status: head.status, retry_after, body })
    };
    Ok(match head.status {
        StatusCode::OK | StatusCode::CREATED => match serde_json::from_slice(&body) {
            Ok(lease) => Answer::Lease(lease),
            Err(_) => problem(ProblemBody::default()),
        },
        StatusCode::NO_CONTENT => Answer::Done,
        _ => problem(serde_json::from_slice(&body).unwrap_or_default()),
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
