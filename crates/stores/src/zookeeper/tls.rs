//! Encrypted connections to the members, through a listener on loopback for each of them.
//!
//! The client can encrypt by itself only with a build of rustls that needs CMake and another
//! provider of cryptography than the rest of keylatch. So it connects to this process, which checks
//! the member's certificate, always with a name of the URL, and passes the bytes on. keylatch shows
//! no certificate of its own: another user of this machine who connects to the listener gets no
//! further than to the ensemble itself. Tested in `tests/stores/zookeeper_tls.rs`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use crate::conn::tls::{Certificates, WORDS};
use crate::error::OpenError;

/// How many connections there are at once: the client has one, and others are ending.
const CONNECTIONS: usize = 16;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The listeners, for as long as they are needed.
#[derive(Debug)]
pub(super) struct Tunnels {
    /// Where each member is to be reached, in the order of the URL.
    pub(super) entrances: Vec<(String, u16)>,
    _listening: Vec<AbortOnDropHandle<()>>,
}

/// Where a tunnel leads, and how.
struct Tunnel {
    connector: TlsConnector,
    host: String,
    port: u16,
    name: ServerName<'static>,
    limit: Duration,
    has_failed: AtomicBool,
}

impl Tunnels {
    /// Listens for each of `hosts`; a handshake may take as long as `limit`.
    pub(super) async fn open(
        hosts: &[(String, u16)],
        certificates: &Certificates,
        limit: Duration,
    ) -> Result<Self, OpenError> {
        let connector = connector(certificates)?;
        let (mut entrances, mut listening) = (Vec::new(), Vec::new());
        for (host, port) in hosts {
            let name = certificates.server_name.as_ref().unwrap_or(host);
            let name = ServerName::try_from(name.clone());
            let name = name.map_err(|_| unfit("a host has a name that no certificate can have"))?;
            let listener = TcpListener::bind(("127.0.0.1", 0)).await;
            let listener = listener.map_err(|error| unfit(&error.to_string()))?;
            let address = listener.local_addr().map_err(|error| unfit(&error.to_string()))?;
            entrances.push((address.ip().to_string(), address.port()));
            let (connector, host, has_failed) =
                (connector.clone(), host.clone(), AtomicBool::new(false));
            let tunnel = Tunnel { connector, host, port: *port, name, limit, has_failed };
            let serving = tokio::spawn(Arc::new(tunnel).serve(listener));
            listening.push(AbortOnDropHandle::new(serving));
        }
        Ok(Self { entrances, _listening: listening })
    }
}

impl Tunnel {
    async fn serve(self: Arc<Self>, listener: TcpListener) {
        // Its connections end with it.
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                    Ok((inner, _)) => {
                        connections.spawn(Arc::clone(&self).pass_on(inner));
                    }
                    // There are too many open files, as a rule.
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }

    async fn pass_on(self: Arc<Self>, mut inner: TcpStream) {
        let connecting = async {
            let outer = TcpStream::connect((&*self.host, self.port)).await?;
            outer.set_nodelay(true)?;
            self.connector.connect(self.name.clone(), outer).await
        };
        let connected = timeout(self.limit, connecting).await;
        match connected.unwrap_or_else(|late| Err(io::Error::new(io::ErrorKind::TimedOut, late))) {
            Ok(mut outer) => {
                self.has_failed.store(false, Ordering::Relaxed);
                // How a connection ended is the client's to find out.
                let _ = inner.set_nodelay(true);
                let _ = copy_bidirectional(&mut inner, &mut outer).await;
            }
            Err(error) if self.has_failed.swap(true, Ordering::Relaxed) => {
                tracing::debug!(%error, "there is still no encrypted connection to a member");
            }
            Err(error) => {
                tracing::warn!(%error, host = self.host, "no encrypted connection to a member");
            }
        }
    }
}

pub(super) fn connector(certificates: &Certificates) -> Result<TlsConnector, OpenError> {
    let config = certificates.client_config(&WORDS).map_err(|error| unfit(&error))?;
    Ok(TlsConnector::from(Arc::new(config)))
}

fn unfit(why: &str) -> OpenError {
    OpenError::Unfit("ZooKeeper", why.to_owned())
}
