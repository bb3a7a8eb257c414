//! What a connection is doing, and how long it may do that: the timeouts that only its client can
//! end.
//!
//! hyper has one timeout for the head and for idling, and sets a timer for each request. Here a
//! request writes down what it is at as it goes by, and its connection looks at that now and then.
//! The stream of the connection and each request tell the phases what goes by. The service's own
//! time never counts against the client.
//!
//! The stream also ends a connection as TCP wants it: the service ends its side and reads until the
//! client ends its own, because a socket that is closed with unread bytes is reset, and the reset
//! can overtake the response. Tested in `tests/api/connections.rs` and `slow_readers.rs`.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use tokio::time::Instant;

use super::settings::Settings;

/// How long a client may send on after the service ended the connection, in milliseconds.
const LEAVE_MS: u64 = 2000;

/// How often a connection that is being served is looked at.
pub(super) fn shortest_timeout(settings: &Settings) -> Duration {
    let each = [
        settings.first_byte_timeout_ms,
        settings.header_timeout_ms,
        settings.keep_alive_timeout_ms,
        settings.write_timeout_ms,
        settings.upgrade_idle_timeout_ms,
    ];
    Duration::from_millis(each.into_iter().fold(LEAVE_MS, u64::min))
}

/// What a connection is doing, and since when.
#[derive(Debug)]
pub(super) struct ConnectionPhases(Mutex<Progress>);

#[derive(Debug)]
struct Progress {
    phase: Phase,
    since: Instant,
    /// Since when nothing more can be written, if nothing can.
    stuck: Option<Instant>,
    /// The client has ended its side. Its last bytes may be unread.
    is_gone: bool,
    /// The body of the request has bytes that no handler has read.
    has_unread_body: bool,
    /// Whether requests come side by side, as streams.
    has_streams: bool,
    /// How many requests are being answered. The service is at work for the client meanwhile.
    active: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Fresh,
    Idle,
    Head,
    Leaving,
    Upgraded,
}

impl Progress {
    fn enter(&mut self, phase: Phase) {
        (self.phase, self.since) = (phase, Instant::now());
    }

    /// Bytes went by, one way or the other.
    fn carried(&mut self) {
        if self.phase == Phase::Upgraded {
            self.enter(Phase::Upgraded);
        }
    }
}

/// The client of a request went away before the request was served.
#[derive(Debug, thiserror::Error)]
#[error("the client is gone")]
pub(super) struct ClientGone;

impl ConnectionPhases {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Progress {
            phase: Phase::Fresh,
            since: Instant::now(),
            stuck: None,
            is_gone: false,
            has_unread_body: false,
            has_streams: false,
            active: 0,
        }))
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client has ended its side. Gives whether the service is at work for it: no other request
    /// will be served, and what was answered is still sent.
    pub(super) fn gone(&self) -> bool {
        let mut progress = self.progress();
        progress.is_gone = true;
        progress.active > 0
    }

    /// From now on requests come as streams. What else comes, such as a ping, is no sign of a
    /// request: a connection without streams is idle.
    pub(super) fn begin_streams(&self) {
        self.progress().has_streams = true;
    }

    /// Whether the handler left some of the request's body unread.
    pub(super) fn has_unread_body(&self) -> bool {
        self.progress().has_unread_body
    }

    /// When the time of the phase is over unless something happens; `None` while the service works.
    /// Looking again at that time, or when the service is done, is early enough.
    pub(super) fn deadline(&self, settings: &Settings) -> Option<Instant> {
        let progress = self.progress();
        let limit = match progress.phase {
            Phase::Fresh => settings.first_byte_timeout_ms,
            Phase::Idle => settings.keep_alive_timeout_ms,
            Phase::Head => settings.header_timeout_ms,
            Phase::Leaving => LEAVE_MS,
            Phase::Upgraded => settings.upgrade_idle_timeout_ms,
        };
        let after = |since: Instant, millis| since + Duration::from_millis(millis);
        let phase = (progress.active == 0).then(|| after(progress.since, limit));
        let stuck = progress.stuck.map(|since| after(since, settings.write_timeout_ms));
        phase.into_iter().chain(stuck).min()
    }

    /// A write was taken, or not: then the client has to read before another can be.
    fn wrote(&self, is_taken: bool) {
        let mut progress = self.progress();
        if is_taken {
            progress.stuck = None;
            progress.carried();
        } else {
            progress.stuck.get_or_insert_with(Instant::now);
        }
    }

    /// The client has sent something.
    pub(super) fn received(&self) {
        let mut progress = self.progress();
        if !progress.has_streams && matches!(progress.phase, Phase::Fresh | Phase::Idle) {
            progress.enter(Phase::Head);
        }
        progress.carried();
    }

    /// Whether these bytes are hyper's own refusal of what is no request. A response of the service
    /// has an id.
    fn is_refusing(&self, bytes: &[u8]) -> bool {
        let is_bare = || !bytes.windows(12).any(|word| word == b"x-request-id");
        bytes.starts_with(b"HTTP/1.1 400")
            && is_bare()
            && matches!(self.progress().phase, Phase::Head)
    }

    pub(super) fn upgraded(&self) {
        self.progress().enter(Phase::Upgraded);
    }
}

/// A request that is being answered, until its response is read or nobody waits for it. The
/// connection is idle when the last of them is dropped.
#[derive(Debug)]
pub(super) struct ActiveRequest(Arc<ConnectionPhases>);

impl ActiveRequest {
    /// The service has a request. It is an error if its client has ended its side already.
    pub(super) fn begin(phases: &Arc<ConnectionPhases>) -> Result<Self, ClientGone> {
        let mut progress = phases.progress();
        if progress.is_gone {
            return Err(ClientGone);
        }
        progress.active += 1;
        Ok(Self(Arc::clone(phases)))
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let mut progress = self.0.progress();
        progress.active -= 1;
        if progress.phase != Phase::Leaving {
            progress.enter(Phase::Idle);
        }
    }
}

/// A stream whose traffic the phases of its connection follow.
#[derive(Debug)]
pub(super) struct TrackedIo<I> {
    inner: I,
    phases: Arc<ConnectionPhases>,
    shut_down: bool,
    /// How many unread bytes the service still takes.
    discards: usize,
}

/// The service sends this instead of hyper's own refusal, which has no body.
const NO_REQUEST: &str = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\
    content-type: text/plain\r\ncontent-length: 143\r\n\r\n\
    This is no HTTP request that keylatch can read: it may be TLS on a port without TLS, \
    another protocol, or a request whose length is not clear.\n";

/// More than any honest client has sent before it looks at the response; a flood ends here.
const MAX_DISCARDED: usize = 64 * 1024 * 1024;

impl<I> TrackedIo<I> {
    pub(super) fn new(inner: I, phases: Arc<ConnectionPhases>) -> Self {
        Self { inner, phases, shut_down: false, discards: MAX_DISCARDED }
    }
}

impl<I: Read + Unpin> Read for TrackedIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if matches!(read, Poll::Ready(Ok(()))) {
            self.phases.received();
        }
        read
    }
}

impl<I: Read + Write + Unpin> Write for TrackedIo<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let refuses = self.phases.is_refusing(buffer);
        let bytes = if refuses { NO_REQUEST.as_bytes() } else { buffer };
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.phases.wrote(written.is_ready());
        if refuses {
            tracing::debug!("a client sent what is no HTTP request");
            return written.map_ok(|_| buffer.len());
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    /// Says that nothing more will come, and waits for the client to say so too.
    ///
    /// A socket that is closed with unread bytes in it, such as a body that was refused, is reset,
    /// and the client may lose the response that it has not read yet.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.shut_down {
            ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
            self.shut_down = true;
            self.phases.progress().enter(Phase::Leaving);
        }
        let mut unread = [0; 4096];
        loop {
            let mut buffer = ReadBuf::new(&mut unread);
            let read = ready!(Pin::new(&mut self.inner).poll_read(cx, buffer.unfilled()));
            let bytes = buffer.filled().len();
            if read.is_err() || bytes == 0 || bytes > self.discards {
                return Poll::Ready(Ok(()));
            }
            self.discards -= bytes;
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [head] = buffers
            && self.phases.is_refusing(head)
        {
            return self.poll_write(cx, head);
        }
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, buffers);
        self.phases.wrote(written.is_ready());
        written
    }
}

/// The body of a request, of which the phases know whether it was read to its end.
#[derive(Debug)]
pub(super) struct RequestBody {
    body: Incoming,
    phases: Arc<ConnectionPhases>,
}

impl RequestBody {
    pub(super) fn new(body: Incoming, phases: &Arc<ConnectionPhases>) -> Self {
        phases.progress().has_unread_body = !body.is_end_stream();
        Self { body, phases: Arc::clone(phases) }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.phases.progress().has_unread_body = false;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
