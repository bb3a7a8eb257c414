use std::fmt;
use std::time::Duration;

use bb8_redis::redis::aio::MultiplexedConnection;
use bb8_redis::redis::{
    AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, Pipeline, RedisError,
};
use tokio::time::timeout;

/// How long an answer is awaited.
const LIMIT: Duration = Duration::from_millis(500);

/// A server that is asked again and again who is master of what, on a connection of its own.
pub(super) struct Informant {
    client: Client,
    connection: Option<MultiplexedConnection>,
}

impl Informant {
    pub(super) fn new(client: Client) -> Self {
        Self { client, connection: None }
    }

    /// Asks in one write.
    pub(super) async fn ask<T: FromRedisValue>(
        &mut self,
        questions: &Pipeline,
    ) -> Result<T, RedisError> {
        let asking = async {
            let connection = match &mut self.connection {
                Some(connection) => connection,
                none => none.insert(connect(&self.client).await?),
            };
            questions.query_async(connection).await
        };
        let silent = || RedisError::from((ErrorKind::Io, "no answer in time"));
        let answer = timeout(LIMIT, asking).await.unwrap_or_else(|_| Err(silent()));
        if answer.as_ref().is_err_and(|error| error.code().is_none()) {
            self.connection = None;
        }
        answer
    }
}

impl fmt::Debug for Informant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informant").finish_non_exhaustive()
    }
}

async fn connect(client: &Client) -> Result<MultiplexedConnection, RedisError> {
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await
}
