//! The watch over the redis-servers of a store, for the moments when one becomes a master.
//!
//! Goal: the checker knows each span in which a store may have forgotten an answer.
//!
//! Method: a task for each node asks `INFO` again and again, past all proxies. A span begins before
//! the last look at the old role or run id and ends after the first look at the new one, so the
//! change lies within it. `checker_separates_losses_by_failover_from_others` tests the use of the
//! spans.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylatch_testkit::RedisServer;
use redis::{Client, RedisResult, cmd};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::clock::{now, pass};
use super::history::Promotion;

/// How long a node may take to answer.
const SILENCE: Duration = Duration::from_secs(1);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// Looks at nodes all the time, and writes down which of them become masters when.
#[derive(Debug)]
pub(super) struct Masters {
    promotions: Arc<Mutex<Vec<Promotion>>>,
    _watching: Vec<AbortOnDropHandle<()>>,
}

impl Masters {
    pub(super) fn among(nodes: &[RedisServer]) -> Self {
        let promotions = Arc::<Mutex<Vec<_>>>::default();
        let watching = nodes.iter().map(|node| {
            let client = Client::open(format!("redis://{}", node.address())).expect("a Redis URL");
            AbortOnDropHandle::new(tokio::spawn(watch(client, Arc::clone(&promotions))))
        });
        Self { _watching: watching.collect(), promotions }
    }

    pub(super) fn promotions(&self) -> Vec<Promotion> {
        self.promotions.lock().expect("no panic").clone()
    }
}

/// A master that was paused and resumes is the same master; one that was restarted is another.
async fn watch(client: Client, promotions: Arc<Mutex<Vec<Promotion>>>) {
    let (mut known, mut seen) = (None, now());
    loop {
        let asked = now();
        if let Ok(Ok(info)) = timeout(SILENCE, info(&client)).await {
            let fact = |name: &str| info.lines().find(|line| line.starts_with(name));
            let found = (fact("run_id:").map(str::to_owned), fact("role:master").is_some());
            if found.1 && known.as_ref().is_some_and(|known| *known != found) {
                let promotion = Promotion { from: seen, to: now() };
                promotions.lock().expect("no panic").push(promotion);
            }
            (known, seen) = (Some(found), asked);
        }
        pass(PAUSE).await;
    }
}

async fn info(client: &Client) -> RedisResult<String> {
    let mut connection = client.get_multiplexed_async_connection().await?;
    cmd("INFO").query_async(&mut connection).await
}
