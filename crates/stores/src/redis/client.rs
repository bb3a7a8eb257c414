//! A server as a client of it sees it: its address, credentials and TLS, and the name that its
//! certificate is for.
//!
//! The driver checks a certificate by the host that it connects to. Where the URL has another name
//! (`servername`), the driver gets that name for its host, and a resolver that finds the server's
//! own address. The driver's own way to subscribe takes no resolver, so a subscription is a
//! connection as any other, and [`Messages`] are what the server pushes on it.
//!
//! Invariant: every connection to a Redis is made by [`RedisClient::connect`], with the check of
//! the name. Tested with real servers in `tests/stores/redis_certificates.rs`.

use std::net::SocketAddr;

use bb8_redis::redis::ConnectionAddr::{Tcp, TcpTls};
use bb8_redis::redis::aio::{AsyncPushSender, MultiplexedConnection};
use bb8_redis::redis::io::AsyncDNSResolver;
use bb8_redis::redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, Msg, PushInfo, PushKind, RedisFuture,
    RedisResult,
};
use tokio::net::lookup_host;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// A host and a port.
pub(super) type Address = (String, u16);

/// How to connect to a server.
#[derive(Debug, Clone)]
pub(super) struct RedisClient {
    info: ConnectionInfo,
    /// The name that the server's certificate is for; `None` for its host.
    server_name: Option<String>,
}

impl RedisClient {
    /// A client of the server that `info` describes.
    pub(super) fn new(info: ConnectionInfo, server_name: Option<String>) -> Self {
        Self { info, server_name }
    }

    /// The address of the server; `None` for a Unix socket.
    pub(super) fn address(&self) -> Option<Address> {
        match self.info.addr() {
            Tcp(host, port) | TcpTls { host, port, .. } => Some((host.clone(), *port)),
            _ => None,
        }
    }

    /// Whether connections are encrypted.
    pub(super) fn uses_tls(&self) -> bool {
        matches!(self.info.addr(), TcpTls { .. })
    }

    /// A client of the server at another address, with all else the same; `None` beside a Unix
    /// socket.
    pub(super) fn at(&self, (host, port): &Address) -> Option<Self> {
        let mut address = self.info.addr().clone();
        match &mut address {
            Tcp(known_host, known_port) | TcpTls { host: known_host, port: known_port, .. } => {
                known_host.clone_from(host);
                *known_port = *port;
            }
            _ => return None,
        }
        Some(Self { info: self.info.clone().set_addr(address), ..self.clone() })
    }

    /// A new connection, whose pushes go to `pushed`. It has no time limits.
    pub(super) async fn connect(
        &self,
        pushed: impl AsyncPushSender,
    ) -> RedisResult<MultiplexedConnection> {
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(pushed);
        let mut address = self.info.addr().clone();
        if let (Some(name), TcpTls { host, .. }) = (&self.server_name, &mut address) {
            let host = std::mem::replace(host, name.clone());
            config = config.set_dns_resolver(OneHost(host));
        }
        let client = Client::open(self.info.clone().set_addr(address))?;
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// What is published on these channels from now on.
    pub(super) async fn subscribe(&self, channels: &[&str]) -> RedisResult<Messages> {
        let (sender, pushed) = unbounded_channel();
        let mut connection = self.connect(sender).await?;
        connection.subscribe(channels).await?;
        Ok(Messages { pushed, _connection: connection })
    }
}

/// The messages of a subscription, which ends when they are dropped.
#[derive(Debug)]
pub(super) struct Messages {
    pushed: UnboundedReceiver<PushInfo>,
    _connection: MultiplexedConnection,
}

impl Messages {
    /// The next message; `None` once the connection is lost.
    pub(super) async fn next(&mut self) -> Option<Msg> {
        loop {
            let push = self.pushed.recv().await?;
            if push.kind == PushKind::Disconnection {
                return None;
            }
            if let Some(message) = Msg::from_push_info(push) {
                return Some(message);
            }
        }
    }
}

/// Finds the addresses of one host, whatever name the driver asks for.
struct OneHost(String);

impl AsyncDNSResolver for OneHost {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        _name: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let found: Vec<_> = lookup_host((self.0.as_str(), port)).await?.collect();
            Ok(Box::new(found.into_iter()) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        })
    }
}
