//! What a connection is doing, and how long it may do that: the timeouts that only its client can
//! end.
//!
//! hyper has one timeout for the head and for idling, and sets a timer for each request. Here a
//! request writes down a few numbers as it goes by, and its connection looks at them now and then.
//! The stream of the connection and the body of a response tell the phases what goes by. The
//! service's own time never counts against the client.
//!
//! The stream also ends a connection as TCP wants it: the service ends its side and reads until the
//! client ends its own, because a socket that is closed with unread bytes is reset, and the reset
//! can overtake the response. Tested in `tests/api/connections.rs` and `slow_readers.rs`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use tokio::time::Instant;

/// How long a connection may be in each phase that only its client can end.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionTimeouts {
    /// Until the first byte.
    pub(super) first_byte: Duration,
    /// From the first byte of a request's head to its last.
    pub(super) head: Duration,
    /// Between a response and the next request, in which the client reads the response.
    pub(super) keep_alive: Duration,
    /// While the client reads nothing of what it is sent.
    pub(super) write: Duration,
    /// Between the service's end of the connection and the client's.
    pub(super) leave: Duration,
    /// While a connection that changed to another protocol carries nothing.
    pub(super) upgrade_idle: Duration,
}

impl ConnectionTimeouts {
    /// How often a connection that is being served is looked at.
    pub(super) fn shortest(&self) -> Duration {
        let each = [self.head, self.keep_alive, self.write, self.leave, self.upgrade_idle];
        each.into_iter().fold(self.first_byte, Duration::min)
    }
}

/// What a connection is doing, and since when.
#[derive(Debug)]
pub(super) struct ConnectionPhases {
    opened: Instant,
    phase: AtomicU8,
    /// Milliseconds after `opened`.
    since: AtomicU64,
    /// Since when nothing more can be written, likewise; [`FLOWING`] if it can.
    stuck: AtomicU64,
    /// The client has ended its side. Its last bytes may be unread.
    gone: AtomicBool,
    /// The body of the request has bytes that no handler has read.
    unread: AtomicBool,
    /// Whether requests come side by side, as streams.
    has_streams: AtomicBool,
    /// The streams that are being answered.
    streams: AtomicUsize,
}

/// The client of a request went away before the request was served.
#[derive(Debug, thiserror::Error)]
#[error("the client is gone")]
pub(super) struct ClientGone;

const FRESH: u8 = 0;
const IDLE: u8 = 1;
const HEAD: u8 = 2;
const BUSY: u8 = 3;
const LEAVING: u8 = 4;
const UPGRADED: u8 = 5;
const FLOWING: u64 = u64::MAX;

impl ConnectionPhases {
    pub(super) fn new() -> Self {
        Self {
            opened: Instant::now(),
            phase: AtomicU8::new(FRESH),
            since: AtomicU64::new(0),
            stuck: AtomicU64::new(FLOWING),
            gone: AtomicBool::new(false),
            unread: AtomicBool::new(false),
            has_streams: AtomicBool::new(false),
            streams: AtomicUsize::new(0),
        }
    }

    /// The service has a request. It is an error if its client has ended its side already.
    pub(super) fn busy(&self) -> Result<(), ClientGone> {
        if self.gone.load(Ordering::Acquire) {
            return Err(ClientGone);
        }
        // How long this lasts is the service's affair, so the time does not matter.
        self.phase.store(BUSY, Ordering::Release);
        Ok(())
    }

    /// The client has ended its side. Gives whether the service is at work for it: no other request
    /// will be served, and what was answered is still sent.
    pub(super) fn gone(&self) -> bool {
        self.gone.store(true, Ordering::Release);
        self.phase.load(Ordering::Acquire) == BUSY || self.streams.load(Ordering::Acquire) > 0
    }

    /// From now on requests come as streams. What else comes, such as a ping, is no sign of a
    /// request: a connection without streams is idle.
    pub(super) fn begin_streams(&self) {
        self.has_streams.store(true, Ordering::Release);
    }

    /// Whether the handler left some of the request's body unread.
    pub(super) fn has_unread_body(&self) -> bool {
        self.unread.load(Ordering::Acquire)
    }

    /// The service has answered, to the end.
    pub(super) fn idle(&self) {
        self.enter(IDLE);
    }

    /// When the time of the phase is over unless something happens; `None` while the service works.
    /// Looking again at that time, or when the service is done, is early enough.
    pub(super) fn deadline(&self, timeouts: &ConnectionTimeouts) -> Option<Instant> {
        let limit = match self.phase.load(Ordering::Acquire) {
            _ if self.streams.load(Ordering::Acquire) > 0 => None,
            FRESH => Some(timeouts.first_byte),
            IDLE => Some(timeouts.keep_alive),
            HEAD => Some(timeouts.head),
            LEAVING => Some(timeouts.leave),
            UPGRADED => Some(timeouts.upgrade_idle),
            _ => None,
        };
        let after = |millis| self.opened + Duration::from_millis(millis);
        let phase = limit.map(|limit| after(self.since.load(Ordering::Acquire)) + limit);
        let stuck = match self.stuck.load(Ordering::Acquire) {
            FLOWING => None,
            since => Some(after(since) + timeouts.write),
        };
        phase.into_iter().chain(stuck).min()
    }

    /// A write was taken, or not: then the client has to read before another can be.
    fn wrote(&self, taken: bool) {
        if taken {
            self.stuck.store(FLOWING, Ordering::Release);
            self.carried();
        } else if self.stuck.load(Ordering::Acquire) == FLOWING {
            self.stuck.store(self.now(), Ordering::Release);
        }
    }

    /// The client has sent something.
    pub(super) fn received(&self) {
        let is_head = !self.has_streams.load(Ordering::Acquire);
        if is_head && matches!(self.phase.load(Ordering::Acquire), FRESH | IDLE) {
            self.enter(HEAD);
        }
        self.carried();
    }

    /// The connection has changed to another protocol.
    pub(super) fn upgraded(&self) {
        self.enter(UPGRADED);
    }

    /// Bytes went by, one way or the other.
    fn carried(&self) {
        if self.phase.load(Ordering::Acquire) == UPGRADED {
            self.enter(UPGRADED);
        }
    }

    /// The service has ended its side.
    fn leaving(&self) {
        self.enter(LEAVING);
    }

    fn enter(&self, phase: u8) {
        self.since.store(self.now(), Ordering::Release);
        self.phase.store(phase, Ordering::Release);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}

/// A stream that is being answered. The connection is idle when the last of them is dropped.
#[derive(Debug)]
pub(super) struct ActiveStream(Arc<ConnectionPhases>);

impl ActiveStream {
    /// The service has a request on a stream. It is an error if its client has ended its side
    /// already.
    pub(super) fn begin(phases: &Arc<ConnectionPhases>) -> Result<Self, ClientGone> {
        if phases.gone.load(Ordering::Acquire) {
            return Err(ClientGone);
        }
        phases.streams.fetch_add(1, Ordering::AcqRel);
        Ok(Self(Arc::clone(phases)))
    }
}

impl Drop for ActiveStream {
    fn drop(&mut self) {
        if self.0.phase.load(Ordering::Acquire) != LEAVING {
            self.0.idle();
        }
        self.0.streams.fetch_sub(1, Ordering::AcqRel);
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
        let written = Pin::new(&mut self.inner).poll_write(cx, buffer);
        self.phases.wrote(written.is_ready());
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
            self.phases.leaving();
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
        phases.unread.store(!body.is_end_stream(), Ordering::Release);
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
            self.phases.unread.store(false, Ordering::Release);
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

/// The body of a response. Until its end the service is at work; the time of its client begins
/// after that.
#[derive(Debug)]
pub(super) struct TrackedBody {
    body: Body,
    phases: Arc<ConnectionPhases>,
}

impl TrackedBody {
    /// `body`, whose length is not known, and whose end the phases follow.
    pub(super) fn new(body: Body, phases: Arc<ConnectionPhases>) -> Self {
        Self { body, phases }
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.phases.idle();
    }
}
