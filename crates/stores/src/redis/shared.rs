use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bb8_redis::redis::aio::{ConnectionLike, MultiplexedConnection};
use bb8_redis::redis::{
    Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisFuture, RedisResult,
    ScriptInvocation, Value, pipe,
};
use tokio_util::sync::CancellationToken;

use super::replicas::{NeedsReplicas, Replicas};
use super::server::Life;
use keylatch_core::store::StoreError;

/// A connection that may be cloned and used by many at once.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) connection: MultiplexedConnection,
    pub(super) state: State,
    pub(super) replicas: Arc<Replicas>,
    /// The process at its other end.
    pub(super) life: Arc<Life>,
}

impl Shared {
    /// Runs a script. What it promises is not told before enough replicas have it.
    pub(super) async fn run<T: FromRedisValue + NeedsReplicas>(
        mut self,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, Failure> {
        let found = self.state.note(call.invoke_async(&mut self.connection)).await?;
        self.replicated(found).await
    }

    /// The same on keys that a node of a cluster is just being given.
    pub(super) async fn run_asking<T: FromRedisValue + NeedsReplicas>(
        self,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, Failure> {
        let mut asking = Asking(self.connection.clone());
        let found = self.state.note(call.invoke_async(&mut asking)).await?;
        self.replicated(found).await
    }

    async fn replicated<T: NeedsReplicas>(mut self, found: T) -> Result<T, Failure> {
        if !found.needs_replicas() {
            return Ok(found);
        }
        let waited = self.state.note(self.replicas.too_few(&mut self.connection)).await;
        match waited.map_err(Failure::after_execution)? {
            None => Ok(found),
            Some(few) => Err(Failure::TooFewReplicas(few)),
        }
    }
}

/// Sends each command right behind an `ASKING`, with nobody's between them.
struct Asking(MultiplexedConnection);

impl ConnectionLike for Asking {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let mut both = pipe();
            both.cmd("ASKING").add_command(cmd.clone());
            let answers = self.0.req_packed_commands(&both, 1, 1).await?;
            answers.into_iter().next().unwrap_or(Value::Nil).extract_error()
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("state", &self.state).finish_non_exhaustive()
    }
}

/// What is known of a connection by all who use it.
#[derive(Debug, Clone)]
pub(super) struct State {
    broken: Arc<AtomicBool>,
    /// Cancelled when the server is left for another.
    left: Option<CancellationToken>,
}

impl State {
    pub(super) fn new(left: Option<CancellationToken>) -> Self {
        Self { broken: Arc::default(), left }
    }

    /// The result of a command, with what it says of the connection taken note of.
    pub(super) async fn note<T>(
        &self,
        command: impl Future<Output = RedisResult<T>>,
    ) -> Result<T, Failure> {
        let result = match &self.left {
            None => command.await,
            Some(left) => left.run_until_cancelled(command).await.ok_or(Failure::Left)?,
        };
        result.map_err(|error| {
            let failure = Failure::Redis(error);
            if failure.breaks() {
                self.give_up();
            }
            failure
        })
    }

    /// Nobody begins a command on the connection any more.
    pub(super) fn give_up(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
            || self.left.as_ref().is_some_and(CancellationToken::is_cancelled)
    }
}

/// Why a command has no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// There was no connection to send it on.
    #[error("no connection: {0}")]
    Unreachable(String),
    /// The server must not be used, and was not.
    #[error("{0}")]
    Unfit(String),
    /// It was sent to a server that was left for another before it answered. An answer that comes
    /// later is that of a server which may know nothing of what was granted since.
    #[error("the server was left for another before it answered")]
    Left,
    /// It was executed, and so few replicas have it that a failover may forget it.
    #[error("{0} replicas have it, which are too few")]
    TooFewReplicas(u32),
    /// It was executed, and how many replicas have it could not be found out: `WAIT` came to this.
    #[error("the replicas were not waited for: {0}")]
    Uncounted(#[source] RedisError),
    /// It was sent, and came to this.
    #[error(transparent)]
    Redis(#[from] RedisError),
}

impl Failure {
    /// What a failed `WAIT` means for the command before it, which was executed whatever the failure says
    /// of the `WAIT`: it may not be tried again, nor counted as refused.
    fn after_execution(self) -> Self {
        match self {
            Self::Redis(error) => Self::Uncounted(error),
            other => other,
        }
    }

    /// Whether the connection is of no use any more. A server that turned replica is left, so that
    /// the next connection asks who it is.
    fn breaks(&self) -> bool {
        let Self::Redis(error) = self else { return false };
        error.is_io_error() || error.is_unrecoverable_error() || self.is_demotion()
    }

    /// Whether the server says that it is no master any more.
    pub(super) fn is_demotion(&self) -> bool {
        matches!(self, Self::Redis(error) if error.code() == Some("READONLY"))
    }

    /// Where a node of a cluster says that the keys are.
    pub(super) fn redirect(&self) -> Option<Redirect> {
        let Self::Redis(error) = self else { return None };
        let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
        let address = (host.to_owned(), port.parse().ok()?);
        Some(Redirect { address, asking: error.code() == Some("ASK") })
    }

    /// Whether nothing was executed, and the same may be taken elsewhere or a little later.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Unfit(_) | Self::Left | Self::TooFewReplicas(_) | Self::Uncounted(_) => false,
            Self::Redis(error) => error.code().is_some_and(|code| PASSING.contains(&code)),
        }
    }
}

/// Where to go with a step.
pub(super) struct Redirect {
    pub(super) address: (String, u16),
    /// Only with this step, since the keys are just being moved there.
    pub(super) asking: bool,
}

/// The refusals that are over once all know who is master of what.
const PASSING: [&str; 7] =
    ["ASK", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "READONLY", "TRYAGAIN"];

/// The errors by which Redis itself says that a command was not carried out. Of any other, such as
/// one of a proxy in between, nobody knows.
const REFUSALS: [&str; 17] = [
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOPERM",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "UNKILLABLE",
    "WRONGTYPE",
];

impl From<Failure> for StoreError {
    /// What a failed command means. Redis's own words stay out of it: they repeat the command, and
    /// with it the name and the token's hash.
    fn from(failure: Failure) -> Self {
        let error = match failure {
            Failure::Unreachable(cause) => return Self::Unreachable(cause.into()),
            Failure::Unfit(reason) => return Self::Refused(reason.into()),
            Failure::Left | Failure::TooFewReplicas(_) => return Self::Lost(failure.into()),
            Failure::Uncounted(error) => {
                let code = error.code().unwrap_or("nothing");
                return Self::Lost(format!("Redis answered {code} to WAIT").into());
            }
            Failure::Redis(error) => error,
        };
        match error.code().and_then(|code| REFUSALS.iter().find(|refusal| **refusal == code)) {
            Some(code) => Self::Refused(format!("Redis answered {code}").into()),
            None if error.code().is_some() => Self::Lost("Redis answered with an error".into()),
            None if error.kind() == ErrorKind::Parse => {
                Self::Lost("the reply is not one that this service expects".into())
            }
            None => Self::Lost(error.to_string().into()),
        }
    }
}
