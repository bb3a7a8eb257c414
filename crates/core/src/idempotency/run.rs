//! A run: what a caller of [`IdempotencyService::once`](super::IdempotencyService::once) asks for
//! and reads, what its waiters share, and how the service ends it when its caller no longer waits.
//!
//! An end that the store did not take is offered again behind the response. A beginning whose
//! response was lost is abandoned, because its caller did not begin the work. Invariant: an end is
//! tried until the store answers or the lease is surely over, an abandonment until the store
//! answers. The tests of the layer and the campaign of keys hold it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

use super::{
    BeginCommand, BeginReply, CompleteReply, Fingerprint, NoRoom, OnCrash, RecordKey, RecordScope,
    RecordStatus, RecordView, ResolveCommand, ResolveReply, RunEnd, Settlement, UnknownReason,
};
use crate::lock::{FencingToken, TokenHash};
use crate::retry::{PAUSE, Retry, TRY_LIMIT, undo_lost, until_done};
use crate::store::{Effect, Store, StoreError};
use crate::task::BoxFuture;

/// How long a task waits for the store's answer to a beginning that no caller waits for.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// What is to be done once.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// The digest of idempotency key and scope.
    pub key: RecordKey,
    /// What it is about, for a person to recognise it.
    pub scope: RecordScope,
    /// What is to be done.
    pub fingerprint: Fingerprint,
    /// How long the run may last without a renewal; the watchdog renews at a third.
    pub lease: Duration,
    /// How long the answer is kept.
    pub retention: Duration,
    /// What a process that dies in the middle leaves behind.
    pub on_crash: OnCrash,
    /// What a panic comes to: an unknown outcome, or nothing at all.
    pub panic_releases: bool,
    /// How long to wait for the end of a run that is under way.
    pub wait: Duration,
    /// How long the store may take for the beginning and for the end, where that is less than the
    /// service allows it.
    pub step_limit: Option<Duration>,
    /// The most bytes of the response that are kept.
    pub answer_bytes: usize,
}

impl RunRequest {
    /// The command that begins the run, under this token, if there is room for its response.
    pub(super) fn begin(&self, token: TokenHash, has_room: bool) -> BeginCommand {
        let Self { key, fingerprint, lease, retention, on_crash, .. } = *self;
        let scope = self.scope.clone();
        BeginCommand { key, scope, token, fingerprint, lease, retention, on_crash, has_room }
    }
}

/// What the work of a run came to.
#[derive(Debug)]
pub struct RunResult<T> {
    /// The response to the caller.
    pub answer: T,
    /// What the store keeps for repeats; `None` frees the key.
    pub end: Option<RunEnd>,
    /// The work itself, where the caller stopped waiting for it and `end` is an unknown outcome.
    pub late: Option<LateWork>,
}

/// Work that continues after its outcome was recorded as unknown. If it ends in time, its end
/// settles the record as a person would.
pub struct LateWork {
    /// What the work comes to; `None` frees the key.
    pub end: BoxFuture<Option<RunEnd>>,
    /// How long it may take.
    pub limit: Duration,
}

impl fmt::Debug for LateWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LateWork").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl LateWork {
    /// Settles the outcome of the run with this fencing token, unless a person was sooner.
    pub(super) async fn settle(
        self,
        store: Arc<dyn Store>,
        key: RecordKey,
        fencing_token: FencingToken,
    ) {
        let end = match timeout(self.limit, self.end).await {
            Ok(None) => Settlement::NotExecuted,
            Ok(Some(RunEnd::Done(kept))) => Settlement::Done(kept),
            Ok(Some(RunEnd::DoneFor(kept, retention))) => Settlement::DoneFor(kept, retention),
            Ok(Some(RunEnd::Unknown(_) | RunEnd::SentOn(..))) | Err(_) => return,
        };
        let resolve = ResolveCommand { key, fencing_token: Some(fencing_token), end };
        let retry = Retry { try_limit: TRY_LIMIT, pause: PAUSE, limit: ANSWER_LIMIT };
        let step = || settle_step(&*store, &resolve);
        if retry.run("a late answer", step).await.is_none() {
            tracing::error!("a late answer could not be stored");
        }
    }
}

async fn settle_step(store: &dyn Store, resolve: &ResolveCommand) -> Result<(), StoreError> {
    match store.resolve(resolve).await? {
        ResolveReply::Refused(RecordView { phase: RecordStatus::InFlight { .. }, .. }) => {
            // The unknown outcome is still on its way to the store.
            Err(StoreError::Refused("the run has not ended yet".into()))
        }
        _ => Ok(()),
    }
}

/// What became of an [`RunRequest`].
#[derive(Debug)]
pub enum OnceRun<T> {
    /// It was done now.
    Ran {
        /// The response.
        answer: T,
        /// For how long it is kept, if it is.
        kept: Option<Duration>,
    },
    /// It was done before, is being done, or its outcome is unknown.
    Found(RecordView),
    /// The key was used for something else.
    Reused(RecordView),
    /// The run was under way when the service ended.
    Interrupted,
}

/// Why it is not known what became of an [`RunRequest`]. The work was not begun.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdempotencyError {
    /// The store could not find out.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store keeps as much of records in this process as it may.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// The operating system gave no random bytes for a token.
    #[error("no random bytes for a token")]
    Random(#[from] getrandom::Error),
}

impl IdempotencyError {
    /// The error of a request that may have waited for a run of its key. That run may have done the
    /// work, so the outcome is unknown although the store was not reached.
    pub(super) fn after_a_wait(self, has_waited: bool) -> Self {
        match self {
            Self::Store(StoreError::Unreachable(why)) if has_waited => StoreError::Lost(why).into(),
            error => error,
        }
    }
}

/// What the waiters of one run share, in the service's registry of waiters.
#[derive(Debug, Default)]
pub(super) struct RunWaiters {
    /// Notified when the run may have ended.
    pub(super) ended: Notify,
    /// Held by the one waiter that looks at the store for all of them: an end in another process
    /// wakes no waiter of this one.
    pub(super) polling: Mutex<()>,
}

/// How a run is to end, for the store to take.
#[derive(Debug)]
pub(super) struct RunEnding {
    pub(super) key: RecordKey,
    pub(super) token: TokenHash,
    pub(super) fencing_token: FencingToken,
    /// `None` frees the key.
    pub(super) end: Option<RunEnd>,
}

impl RunEnding {
    /// Tries the step until the store answers it, for long enough for the lease to be over.
    pub(super) async fn finish(self, store: Arc<dyn Store>, lease: Duration) {
        let retry = Retry { try_limit: TRY_LIMIT, pause: PAUSE, limit: lease + ANSWER_LIMIT };
        let step = || self.step(&*store);
        if retry.run("the end of a run", step).await.is_none() {
            tracing::error!("the end of a run could not be stored");
        }
    }

    /// Ends the run; `None` where it was to free its key. A response that comes after the lease
    /// settles the unknown outcome as a person would, unless one was sooner: nothing else has run.
    /// A key that others have read to be unknown is not freed.
    pub(super) async fn step(
        &self,
        store: &dyn Store,
    ) -> Result<Option<CompleteReply>, StoreError> {
        let Self { key, token, fencing_token, .. } = self;
        let Some(end) = &self.end else {
            store.abandon(key, token).await?;
            return Ok(None);
        };
        let (view, end) = match (store.complete(key, token, end.clone()).await?, end.clone()) {
            (CompleteReply::Refused(view), RunEnd::Done(kept)) => (view, Settlement::Done(kept)),
            (CompleteReply::Refused(view), RunEnd::DoneFor(kept, retention)) => {
                (view, Settlement::DoneFor(kept, retention))
            }
            (reply, _) => return Ok(Some(reply)),
        };
        let reason = UnknownReason::Interrupted;
        let has_lapsed =
            matches!(view.phase, RecordStatus::Unknown { reason: why, .. } if why == reason);
        if !has_lapsed || view.fencing_token != *fencing_token {
            return Ok(Some(CompleteReply::Refused(view)));
        }
        let resolve = ResolveCommand { key: *key, fencing_token: Some(*fencing_token), end };
        Ok(Some(match store.resolve(&resolve).await? {
            ResolveReply::Completed(view) => CompleteReply::Done(view),
            ResolveReply::Refused(view) => CompleteReply::Refused(view),
            ResolveReply::Freed(_) | ResolveReply::Absent => CompleteReply::Absent,
        }))
    }
}

/// Abandons a run under which nothing was done. It tries until the store has answered once, however
/// long that takes: an engine that tells no time may carry the beginning out late, and nobody would
/// end that run.
pub(super) async fn abandon(store: Arc<dyn Store>, begin: Arc<BeginCommand>) {
    until_done("an abandonment", || store.abandon(&begin.key, &begin.token)).await;
}

/// Abandons a beginning of which only the answer is known to be lost.
pub(super) async fn abandon_lost(store: Arc<dyn Store>, begin: Arc<BeginCommand>) {
    undo_lost(|| abandon(Arc::clone(&store), Arc::clone(&begin))).await;
}

/// Waits for the response to a beginning whose caller has gone, and abandons what it began.
pub(super) async fn finish(
    store: Arc<dyn Store>,
    begin: Arc<BeginCommand>,
    step: BoxFuture<Result<BeginReply, StoreError>>,
) {
    let began_nothing = match timeout(ANSWER_LIMIT, step).await {
        Ok(Ok(BeginReply::Found(_) | BeginReply::Reused(_) | BeginReply::NoRoom)) => true,
        Ok(Ok(BeginReply::Started(_) | BeginReply::Again(_))) | Err(_) => false,
        Ok(Err(error)) => error.effect() == Effect::NotExecuted,
    };
    if !began_nothing {
        abandon(store, begin).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_that_went_during_a_wait_leaves_it_unknown_whether_the_request_ran() {
        let gone = || IdempotencyError::from(StoreError::Unreachable("refused".into()));
        for (has_waited, effect) in [(false, Effect::NotExecuted), (true, Effect::Unknown)] {
            let error = gone().after_a_wait(has_waited);
            let IdempotencyError::Store(error) = error else { panic!("{error:?}") };
            assert_eq!(error.effect(), effect, "{has_waited}");
        }
    }
}
