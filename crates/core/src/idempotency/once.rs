//! What a caller of [`IdempotencyService::once`](super::IdempotencyService::once) asks for and reads.

use std::time::Duration;

use super::{Fingerprint, OnCrash, RecordKey, RecordView, RunEnd};
use crate::store::StoreError;

/// What is to be done once.
#[derive(Debug, Clone, Copy)]
pub struct RunRequest {
    /// The record.
    pub key: RecordKey,
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
}

/// What the work of a run came to.
#[derive(Debug)]
pub struct RunResult<T> {
    /// The answer to the caller.
    pub answer: T,
    /// What the store keeps for repeats; `None` frees the key.
    pub end: Option<RunEnd>,
}

/// What became of an [`RunRequest`].
#[derive(Debug)]
pub enum OnceRun<T> {
    /// It was done now.
    Ran {
        /// The answer.
        answer: T,
        /// For how long it is kept, if it is.
        kept: Option<Duration>,
    },
    /// It was done before, is being done, or its outcome is unknown.
    Found(RecordView),
    /// The key was used for something else.
    Reused(RecordView),
}

/// Why it is not known what became of an [`RunRequest`]. The work was not begun.
#[derive(Debug, thiserror::Error)]
pub enum IdempotencyError {
    /// The store could not find out.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The operating system gave no random bytes for a token.
    #[error("no random bytes for a token")]
    Random(#[from] getrandom::Error),
}
