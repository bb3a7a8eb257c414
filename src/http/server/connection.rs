//! One connection: what hyper serves on it, and what ends it from outside.
//!
//! Beside hyper's own future a connection has four events: the time of a phase may be over, the
//! client ended its side, the service shuts down, the time for that is over. A connection that
//! changes to another protocol has the same four. Invariant: a client that is gone frees what its
//! request holds, whatever bytes of it are unread. Tested in `tests/api/gone_clients.rs` and
//! `gateway_upgrades.rs`.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody as _};
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::future::{BoxFuture, FutureExt as _, TryFutureExt as _};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};
use tokio_rustls::server::TlsStream;
use tower::Service as _;

use super::Shared;
use super::http2::{self, StreamExecutor, StreamProgress};
use super::listener::AcceptedConnection;
use super::phases::{
    ActiveRequest, ClientGone, ConnectionPhases, RequestBody, TrackedIo, shortest_timeout,
};
use super::routes::Routes;
use super::settings::Settings;
use super::socket_io::EndProbe;
use super::tls::{HTTP2, TlsFiles};
use crate::access::CertificateNames;
use crate::http::origin::ConnectionInfo;
use crate::metrics::GaugeGuard;
use keylatch_axum::gateway::Tunnel;

/// What the connections of a listener share.
pub(super) struct Connections {
    pub(super) server: Arc<Shared>,
    pub(super) tls: Option<Arc<TlsFiles>>,
    /// What is known of each before it is accepted.
    pub(super) known: ConnectionInfo,
}

impl Connections {
    /// Serves one connection until it ends, is idle or slow for too long, or the service shuts
    /// down. Over HTTP/1.1 a surplus one has one request.
    pub(super) async fn serve<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self: Arc<Self>,
        accepted: AcceptedConnection<I>,
        is_surplus: bool,
        _place: OwnedSemaphorePermit,
    ) {
        let _open = GaugeGuard::new(&self.server.metrics.connections);
        let AcceptedConnection { io, peer, closed, has_ended } = accepted;
        let phases = Arc::new(ConnectionPhases::new());
        let connection = ConnectionInfo { is_surplus, peer, ..self.known.clone() };
        let mut events = self.events(closed);
        let mut serving =
            ConnectionTask { all: &self, phases, events: &mut events, has_ended: &has_ended };
        match &self.tls {
            None => serving.http1(io, connection).await,
            // In a box, so that a connection without TLS does not keep the room that one with TLS
            // takes.
            Some(tls) => Box::pin(serving.behind_tls(tls, io, connection)).await,
        }
    }

    /// What may happen to a connection from outside. Each is looked at when it has happened, and
    /// not whenever the connection is, which would take the tokens' lock for each request.
    fn events(&self, closed: BoxFuture<'static, ()>) -> Events {
        let (closing, killed) = (self.server.closing.clone(), self.server.killed.clone());
        FuturesUnordered::from_iter([
            self.check_at(None),
            closed.map(|()| Event::Gone).boxed(),
            closing.cancelled_owned().map(|()| Event::Closing).boxed(),
            killed.cancelled_owned().map(|()| Event::Killed).boxed(),
        ])
    }

    /// Looks at the connection at `deadline`, and before any other phase that it may enter until
    /// then can have lasted too long.
    fn check_at(&self, deadline: Option<Instant>) -> BoxFuture<'static, Event> {
        let soonest = Instant::now() + shortest_timeout(&self.server.settings);
        let at = deadline.map_or(soonest, |deadline| deadline.min(soonest));
        sleep_until(at).map(|()| Event::Check).boxed()
    }
}

/// How HTTP/1.1 is spoken with these settings. The times are those of the phases.
fn http1_builder(settings: &Settings, keep_alive: bool) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.keep_alive(keep_alive)
        .max_headers(settings.max_headers)
        .max_header_size(settings.header_limit_bytes)
        .max_buf_size(settings.header_limit_bytes.max(8192))
        .header_read_timeout(None);
    http
}

/// What may happen to one connection from outside.
type Events = FuturesUnordered<BoxFuture<'static, Event>>;

struct ConnectionTask<'a> {
    all: &'a Connections,
    phases: Arc<ConnectionPhases>,
    events: &'a mut Events,
    has_ended: &'a EndProbe,
}

impl ConnectionTask<'_> {
    /// Serves the protocol that the client and the service agree on.
    async fn behind_tls<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &mut self,
        tls: &Arc<TlsFiles>,
        io: I,
        mut connection: ConnectionInfo,
    ) {
        let Some(io) = self.handshake(tls, io).await else { return };
        if let Some(chain) = io.get_ref().1.peer_certificates() {
            connection.certificate = chain.first().map(|one| CertificateNames::read(one).into());
            let refused = Arc::clone(tls).until_refused(chain.to_vec());
            self.events.push(refused.map(|()| Event::Killed).boxed());
        }
        if io.get_ref().1.alpn_protocol() == Some(HTTP2) {
            Box::pin(self.http2(io, connection)).await;
        } else {
            Box::pin(self.http1(io, connection)).await;
        }
    }

    /// Agrees with the client on keys. Its time counts as that of the first head.
    async fn handshake<I: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        tls: &TlsFiles,
        io: I,
    ) -> Option<TlsStream<I>> {
        self.phases.received();
        let handshake = pin!(tls.acceptor().accept(io));
        // There is no request yet that could end.
        let done = self.watch(handshake, |_| ControlFlow::Break(())).await?;
        done.inspect_err(|error| tracing::debug!(%error, "a client did not agree on TLS")).ok()
    }

    /// Serves HTTP/1.1, and then the protocol that a request changed to.
    async fn http1<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &mut self,
        io: I,
        client: ConnectionInfo,
    ) {
        let (phases, server) = (Arc::clone(&self.phases), &self.all.server);
        let io = TrackedIo::new(TokioIo::new(io), Arc::clone(&phases));
        let (tunnel, has_ended) = (OnceLock::new(), self.has_ended);
        let service = service_fn(|request| {
            let is_gone = may_grant(&request) && has_ended();
            let answering = answer(&server.routes, &phases, &client, is_gone, request);
            answering.map_ok(|response| {
                if let Some(to) = response.extensions().get::<Tunnel>() {
                    // It is the last response, so no other tunnel is there yet.
                    let _ = tunnel.set(to.clone());
                }
                response
            })
        });
        let http = http1_builder(&server.settings, !client.is_surplus);
        let connection = http.serve_connection(io, service);
        let close = |connection: Pin<&mut http1::UpgradeableConnection<_, _>>| {
            connection.graceful_shutdown();
            ControlFlow::Continue(())
        };
        // How a connection ended is its client's affair.
        let _ = self.watch(pin!(connection.with_upgrades()), close).await;
        if let Some(tunnel) = tunnel.into_inner() {
            phases.upgraded();
            // What it carries may end by itself until the time for shutting down is over.
            let _ = self.watch(pin!(tunnel.carry()), |_| ControlFlow::Continue(())).await;
        }
    }

    async fn http2<I: AsyncRead + AsyncWrite + Unpin>(&mut self, io: I, client: ConnectionInfo) {
        let (phases, server) = (Arc::clone(&self.phases), &self.all.server);
        let settings = &server.settings;
        phases.begin_streams();
        let io = TrackedIo::new(TokioIo::new(io), Arc::clone(&phases));
        let streams = StreamExecutor::new(settings);
        let _ended = streams.guard();
        self.events.push(streams.flood().map(|()| Event::Killed).boxed());
        let service = service_fn(|request| {
            let stream = (streams.begin(), ActiveRequest::begin(&phases));
            answer_stream(&server.routes, stream, &client, settings.max_headers, request)
        });
        let http = http2::builder(settings, streams.clone());
        let close = |connection: Pin<&mut hyper::server::conn::http2::Connection<_, _, _>>| {
            connection.graceful_shutdown();
            ControlFlow::Continue(())
        };
        {
            let connection = pin!(http.serve_connection(io, service));
            let _ = self.watch(connection, close).await;
        }
        streams.end().await;
    }

    /// What a step of the connection gives; `None` where something from outside ends the connection
    /// first. `close` lets the step end early when the service shuts down, or breaks it off.
    async fn watch<F: Future>(
        &mut self,
        mut step: Pin<&mut F>,
        close: impl Fn(Pin<&mut F>) -> ControlFlow<()>,
    ) -> Option<F::Output> {
        let settings = &self.all.server.settings;
        loop {
            tokio::select! {
                // What happened to a client comes before what would be done for it.
                biased;
                event = self.events.next() => match event {
                    Some(Event::Check) => match self.phases.deadline(settings) {
                        Some(deadline) if deadline <= Instant::now() => return None,
                        deadline => self.events.push(self.all.check_at(deadline)),
                    },
                    Some(Event::Gone) if self.phases.gone() => return None,
                    Some(Event::Gone) => {}
                    Some(Event::Closing) if close(step.as_mut()).is_break() => return None,
                    Some(Event::Closing) => {}
                    Some(Event::Killed) | None => return None,
                },
                done = step.as_mut() => return Some(done),
            }
        }
    }
}

/// The response to a request, whose end the phases follow.
fn answer(
    routes: &Routes,
    phases: &Arc<ConnectionPhases>,
    client: &ConnectionInfo,
    is_gone: bool,
    mut request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Body>, ClientGone>> + Send + use<> {
    request.extensions_mut().insert(client.clone());
    let active = if is_gone { Err(ClientGone) } else { ActiveRequest::begin(phases) };
    // No handler runs before this is polled.
    let body = |body| Body::new(RequestBody::new(body, phases));
    let answering = routes.current().call(request.map(body));
    let phases = Arc::clone(phases);
    async move {
        let active = active?;
        let Ok(response) = answering.await;
        if phases.has_unread_body() {
            let_hyper_look().await;
        }
        if response.body().size_hint().exact().is_some() {
            return Ok(response);
        }
        let until_end = move |frame| {
            // The service is at work for as long as there is more of the body to come.
            let _ = &active;
            frame
        };
        Ok(response.map(|body| Body::new(body.map_frame(until_end))))
    }
}

fn answer_stream(
    routes: &Routes,
    (progress, active): (Arc<StreamProgress>, Result<ActiveRequest, ClientGone>),
    client: &ConnectionInfo,
    max_headers: usize,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Body>, ClientGone>> + Send + use<> {
    let mut request = http2::as_http1(request);
    request.extensions_mut().insert(client.clone());
    let may_grant = may_grant(&request);
    let is_too_long = request.headers().len() > max_headers;
    let answering = routes.current().call(request.map(Body::new));
    async move {
        let active = active?;
        if may_grant {
            let_hyper_look().await;
        }
        let response = if is_too_long {
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response()
        } else {
            let Ok(response) = answering.await;
            response
        };
        Ok(http2::track(response, progress, active))
    }
}

/// Whether a request may take a lock, which a store in memory grants before a task can hear that
/// the client is gone.
fn may_grant<B>(request: &Request<B>) -> bool {
    *request.method() == Method::POST && request.uri().path().starts_with("/v1/locks")
}

/// Lets hyper look at the request once more, which it does when a response is not ready.
///
/// Over HTTP/2 it learns whether the stream was reset. Over HTTP/1.1 it takes the rest of a body
/// that no handler read, or closes the connection and says so in the response.
async fn let_hyper_look() {
    let mut has_looked = false;
    let look = |cx: &mut Context<'_>| {
        if std::mem::replace(&mut has_looked, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    };
    poll_fn(look).await;
}

/// Something that happens to a connection from outside.
enum Event {
    /// It is time to look whether its client is too slow.
    Check,
    /// Its client has ended its side.
    Gone,
    /// The service is shutting down.
    Closing,
    /// It ends at once: the time for shutting down is over, or the certificate of its client is
    /// good no more.
    Killed,
}
