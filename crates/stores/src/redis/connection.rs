//! One multiplexed connection, shared by all requests.
//!
//! A command is sent on a clone, so that no command waits for another's reply. What the reply shows
//! of the connection is noted for all clones: a broken connection is never used again.
//!
//! Invariant: a reply that a failover must not forget ([`ScriptReply`]) is returned only once
//! `min_replicas` replicas have what it reports. Tested over real servers that break, hang and fail
//! over, by the tests of Redis's connections and replicas.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bb8_redis::redis::aio::MultiplexedConnection;
use bb8_redis::redis::{FromRedisValue, RedisResult, ScriptInvocation, cmd, pipe};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use super::server::Server;

/// How long replicas may take to copy a write.
const REPLICATION_MAX: Duration = Duration::from_millis(500);

/// The reply of a script.
pub(super) trait ScriptReply: Sized {
    /// Whether replicas must have what this reply reports, because a client relies on it: a grant,
    /// for one.
    fn needs_replicas(&self) -> bool {
        false
    }

    /// Notes when the script was sent, over a connection that was there.
    fn note_asked(&mut self, _asked: Instant) {}

    /// What is left of the reply when too few replicas have what it reports, or that is not known.
    fn unreplicated(self, failure: Failure) -> Result<Self, Failure> {
        Err(failure)
    }
}

/// The reply of a script that has nothing to say.
impl ScriptReply for () {}

/// A connection that many requests use at once. Clones are the same connection.
#[derive(Debug, Clone)]
pub(super) struct SharedConnection {
    pub(super) connection: MultiplexedConnection,
    pub(super) state: ConnectionState,
    pub(super) replicas: Arc<ReplicaWait>,
    /// What was at its other end when it was made.
    #[cfg_attr(not(feature = "redlock"), expect(dead_code, reason = "Redlock asks for it"))]
    pub(super) server: Arc<Server>,
}

impl SharedConnection {
    /// Runs a script, and returns its reply once enough replicas have what it reports. `asking` is
    /// for keys that a cluster is just moving to this node.
    pub(super) async fn run<T: FromRedisValue + ScriptReply>(
        mut self,
        call: &ScriptInvocation<'_>,
        asking: bool,
    ) -> Result<T, Failure> {
        let asked = Instant::now();
        let mut found: T = if asking {
            self.state.note(ask(call, &mut self.connection)).await?
        } else {
            self.state.note(call.invoke_async(&mut self.connection)).await?
        };
        found.note_asked(asked);
        if !found.needs_replicas() {
            return Ok(found);
        }
        let waited = self.state.note(self.replicas.too_few(&mut self.connection)).await;
        match waited {
            Ok(None) => Ok(found),
            Ok(Some(few)) => found.unreplicated(Failure::TooFewReplicas(few)),
            Err(failure) => found.unreplicated(failure.after_execution()),
        }
    }
}

/// Runs a script right behind an `ASKING`, with no other command between them.
async fn ask<T: FromRedisValue>(
    call: &ScriptInvocation<'_>,
    connection: &mut MultiplexedConnection,
) -> RedisResult<T> {
    // A node that lacks the script would get it, and the script again, without an `ASKING`.
    call.load_async(connection).await?;
    let mut both = pipe();
    both.cmd("ASKING").invoke_script(call).ignore_errors();
    let (asked, found): (RedisResult<()>, RedisResult<T>) = both.query_async(connection).await?;
    asked.and(found)
}

/// What all clones know of a connection.
#[derive(Debug, Clone)]
pub(super) struct ConnectionState {
    broken: Arc<AtomicBool>,
    /// Cancelled when the server is retired.
    retired: Option<CancellationToken>,
}

impl ConnectionState {
    pub(super) fn new(retired: Option<CancellationToken>) -> Self {
        Self { broken: Arc::default(), retired }
    }

    /// The result of a command. An error that breaks the connection is noted for all clones.
    pub(super) async fn note<T>(
        &self,
        command: impl Future<Output = RedisResult<T>>,
    ) -> Result<T, Failure> {
        let result = match &self.retired {
            None => command.await,
            Some(retired) => retired.run_until_cancelled(command).await.ok_or(Failure::Retired)?,
        };
        result.map_err(|error| {
            let failure = Failure::Redis(error);
            if failure.breaks() {
                self.mark_broken();
            }
            failure
        })
    }

    /// Lets no further command begin on the connection.
    pub(super) fn mark_broken(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    /// Whether no further command may begin on the connection.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
            || self.retired.as_ref().is_some_and(CancellationToken::is_cancelled)
    }
}

/// Waits until replicas have what was written on one connection.
///
/// `WAIT` holds up its connection, and with it all requests that share it. But one `WAIT` covers
/// everything written there before, so one is sent for all replies that came since the last one was
/// sent. No request waits for longer than two of them take, whatever the load.
#[derive(Debug, Default)]
pub(super) struct ReplicaWait {
    wanted: u32,
    sent: AtomicU64,
    /// The latest `WAIT` with a reply, and how many replicas it found.
    last: Mutex<(u64, u32)>,
}

impl ReplicaWait {
    /// Waits for this many replicas; for none if it is 0.
    pub(super) fn new(wanted: u32) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// How many replicas have what was written on the connection before this call, if they are too
    /// few; `None` if they are enough.
    pub(super) async fn too_few(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<Option<u32>> {
        if self.wanted == 0 {
            return Ok(None);
        }
        let before = self.sent.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        // A `WAIT` that was sent since then covers this call as well.
        if last.0 <= before {
            let round = self.sent.fetch_add(1, Ordering::SeqCst) + 1;
            let limit = u64::try_from(REPLICATION_MAX.as_millis()).unwrap_or(u64::MAX);
            let mut wait = cmd("WAIT");
            wait.arg(self.wanted).arg(limit);
            *last = (round, wait.query_async(connection).await?);
        }
        Ok((last.1 < self.wanted).then_some(last.1))
    }
}
