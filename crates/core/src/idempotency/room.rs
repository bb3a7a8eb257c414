//! Room for records: how many bytes a store has of them in this process, for whom, and how many
//! more there may be.
//!
//! A record counts from its beginning to its end, in every state and with all that it has. The
//! store counts it when it writes it down, so every end counts, whoever caused it. The size of a
//! response is known when its run has ended, and then it is too late to refuse it. So a run takes
//! room for the longest answer that is kept, before it begins, and frees it when the answer is
//! among what is kept. Where there is none, the rules decide with the record whether the key needs
//! any: a key that was used does not.
//!
//! A [`Share`] has at most as much as it leaves free, and its guard four times as much as that
//! leaves free, so one client fills no guard, and one guard not all. Records that were there at a
//! start have no share. Invariant: what is kept and taken together are within the limit, apart from
//! responses that come without a run of this service: of calls, of persons, and of a file that was
//! there. Tested in `tests/api/kept_bytes.rs`.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// A run takes this part of the limit at most, so that a small limit lets some run.
const LARGEST_PART: u64 = 16;
/// How many times as much as it leaves free a guard may have.
const OF_GUARD: u64 = 4;

/// In whose part of the room a record counts: that of a client of a guard, or of the API.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Share {
    guard: u64,
    client: u64,
}

impl Share {
    /// That of a client, by its principal or address. No two processes have the same numbers.
    pub fn of(guard: &str, client: impl Hash) -> Self {
        static NUMBERS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self { guard: NUMBERS.hash_one(guard), client: NUMBERS.hash_one(client) }
    }

    /// The whole, the guard and the client, as what is used is counted by.
    fn parts(self) -> [(Option<u64>, Option<u64>); 3] {
        [(None, None), (Some(self.guard), None), (Some(self.guard), Some(self.client))]
    }
}

/// How much there may be of records.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoomLimits {
    pub(super) bytes: u64,
    /// How many records of a guard may be without a known outcome.
    pub(super) unknown: u64,
}

/// Why a run does not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoRoom {
    /// The records of the client, of its guard or of all have as many bytes as they may.
    #[error("no room for the bytes of a record")]
    Bytes,
    /// As many records of the client or of its guard are without a known outcome as may be.
    #[error("too many outcomes are unknown")]
    Unknown,
}

/// How much a store has of records in this process, and how much is taken by runs that are under
/// way.
#[derive(Debug, Default)]
pub struct RecordRoom(Mutex<Uses>);

/// What is used, by the parts of shares.
#[derive(Debug, Default)]
struct Uses(HashMap<(Option<u64>, Option<u64>), Use>);

/// What is used of the room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    pub(super) bytes: u64,
    /// How many records are without a known outcome.
    pub(super) unfinished: u64,
}

impl RecordRoom {
    /// How many bytes are kept and taken.
    pub fn bytes(&self) -> u64 {
        let [all, ..] = self.uses().of(Share::default());
        all.bytes
    }

    /// Counts a record that used `old` and uses `new`.
    pub fn count(&self, old: (Share, Use), new: (Share, Use)) {
        if old != new {
            let mut uses = self.uses();
            uses.change(new, u64::wrapping_add);
            uses.change(old, u64::wrapping_sub);
        }
    }

    /// Room for the response of one more run.
    pub(super) fn take(
        self: &Arc<Self>,
        share: Share,
        bytes: u64,
        limits: RoomLimits,
    ) -> Result<TakenRoom, NoRoom> {
        let [_, of_guard, own] = self.uses().of(share);
        if own.unfinished >= limits.unknown.saturating_sub(of_guard.unfinished) {
            return Err(NoRoom::Unknown);
        }
        self.take_bytes(share, bytes.min(limits.bytes / LARGEST_PART).max(1), limits)
    }

    /// Room for so many bytes.
    pub(super) fn take_bytes(
        self: &Arc<Self>,
        share: Share,
        bytes: u64,
        limits: RoomLimits,
    ) -> Result<TakenRoom, NoRoom> {
        let mut uses = self.uses();
        if !uses.fit(share, 1, bytes, limits) {
            return Err(NoRoom::Bytes);
        }
        let taken = (share, Use { bytes, unfinished: 0 });
        uses.change(taken, u64::wrapping_add);
        Ok(TakenRoom { room: Arc::clone(self), taken })
    }

    /// Whether a share, or its guard, has half of what it may have.
    pub(super) fn is_short(&self, share: Share, limits: RoomLimits) -> bool {
        !self.uses().fit(share, 2, 0, limits)
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Uses {
    /// What all, a guard and a share have.
    fn of(&self, share: Share) -> [Use; 3] {
        share.parts().map(|part| self.0.get(&part).copied().unwrap_or_default())
    }

    /// Whether so many times what the share and its guard have, and some bytes more, are what they
    /// may have.
    fn fit(&self, share: Share, times: u64, more: u64, limits: RoomLimits) -> bool {
        let [all, of_guard, own] = self.of(share);
        let free = limits.bytes.saturating_sub(all.bytes);
        let needs = |used: Use| used.bytes.saturating_mul(times).saturating_add(more);
        needs(own) <= free && needs(of_guard) <= free.saturating_mul(OF_GUARD)
    }

    /// Adds a use to each part of its share, or takes it away.
    fn change(&mut self, (share, by): (Share, Use), change: impl Fn(u64, u64) -> u64) {
        for part in share.parts() {
            let used = self.0.entry(part).or_default();
            used.bytes = change(used.bytes, by.bytes);
            used.unfinished = change(used.unfinished, by.unfinished);
            if *used == Use::default() {
                self.0.remove(&part);
            }
        }
    }
}

/// Room for one response, until this is dropped.
#[derive(Debug)]
pub struct TakenRoom {
    room: Arc<RecordRoom>,
    taken: (Share, Use),
}

impl Drop for TakenRoom {
    fn drop(&mut self) {
        self.room.uses().change(self.taken, u64::wrapping_sub);
    }
}
