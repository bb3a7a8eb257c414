use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bb8_redis::redis::aio::MultiplexedConnection;
use bb8_redis::redis::{RedisResult, cmd};
use tokio::sync::Mutex;

/// How long replicas may take to take over a step.
const LIMIT: Duration = Duration::from_millis(500);

/// Whether an answer is a promise, which a failover must not forget.
pub(super) trait NeedsReplicas {
    fn needs_replicas(&self) -> bool;
}

/// How far the replicas have come, of what was written on one connection.
///
/// `WAIT` holds up its connection, and with it all who share it. But one `WAIT` covers all that was
/// written there before, so it is asked once for all whose answers came since the last one was asked.
/// Nobody waits for longer than two take, whatever the load.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    wanted: u32,
    /// How many `WAIT`s were begun.
    begun: AtomicU64,
    /// Which one was the last to be answered, and how many replicas it found.
    last: Mutex<(u64, u32)>,
}

impl Replicas {
    pub(super) fn new(wanted: u32) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// How many replicas are too few, of those that have what was written on the connection before
    /// this call; `None` when they are enough.
    pub(super) async fn too_few(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<Option<u32>> {
        if self.wanted == 0 {
            return Ok(None);
        }
        let before = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        // One that was begun since then covers this as well.
        if last.0 <= before {
            let round = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            let limit = u64::try_from(LIMIT.as_millis()).unwrap_or(u64::MAX);
            let mut wait = cmd("WAIT");
            wait.arg(self.wanted).arg(limit);
            *last = (round, wait.query_async(connection).await?);
        }
        Ok((last.1 < self.wanted).then_some(last.1))
    }
}
