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

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bb8_redis::redis::ConnectionAddr::{Tcp, TcpTls};
use bb8_redis::redis::aio::{AsyncPushSender, MultiplexedConnection};
use bb8_redis::redis::io::AsyncDNSResolver;
use bb8_redis::redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use bb8_redis::redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionInfo, IntoConnectionInfo, Msg,
    ProtocolVersion, PushInfo, PushKind, RedisError, RedisFuture, RedisResult, TlsCertificates,
};
use tokio::net::lookup_host;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::url::{bad, parse, without_certificates};
use crate::conn::tls::{Certificates, Pem};
use crate::error::OpenError;
use crate::settings::RedisSettings;

pub(super) const PORT: u16 = 6379;

pub(super) type Address = (String, u16);

/// How to connect to a server.
#[derive(Debug, Clone)]
pub(super) struct RedisClient {
    info: ConnectionInfo,
    /// The name that the server's certificate is for; `None` for its host.
    server_name: Option<String>,
    pub(super) settings: RedisSettings,
}

impl RedisClient {
    /// A client of the one Redis at `url`, which may name certificates.
    pub(super) fn of_one(url: &str, settings: &RedisSettings) -> Result<Self, OpenError> {
        let is_unix = url.starts_with("redis+unix:") || url.starts_with("unix:");
        // The driver's own errors do not say what is wrong.
        let checked = if is_unix { Ok(()) } else { parse(url).map(drop) };
        checked.map_err(bad)?;
        let (url, certificates) = without_certificates(url).map_err(bad)?;
        Self::of(&url, &certificates, settings)
    }

    /// A client of the Redis at `url`: its credentials, database, TLS and socket options.
    pub(super) fn of(
        url: &str,
        certificates: &Certificates,
        settings: &RedisSettings,
    ) -> Result<Self, OpenError> {
        let bad_url = |error: RedisError| bad(error.to_string());
        let info = url.into_connection_info().map_err(bad_url)?;
        let timeout = settings.connect_timeout();
        // The kernel notices a peer that vanished. It counts in seconds, 1 to 32767 of them.
        let seconds =
            |time: Duration| time.clamp(Duration::from_secs(1), Duration::from_secs(32_767));
        let keepalive =
            TcpKeepalive::new().with_time(seconds(timeout * 5)).with_interval(seconds(timeout));
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(keepalive)
            .set_user_timeout(timeout * 5);
        let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_tcp_settings(tcp).set_redis_settings(redis);
        let client = if certificates.roots.is_some() || certificates.identity.is_some() {
            let Pem { roots, identity } = certificates.pem().map_err(bad)?;
            let client_tls = identity
                .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
            Client::build_with_tls(info, TlsCertificates { client_tls, root_cert: roots })
        } else {
            Client::open(info)
        };
        let info = client.map_err(bad_url)?.get_connection_info().clone();
        let server_name = certificates.server_name.clone();
        Ok(Self { info, server_name, settings: settings.clone() })
    }

    pub(super) fn uses_tls(&self) -> bool {
        matches!(self.info.addr(), TcpTls { .. })
    }

    /// A client of the server at another address, with all else the same.
    pub(super) fn at(&self, (host, port): &Address) -> Self {
        let mut address = self.info.addr().clone();
        if let Tcp(own_host, own_port) | TcpTls { host: own_host, port: own_port, .. } =
            &mut address
        {
            own_host.clone_from(host);
            *own_port = *port;
        }
        Self { info: self.info.clone().set_addr(address), ..self.clone() }
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
        let connected = client.get_multiplexed_async_connection_with_config(&config).await;
        connected.map_err(|error| if error.is_io_error() { self.unreachable(error) } else { error })
    }

    /// That the server at this address cannot be reached.
    pub(super) fn unreachable(&self, why: impl Display) -> RedisError {
        io::Error::other(format!("{}: {why}", self.info.addr())).into()
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
