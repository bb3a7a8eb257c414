//! HTTP/2 on one connection: each stream is what a request is, and is held to the same limits.
//!
//! hyper gives the future of each stream to an executor. The one here ends a stream that its client
//! does not read for as long as a connection may be unread, ends all streams with their connection,
//! and counts those that were reset before they were answered: a client that only resets is closed.
//! Bodies go out in small pieces, so that an unread stream keeps one piece in memory beside its
//! response. Behind [`as_http1`] a stream is a request of HTTP/1.1, for the rest of the service and
//! for the services behind guards. Tested in `tests/api/http2.rs` and `http2_floods.rs`.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, HeaderValue, Request, Version, header};
use axum::response::Response;
use hyper::body::Frame;
use hyper::rt::Executor;
use hyper::server::conn::http2::Builder;
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::phases::ActiveRequest;
use super::settings::Settings;

/// What a client may send on a stream before the service has read it, and on all of a connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// The largest piece of a body that is handed to a stream at once.
const PIECE: usize = 16 * 1024;
/// What a stream may have in memory that its client does not take.
const SEND_BUFFER: usize = 64 * 1024;

/// How HTTP/2 is spoken with these settings.
pub(super) fn builder(settings: &Settings, streams: StreamExecutor) -> Builder<StreamExecutor> {
    let header_list = u32::try_from(settings.header_limit_bytes).unwrap_or(u32::MAX);
    let mut http = Builder::new(streams);
    http.max_concurrent_streams(settings.max_concurrent_streams)
        .max_header_list_size(header_list)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER);
    http
}

/// A stream as a request of HTTP/1.1: with one `Host`, which is that of the stream's `:authority`
/// where it has one (RFC 9113, section 8.3.1), and with one `Cookie` (section 8.2.3).
pub(super) fn as_http1<B>(mut request: Request<B>) -> Request<B> {
    *request.version_mut() = Version::HTTP_11;
    let authority = request.uri().authority();
    let host = authority.and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(header::HOST, host);
    }
    join_cookies(request.headers_mut());
    request
}

fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<_> =
        headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1
        && let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, cookie);
    }
}

/// Runs the streams of one connection.
#[derive(Debug, Clone)]
pub(super) struct StreamExecutor(Arc<Streams>);

#[derive(Debug)]
struct Streams {
    /// The stream whose future comes next.
    next: Mutex<Option<Arc<StreamProgress>>>,
    write_timeout: Duration,
    tasks: TaskTracker,
    over: CancellationToken,
    /// How many more streams were reset than answered.
    resets: AtomicUsize,
    max_resets: usize,
    flood: CancellationToken,
}

impl StreamExecutor {
    pub(super) fn new(settings: &Settings) -> Self {
        Self(Arc::new(Streams {
            next: Mutex::default(),
            write_timeout: Duration::from_millis(settings.write_timeout_ms),
            tasks: TaskTracker::new(),
            over: CancellationToken::new(),
            resets: AtomicUsize::new(0),
            max_resets: settings.max_concurrent_streams.saturating_mul(2) as usize,
            flood: CancellationToken::new(),
        }))
    }

    /// A new stream, whose future hyper hands over next.
    pub(super) fn begin(&self) -> Arc<StreamProgress> {
        let progress = Arc::<StreamProgress>::default();
        *self.0.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&progress));
        progress
    }

    /// Resolves when the client resets many streams and lets few be answered.
    pub(super) fn flood(&self) -> impl Future<Output = ()> + Send + use<> {
        self.0.flood.clone().cancelled_owned()
    }

    /// Ends all streams when it is dropped.
    pub(super) fn guard(&self) -> DropGuard {
        self.0.over.clone().drop_guard()
    }

    /// Ends all streams: their connection is over.
    pub(super) async fn end(&self) {
        self.0.over.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let progress = self.0.next.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Not the whole: its streams do not keep a connection.
        let (over, limit) = (self.0.over.clone(), self.0.write_timeout);
        let streams = Arc::downgrade(&self.0);
        self.0.tasks.spawn(async move {
            let Some(progress) = progress else { return };
            tokio::select! {
                biased;
                () = over.cancelled() => return,
                _ = stream => {}
                () = progress.unread(limit) => {}
            }
            if let Some(streams) = streams.upgrade() {
                streams.count(&progress);
            }
        });
    }
}

impl Streams {
    fn count(&self, progress: &StreamProgress) {
        if progress.is_answered.load(Ordering::Relaxed) {
            let fewer = |resets: usize| resets.checked_sub(1);
            let _ = self.resets.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        } else if self.resets.fetch_add(1, Ordering::Relaxed) >= self.max_resets {
            self.flood.cancel();
        }
    }
}

/// Whose turn it is on a stream.
#[derive(Debug, Default)]
pub(super) struct StreamProgress {
    is_answered: AtomicBool,
    /// Since when it is the client's turn, which has something to take; `None` while it is the
    /// service's.
    of_client: Mutex<Option<Instant>>,
}

impl StreamProgress {
    fn turn(&self) -> MutexGuard<'_, Option<Instant>> {
        self.of_client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when the client has taken nothing for `limit`.
    async fn unread(&self, limit: Duration) {
        loop {
            sleep(self.left(limit)).await;
            if self.left(limit).is_zero() {
                return;
            }
        }
    }

    fn left(&self, limit: Duration) -> Duration {
        let end = self.turn().map(|since| since + limit);
        end.map_or(limit, |end| end.saturating_duration_since(Instant::now()))
    }
}

/// A response whose body goes out in pieces, and whose stream counts until the body is gone.
pub(super) fn track(
    response: Response,
    progress: Arc<StreamProgress>,
    active: ActiveRequest,
) -> Response {
    progress.is_answered.store(true, Ordering::Relaxed);
    *progress.turn() = Some(Instant::now());
    response
        .map(|body| Body::new(StreamBody { body, rest: Bytes::new(), progress, _active: active }))
}

#[derive(Debug)]
struct StreamBody {
    body: Body,
    /// What was read of the body and not sent.
    rest: Bytes,
    progress: Arc<StreamProgress>,
    _active: ActiveRequest,
}

impl HttpBody for StreamBody {
    type Data = Bytes;
    type Error = axum::Error;

    /// hyper asks when the client has room on the stream, and not before.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        *self.progress.turn() = None;
        while self.rest.is_empty() {
            let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(frame))) => return Poll::Ready(Some(Ok(frame))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        *self.progress.turn() = Some(Instant::now());
        let piece = PIECE.min(self.rest.len());
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }
}
