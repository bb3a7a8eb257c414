//! Where connections come from: the transport that a server accepts from, and TCP.
//!
//! The server knows a [`Listener`] and the bytes that it gives, so that another transport, such as
//! a Unix socket, is an addition. What a transport alone can tell comes with each connection: the
//! peer, and the moment at which the client ended its side. A layer over a transport, as TLS is,
//! wraps the bytes and hands the rest on. Tested over TCP throughout, over a Unix socket in
//! `tests/api/listeners.rs`, and over a transport of a test's own in `tests/api/listener.rs`.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::future::BoxFuture;
#[cfg(any(target_os = "linux", target_os = "android"))]
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::socket_io::{self, SocketIo};

/// How long accepting pauses when no connection can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections of one transport.
pub trait Listener: fmt::Debug + Send + Sync + 'static {
    /// The bytes of a connection.
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection. Where the transport can find out that the machine of a client is gone,
    /// it gives up what was not acknowledged for `write_timeout`.
    ///
    /// # Errors
    ///
    /// That of accept(2): the client was gone first, nothing can be accepted now, or the listener
    /// is broken. The server tells these apart.
    fn accept(
        &self,
        write_timeout: Duration,
    ) -> impl Future<Output = io::Result<AcceptedConnection<Self::Io>>> + Send;

    /// Whether only programs of this machine reach it: it has a loopback address, which web pages
    /// reach by a browser on this machine, or none.
    ///
    /// # Errors
    ///
    /// The listener is broken.
    fn is_local(&self) -> io::Result<bool>;
}

/// A connection that was accepted.
pub struct AcceptedConnection<I> {
    /// Its bytes.
    pub io: I,
    /// The address of the other end, if the transport has such addresses.
    pub peer: Option<IpAddr>,
    /// Resolves when the client has ended its side, although bytes before that end may be unread.
    /// It never does where the transport cannot tell; then reading finds the end.
    pub closed: BoxFuture<'static, ()>,
    /// Whether the client has ended its side and nothing before that is unread, asked now: a store
    /// in memory grants a lock before a task hears of it.
    pub has_ended: Box<dyn Fn() -> bool + Send + Sync>,
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

impl Listener for TcpListener {
    type Io = SocketIo<TcpStream>;

    async fn accept(&self, write_timeout: Duration) -> io::Result<AcceptedConnection<Self::Io>> {
        let (stream, peer) = Self::accept(self).await?;
        prepare(&stream, write_timeout);
        let (io, closed, has_ended) = socket_io::split(stream);
        Ok(AcceptedConnection { io, peer: Some(peer.ip().to_canonical()), closed, has_ended })
    }

    fn is_local(&self) -> io::Result<bool> {
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
