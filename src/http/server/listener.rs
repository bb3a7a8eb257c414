//! Where connections come from: the transport that a server accepts from, and TCP as the one there is.
//!
//! The server knows a [`Listener`] and the bytes that it gives, so that another transport, such as a Unix
//! socket or TLS around TCP, is an addition. What a transport alone can tell comes with each connection:
//! the peer, and the moment at which the client ended its side. A layer over a transport, as TLS is,
//! wraps the bytes and hands the rest on.
//!
//! hyper notices that a client is gone when it reads the end of the stream. It does not read while it
//! serves a request and has something in its buffer, so one byte behind a request would hide the end
//! until the answer. To read on in its place would need a bound, and hide the end behind that. On TCP
//! the system says it apart from the bytes (`EPOLLRDHUP`), whatever is unread, and wakes the connection's
//! task only then. What it cannot say is an end behind more bytes than its own buffer takes, which the
//! client's system has to keep until then. Tested over TCP throughout (the end in
//! `tests/api/gone_clients.rs`), and over a Unix socket in `tests/api/listener.rs`.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Shutdown};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, Join, ReadBuf, join};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// How long accepting pauses when no connection can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections of one transport.
pub trait Listener: fmt::Debug + Send + Sync + 'static {
    /// The bytes of a connection.
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection. Where the transport can find out that the machine of a client is gone, it
    /// gives up what was not acknowledged for `write_timeout`.
    ///
    /// # Errors
    ///
    /// That of accept(2): the client was gone first, nothing can be accepted now, or the listener is
    /// broken. The server tells these apart.
    fn accept(
        &self,
        write_timeout: Duration,
    ) -> impl Future<Output = io::Result<AcceptedConnection<Self::Io>>> + Send;

    /// Whether it has a loopback address, which web pages reach by a browser on this machine.
    ///
    /// # Errors
    ///
    /// The listener is broken.
    fn is_on_loopback(&self) -> io::Result<bool>;
}

/// A connection that was accepted.
pub struct AcceptedConnection<I> {
    /// Its bytes.
    pub io: I,
    /// The address of the other end, if the transport has such addresses.
    pub peer: Option<IpAddr>,
    /// Resolves when the client has ended its side, although bytes before that end may be unread. It
    /// never does where the transport cannot tell; then reading finds the end.
    pub closed: BoxFuture<'static, ()>,
}

impl<I> fmt::Debug for AcceptedConnection<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accepted").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// The next connection of a listener. A client that is gone before it is accepted is none.
pub(super) async fn accept<L: Listener>(
    listener: &L,
    write_timeout: Duration,
) -> io::Result<AcceptedConnection<L::Io>> {
    loop {
        match listener.accept(write_timeout).await {
            Ok(accepted) => return Ok(accepted),
            Err(error) if is_of_client(&error) => {}
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

fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// What is ready when the client has ended its side, and not whenever bytes can be read.
#[cfg(any(target_os = "linux", target_os = "android"))]
const END: Interest = Interest::PRIORITY;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const END: Interest = Interest::READABLE;

/// How long to pause when the socket is ready for another reason than its end.
const END_PAUSE: Duration = Duration::from_secs(1);

impl Listener for TcpListener {
    type Io = TcpIo;

    async fn accept(&self, write_timeout: Duration) -> io::Result<AcceptedConnection<TcpIo>> {
        let (stream, peer) = Self::accept(self).await?;
        prepare(&stream, write_timeout);
        let (reader, writer) = stream.into_split();
        let writer = WriteHalf(Arc::new(writer));
        let closed = writer.clone().read_closed().boxed();
        let peer = Some(peer.ip().to_canonical());
        Ok(AcceptedConnection { io: TcpIo(join(reader, writer)), peer, closed })
    }

    fn is_on_loopback(&self) -> io::Result<bool> {
        Ok(self.local_addr()?.ip().to_canonical().is_loopback())
    }
}

/// A socket that refuses any of this is as good as closed, and reading says so.
fn prepare(stream: &TcpStream, write_timeout: Duration) {
    // Without it, a small response waits for the acknowledgement of the one before.
    let _ = stream.set_nodelay(true);
    // A client whose machine is gone acknowledges nothing, and the system alone would send the
    // same again for a quarter of an hour.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = SockRef::from(stream).set_tcp_user_timeout(Some(write_timeout));
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = write_timeout;
}

/// The socket of a TCP connection.
#[derive(Debug)]
pub struct TcpIo(Join<OwnedReadHalf, WriteHalf>);

impl AsyncRead for TcpIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for TcpIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, buffers)
    }
}

/// The half of a socket that is written, which can be shared.
#[derive(Debug, Clone)]
struct WriteHalf(Arc<OwnedWriteHalf>);

impl WriteHalf {
    /// Waits until the client has ended its side, or the connection is broken.
    async fn read_closed(self) {
        while let Ok(ready) = self.0.ready(END).await {
            if ready.is_read_closed() {
                return;
            }
            sleep(END_PAUSE).await;
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
