//! The listeners of the configuration: where each listens, and what it serves there.
//!
//! `[[listener]]` has one entry for each; without any there is the one of `listen`. Tested in
//! `tests/api/listeners.rs`, `tests/cli/listeners.rs` and `tests/cli/config/listeners.rs`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use tokio::net::TcpListener;

use super::activation::HandedSockets;
use super::socket_io::lengthen_queue;
use super::unix_socket::UnixSocket;
use crate::http::parts::{Part, ServedParts};

/// What the address of a Unix socket begins with.
const UNIX: &str = "unix:";
/// Who may connect to a Unix socket unless the settings say: the owner of the process.
const MODE: &str = "0600";

/// One `[[listener]]` of the configuration, whose file of defaults says what each setting means.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "the file of defaults documents every setting")]
pub struct ListenerSettings {
    pub address: String,
    pub unix: String,
    pub mode: Option<String>,
    pub owner: Option<String>,
    pub serves: ServedParts,
    pub tls: Option<bool>,
}

impl ListenerSettings {
    /// The listener of `listen`: an address, a port of loopback (`7070` or `:7070`), or
    /// `unix:PATH`.
    pub fn at(listen: &str) -> Self {
        if let Some(path) = listen.strip_prefix(UNIX) {
            return Self { unix: path.to_owned(), ..Self::default() };
        }
        let port = listen.strip_prefix(':').unwrap_or(listen).parse::<u16>().ok();
        let address = port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string());
        Self { address: address.unwrap_or_else(|| listen.to_owned()), ..Self::default() }
    }

    /// Where it listens, as people write it.
    pub fn place(&self) -> String {
        if self.is_unix() { format!("{UNIX}{}", self.unix) } else { self.address.clone() }
    }

    /// Whether it is a Unix socket.
    pub fn is_unix(&self) -> bool {
        !self.unix.is_empty()
    }

    /// The path of its socket, if it is a Unix socket.
    pub fn path(&self) -> Option<&Path> {
        self.is_unix().then(|| Path::new(&self.unix))
    }

    /// Whether it speaks TLS, where the service has a certificate or not.
    pub fn is_tls(&self, has_certificate: bool) -> bool {
        !self.is_unix() && self.tls.unwrap_or(has_certificate)
    }

    /// The URL at which programs of this machine reach it once it has an address, unless it is a
    /// Unix socket: on loopback, if it listens on every address.
    pub fn url(&self, has_certificate: bool) -> Option<String> {
        let address = reachable(self.address.parse().ok()?);
        let scheme = if self.is_tls(has_certificate) { "https" } else { "http" };
        Some(format!("{scheme}://{address}"))
    }

    /// Whether only programs of this machine reach it.
    pub fn is_local(&self) -> bool {
        self.is_unix()
            || match self.address.parse::<SocketAddr>() {
                Ok(address) => address.ip().to_canonical().is_loopback(),
                Err(_) => {
                    self.address.rsplit_once(':').is_some_and(|(host, _)| host == "localhost")
                }
            }
    }

    /// What types alone do not rule out.
    pub(crate) fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let is_unix = self.is_unix();
        if is_unix != self.address.is_empty() {
            return Err(("address", "must be there, or `unix` in its place, and not both"));
        }
        if self.mode.is_some() && !is_unix {
            return Err(("mode", "must be absent without `unix`"));
        }
        if self.owner.is_some() && !is_unix {
            return Err(("owner", "must be absent without `unix`"));
        }
        if self.owner.as_deref().is_some_and(|owner| owner.trim_matches(':').is_empty()) {
            return Err((
                "owner",
                "must be a user, a group behind a colon, or both, as \"web:web\"",
            ));
        }
        if self.mode().is_none_or(|mode| mode > 0o777) {
            return Err(("mode", "must be permissions in octal, as \"0660\""));
        }
        if is_unix && self.tls == Some(true) {
            return Err(("tls", "must not be true for a Unix socket"));
        }
        if self.serves.have(Part::Docs) && !self.serves.have(Part::Api) {
            return Err(("serves", "must have \"api\" where it has \"docs\", which tries it"));
        }
        if self.serves.have(Part::Console) && !self.serves.have(Part::Api) {
            return Err(("serves", "must have \"api\" where it has \"console\", which uses it"));
        }
        Ok(())
    }

    fn mode(&self) -> Option<u32> {
        u32::from_str_radix(self.mode.as_deref().unwrap_or(MODE), 8).ok()
    }

    /// Listens, or takes the next of the sockets that were handed over.
    pub(crate) async fn bind(mut self, handed: &mut HandedSockets) -> io::Result<BoundListener> {
        let socket = if let Some(path) = self.path() {
            let socket = match handed.next_unix()? {
                Some(listener) => UnixSocket::handed(listener),
                None => {
                    let mode = self.mode().unwrap_or_default();
                    UnixSocket::bind(path, mode, self.owner.as_deref()).await?
                }
            };
            if let Some(path) = socket.path() {
                self.unix = path.display().to_string();
            }
            Socket::Unix(Arc::new(socket))
        } else {
            let listener = match handed.next_tcp()? {
                Some(listener) => listener,
                None => {
                    let listener = TcpListener::bind(&self.address).await?;
                    lengthen_queue(&listener)?;
                    listener
                }
            };
            // A name leads to one of its addresses, and that one decides what is served.
            self.address = listener.local_addr()?.to_string();
            Socket::Tcp(Arc::new(listener))
        };
        Ok(BoundListener { socket, settings: self })
    }
}

/// A listener that listens.
#[derive(Debug)]
pub struct BoundListener {
    pub(crate) socket: Socket,
    /// Its settings. An address is the one that it listens on.
    pub settings: ListenerSettings,
}

/// The sockets that a listener may have. Several servers accept from one in turn.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(Arc<TcpListener>),
    Unix(Arc<UnixSocket>),
}

/// Where programs of this machine reach a service that listens on `address`.
pub(crate) fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}
