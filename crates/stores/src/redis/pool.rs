use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bb8_redis::bb8::{self, ManageConnection, QueueStrategy, RunError};
use bb8_redis::redis::aio::SendError;
use bb8_redis::redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use bb8_redis::redis::{
    AsyncConnectionConfig, Client, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind,
    RedisError, cmd,
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::replicas::Replicas;
use super::server::Server;
use super::shared::{Failure, Shared, State};
use super::{OpenError, Settings};

/// What knows the way to the Redis at `url`: credentials, database, TLS and how sockets are kept.
pub(super) fn client(url: &str, settings: &Settings) -> Result<Client, OpenError> {
    let bad_url = |error: RedisError| OpenError::BadRedisUrl(error.to_string());
    let info = url.into_connection_info().map_err(bad_url)?;
    let timeout = settings.connect_timeout();
    // A peer that vanished without a word is noticed by the kernel.
    // The kernel counts in seconds, 1 to 32767 of them.
    let seconds = |time: Duration| time.clamp(Duration::from_secs(1), Duration::from_secs(32_767));
    let keepalive =
        TcpKeepalive::new().with_time(seconds(timeout * 5)).with_interval(seconds(timeout));
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive)
        .set_user_timeout(timeout * 5);
    let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let info = info.set_tcp_settings(tcp).set_redis_settings(redis);
    Client::open(info).map_err(bad_url)
}

/// Whether the server that `client` knows the way to is fit to keep locks, as far as it answers.
pub(super) async fn check(client: Client, settings: &Settings) -> Result<(), OpenError> {
    let may_be_left = Some(CancellationToken::new());
    Manager::new(client, settings, may_be_left).check().await
}

/// A few multiplexed connections to one server that all requests share, kept by bb8.
///
/// A request takes one, clones it, gives it back at once and then sends, so that no command waits
/// for another's answer. Clones are the same pool.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    client: Arc<Client>,
    pool: bb8::Pool<Manager>,
    /// Why the last attempt to connect failed: bb8 says only that it took too long.
    last_error: Arc<Mutex<Option<String>>>,
    left: Option<CancellationToken>,
    allow_eviction: bool,
}

impl Pool {
    /// A pool of the server that `client` knows the way to.
    pub(super) async fn open(client: Client, settings: &Settings) -> Result<Self, OpenError> {
        let manager = Manager::new(client, settings, None);
        manager.check().await?;
        Ok(Self::of(manager, settings))
    }

    /// A pool of a server that is used until `left` is cancelled. Then its connections are broken,
    /// and who waits for it hears so at once.
    pub(super) fn until(left: CancellationToken, client: Client, settings: &Settings) -> Self {
        Self::of(Manager::new(client, settings, Some(left)), settings)
    }

    fn of(manager: Manager, settings: &Settings) -> Self {
        let (last_error, left) = (Arc::clone(&manager.last_error), manager.left.clone());
        let client = Arc::clone(&manager.client);
        let pool = bb8::Pool::builder()
            .max_size(settings.connections)
            .min_idle(settings.connections)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_on_check_out(false)
            .queue_strategy(QueueStrategy::Fifo)
            .connection_timeout(manager.timeout)
            .build_unchecked(manager);
        let allow_eviction = settings.allow_eviction;
        Self { client, pool, last_error, left, allow_eviction }
    }

    /// Asks the server anew what it is: one that turned replica answers a `PING` all the same.
    pub(super) async fn ask(&self) -> Result<Server, Failure> {
        let Shared { mut connection, state, .. } = self.check_out().await?;
        let server = state.note(Server::ask(&mut connection)).await?;
        if server.is_loading() {
            return Err(Failure::Unreachable(ConnectError::Loading.to_string()));
        }
        if let Some(reason) = server.unfit(self.allow_eviction) {
            state.give_up();
            return Err(Failure::Unfit(reason));
        }
        Ok(server)
    }

    /// What knows the way to the server.
    pub(super) fn client(&self) -> Arc<Client> {
        Arc::clone(&self.client)
    }

    /// A connection that was whole when last heard of.
    pub(super) async fn check_out(&self) -> Result<Shared, Failure> {
        loop {
            let guard = match &self.left {
                None => self.pool.get().await,
                Some(left) => {
                    let got = left.run_until_cancelled(self.pool.get()).await;
                    got.ok_or_else(|| Failure::Unreachable("the server was left".into()))?
                }
            };
            let guard = guard.map_err(|error| self.unreachable(error))?;
            if !guard.state.is_broken() {
                return Ok(guard.clone());
            }
        }
    }

    fn unreachable(&self, error: RunError<ConnectError>) -> Failure {
        let cause = match error {
            RunError::User(error) => error.to_string(),
            RunError::TimedOut => {
                locked(&self.last_error).clone().unwrap_or_else(|| "no connection yet".into())
            }
        };
        Failure::Unreachable(cause)
    }
}

/// Opens connections for bb8 and remembers which of them are broken.
///
/// bb8-redis's own manager never calls a connection broken and hands out the dead ones for as long
/// as they are pooled; it also gives every command a timeout of 500 ms, after which nobody would
/// see what came of an acquire.
struct Manager {
    client: Arc<Client>,
    timeout: Duration,
    allow_eviction: bool,
    last_error: Arc<Mutex<Option<String>>>,
    min_replicas: u32,
    /// Of a server that may be left for another.
    left: Option<CancellationToken>,
}

impl Manager {
    fn new(client: Client, settings: &Settings, left: Option<CancellationToken>) -> Self {
        Self {
            client: Arc::new(client),
            timeout: settings.connect_timeout(),
            allow_eviction: settings.allow_eviction,
            last_error: Arc::default(),
            min_replicas: settings.min_replicas,
            left,
        }
    }

    /// Whether the server is fit, as far as it answers.
    async fn check(&self) -> Result<(), OpenError> {
        match self.connect().await {
            Ok(_) => {}
            Err(error @ ConnectError::Unfit(_)) => return Err(OpenError::Unfit(error.to_string())),
            Err(ConnectError::Redis(error)) if !error.is_io_error() => {
                return Err(OpenError::Unfit(error.to_string()));
            }
            Err(error) => tracing::warn!(%error, "Redis cannot be reached yet"),
        }
        Ok(())
    }

    async fn connect_and_ask(&self) -> Result<Shared, ConnectError> {
        let state = State::new(self.left.clone());
        let noticed = state.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    noticed.give_up();
                }
                Ok::<_, SendError>(())
            });
        let mut connection =
            self.client.get_multiplexed_async_connection_with_config(&config).await?;
        let server = Server::ask(&mut connection).await?;
        if server.is_loading() {
            return Err(ConnectError::Loading);
        }
        if self.left.is_some() && server.is_replica() {
            return Err(ConnectError::Replica);
        }
        if let Some(reason) = server.unfit(self.allow_eviction) {
            return Err(ConnectError::Unfit(reason));
        }
        let health = server.health();
        tracing::info!(tier = health.tier.as_str(), server = %server, "connected to Redis");
        let replicas = Arc::new(Replicas::new(self.min_replicas));
        Ok(Shared { connection, state, replicas, life: Arc::new(server.life()) })
    }
}

impl ManageConnection for Manager {
    type Connection = Shared;
    type Error = ConnectError;

    async fn connect(&self) -> Result<Shared, ConnectError> {
        let connected = timeout(self.timeout, self.connect_and_ask()).await;
        let connected = connected.unwrap_or(Err(ConnectError::Timeout(self.timeout)));
        *locked(&self.last_error) = connected.as_ref().err().map(ToString::to_string);
        connected
    }

    async fn is_valid(&self, shared: &mut Shared) -> Result<(), ConnectError> {
        // Not called: a check-out that pings costs a quarter of the throughput and hides nothing.
        Ok(cmd("PING").query_async(&mut shared.connection).await?)
    }

    fn has_broken(&self, shared: &mut Shared) -> bool {
        shared.state.is_broken()
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(transparent)]
    Redis(#[from] RedisError),
    #[error("no connection within {0:?}")]
    Timeout(Duration),
    #[error("{0}")]
    Unfit(String),
    /// What is said of who is master is behind, or ahead, for a moment.
    #[error("it is a replica")]
    Replica,
    /// It takes no commands yet, and what it says of itself is not so afterwards.
    #[error("it is reading its data")]
    Loading,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
