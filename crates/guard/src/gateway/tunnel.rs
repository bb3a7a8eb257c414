//! A connection that has changed to another protocol, such as WebSocket: bytes between a client and
//! an upstream.
//!
//! The gateway makes a [`Tunnel`] of an upstream's 101 and hands it to the client's connection as
//! an extension of the response, since it is the connection that counts against limits, has
//! timeouts and is drained at shutdown. Tested in `tests/api/gateway_upgrades.rs`.

use std::io;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

/// Both ends of a connection that is to change to another protocol.
#[derive(Debug, Clone)]
pub struct Tunnel {
    /// That of the client, once it has the response.
    pub(super) client: OnUpgrade,
    /// That of the service behind.
    pub(super) upstream: OnUpgrade,
}

impl Tunnel {
    /// Carries bytes both ways until both sides have ended.
    ///
    /// # Errors
    ///
    /// A connection did not change or broke off.
    pub async fn carry(self) -> io::Result<()> {
        let (client, upstream) =
            tokio::try_join!(self.client, self.upstream).map_err(io::Error::other)?;
        let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        copy_bidirectional(&mut client, &mut upstream).await.map(|_| ())
    }
}
