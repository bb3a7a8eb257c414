use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use tokio::time::Instant;

/// How long a connection may be in each phase that only its client can end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Until the first byte.
    pub(super) first_byte: Duration,
    /// From the first byte of a request's head to its last.
    pub(super) head: Duration,
    /// Between an answer and the next request, in which the client reads the answer.
    pub(super) keep_alive: Duration,
    /// While the client reads nothing of what it is sent.
    pub(super) write: Duration,
    /// Between the service's end of the connection and the client's.
    pub(super) leave: Duration,
}

impl Patience {
    /// How often a connection that is being served is looked at.
    pub(super) fn shortest(&self) -> Duration {
        self.first_byte.min(self.head).min(self.keep_alive).min(self.write).min(self.leave)
    }
}

/// What a connection is doing, and since when.
///
/// hyper has one timeout for the head and for idling, and sets a timer for each request. This one
/// notes a few numbers as a request goes by, and its connection looks at them now and then.
#[derive(Debug)]
pub(super) struct Activity {
    opened: Instant,
    phase: AtomicU8,
    /// Milliseconds after `opened`.
    since: AtomicU64,
    /// Since when nothing more can be written, likewise; [`FLOWING`] if it can.
    stuck: AtomicU64,
    /// The client has ended its side. Its last bytes may be unread.
    gone: AtomicBool,
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
const FLOWING: u64 = u64::MAX;

impl Activity {
    pub(super) fn new() -> Self {
        Self {
            opened: Instant::now(),
            phase: AtomicU8::new(FRESH),
            since: AtomicU64::new(0),
            stuck: AtomicU64::new(FLOWING),
            gone: AtomicBool::new(false),
        }
    }

    /// The service has a request.
    ///
    /// # Errors
    ///
    /// Its client has ended its side already.
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
        self.phase.load(Ordering::Acquire) == BUSY
    }

    /// The service has answered, to the end.
    pub(super) fn idle(&self) {
        self.enter(IDLE);
    }

    /// When the connection's patience ends unless something happens; `None` while the service
    /// works. Looking again at that time, or when the service is done, is early enough.
    pub(super) fn deadline(&self, patience: &Patience) -> Option<Instant> {
        let limit = match self.phase.load(Ordering::Acquire) {
            FRESH => Some(patience.first_byte),
            IDLE => Some(patience.keep_alive),
            HEAD => Some(patience.head),
            LEAVING => Some(patience.leave),
            _ => None,
        };
        let after = |millis| self.opened + Duration::from_millis(millis);
        let phase = limit.map(|limit| after(self.since.load(Ordering::Acquire)) + limit);
        let stuck = match self.stuck.load(Ordering::Acquire) {
            FLOWING => None,
            since => Some(after(since) + patience.write),
        };
        phase.into_iter().chain(stuck).min()
    }

    /// A write was taken, or not: then the client has to read before another can be.
    fn wrote(&self, taken: bool) {
        if taken {
            self.stuck.store(FLOWING, Ordering::Release);
        } else if self.stuck.load(Ordering::Acquire) == FLOWING {
            self.stuck.store(self.now(), Ordering::Release);
        }
    }

    fn received(&self) {
        if matches!(self.phase.load(Ordering::Acquire), FRESH | IDLE) {
            self.enter(HEAD);
        }
    }

    fn enter(&self, phase: u8) {
        self.since.store(self.now(), Ordering::Release);
        self.phase.store(phase, Ordering::Release);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}

/// A stream whose traffic is noted.
#[derive(Debug)]
pub(super) struct Noted<I> {
    inner: I,
    activity: Arc<Activity>,
    shut_down: bool,
    /// How much of what nobody reads is still taken.
    discards: usize,
}

/// More than any honest client has sent before it looks at the answer; a flood ends here.
const MAX_DISCARDED: usize = 64 * 1024 * 1024;

impl<I> Noted<I> {
    pub(super) fn new(inner: I, activity: Arc<Activity>) -> Self {
        Self { inner, activity, shut_down: false, discards: MAX_DISCARDED }
    }
}

impl<I: Read + Unpin> Read for Noted<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if matches!(read, Poll::Ready(Ok(()))) {
            self.activity.received();
        }
        read
    }
}

impl<I: Read + Write + Unpin> Write for Noted<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buffer);
        self.activity.wrote(written.is_ready());
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    /// Says that nothing more will come, and waits for the client to say so too.
    ///
    /// A socket that is closed with unread bytes in it, such as a body that was refused, is reset,
    /// and the client may lose the answer that it has not read yet.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.shut_down {
            ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
            self.shut_down = true;
            self.activity.enter(LEAVING);
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
        self.activity.wrote(written.is_ready());
        written
    }
}

/// The body of an answer. Until its end the service is at work, and its client's time begins after
/// that.
#[derive(Debug)]
pub(super) struct Answering {
    body: Body,
    activity: Arc<Activity>,
}

impl Answering {
    /// `body`, whose length is not known, and whose end is noted.
    pub(super) fn new(body: Body, activity: Arc<Activity>) -> Self {
        Self { body, activity }
    }
}

impl HttpBody for Answering {
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

impl Drop for Answering {
    fn drop(&mut self) {
        self.activity.idle();
    }
}
