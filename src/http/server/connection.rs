//! One connection: what hyper serves on it, and what ends it from outside.
//!
//! Beside hyper's own future a connection has four events: the time of a phase may be over, the client
//! ended its side, the service shuts down, the time for that is over. Invariant: a client that is gone
//! frees what its request holds, whatever bytes of it are unread. Tested in `tests/api/gone_clients.rs`.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::http::Request;
use axum::response::Response;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tower::Service as _;

use super::listener::AcceptedConnection;
use super::phases::{ClientGone, ConnectionPhases, ConnectionTimeouts, TrackedBody, TrackedIo};
use super::settings::Settings;
use crate::http::origin::Arrival;
use crate::metrics::{GaugeGuard, Metrics};

/// How long a client may send on after the service ended the connection.
const LEAVE_TIME: Duration = Duration::from_secs(2);

/// What every connection shares.
pub(super) struct Connections {
    http: http1::Builder,
    timeouts: ConnectionTimeouts,
    on_loopback: bool,
    closing: CancellationToken,
    killed: CancellationToken,
    metrics: Arc<Metrics>,
}

impl Connections {
    pub(super) fn new(
        settings: &Settings,
        on_loopback: bool,
        closing: &CancellationToken,
        killed: &CancellationToken,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let mut http = http1::Builder::new();
        http.max_headers(settings.max_headers)
            .max_header_size(settings.header_limit_bytes)
            .max_buf_size(settings.header_limit_bytes.max(8192))
            .header_read_timeout(None);
        let timeouts = ConnectionTimeouts {
            first_byte: Duration::from_millis(settings.first_byte_timeout_ms),
            head: Duration::from_millis(settings.header_timeout_ms),
            keep_alive: Duration::from_millis(settings.keep_alive_timeout_ms),
            write: Duration::from_millis(settings.write_timeout_ms),
            leave: LEAVE_TIME,
        };
        let (closing, killed, metrics) = (closing.clone(), killed.clone(), Arc::clone(metrics));
        Self { http, timeouts, on_loopback, closing, killed, metrics }
    }

    /// Serves one connection until it ends, is idle or slow for too long, or the service shuts down.
    pub(super) async fn serve<I: AsyncRead + AsyncWrite + Unpin>(
        self: Arc<Self>,
        accepted: AcceptedConnection<I>,
        router: Router,
        keep_alive: bool,
        _place: OwnedSemaphorePermit,
    ) {
        let _open = GaugeGuard::new(&self.metrics.connections);
        let AcceptedConnection { io, peer, closed } = accepted;
        let arrival = Arrival { on_loopback: self.on_loopback, peer };
        let phases = Arc::new(ConnectionPhases::new());
        let io = TrackedIo::new(TokioIo::new(io), Arc::clone(&phases));
        let service = service_fn(|request| answer(&router, &phases, arrival, request));
        let mut http = self.http.clone();
        let mut connection = pin!(http.keep_alive(keep_alive).serve_connection(io, service));
        let mut events = self.events(closed);
        loop {
            tokio::select! {
                // What happened to a client comes before what would be done for it.
                biased;
                event = events.next() => match event {
                    Some(Event::Check) => match phases.deadline(&self.timeouts) {
                        Some(deadline) if deadline <= Instant::now() => return,
                        deadline => events.push(self.check_at(deadline)),
                    },
                    Some(Event::Gone) if phases.gone() => return,
                    Some(Event::Gone) => {}
                    Some(Event::Closing) => connection.as_mut().graceful_shutdown(),
                    Some(Event::Killed) | None => return,
                },
                // How a connection ended is its client's affair.
                _ = connection.as_mut() => return,
            }
        }
    }

    /// What may happen to a connection from outside. Each is looked at when it has happened, and not
    /// whenever the connection is, which would take the tokens' lock for each request.
    fn events(
        &self,
        closed: BoxFuture<'static, ()>,
    ) -> FuturesUnordered<BoxFuture<'static, Event>> {
        let (closing, killed) = (self.closing.clone(), self.killed.clone());
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
        let soonest = Instant::now() + self.timeouts.shortest();
        let at = deadline.map_or(soonest, |deadline| deadline.min(soonest));
        sleep_until(at).map(|()| Event::Check).boxed()
    }
}

/// The answer to a request, whose end the phases follow.
fn answer(
    router: &Router,
    phases: &Arc<ConnectionPhases>,
    arrival: Arrival,
    mut request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Body>, ClientGone>> + Send + use<> {
    request.extensions_mut().insert(arrival);
    let begun = phases.busy();
    // No handler runs before this is polled.
    let answering = router.clone().call(request.map(Body::new));
    let phases = Arc::clone(phases);
    async move {
        begun?;
        let Ok(response) = answering.await;
        if response.body().size_hint().exact().is_some() {
            phases.idle();
            return Ok(response);
        }
        Ok(response.map(|body| Body::new(TrackedBody::new(body, phases))))
    }
}

/// Something that happens to a connection from outside.
enum Event {
    /// It is time to look whether its client is too slow.
    Check,
    /// Its client has ended its side.
    Gone,
    /// The service is shutting down.
    Closing,
    /// The time for shutting down is over.
    Killed,
}
