use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bb8_redis::bb8::{self, ManageConnection, QueueStrategy, RunError};
use bb8_redis::redis::aio::SendError;
use bb8_redis::redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use bb8_redis::redis::{
    AsyncConnectionConfig, Client, FromRedisValue, IntoConnectionInfo, ProtocolVersion, PushInfo,
    PushKind, RedisError, ScriptInvocation, cmd,
};
use tokio::time::timeout;

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

/// A few multiplexed connections to one server that all requests share, kept by bb8.
///
/// A request takes one, clones it, gives it back at once and then sends, so that no command waits
/// for another's answer.
#[derive(Debug)]
pub(super) struct Pool {
    pool: bb8::Pool<Manager>,
    /// Why the last attempt to connect failed: bb8 says only that it took too long.
    last_error: Arc<Mutex<Option<String>>>,
    allow_eviction: bool,
}

impl Pool {
    pub(super) async fn open(client: Client, settings: &Settings) -> Result<Self, OpenError> {
        let last_error = Arc::new(Mutex::new(None));
        let manager = Manager {
            client,
            timeout: settings.connect_timeout(),
            allow_eviction: settings.allow_eviction,
            last_error: Arc::clone(&last_error),
        };
        match manager.connect().await {
            Ok(_) => {}
            Err(error @ ConnectError::Unfit(_)) => return Err(OpenError::Unfit(error.to_string())),
            Err(ConnectError::Redis(error)) if !error.is_io_error() => {
                return Err(OpenError::Unfit(error.to_string()));
            }
            Err(error) => tracing::warn!(%error, "Redis cannot be reached yet"),
        }
        let pool = bb8::Pool::builder()
            .max_size(settings.connections)
            .min_idle(settings.connections)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_on_check_out(false)
            .queue_strategy(QueueStrategy::Fifo)
            .connection_timeout(manager.timeout)
            .build_unchecked(manager);
        Ok(Self { pool, last_error, allow_eviction: settings.allow_eviction })
    }

    /// Runs a script; a connection that turns out to be broken is not used again.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, Failure> {
        let Shared { mut connection, state } = self.check_out().await?;
        state.note(call.invoke_async(&mut connection)).await
    }

    /// Asks the server anew what it is: one that turned replica answers a `PING` all the same.
    pub(super) async fn ask(&self) -> Result<Server, Failure> {
        let Shared { mut connection, state } = self.check_out().await?;
        let server = state.note(Server::ask(&mut connection)).await?;
        if let Some(reason) = server.unfit(self.allow_eviction) {
            state.give_up();
            return Err(Failure::Unfit(reason));
        }
        Ok(server)
    }

    /// A connection that was whole when last heard of.
    pub(super) async fn check_out(&self) -> Result<Shared, Failure> {
        loop {
            let guard = self.pool.get().await.map_err(|error| self.unreachable(error))?;
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
    client: Client,
    timeout: Duration,
    allow_eviction: bool,
    last_error: Arc<Mutex<Option<String>>>,
}

impl Manager {
    async fn connect_and_ask(&self) -> Result<Shared, ConnectError> {
        let state = State::default();
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
        if let Some(reason) = server.unfit(self.allow_eviction) {
            return Err(ConnectError::Unfit(reason));
        }
        let health = server.health();
        tracing::info!(tier = health.tier.as_str(), server = %server, "connected to Redis");
        Ok(Shared { connection, state })
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
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
