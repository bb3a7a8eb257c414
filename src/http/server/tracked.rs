//! The stream of a connection and the body of an answer, which tell the phases of their connection what
//! goes by.
//!
//! The stream also ends a connection as TCP wants it: the service ends its side and reads until the
//! client ends its own, because a socket that is closed with unread bytes is reset, and the reset can
//! overtake the answer. Tested in `tests/api/connections.rs`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};

use super::phases::ConnectionPhases;

/// A stream whose traffic the phases of its connection follow.
#[derive(Debug)]
pub(super) struct TrackedIo<I> {
    inner: I,
    phases: Arc<ConnectionPhases>,
    shut_down: bool,
    /// How many unread bytes the service still takes.
    discards: usize,
}

/// More than any honest client has sent before it looks at the answer; a flood ends here.
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
    /// and the client may lose the answer that it has not read yet.
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

/// The body of an answer. Until its end the service is at work; the time of its client begins after that.
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
