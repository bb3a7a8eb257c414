//! A server that reports the masters: a sentinel, or a node of a cluster.
//!
//! Each source has its own connection, which breaks when a reply does not come in time. Tested over
//! real servers by the tests of Sentinel and of Cluster.

use std::time::Duration;

use bb8_redis::redis::aio::{MultiplexedConnection, SendError};
use bb8_redis::redis::{ErrorKind, FromRedisValue, Pipeline, PushInfo, RedisError};
use tokio::time::timeout;

use super::super::client::RedisClient;

const REPLY_MAX: Duration = Duration::from_millis(500);

/// A server that a discovery asks again and again about the masters, on its own connection.
#[derive(Debug)]
pub(super) struct TopologySource {
    pub(super) client: RedisClient,
    connection: Option<MultiplexedConnection>,
}

impl TopologySource {
    /// A source that connects at its first question.
    pub(super) fn new(client: RedisClient) -> Self {
        Self { client, connection: None }
    }

    /// Sends all questions in one write.
    pub(super) async fn query<T: FromRedisValue>(
        &mut self,
        questions: &Pipeline,
    ) -> Result<T, RedisError> {
        let querying = async {
            let connection = match &mut self.connection {
                Some(connection) => connection,
                none => {
                    none.insert(self.client.connect(|_: PushInfo| Ok::<_, SendError>(())).await?)
                }
            };
            questions.query_async(connection).await
        };
        let reply = timeout(REPLY_MAX, querying).await;
        let reply = reply.unwrap_or_else(|_| Err(self.client.unreachable("no response in time")));
        if reply.as_ref().is_err_and(|error| error.code().is_none()) {
            self.connection = None;
        }
        reply
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum MasterLookupError {
    /// All sentinels replied, and none has a master of this name.
    #[error("none of the sentinels knows a master `{0}`")]
    UnknownName(String),
    /// The last source that failed refused the question.
    #[error("the question for the master was refused: {0}")]
    Refused(RedisError),
    /// No source replied with a master.
    #[error("the master is not known: {0}")]
    NoReply(String),
}

impl MasterLookupError {
    /// Why no source named a master, by the last one that failed.
    pub(super) fn of(error: Option<RedisError>) -> Self {
        match error {
            Some(error) if is_refusal(&error) => Self::Refused(error),
            Some(error) => Self::NoReply(error.to_string()),
            None => Self::NoReply("no master".to_owned()),
        }
    }

    /// Whether only a change of the configuration would help.
    pub(super) fn is_misconfiguration(&self) -> bool {
        matches!(self, Self::UnknownName(_) | Self::Refused(_))
    }
}

/// Whether the server would refuse the same question again.
fn is_refusal(error: &RedisError) -> bool {
    let refusals = ["ERR", "NOAUTH", "NOPERM", "WRONGPASS"];
    error.kind() == ErrorKind::AuthenticationFailed
        || error.code().is_some_and(|code| refusals.contains(&code))
}
