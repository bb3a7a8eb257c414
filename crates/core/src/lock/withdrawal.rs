//! Withdrawing what an attempt got that no client reads.
//!
//! A client that goes away, a deadline and a lost response each leave an attempt whose grant or
//! queue entry has no reader. A task of the service withdraws it, and tries until the store has
//! answered once. A withdrawal names its attempt, so it never takes what a later attempt of the
//! same token got. The tests of leaving and the campaigns hold it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use super::{AcquireCommand, AcquireReply, LockSet};
use crate::retry::{undo_lost, until_done};
use crate::store::{Effect, Store, StoreError};
use crate::task::BoxFuture;

/// How long a task waits for the store's answer to an acquire that no caller waits for.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// An attempt that may have got something.
#[derive(Debug, Clone)]
pub(super) struct PendingAttempt {
    pub(super) names: LockSet,
    pub(super) command: AcquireCommand,
}

/// Waits for the response to an acquire whose client has gone, and withdraws what it got.
pub(super) async fn finish(
    store: Arc<dyn Store>,
    attempt: Arc<PendingAttempt>,
    step: BoxFuture<Result<AcquireReply, StoreError>>,
    withdrawn: Arc<AtomicU64>,
) {
    let got_nothing = match timeout(ANSWER_LIMIT, step).await {
        Ok(Ok(AcquireReply::Granted(_))) => return withdraw_grant(store, attempt, withdrawn).await,
        // A named entry may be new although the grant is not.
        Ok(Ok(AcquireReply::Repeated(_))) => attempt.command.entry.is_none(),
        Ok(Ok(AcquireReply::Busy(_))) => attempt.command.queue.is_none(),
        Ok(Ok(AcquireReply::Crowded(_) | AcquireReply::NotAlone(_))) => true,
        Ok(Ok(AcquireReply::WaitEnded(_) | AcquireReply::Full)) => true,
        Ok(Err(error)) => error.effect() == Effect::NotExecuted,
        Err(_) => false,
    };
    if !got_nothing {
        withdraw(store, attempt).await;
    }
}

/// Withdraws what is known to be a grant, and counts it in `withdrawn`.
pub(super) async fn withdraw_grant(
    store: Arc<dyn Store>,
    attempt: Arc<PendingAttempt>,
    withdrawn: Arc<AtomicU64>,
) {
    withdraw(store, attempt).await;
    withdrawn.fetch_add(1, Ordering::Relaxed);
}

/// Withdraws what an attempt may have got. It tries until the store has answered once, however long
/// that takes: an engine that tells no time may carry the attempt out late, and its lease lasts
/// from then.
pub(super) async fn withdraw(store: Arc<dyn Store>, attempt: Arc<PendingAttempt>) {
    let PendingAttempt { names, command } = &*attempt;
    let step = || store.withdraw(names, &command.token, command.attempt);
    until_done("a withdrawal", step).await;
}

/// Withdraws an attempt of which only the answer is known to be lost.
pub(super) async fn withdraw_lost(store: Arc<dyn Store>, attempt: Arc<PendingAttempt>) {
    undo_lost(|| withdraw(Arc::clone(&store), Arc::clone(&attempt))).await;
}
