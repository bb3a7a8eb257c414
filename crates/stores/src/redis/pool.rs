//! Connections to one server: a few, multiplexed, shared by all requests, and kept by bb8.
//!
//! A request checks out a connection, clones it, and returns it at once before it sends.
//! bb8-redis's own manager is not used: it never calls a connection broken, so it hands out dead
//! ones for as long as they are pooled, and it gives each command a timeout of 500 ms, after which
//! the result of an acquire would be lost.
//!
//! Invariant: a server gets a connection in the pool only if it is fit to keep locks ([`Server`]).
//! Tested over real servers that break, hang and restart, by the tests of Redis's connections.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bb8_redis::bb8::{self, ManageConnection, QueueStrategy, RunError};
use bb8_redis::redis::aio::SendError;
use bb8_redis::redis::{PushInfo, PushKind, cmd};
use keylatch_core::store::Tier;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::client::RedisClient;
use super::connection::{ConnectionState, ReplicaWait, SharedConnection};
use super::failure::Failure;
use super::server::Server;
use crate::conn::locked;
use crate::error::OpenError;

/// Checks that the server is fit to keep locks, if it replies.
pub(super) async fn check(client: RedisClient) -> Result<(), OpenError> {
    Manager::new(client, Some(CancellationToken::new())).check().await
}

/// A few connections to one server. Clones are the same pool.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    pool: bb8::Pool<Manager>,
    manager: Manager,
}

impl Pool {
    /// A pool of a server that is never retired.
    pub(super) async fn open(client: RedisClient) -> Result<Self, OpenError> {
        let manager = Manager::new(client, None);
        manager.check().await?;
        Ok(Self::of(manager))
    }

    /// A pool of a server until `retired` is cancelled. Then its connections break, and requests
    /// that wait for one fail at once.
    pub(super) fn until(retired: CancellationToken, client: RedisClient) -> Self {
        Self::of(Manager::new(client, Some(retired)))
    }

    fn of(manager: Manager) -> Self {
        let connections = manager.client.settings.connections;
        let pool = bb8::Pool::builder()
            .max_size(connections)
            .min_idle(connections)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_on_check_out(false)
            .queue_strategy(QueueStrategy::Fifo)
            .connection_timeout(manager.timeout())
            .build_unchecked(manager.clone());
        Self { pool, manager }
    }

    /// What the server is now. A `PING` would not do: a server that turned replica answers it too.
    pub(super) async fn inspect(&self) -> Result<Server, Failure> {
        let SharedConnection { mut connection, state, .. } = self.check_out().await?;
        let server = state.note(Server::inspect(&mut connection)).await?;
        if server.is_loading() {
            return Err(loading());
        }
        if let Some(reason) = self.manager.unfit(&server) {
            state.mark_broken();
            return Err(Failure::Unfit(reason));
        }
        Ok(server)
    }

    /// How many connections are subscribed to a channel at the server.
    pub(super) async fn subscribers(&self, channel: &str) -> Result<u64, Failure> {
        let SharedConnection { mut connection, state, .. } = self.check_out().await?;
        let mut ask = cmd("PUBSUB");
        ask.arg("NUMSUB").arg(channel);
        let (_, count): (String, u64) = state.note(ask.query_async(&mut connection)).await?;
        Ok(count)
    }

    pub(super) fn client(&self) -> &RedisClient {
        &self.manager.client
    }

    /// Cancelled when the server is retired; never of one that never is.
    pub(super) fn retired(&self) -> CancellationToken {
        self.manager.retired.clone().unwrap_or_default()
    }

    /// A connection that is not known to be broken.
    pub(super) async fn check_out(&self) -> Result<SharedConnection, Failure> {
        loop {
            let guard = match &self.manager.retired {
                None => self.pool.get().await,
                Some(retired) => {
                    let got = retired.run_until_cancelled(self.pool.get()).await;
                    got.ok_or_else(|| Failure::Unreachable("the server was retired".into()))?
                }
            };
            let guard = guard.map_err(|error| self.unreachable(error))?;
            if !guard.state.is_broken() {
                return Ok(guard.clone());
            }
        }
    }

    fn unreachable(&self, error: RunError<Failure>) -> Failure {
        Failure::Unreachable(match error {
            RunError::User(failure) => failure.to_string(),
            RunError::TimedOut => {
                let last = locked(&self.manager.last_error).clone();
                last.unwrap_or_else(|| "no connection yet".into())
            }
        })
    }
}

/// The server takes no commands yet, and what it reports of itself is not true afterwards.
fn loading() -> Failure {
    Failure::Unreachable("it is reading its data".into())
}

/// Opens connections for bb8, and knows which of them are broken.
#[derive(Debug, Clone)]
struct Manager {
    client: Arc<RedisClient>,
    /// Why the last attempt to connect failed: bb8 says only that it took too long.
    last_error: Arc<Mutex<Option<String>>>,
    /// Cancelled when the server is retired; `None` for a server that never is.
    retired: Option<CancellationToken>,
}

impl Manager {
    fn new(client: RedisClient, retired: Option<CancellationToken>) -> Self {
        Self { client: Arc::new(client), last_error: Arc::default(), retired }
    }

    fn timeout(&self) -> Duration {
        self.client.settings.connect_timeout()
    }

    /// Checks that the server is fit, if it replies.
    async fn check(&self) -> Result<(), OpenError> {
        match self.connect().await {
            Ok(_) => Ok(()),
            Err(failure @ Failure::Unfit(_)) => Err(OpenError::UnfitRedis(failure.to_string())),
            Err(Failure::Redis(error)) if !error.is_io_error() => {
                Err(OpenError::UnfitRedis(error.to_string()))
            }
            Err(failure) => {
                tracing::warn!(error = %failure, "Redis cannot be reached yet");
                Ok(())
            }
        }
    }

    /// Why a server must not keep locks.
    fn unfit(&self, server: &Server) -> Option<String> {
        server.unfit(self.retired.is_none(), self.client.settings.allow_eviction)
    }

    async fn connect_and_inspect(&self) -> Result<SharedConnection, Failure> {
        let state = ConnectionState::new(self.retired.clone());
        let noticed = state.clone();
        let pushed = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                noticed.mark_broken();
            }
            Ok::<_, SendError>(())
        };
        let mut connection = self.client.connect(pushed).await?;
        let server = Server::inspect(&mut connection).await?;
        if server.is_loading() {
            return Err(loading());
        }
        if self.retired.is_some() && server.is_replica() {
            // The report of the master is behind, or ahead, for a moment.
            return Err(Failure::Unreachable("it is a replica".into()));
        }
        if let Some(reason) = self.unfit(&server) {
            return Err(Failure::Unfit(reason));
        }
        // A server that is replaced by another is worth less than what it keeps itself.
        let tier = if self.retired.is_some() { Tier::Fenced } else { server.health().tier };
        tracing::info!(tier = tier.as_str(), server = %server, "connected to Redis");
        let replicas = Arc::new(ReplicaWait::new(self.client.settings.min_replicas));
        Ok(SharedConnection { connection, state, replicas, server: Arc::new(server) })
    }
}

impl ManageConnection for Manager {
    type Connection = SharedConnection;
    type Error = Failure;

    async fn connect(&self) -> Result<SharedConnection, Failure> {
        let limit = self.timeout();
        let connected = timeout(limit, self.connect_and_inspect()).await;
        let why = || format!("no connection within {limit:?}");
        let late = |_| Err(self.client.unreachable(why()).into());
        let connected = connected.unwrap_or_else(late);
        *locked(&self.last_error) = connected.as_ref().err().map(ToString::to_string);
        connected
    }

    async fn is_valid(&self, shared: &mut SharedConnection) -> Result<(), Failure> {
        // Not called: a check-out that pings costs a quarter of the throughput and hides nothing.
        Ok(cmd("PING").query_async(&mut shared.connection).await?)
    }

    fn has_broken(&self, shared: &mut SharedConnection) -> bool {
        shared.state.is_broken()
    }
}
