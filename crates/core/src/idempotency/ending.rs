//! Ending a run that its caller no longer waits for.
//!
//! An end that the store did not take is offered again behind the answer. A beginning whose answer
//! was lost is abandoned, because its caller did not begin the work. Each is tried until the lease
//! is surely over.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{BeginCommand, BeginReply, RecordKey, RunEnd};
use crate::lock::TokenHash;
use crate::retry::Retry;
use crate::store::{Effect, Store, StoreError};
use crate::task::BoxFuture;

/// How long a task waits for the store's answer to a beginning that no caller waits for.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// How long one try may take.
const TRY_LIMIT: Duration = Duration::from_secs(5);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(250);
/// When a run whose beginning got no answer is abandoned again: the beginning itself may still be on
/// its way to the store, behind the first abandonment.
const AFTER_LOST: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// How a run is to end, for the store to take.
#[derive(Debug)]
pub(super) struct RunEnding {
    pub(super) key: RecordKey,
    pub(super) token: TokenHash,
    /// `None` frees the key.
    pub(super) end: Option<RunEnd>,
}

impl RunEnding {
    /// Tries the step until the store answers it, or until the lease is surely over.
    pub(super) async fn finish(self, store: Arc<dyn Store>, lease: Duration) {
        let retry = Retry { try_limit: TRY_LIMIT, pause: PAUSE, limit: lease + ANSWER_LIMIT };
        let step = || self.step(&*store);
        if retry.run("the end of a run", step).await.is_none() {
            tracing::error!("the end of a run could not be stored");
        }
    }

    async fn step(&self, store: &dyn Store) -> Result<(), StoreError> {
        match &self.end {
            None => store.abandon(&self.key, &self.token).await.map(|_| ()),
            Some(end) => store.complete(&self.key, &self.token, end.clone()).await.map(|_| ()),
        }
    }
}

/// Abandons a run under which nothing was done.
pub(super) async fn abandon(store: Arc<dyn Store>, begin: Arc<BeginCommand>) {
    let ending = RunEnding { key: begin.key, token: begin.token, end: None };
    ending.finish(store, begin.lease).await;
}

/// Abandons a beginning of which only the answer is known to be lost.
pub(super) async fn abandon_lost(store: Arc<dyn Store>, begin: Arc<BeginCommand>) {
    abandon(Arc::clone(&store), Arc::clone(&begin)).await;
    for pause in AFTER_LOST {
        sleep(pause).await;
        abandon(Arc::clone(&store), Arc::clone(&begin)).await;
    }
}

/// Waits for the answer to a beginning whose caller has gone, and abandons what it began.
pub(super) async fn finish(
    store: Arc<dyn Store>,
    begin: Arc<BeginCommand>,
    step: BoxFuture<Result<BeginReply, StoreError>>,
) {
    let began_nothing = match timeout(ANSWER_LIMIT, step).await {
        Ok(Ok(BeginReply::Found(_) | BeginReply::Reused(_))) => true,
        Ok(Ok(BeginReply::Started(_) | BeginReply::Again(_))) | Err(_) => false,
        Ok(Err(error)) => error.effect() == Effect::NotExecuted,
    };
    if !began_nothing {
        abandon(store, begin).await;
    }
}
