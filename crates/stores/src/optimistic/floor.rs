//! The floors of the buckets: the fencing tokens that every later grant is above, where no row says so.
//!
//! A row keeps the last fencing token of its key, and is removed when it is no longer needed. Before that
//! the sweep raises the floor of its bucket to that token and waits for [`REMOVAL_PAUSE`]. A process that
//! creates a row takes the floor from what it read within [`READ_LASTS`], and the engine carries the
//! creation out within [`GRANT_LASTS`] of that reading.
//!
//! Invariant: a grant on a removed row is above its last token. The floor was raised at `t`, and the row
//! removed at `t` + 10 s at the earliest. A creation that took the floor of before `t` is carried out
//! before `t` + 8 s, and then the row is still there, so its condition fails. All times are the engine's.

use std::collections::HashMap;
use std::time::Duration;

use keylatch_core::lock::{FencingToken, LockState};
use tokio::time::Instant;

use super::conditional::{EngineTime, Row};
use super::value::Value;

/// For how long a process decides by a floor that it read.
const READ_LASTS: Duration = Duration::from_secs(6);
/// For how long after that reading the engine may carry the decision out.
const GRANT_LASTS: Duration = Duration::from_secs(8);
/// How long a sweep waits between raising a floor and removing the rows below it.
pub(super) const REMOVAL_PAUSE: Duration = Duration::from_secs(10);

/// The floors that this process has read.
#[derive(Debug, Default)]
pub(super) struct Floors {
    read: HashMap<u8, Floor>,
}

#[derive(Debug, Clone, Copy)]
struct Floor {
    last: FencingToken,
    read_at: EngineTime,
    /// The same on the process's clock: the engine's may be set back, and would make the reading young.
    sent: Instant,
}

impl Floors {
    /// The floor of a bucket; `None` where it has to be read.
    pub(super) fn of(&self, bucket: u8, now: EngineTime) -> Option<FencingToken> {
        let floor = self.read.get(&bucket)?;
        let is_young = now < floor.read_at + READ_LASTS && floor.sent.elapsed() < READ_LASTS;
        is_young.then_some(floor.last)
    }

    /// Until when the engine may carry out a decision by the floor of a bucket.
    pub(super) fn lasts(&self, bucket: u8) -> EngineTime {
        self.read.get(&bucket).map_or(Duration::ZERO, |floor| floor.read_at + GRANT_LASTS)
    }

    /// Those of the buckets whose floors have to be read, each once.
    pub(super) fn to_read(&self, buckets: impl Iterator<Item = u8>, now: EngineTime) -> Vec<u8> {
        let mut missing: Vec<_> =
            buckets.filter(|bucket| self.of(*bucket, now).is_none()).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Notes the rows of floors that were read at `now`, by a request of `sent`. A row that cannot be understood leaves its floor
    /// unknown, so that nothing is created above it.
    pub(super) fn note(
        &mut self,
        buckets: &[u8],
        rows: &[Option<Row>],
        now: EngineTime,
        sent: Instant,
    ) {
        for (bucket, row) in buckets.iter().zip(rows) {
            let last = match row {
                None => Some(FencingToken::NONE),
                Some(row) => floor_of(row),
            };
            if let Some(last) = last {
                self.read.insert(*bucket, Floor { last, read_at: now, sent });
            }
        }
    }
}

/// The fencing token that the row of a floor has.
pub(super) fn floor_of(row: &Row) -> Option<FencingToken> {
    Value::<LockState>::decode(&row.value).ok().map(|value| value.last)
}

/// The row of a floor.
pub(super) fn floor_value(last: FencingToken, written: EngineTime) -> Value<LockState> {
    Value { state: LockState::default(), last, written }
}
