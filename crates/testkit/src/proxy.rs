//! A TCP proxy that loses, delays and cuts what passes through it.
//!
//! It stands between a service and its store, or a client and a service. A test says what happens
//! from now on to each direction, so a fault begins at a step and not after a time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

/// A proxy in front of a store or of the service. It forwards until a test says otherwise.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    upstream: watch::Sender<String>,
    disturbed: Arc<AtomicU64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Forward,
    LoseAnswers,
    LoseEnds,
    Refuse,
    Stall,
    HoldRequests,
    HoldAnswers,
    Delay(Duration),
}

impl Proxy {
    /// A proxy that forwards to `upstream`.
    pub async fn start(upstream: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (mode, watched) = watch::channel(Mode::Forward);
        let (upstream, leads_to) = watch::channel(upstream);
        let disturbed = Arc::<AtomicU64>::default();
        let disturbances = Arc::clone(&disturbed);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let upstream = leads_to.borrow().clone();
                let (mode, disturbances) = (watched.clone(), Arc::clone(&disturbances));
                tokio::spawn(async move {
                    if let Some(mut connection) =
                        Connection::new(client, upstream, mode, disturbances).await
                    {
                        connection.forward().await;
                    }
                });
            }
        });
        Self { address, mode, upstream, disturbed }
    }

    /// The URL of an HTTP service behind it.
    pub fn http_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Forwards new connections to another upstream.
    pub fn lead_to(&self, upstream: String) {
        self.upstream.send_replace(upstream);
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a Redis behind it.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Forwards everything again, on new connections.
    pub fn forward(&self) {
        self.mode.send_replace(Mode::Forward);
    }

    /// Forwards requests, and cuts the connection in place of the first answer.
    pub fn lose_answers(&self) {
        self.mode.send_replace(Mode::LoseAnswers);
    }

    /// Cuts the connection just before the end of the first answer.
    pub fn lose_ends(&self) {
        self.mode.send_replace(Mode::LoseEnds);
    }

    /// Cuts all connections, and every new one.
    pub fn refuse(&self) {
        self.mode.send_replace(Mode::Refuse);
    }

    /// Keeps all connections open, and forwards nothing.
    pub fn stall(&self) {
        self.mode.send_replace(Mode::Stall);
    }

    /// Holds back requests, which arrive when this is over. Answers are forwarded.
    pub fn hold_requests(&self) {
        self.mode.send_replace(Mode::HoldRequests);
    }

    /// Forwards requests, and holds back the answers to them until this is over.
    pub fn hold_answers(&self) {
        self.mode.send_replace(Mode::HoldAnswers);
    }

    /// Forwards everything so much later, in both directions.
    pub fn delay(&self, by: Duration) {
        self.mode.send_replace(Mode::Delay(by));
    }

    /// How often the proxy lost, delayed, held or cut something.
    pub fn disturbed(&self) -> u64 {
        self.disturbed.load(Ordering::Relaxed)
    }
}

/// One connection, which the client, the server or the mode may end.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    mode: watch::Receiver<Mode>,
    disturbances: Arc<AtomicU64>,
}

impl Connection {
    async fn new(
        client: TcpStream,
        upstream: String,
        mode: watch::Receiver<Mode>,
        disturbances: Arc<AtomicU64>,
    ) -> Option<Self> {
        let server = TcpStream::connect(upstream).await.ok()?;
        Some(Self { client, server, mode, disturbances })
    }

    async fn forward(&mut self) {
        let (mut from_client, mut from_server) = ([0; 4096], [0; 4096]);
        loop {
            let mode = *self.mode.borrow_and_update();
            match mode {
                Mode::Refuse => return self.note(),
                Mode::Stall => {
                    self.stall().await;
                    continue;
                }
                _ => {}
            }
            tokio::select! {
                read = self.client.read(&mut from_client), if mode != Mode::HoldRequests => match read {
                    Ok(bytes) if bytes > 0 => {
                        self.delay().await;
                        if self.server.write_all(&from_client[..bytes]).await.is_err() {
                            return;
                        }
                    }
                    _ => return,
                },
                read = self.server.read(&mut from_server), if mode != Mode::HoldAnswers => match read {
                    Ok(bytes) if bytes > 0 => {
                        self.delay().await;
                        if !self.answer(&from_server[..bytes]).await {
                            return;
                        }
                    }
                    _ => return,
                },
                changed = self.mode.changed() => match changed {
                    Ok(()) if self.has_held(mode) => self.note(),
                    Ok(()) => {}
                    Err(_) => return,
                },
            }
        }
    }

    /// Forwards an answer or loses it; `false` where the connection ends.
    async fn answer(&mut self, answer: &[u8]) -> bool {
        let mode = *self.mode.borrow();
        match mode {
            Mode::LoseAnswers | Mode::Refuse => self.note(),
            Mode::LoseEnds => {
                self.note();
                // Whether it arrives or not, the connection is at its end.
                let _ = self.client.write_all(&answer[..answer.len().saturating_sub(10)]).await;
            }
            _ => {
                return self.client.write_all(answer).await.is_ok();
            }
        }
        false
    }

    /// Whether something was held back on one side.
    fn has_held(&self, mode: Mode) -> bool {
        let held = match mode {
            Mode::HoldRequests => &self.client,
            Mode::HoldAnswers => &self.server,
            _ => return false,
        };
        held.peek(&mut [0]).now_or_never().is_some_and(|held| held.is_ok_and(|bytes| bytes > 0))
    }

    /// Waits until the mode changes.
    async fn stall(&mut self) {
        let asked = async |client: &TcpStream| client.peek(&mut [0]).await;
        tokio::select! {
            asked = asked(&self.client) => if asked.is_ok_and(|bytes| bytes > 0) {
                self.disturbances.fetch_add(1, Ordering::Relaxed);
            },
            _ = self.mode.changed() => return,
        }
        let _ = self.mode.changed().await;
    }

    async fn delay(&mut self) {
        let mode = *self.mode.borrow();
        if let Mode::Delay(by) = mode {
            self.note();
            let _ = timeout(by, self.mode.wait_for(|mode| !matches!(mode, Mode::Delay(_)))).await;
        }
    }

    fn note(&self) {
        self.disturbances.fetch_add(1, Ordering::Relaxed);
    }
}
