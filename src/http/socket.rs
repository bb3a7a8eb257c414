//! A client's socket, which hyper reads and writes while the connection's task watches for its end.
//!
//! hyper notices that a client is gone when it reads the end of the stream. It does not read while it
//! serves a request and has something in its buffer, so one byte behind a request would hide the end
//! until the answer. To read on in its place would need a bound, and hide the end behind that. The
//! system says it apart from the bytes (`EPOLLRDHUP`), whatever is unread, and wakes the task only then.
//! What it cannot say is an end behind more bytes than its own buffer takes, which the client's system
//! has to keep until then.
//!
//! Tested in `tests/it/gone_clients.rs`.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncWrite, Interest, Join, join};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::sleep;

/// What is ready when the client has ended its side, and not whenever bytes can be read.
#[cfg(any(target_os = "linux", target_os = "android"))]
const END: Interest = Interest::PRIORITY;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const END: Interest = Interest::READABLE;

/// How long to pause when the socket is ready for another reason than its end.
const PAUSE: Duration = Duration::from_secs(1);

/// The socket to be read and written, and the half that tells when its client ends its side.
pub(super) fn share(stream: TcpStream) -> (Join<OwnedReadHalf, WriteHalf>, WriteHalf) {
    let (reader, writer) = stream.into_split();
    let writer = WriteHalf(Arc::new(writer));
    (join(reader, writer.clone()), writer)
}

/// The half of a socket that is written, which can be shared.
#[derive(Debug, Clone)]
pub(super) struct WriteHalf(Arc<OwnedWriteHalf>);

impl WriteHalf {
    /// Waits until the client has ended its side, or the connection is broken.
    pub(super) async fn read_closed(self) {
        while let Ok(ready) = self.0.ready(END).await {
            if ready.is_read_closed() {
                return;
            }
            sleep(PAUSE).await;
        }
    }

    fn stream(&self) -> &TcpStream {
        (*self.0).as_ref()
    }

    /// Calls `write` when the socket takes something, until it has.
    fn poll_with(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream().poll_write_ready(cx))?;
            match write(self.stream()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream| stream.try_write(buffer))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(self.stream()).shutdown(Shutdown::Write))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream| stream.try_write_vectored(buffers))
    }
}
