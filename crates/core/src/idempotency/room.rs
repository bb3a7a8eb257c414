//! Room for the answers that a store keeps in this process: how many bytes are kept, and how many more there
//! may be.
//!
//! The size of an answer is known when its run has ended, and then it is too late to refuse it. So a run takes room
//! for the longest answer that is kept, before it begins, and frees it when the answer is among what is kept. Where
//! there is none, the rules decide with the record whether the key needs any: a key that was used does not.
//! Invariant: what is kept and what is taken together are within the limit, apart from answers that come
//! without a run of this service: of calls, of persons, and of a file that was there. Tested in
//! `tests/api/kept_bytes.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A run takes this part of the limit at most, so that a small limit lets some run.
const LARGEST_PART: u64 = 16;

/// How many bytes may be kept, and how many are taken by runs that are under way.
#[derive(Debug)]
pub(super) struct AnswerRoom {
    limit: u64,
    taken: AtomicU64,
}

impl AnswerRoom {
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, taken: AtomicU64::new(0) })
    }

    /// Room for an answer of so many bytes beside those that are kept; `None` where there is none.
    pub(super) fn take(self: &Arc<Self>, kept: u64, bytes: u64) -> Option<TakenRoom> {
        let bytes = bytes.min(self.limit / LARGEST_PART).max(1);
        let fits = |taken: u64| {
            let taken = taken.saturating_add(bytes);
            (kept.saturating_add(taken) <= self.limit).then_some(taken)
        };
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(TakenRoom { all: Arc::clone(self), bytes })
    }
}

/// Room for one answer, until this is dropped.
#[derive(Debug)]
pub(super) struct TakenRoom {
    all: Arc<AnswerRoom>,
    bytes: u64,
}

impl Drop for TakenRoom {
    fn drop(&mut self) {
        self.all.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
