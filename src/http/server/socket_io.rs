//! The bytes of a socket, TCP or Unix, and the moment at which the client ends its side.
//!
//! hyper notices that a client is gone when it reads the end of the stream. It does not read while
//! it serves a request and has something in its buffer, so one byte behind a request would hide the
//! end until the response. To read on in its place would need a bound, and hide the end behind
//! that. The system says it apart from the bytes (`EPOLLRDHUP`), whatever is unread, and wakes the
//! connection's task only then. What it cannot say is an end behind more bytes than its own buffer
//! takes, which the client's system has to keep until then. Tested in `tests/api/gone_clients.rs`
//! and `listeners.rs`.

use std::fmt;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, Join, Ready, join};
use tokio::net::{TcpStream, UnixStream, tcp, unix};
use tokio::time::sleep;

/// What is ready when the client has ended its side, and not whenever bytes can be read.
#[cfg(any(target_os = "linux", target_os = "android"))]
const END: Interest = Interest::PRIORITY;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const END: Interest = Interest::READABLE;

/// How long to pause when the socket is ready for another reason than its end.
const END_PAUSE: Duration = Duration::from_secs(1);

/// Lets as many connections wait to be accepted as the system allows (`net.core.somaxconn`). The
/// default of tokio and of the standard library is 128, which a burst of clients overflows.
pub(super) fn lengthen_queue(listener: &impl AsFd) -> io::Result<()> {
    SockRef::from(listener).listen(i32::MAX)
}

/// A stream socket whose writing half can be shared.
pub trait StreamSocket: AsFd + Sized + Send + Sync + 'static {
    /// The half that is read.
    type Reader: AsyncRead + fmt::Debug + Unpin + Send;
    /// The half that is written.
    type Writer: AsRef<Self> + fmt::Debug + Send + Sync + 'static;

    /// Both halves.
    fn halves(self) -> (Self::Reader, Self::Writer);
    /// Waits until the socket is ready for `interest`.
    fn ready_for(&self, interest: Interest) -> impl Future<Output = io::Result<Ready>> + Send;
    /// Waits until the socket takes something.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Writes what the socket takes now.
    fn write_now(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize>;
}

macro_rules! stream_socket {
    ($stream:ty, $halves:ident) => {
        impl StreamSocket for $stream {
            type Reader = $halves::OwnedReadHalf;
            type Writer = $halves::OwnedWriteHalf;

            fn halves(self) -> (Self::Reader, Self::Writer) {
                self.into_split()
            }

            async fn ready_for(&self, interest: Interest) -> io::Result<Ready> {
                self.ready(interest).await
            }

            fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.poll_write_ready(cx)
            }

            fn write_now(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
                self.try_write_vectored(buffers)
            }
        }
    };
}

stream_socket!(TcpStream, tcp);
stream_socket!(UnixStream, unix);

/// The bytes of a socket.
pub type SocketIo<S> = Join<<S as StreamSocket>::Reader, WriteHalf<S>>;

/// Asks the system whether the client has ended its side, and nothing before that is unread.
pub(super) type EndProbe = Box<dyn Fn() -> bool + Send + Sync>;

/// The bytes of a socket, what resolves when the client has ended its side, and what asks for that
/// now.
pub(super) fn split<S: StreamSocket>(stream: S) -> (SocketIo<S>, BoxFuture<'static, ()>, EndProbe) {
    let (reader, writer) = stream.halves();
    let writer = WriteHalf(Arc::new(writer));
    let (closed, probed) = (writer.clone().read_closed().boxed(), writer.clone());
    let has_ended = move || {
        let found = SockRef::from(probed.socket()).peek(&mut [MaybeUninit::uninit()]);
        matches!(found, Ok(0))
    };
    (join(reader, writer), closed, Box::new(has_ended))
}

/// The half of a socket that is written, which can be shared.
#[derive(Debug)]
pub struct WriteHalf<S: StreamSocket>(Arc<S::Writer>);

impl<S: StreamSocket> Clone for WriteHalf<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: StreamSocket> WriteHalf<S> {
    /// Waits until the client has ended its side, or the connection is broken.
    async fn read_closed(self) {
        while let Ok(ready) = self.socket().ready_for(END).await {
            if ready.is_read_closed() {
                return;
            }
            sleep(END_PAUSE).await;
        }
    }

    fn socket(&self) -> &S {
        (*self.0).as_ref()
    }
}

impl<S: StreamSocket> AsyncWrite for WriteHalf<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buffer)])
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(self.socket()).shutdown(Shutdown::Write))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Writes when the socket takes something, until it has.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket().poll_writable(cx))?;
            match self.socket().write_now(buffers) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net;

    use tokio::net::TcpListener;

    use super::*;

    /// On one thread, so the runtime has no turn in between in which it could hear of it.
    #[tokio::test]
    async fn end_is_seen_when_it_is_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        for bytes in [&b""[..], b"x"] {
            let mut client = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (_io, _closed, has_ended) = split(listener.accept().await.unwrap().0);
            assert!(!has_ended(), "the client is there");
            client.write_all(bytes).unwrap();
            drop(client);
            assert_eq!(has_ended(), bytes.is_empty(), "after {bytes:?}");
        }
    }
}
