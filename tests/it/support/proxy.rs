use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A TCP proxy in front of a store or of the service, which can lose things on the way.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    upstream: watch::Sender<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Forward,
    LoseAnswers,
    LoseEnds,
    Refuse,
}

impl Proxy {
    /// A proxy that forwards to `upstream`.
    pub(crate) async fn start(upstream: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (mode, watched) = watch::channel(Mode::Forward);
        let (upstream, leads_to) = watch::channel(upstream);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let upstream = leads_to.borrow().clone();
                tokio::spawn(forward(client, upstream, watched.clone()));
            }
        });
        Self { address, mode, upstream }
    }

    /// The URL of an HTTP service behind it.
    pub(crate) fn http_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Forwards new connections to another place.
    pub(crate) fn lead_to(&self, upstream: String) {
        self.upstream.send_replace(upstream);
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Passes everything on again, on new connections.
    pub(crate) fn forward(&self) {
        self.mode.send_replace(Mode::Forward);
    }

    /// Passes requests on, and cuts the connection in place of the first answer.
    pub(crate) fn lose_answers(&self) {
        self.mode.send_replace(Mode::LoseAnswers);
    }

    /// Cuts the connection just before the end of the first answer.
    pub(crate) fn lose_ends(&self) {
        self.mode.send_replace(Mode::LoseEnds);
    }

    /// Cuts all connections, and every new one.
    pub(crate) fn refuse(&self) {
        self.mode.send_replace(Mode::Refuse);
    }
}

/// Forwards one connection until either side ends it or the mode does.
async fn forward(mut client: TcpStream, upstream: String, mut mode: watch::Receiver<Mode>) {
    let Ok(mut server) = TcpStream::connect(upstream).await else { return };
    let (mut from_client, mut from_server) = ([0; 4096], [0; 4096]);
    loop {
        if *mode.borrow_and_update() == Mode::Refuse {
            return;
        }
        tokio::select! {
            read = client.read(&mut from_client) => match read {
                Ok(bytes) if bytes > 0 => {
                    if server.write_all(&from_client[..bytes]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
            read = server.read(&mut from_server) => match read {
                Ok(bytes) if bytes > 0 && *mode.borrow() == Mode::Forward => {
                    if client.write_all(&from_server[..bytes]).await.is_err() {
                        return;
                    }
                }
                Ok(bytes) if *mode.borrow() == Mode::LoseEnds => {
                    // Whether it arrives or not, the connection is at its end.
                    let _ = client.write_all(&from_server[..bytes.saturating_sub(10)]).await;
                    return;
                }
                _ => return,
            },
            changed = mode.changed() => if changed.is_err() {
                return;
            },
        }
    }
}
