//! The gateway: sends a guarded request on to the service behind, and tells "never sent" from
//! "sent, answer lost".
//!
//! The difference decides what becomes of the key: what was never sent frees it, and what was sent
//! without a response leaves an unknown outcome. Connections that idle longer than servers keep
//! theirs would blur it; [`keylatch_client::https`] does not use them again. Tested in
//! `tests/api/idempotency_gateway.rs` and `gateway_upgrades.rs`.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri, Version};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures_util::stream::empty;
use http_body_util::BodyExt as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tokio::time::{Instant, timeout_at};

use super::forwarding::{ClientConnection, hide_upstream, write_source};
use super::headers::{keep_parsed_length, offer_upgrade, remove_those, strip, upgrade_of};
use crate::policy::read_keep;
use crate::response::is_mark;
use crate::{Code, Guard, IDEMPOTENCY_FENCE, InvalidSetting, Problem, RetentionPolicy};
use keylatch_client::https::HttpsClient;
use keylatch_core::idempotency::RecordScope;
use keylatch_core::store::Effect;

const PAUSE: Duration = Duration::from_millis(100);

/// What the gateway asks the server that it is part of.
#[derive(Debug, Clone, Copy)]
pub struct ServerHooks {
    /// The connection that a request came on.
    pub connection: fn(&Request) -> ClientConnection,
    /// The address from which the client of a request comes.
    pub address: fn(&Request) -> Option<IpAddr>,
    /// The name of the identity that sends a request.
    pub identity: fn(&Parts) -> Option<String>,
    /// Where an operator settles the unknown outcome of a request.
    pub resolve_url: fn(&RecordScope) -> String,
    /// Begins the span of a call of an upstream, to which the request was sent so often before.
    /// `None` where the request is not traced.
    pub begin_call: fn(&mut Request, &Uri, u32) -> Option<EndCall>,
}

/// Ends the span of a call, with the upstream's status or the code of the problem in its place.
pub type EndCall = Box<dyn FnOnce(Result<StatusCode, Code>) + Send>;

/// Sends what it is given on to another service.
#[derive(Debug)]
pub(super) struct Gateway {
    client: HttpsClient<Body>,
    origin: Uri,
    host: HeaderValue,
    timeout: Duration,
    /// How often a guarded request may be sent: more than once only to a service that is
    /// idempotent by itself.
    tries: u32,
    server: ServerHooks,
}

impl Gateway {
    pub(super) fn new(
        guard: &Guard,
        client: HttpsClient<Body>,
        server: ServerHooks,
    ) -> Result<Self, InvalidSetting> {
        let origin = guard.origin()?;
        let host = origin.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
        let host = host.unwrap_or_else(|| HeaderValue::from_static(""));
        let timeout = Duration::from_millis(guard.timeout_ms);
        let tries = if guard.upstream_idempotent { 3 } else { 1 };
        Ok(Self { client, origin, host, timeout, tries, server })
    }

    /// Everything at `path` and below it; without a path, all that no other route has.
    pub(super) fn router(self, path: &str) -> Router {
        if path.is_empty() {
            return Router::new().fallback(forward).with_state(Arc::new(self));
        }
        Router::new()
            .route(path, any(forward))
            .route(&format!("{path}/"), any(forward))
            .route(&format!("{path}/{{*rest}}"), any(forward))
            .with_state(Arc::new(self))
    }

    /// The request for the other service. [`Admission`](super::admission::Admission) has taken from
    /// it what belongs to the client's connection.
    fn outgoing(&self, mut request: Request, fenced: bool) -> Result<Request, Problem> {
        let connection = (self.server.connection)(&request);
        write_source(&mut request, connection);
        let (mut parts, body) = request.into_parts();
        let mut uri = self.origin.clone().into_parts();
        uri.path_and_query = parts.uri.path_and_query().cloned();
        parts.uri = Uri::from_parts(uri)
            .map_err(|_| Problem::new(Code::NotFound, "The path cannot be sent on."))?;
        parts.version = Version::HTTP_11;
        keep_parsed_length(&mut parts.headers);
        parts.headers.remove(header::EXPECT);
        parts.headers.insert(header::HOST, self.host.clone());
        if fenced {
            // Of what is kept, every client can read only the plain form.
            parts.headers.remove(header::ACCEPT_ENCODING);
        }
        Ok(Request::from_parts(parts, body))
    }

    async fn send(&self, request: Request) -> Response {
        let fenced = request.headers().contains_key(IDEMPOTENCY_FENCE);
        let end = Instant::now() + self.timeout;
        let request = match self.outgoing(request, fenced) {
            Ok(request) => request,
            Err(problem) => return refusal(problem, RetentionPolicy::Release),
        };
        let tried = if self.tries == 1 || !fenced {
            // The layer bounds a guarded request: for how long its client waits, and for how long a
            // late answer is read.
            self.send_once(request, (!fenced).then_some(end), 0).await
        } else {
            Box::pin(self.send_again(request, end)).await
        };
        tried.unwrap_or_else(|failure| failure.into_response_of(&self.origin))
    }

    /// The response to a question of keylatch's own; `None` where none came until `end`.
    pub(super) async fn ask(&self, question: Request, end: Instant) -> Option<Response> {
        let question = self.outgoing(question, true).ok()?;
        self.exchange(question, Some(end)).await.ok()
    }

    /// Sends a guarded request until there is a response or `end` is near, each time under the same
    /// fencing token.
    async fn send_again(&self, request: Request, end: Instant) -> Result<Response, SendFailure> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(http_body_util::Collected::to_bytes);
        let body = body.unwrap_or_else(|_| Bytes::new());
        let again = || Request::from_parts(parts.clone(), Body::from(body.clone()));
        let mut tried = self.send_once(again(), None, 0).await;
        for resend in 1..self.tries {
            let is_silent = tried.as_ref().is_err_and(|failure| failure.was_sent);
            if !is_silent || Instant::now() + PAUSE >= end {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            // Whatever becomes of it, an earlier try may have been carried out.
            let silent = |failure| SendFailure { was_sent: true, ..failure };
            tried = self.send_once(again(), None, resend).await.map_err(silent);
        }
        tried
    }

    /// Sends a request that was sent so often before, under a span of its own if it is traced.
    async fn send_once(
        &self,
        mut request: Request,
        limit: Option<Instant>,
        resend: u32,
    ) -> Result<Response, SendFailure> {
        let end_call = (self.server.begin_call)(&mut request, &self.origin, resend);
        let answer = self.exchange(request, limit).await;
        if let Some(end_call) = end_call {
            end_call(answer.as_ref().map(Response::status).map_err(SendFailure::code));
        }
        answer
    }

    async fn exchange(
        &self,
        mut request: Request,
        limit: Option<Instant>,
    ) -> Result<Response, SendFailure> {
        // Admission has left the offer in unguarded requests alone.
        let client = upgrade_of(request.headers())
            .and_then(|_| request.extensions_mut().remove::<OnUpgrade>());
        let is_head = request.method() == Method::HEAD;
        let answer = self.client.request(request);
        let answer = match limit {
            Some(limit) => timeout_at(limit, answer).await,
            None => Ok(answer.await),
        };
        match answer {
            Ok(Ok(response)) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                client.and_then(|client| self.switched(response.map(Body::new), client)).ok_or_else(
                    // It was not asked to, and what it says from now on is no response.
                    || SendFailure::silent("it switched protocols"),
                )
            }
            Ok(Ok(response)) => {
                let mut response = response.map(Body::new);
                // The version is that of each connection, and not of what travels (RFC 9110, 2.5).
                *response.version_mut() = Version::HTTP_11;
                keep_parsed_length(response.headers_mut());
                if is_head && !response.headers().contains_key(header::CONTENT_LENGTH) {
                    // What is known to be empty would have the length 0.
                    *response.body_mut() = Body::from_stream(empty::<Result<Bytes, Infallible>>());
                }
                self.strip_answer(&mut response);
                Ok(response)
            }
            Ok(Err(error)) => {
                Err(SendFailure { was_sent: !error.is_connect(), cause: error.into() })
            }
            Err(_) => Err(SendFailure::silent("no response came in time")),
        }
    }

    /// An upstream's 101, with the tunnel that the client's connection becomes; `None` where it
    /// names no protocol.
    fn switched(&self, mut response: Response, client: OnUpgrade) -> Option<Response> {
        let protocol = upgrade_of(response.headers())?;
        let upstream = hyper::upgrade::on(&mut response);
        self.strip_answer(&mut response);
        offer_upgrade(response.headers_mut(), protocol);
        response.extensions_mut().insert(Tunnel { client, upstream });
        Some(response)
    }

    fn strip_answer(&self, response: &mut Response) {
        strip(response.headers_mut(), &[]);
        match read_keep(response.headers()) {
            Some((policy, lasts)) => {
                policy.map(|policy| response.extensions_mut().insert(policy));
                lasts.map(|lasts| response.extensions_mut().insert(lasts));
            }
            None => tracing::warn!("an upstream's `Keylatch-Keep` is not one, and does not count"),
        }
        remove_those(response.headers_mut(), is_mark);
        if let Some(authority) = self.origin.authority() {
            hide_upstream(response.headers_mut(), authority);
        }
    }
}

struct SendFailure {
    /// Whether some of the request was sent.
    was_sent: bool,
    cause: Box<dyn Error + Send + Sync>,
}

/// The cause of a failure, for the log: which upstream it was, and why.
#[derive(Debug, thiserror::Error)]
#[error("the upstream {}://{}", .origin.scheme_str().unwrap_or_default(), .origin.authority().map_or("", |host| host.as_str()))]
struct UpstreamError {
    origin: Uri,
    source: Box<dyn Error + Send + Sync>,
}

impl SendFailure {
    fn silent(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { was_sent: true, cause: cause.into() }
    }

    fn code(&self) -> Code {
        if self.was_sent { Code::UpstreamSilent } else { Code::UpstreamUnreachable }
    }

    /// The problem for the client of the upstream at `origin`.
    fn into_response_of(self, origin: &Uri) -> Response {
        let code = self.code();
        let cause = UpstreamError { origin: origin.clone(), source: self.cause };
        if self.was_sent {
            let detail = "The request was sent on, and no response came back.";
            let problem = Problem::new(code, detail).with_outcome(Effect::Unknown);
            return refusal(problem.caused_by(cause), RetentionPolicy::Unknown);
        }
        let detail = "The service behind cannot be reached. Nothing was sent to it.";
        let problem = Problem::new(code, detail)
            .with_outcome(Effect::NotExecuted)
            .with_retry_after(Duration::from_secs(1));
        refusal(problem.caused_by(cause), RetentionPolicy::Release)
    }
}

async fn forward(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    if request.method() == Method::CONNECT {
        return Problem::new(Code::MethodNotAllowed, "CONNECT is not sent on.")
            .with_retry()
            .into_response();
    }
    gateway.send(request).await
}

/// A problem in place of a response, and what becomes of the key.
fn refusal(problem: Problem, policy: RetentionPolicy) -> Response {
    let mut response = problem.with_retry().into_response();
    response.extensions_mut().insert(policy);
    response
}

/// Both ends of a connection that is to change to another protocol, such as WebSocket.
///
/// It goes to the client's connection as an extension of the upstream's 101, since it is the
/// connection that counts against limits, has timeouts and is drained at shutdown.
#[derive(Debug, Clone)]
pub struct Tunnel {
    /// That of the client, once it has the response.
    client: OnUpgrade,
    /// That of the service behind.
    upstream: OnUpgrade,
}

impl Tunnel {
    /// Carries bytes both ways until both sides have ended.
    ///
    /// # Errors
    ///
    /// A connection did not change or broke off.
    pub async fn carry(self) -> io::Result<()> {
        let (client, upstream) =
            tokio::try_join!(self.client, self.upstream).map_err(io::Error::other)?;
        let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        copy_bidirectional(&mut client, &mut upstream).await.map(|_| ())
    }
}
