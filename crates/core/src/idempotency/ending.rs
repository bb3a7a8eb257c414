use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::{Begin, Begun, Complete, RecordKey, RecordStore};
use crate::lock::{Outcome, StoreError, TokenHash};
use crate::task::BoxFuture;

/// How long a store's answer that nobody waits for is awaited.
const ORPHAN_LIMIT: Duration = Duration::from_secs(60);
/// How long one try of a step that is tried again may take.
const TRY_LIMIT: Duration = Duration::from_secs(5);
/// The pause between two tries.
const TRY_PAUSE: Duration = Duration::from_millis(250);
/// When a run whose beginning got no answer is given up again: the beginning itself may still be on
/// its way to the store, behind the first giving up.
const AFTER_LOST: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// A step that ends a run, to be tried until the store has answered it.
#[derive(Debug)]
pub(super) enum Ending {
    Abandon(RecordKey, TokenHash),
    Complete(Complete),
}

impl Ending {
    async fn step<S: RecordStore + ?Sized>(&self, store: &S) -> Result<(), StoreError> {
        match self {
            Self::Abandon(key, token) => store.abandon(key, token).await.map(|_| ()),
            Self::Complete(complete) => store.complete(complete).await.map(|_| ()),
        }
    }
}

/// Tries a step until the store answers it, or until the lease is surely over.
pub(super) async fn insist<S: RecordStore + ?Sized>(
    store: Arc<S>,
    ending: Ending,
    lease: Duration,
) {
    let trying = async {
        loop {
            match timeout(TRY_LIMIT, ending.step(&*store)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => tracing::debug!(%error, "the end of a run is not yet kept"),
                Err(_) => tracing::debug!("keeping the end of a run is not answered"),
            }
            tokio::time::sleep(TRY_PAUSE).await;
        }
    };
    if timeout(lease + ORPHAN_LIMIT, trying).await.is_err() {
        tracing::error!("the end of a run could not be kept");
    }
}

/// Gives a run up under which nothing was done.
pub(super) async fn give_up<S: RecordStore + ?Sized>(store: Arc<S>, ask: Arc<Begin>) {
    insist(store, Ending::Abandon(ask.key, ask.token), ask.lease).await;
}

/// The same for a beginning of which only the answer is known to be lost.
pub(super) async fn give_up_lost<S: RecordStore + ?Sized>(store: Arc<S>, ask: Arc<Begin>) {
    give_up(Arc::clone(&store), Arc::clone(&ask)).await;
    for pause in AFTER_LOST {
        tokio::time::sleep(pause).await;
        give_up(Arc::clone(&store), Arc::clone(&ask)).await;
    }
}

/// Waits for a beginning that nobody hears of, and gives up what it began.
pub(super) async fn give_up_unheard<S: RecordStore + ?Sized>(
    store: Arc<S>,
    ask: Arc<Begin>,
    call: BoxFuture<Result<Begun, StoreError>>,
) {
    let nothing_begun = match timeout(ORPHAN_LIMIT, call).await {
        Ok(Ok(Begun::Found(_) | Begun::Reused(_))) => true,
        Ok(Ok(Begun::Started(_) | Begun::Again(_))) | Err(_) => false,
        Ok(Err(error)) => error.outcome() == Outcome::NotExecuted,
    };
    if !nothing_begun {
        give_up(store, ask).await;
    }
}
