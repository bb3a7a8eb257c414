use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::http::{HeaderValue, Request, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
#[cfg(any(target_os = "linux", target_os = "android"))]
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service as _;

use super::activity::{Activity, Answering, ClientGone, Noted, Patience};
use super::middleware::ObserveLayer;
use super::origin::Arrival;
use super::problem::{Code, Problem};
use super::socket::{WriteHalf, share};
use crate::metrics::{Counted, Metrics};
use keylatch_core::store::Effect;

/// How many connections beyond the cap are answered 503; more are closed without a word.
const REFUSALS: usize = 256;
/// How long a refused connection may take to read its refusal.
const REFUSAL_TIME: Duration = Duration::from_secs(2);
/// How long a client may go on sending after it was told that the connection ends.
const LEAVE_TIME: Duration = Duration::from_secs(2);
/// How long accepting pauses when none can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How the service meets the network.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The hosts that the service goes by, beside loopback names.
    pub hosts: Vec<String>,
    /// The addresses and networks of the proxies whose `X-Forwarded-*` is believed.
    pub trusted_proxies: Vec<String>,
    /// Connections served at once.
    pub max_connections: usize,
    /// Requests answered at once.
    pub max_requests: usize,
    /// Time for a request as a whole, in milliseconds.
    pub request_timeout_ms: u64,
    /// Time for a request's body to arrive, in milliseconds.
    pub body_timeout_ms: u64,
    /// Time for a new connection to send its first byte, in milliseconds.
    pub first_byte_timeout_ms: u64,
    /// Time from the first byte of a request's head to its last, in milliseconds.
    pub header_timeout_ms: u64,
    /// Time between a response and the next request, in milliseconds.
    pub keep_alive_timeout_ms: u64,
    /// Time for which a client may read nothing of what it is sent, in milliseconds.
    pub write_timeout_ms: u64,
    /// The largest request body, in bytes.
    pub body_limit_bytes: usize,
    /// The largest head of a request, in bytes.
    pub header_limit_bytes: usize,
    /// The most header lines in a request.
    pub max_headers: usize,
    /// Time for requests to be finished at shutdown, in milliseconds.
    pub drain_timeout_ms: u64,
}

/// An HTTP/1.1 server with a limit on everything a client can make it wait for or keep.
///
/// It does not speak HTTP/2, which no client of this API needs in clear text, nor TLS, which a
/// proxy in front does.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    router: Router,
    full: Router,
    settings: Settings,
    metrics: Arc<Metrics>,
}

/// The listener broke.
#[derive(Debug, thiserror::Error)]
#[error("accepting connections failed")]
pub struct ServeError(#[from] io::Error);

impl Server {
    /// A server of `router` that accepts from `listener` once it runs.
    pub fn new(
        listener: TcpListener,
        router: Router,
        observe: ObserveLayer,
        settings: Settings,
        metrics: Arc<Metrics>,
    ) -> Self {
        let full = Router::new().fallback(async || full()).layer(observe);
        Self { listener, router, full, settings, metrics }
    }

    /// Serves until `closing` is cancelled, then lets requests be finished for as long as the
    /// settings allow, and closes what is left.
    ///
    /// # Errors
    ///
    /// The listener broke.
    pub async fn run(self, closing: CancellationToken) -> Result<(), ServeError> {
        let Self { listener, router, full, settings, metrics } = self;
        let drain = Duration::from_millis(settings.drain_timeout_ms);
        let connections = TaskTracker::new();
        let killed = CancellationToken::new();
        let on_loopback = listener.local_addr()?.ip().to_canonical().is_loopback();
        let (closed, ended) = (closing.clone(), killed.clone());
        let serving = Arc::new(Serving::new(&settings, on_loopback, closed, ended, metrics));
        let places = Arc::new(Semaphore::new(settings.max_connections));
        let refusals = Arc::new(Semaphore::new(REFUSALS));
        let mut served = Ok(());
        while let Some(accepted) = closing.run_until_cancelled(accept(&listener)).await {
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    served = Err(ServeError(error));
                    break;
                }
            };
            let serving = Arc::clone(&serving);
            if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                connections.spawn(serving.connection(stream, router.clone(), true, place));
            } else if let Ok(place) = Arc::clone(&refusals).try_acquire_owned() {
                serving.metrics.shed.inc();
                let refusal = serving.connection(stream, full.clone(), false, place);
                connections.spawn(timeout(REFUSAL_TIME, refusal));
            } else {
                serving.metrics.shed.inc();
            }
        }
        drop(listener);
        connections.close();
        if timeout(drain, connections.wait()).await.is_err() {
            tracing::warn!(left = connections.len(), "closing connections that did not end");
            killed.cancel();
            connections.wait().await;
        }
        served
    }
}

/// What every connection shares.
struct Serving {
    http: http1::Builder,
    patience: Patience,
    on_loopback: bool,
    closing: CancellationToken,
    killed: CancellationToken,
    metrics: Arc<Metrics>,
}

impl Serving {
    fn new(
        settings: &Settings,
        on_loopback: bool,
        closing: CancellationToken,
        killed: CancellationToken,
        metrics: Arc<Metrics>,
    ) -> Self {
        let mut http = http1::Builder::new();
        http.max_headers(settings.max_headers)
            .max_header_size(settings.header_limit_bytes)
            .max_buf_size(settings.header_limit_bytes.max(8192))
            .header_read_timeout(None);
        let patience = Patience {
            first_byte: Duration::from_millis(settings.first_byte_timeout_ms),
            head: Duration::from_millis(settings.header_timeout_ms),
            keep_alive: Duration::from_millis(settings.keep_alive_timeout_ms),
            write: Duration::from_millis(settings.write_timeout_ms),
            leave: LEAVE_TIME,
        };
        Self { http, patience, on_loopback, closing, killed, metrics }
    }

    /// Serves one connection until it ends, is idle or slow for too long, or is told to end.
    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        router: Router,
        keep_alive: bool,
        _place: OwnedSemaphorePermit,
    ) {
        let _open = Counted::new(&self.metrics.connections);
        self.prepare(&stream);
        let peer = stream.peer_addr().ok().map(|peer| peer.ip().to_canonical());
        let arrival = Arrival { on_loopback: self.on_loopback, peer };
        let activity = Arc::new(Activity::new());
        let (socket, watched) = share(stream);
        let io = Noted::new(TokioIo::new(socket), Arc::clone(&activity));
        let service = service_fn(|request| answer(&router, &activity, arrival, request));
        let mut http = self.http.clone();
        let mut connection = pin!(http.keep_alive(keep_alive).serve_connection(io, service));
        let mut events = self.events(watched);
        loop {
            tokio::select! {
                // What happened to a client comes before what would be done for it.
                biased;
                event = events.next() => match event {
                    Some(Event::Check) => match activity.deadline(&self.patience) {
                        Some(deadline) if deadline <= Instant::now() => return,
                        deadline => events.push(self.check_at(deadline)),
                    },
                    Some(Event::Gone) if activity.gone() => return,
                    Some(Event::Gone) => {}
                    Some(Event::Closing) => connection.as_mut().graceful_shutdown(),
                    Some(Event::Killed) | None => return,
                },
                // How a connection ended is its client's affair.
                _ = connection.as_mut() => return,
            }
        }
    }

    /// A socket that refuses any of this is as good as closed, and reading says so.
    fn prepare(&self, stream: &TcpStream) {
        // Without it, a small response waits for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        // A client whose machine is gone acknowledges nothing, and the system alone would send the
        // same again for a quarter of an hour.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = SockRef::from(stream).set_tcp_user_timeout(Some(self.patience.write));
    }

    /// What may happen to a connection from outside. Each is looked at when it has happened, and not
    /// whenever the connection is, which would take the tokens' lock for each request.
    fn events(&self, watched: WriteHalf) -> FuturesUnordered<BoxFuture<'static, Event>> {
        let (closing, killed) = (self.closing.clone(), self.killed.clone());
        FuturesUnordered::from_iter([
            self.check_at(None),
            watched.read_closed().map(|()| Event::Gone).boxed(),
            closing.cancelled_owned().map(|()| Event::Closing).boxed(),
            killed.cancelled_owned().map(|()| Event::Killed).boxed(),
        ])
    }

    /// Looks at the connection at `deadline`, and before any other phase that it may enter until
    /// then can have lasted too long.
    fn check_at(&self, deadline: Option<Instant>) -> BoxFuture<'static, Event> {
        let soonest = Instant::now() + self.patience.shortest();
        let at = deadline.map_or(soonest, |deadline| deadline.min(soonest));
        sleep_until(at).map(|()| Event::Check).boxed()
    }
}

/// The answer to a request, whose end is noted.
fn answer(
    router: &Router,
    activity: &Arc<Activity>,
    arrival: Arrival,
    mut request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Body>, ClientGone>> + Send + use<> {
    request.extensions_mut().insert(arrival);
    let answering = activity.busy().map(|()| router.clone().call(request.map(Body::new)));
    let activity = Arc::clone(activity);
    async move {
        let Ok(response) = answering?.await;
        if response.body().size_hint().exact().is_some() {
            activity.idle();
            return Ok(response);
        }
        Ok(response.map(|body| Body::new(Answering::new(body, activity))))
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

/// The next connection. A client that is gone before it is accepted is none.
async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    loop {
        match listener.accept().await {
            Ok(accepted) => return Ok(accepted),
            Err(error) if is_the_clients(&error) => {}
            Err(error) if matches!(error.raw_os_error(), Some(EBADF | EINVAL | ENOTSOCK)) => {
                return Err(error);
            }
            // No file descriptors, no memory, no network: it passes.
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted now");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The listener itself is broken (errno of Linux, accept(2)).
const EBADF: i32 = 9;
const EINVAL: i32 = 22;
const ENOTSOCK: i32 = 88;

fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

fn full() -> Response {
    let problem = Problem::new(Code::Overloaded, "The service has too many connections.")
        .with_outcome(Effect::NotExecuted)
        .with_retry_after(Duration::from_secs(1))
        .with_retry();
    let mut response = problem.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
