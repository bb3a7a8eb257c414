//! The floors of the buckets: the fencing tokens that every later grant is above, where no row says
//! so.
//!
//! A row keeps the last fencing token of its key, and is removed when it is no longer needed.
//! Before that the sweep raises the floor of its bucket to that token and waits for
//! [`REMOVAL_PAUSE`]. A process that creates a row takes the floor from what it read within
//! [`READ_LASTS`], and the engine carries the creation out within [`GRANT_LASTS`] of that reading.
//!
//! Invariant: a grant on a removed row is above its last token. The floor was raised at `t`, and
//! the row removed at `t` + 10 s at the earliest. A creation that took the floor of before `t` is
//! carried out before `t` + 8 s, and then the row is still there, so its condition fails. All times
//! are the engine's. An engine without a clock carries a creation out only if the row of the floor
//! still has the version in which it was read: before the floor is raised, when the removed row is
//! there, or not at all.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use keylatch_core::lock::{FencingToken, LockState};
use keylatch_core::snapshot::SnapshotError;
use tokio::time::Instant;

use super::conditional::{EngineTime, Key, Row, Timeline, Version};
use super::value::Value;

/// For how long a process decides by a floor that it read.
const READ_LASTS: Duration = Duration::from_secs(6);
/// For how long after that reading the engine may carry the decision out.
const GRANT_LASTS: Duration = Duration::from_secs(8);
/// How long a sweep waits between raising a floor and removing the rows below it.
pub(super) const REMOVAL_PAUSE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Floors {
    read: HashMap<u8, Floor>,
    /// The last fencing tokens that this process came to, on an engine that judges them itself.
    given: HashMap<u8, FencingToken>,
    /// The buckets of which such an engine refused one.
    refused: HashSet<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Floor {
    last: FencingToken,
    version: Option<Version>,
    read_at: EngineTime,
    /// The same on the process's clock: the engine's may be set back, and would make the reading
    /// young.
    sent: Instant,
}

impl Floors {
    /// The floor of a bucket; `None` where it has to be read.
    pub(super) fn of(&self, bucket: u8, now: EngineTime) -> Option<FencingToken> {
        let floor = self.read.get(&bucket)?;
        let is_young = now < floor.read_at + READ_LASTS && floor.sent.elapsed() < READ_LASTS;
        is_young.then_some(floor.last)
    }

    /// The fencing token that one of a bucket is above, as far as this process knows: the engine
    /// judges.
    pub(super) fn known(&self, bucket: u8) -> FencingToken {
        let read = self.read.get(&bucket).map(|floor| floor.last).unwrap_or_default();
        self.given.get(&bucket).copied().unwrap_or_default().max(read)
    }

    /// Notes the last fencing token that this process came to in a bucket.
    pub(super) fn give(&mut self, bucket: u8, last: FencingToken) {
        let known = self.given.entry(bucket).or_default();
        *known = last.max(*known);
    }

    /// Notes that the engine refused one of this bucket, perhaps because its floor is higher.
    pub(super) fn refuse(&mut self, bucket: u8) {
        self.refused.insert(bucket);
    }

    /// Those of the buckets whose floors explain a refusal, each once.
    pub(super) fn refused(&self, buckets: impl Iterator<Item = u8>) -> Vec<u8> {
        let refused: HashSet<_> = buckets.filter(|bucket| self.refused.contains(bucket)).collect();
        refused.into_iter().collect()
    }

    /// Until when the engine may carry out a decision by the floor of a bucket.
    pub(super) fn lasts(&self, bucket: u8) -> EngineTime {
        self.read.get(&bucket).map_or(Duration::ZERO, |floor| floor.read_at + GRANT_LASTS)
    }

    /// The row of the floor of a bucket, and the version in which it was read.
    pub(super) fn row_of(&self, bucket: u8) -> (Key, Option<Version>) {
        (Key::Floor(bucket), self.read.get(&bucket).and_then(|floor| floor.version))
    }

    /// Forgets the floor of a bucket, because a decision by it was refused.
    pub(super) fn forget(&mut self, bucket: u8) {
        self.read.remove(&bucket);
    }

    /// Those of the buckets whose floors have to be read, each once.
    pub(super) fn to_read(&self, buckets: impl Iterator<Item = u8>, now: EngineTime) -> Vec<u8> {
        let mut missing: Vec<_> =
            buckets.filter(|bucket| self.of(*bucket, now).is_none()).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Notes the floors of buckets whose rows were read at a time of the engine, by a request of
    /// `sent`. Gives the rows that cannot be understood: nothing can be granted above them, so a
    /// key of the bucket that has no row is refused as the row of the floor would be.
    pub(super) fn note(
        &mut self,
        rows: impl IntoIterator<Item = (u8, Option<Row>)>,
        timeline: Option<&Timeline>,
        (read_at, sent): (EngineTime, Instant),
    ) -> HashMap<u8, Row> {
        let mut unknown = HashMap::new();
        for (bucket, row) in rows {
            self.refused.remove(&bucket);
            let version = row.as_ref().map(|row| row.version);
            if let Some(last) = floor_of(row.as_ref(), timeline) {
                self.read.insert(bucket, Floor { last, version, read_at, sent });
            } else if let Some(row) = row {
                unknown.insert(bucket, row);
            }
        }
        unknown
    }
}

/// The fencing token that the row of a floor has, which may not be there; `None` if the row cannot
/// be understood.
pub(super) fn floor_of(row: Option<&Row>, timeline: Option<&Timeline>) -> Option<FencingToken> {
    let Some(row) = row else { return Some(FencingToken::NONE) };
    Value::<LockState>::decode(row, timeline).ok().map(|value| value.last)
}

/// The row of a floor as an engine reads it that keeps the last fencing token of a bucket alone.
///
/// # Errors
///
/// The codec failed.
pub fn floor_row(last: FencingToken) -> Result<Row, SnapshotError> {
    let value = floor_value(last, Duration::ZERO).encode(None)?;
    Ok(Row { version: Version(u128::from(last.get())), value })
}

pub(super) fn floor_value(last: FencingToken, written: EngineTime) -> Value<LockState> {
    Value { last, written, ..Value::default() }
}
