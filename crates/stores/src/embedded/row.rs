//! Rows of the file, and what of a state outlives a restart.
//!
//! A row is the snapshot of what is at rest, with a checksum over key and row, because SQLite keeps
//! none of what has reached the file. A restart forgets the waiters, because they went away with
//! the process; the attempt of a grant; and how much of a lease is left, because no clock that runs
//! while the process is away can be trusted. A lease that was valid begins again, so it never ends
//! early. The age of a record's outcome is in a small row of its own ([`AgeRow`]) with the outcome
//! that it is of, written now and then, so that a retention does not begin again at each start.
//! Tested in `tests/stores/restart.rs` and `crates/stores/tests/faults/retention.rs`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use keylatch_core::entry::Entry;
use keylatch_core::idempotency::{Record, RecordKey, RecordStage, RecordState, StoredResponse};
use keylatch_core::lock::{FencingToken, HolderState, LockName, LockState, WaitQueue};
use keylatch_core::snapshot::SnapshotError;

/// The format of the file. The formats 1 to 6 were those of builds before the first release.
pub(super) const FORMAT: u64 = 7;
/// The most bytes of a response that stay in memory: about as many as the rest of a record takes
/// there, and as a row has in a page of the file. What is longer has pages of its own, which
/// nothing but a replay reads.
const IN_MEMORY: u64 = 1024;

/// A run of a record, which has a row of its own.
pub(super) type RunKey = (RecordKey, FencingToken);

/// What the file says of itself.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Head {
    /// How the file is written; it comes first in every format, those of builds before the first
    /// release included.
    pub(super) format: u64,
    /// No fencing token that was granted is larger.
    pub(super) fence_limit: u64,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RowError {
    #[error("a row cannot be coded")]
    Row(#[from] postcard::Error),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error("the checksum of a row does not match")]
    Checksum,
    #[error("a row has no valid key")]
    Key,
}

/// How old the outcome of a record is, and which outcome has this age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AgeRow {
    fencing_token: u64,
    at_millis: u64,
    age: Duration,
}

impl AgeRow {
    /// The age of a record at the moment `now`; `None` while a run is under way.
    pub(super) fn of(state: &RecordState, now: Duration) -> Option<Self> {
        let record = state.record()?;
        let (fencing_token, age) = (record.fencing_token.get(), now.saturating_sub(record.since));
        match record.stage {
            RecordStage::InFlight => None,
            RecordStage::Done(at_millis, _) | RecordStage::Unknown(at_millis, ..) => {
                Some(Self { fencing_token, at_millis, age })
            }
        }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, RowError> {
        Ok(postcard::to_allocvec(self)?)
    }

    pub(super) fn decode(row: &[u8]) -> Result<Self, RowError> {
        Ok(postcard::from_bytes(row)?)
    }

    /// The record at this age, at the moment `now`; `None` where the age is of another outcome.
    pub(super) fn apply(&self, state: &RecordState, now: Duration) -> Option<RecordState> {
        let fresh = Self::of(state, now)?;
        let is_of_it = Self { age: self.age, ..fresh } == *self;
        let aged = || state.map_times(|_| now.saturating_sub(self.age));
        is_of_it.then(aged)
    }
}

/// An entry of which something outlives a restart.
pub(super) trait AtRest: Entry {
    /// What does, as of the moment `since`.
    fn at_rest(&self, since: Duration) -> Self;
}

impl AtRest for LockState {
    fn at_rest(&self, since: Duration) -> Self {
        let holders = self.holders().map(|holder| {
            let mut holder = HolderState { since, ..holder.clone() };
            holder.entries.settle();
            holder
        });
        // A break is kept for its full time again.
        let history = self.history().ends().iter().map(|end| end.map_times(|_| since));
        Self::new(holders, WaitQueue::default(), history.collect())
    }
}

impl AtRest for RecordState {
    fn at_rest(&self, since: Duration) -> Self {
        Self::new(self.record().cloned().map(|record| Record { since, ..record }))
    }
}

/// The record as memory has it: a response that is long stays in its row alone, and memory has its
/// stub.
pub(super) fn record_in_memory(state: RecordState) -> RecordState {
    state.map_kept(|kept| match kept {
        StoredResponse::Answer(_) | StoredResponse::Sealed(_) if kept.kept_bytes() > IN_MEMORY => {
            StoredResponse::Stub(kept.stub())
        }
        kept => kept,
    })
}

/// Whether the disk says the same of both.
pub(super) fn is_same_at_rest<E: AtRest>(one: &E, other: &E) -> bool {
    one.at_rest(Duration::ZERO) == other.at_rest(Duration::ZERO)
}

/// The row of an entry; `None` where nothing of it outlives a restart.
pub(super) fn encode<E: AtRest>(state: &E) -> Result<Option<Vec<u8>>, RowError> {
    let state = state.at_rest(Duration::ZERO);
    Ok(if state.is_empty() { None } else { Some(state.encode()?) })
}

/// The entry that a row holds, at the moment `now` of a process that does not know how long it was
/// away.
pub(super) fn decode<E: AtRest>(row: &[u8], now: Duration) -> Result<E, RowError> {
    Ok(E::decode(row)?.at_rest(now))
}

/// The key of a lock: its bucket and its name, so that those which are swept together are next to
/// one another.
pub(super) fn lock_key(name: &LockName) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + name.as_str().len());
    key.push(name.bucket());
    key.extend_from_slice(name.as_str().as_bytes());
    key
}

/// The name in a lock's key.
pub(super) fn lock_name(key: &[u8]) -> Result<LockName, RowError> {
    let name = key.get(1..).and_then(|name| std::str::from_utf8(name).ok());
    name.and_then(|name| LockName::parse(name).ok()).ok_or(RowError::Key)
}

/// The key of a record's row: the fencing token of its run, and the record's key. Tokens rise with
/// the time, so the rows that are written, and expire, at one time are next to one another and
/// share pages.
pub(super) fn run_key((key, fencing_token): &RunKey) -> Vec<u8> {
    [&fencing_token.get().to_be_bytes()[..], key.as_bytes()].concat()
}

/// The key of a record in the key of its row.
pub(super) fn record_of_run(key: &[u8]) -> Result<RecordKey, RowError> {
    let (_, key) = key.split_first_chunk::<8>().ok_or(RowError::Key)?;
    record_key(key)
}

pub(super) fn record_key(key: &[u8]) -> Result<RecordKey, RowError> {
    Ok(RecordKey::from_bytes(key.try_into().map_err(|_| RowError::Key)?))
}

/// Puts the checksum behind a value.
pub(super) fn append_checksum(key: &[u8], mut value: Vec<u8>) -> Vec<u8> {
    let checksum = checksum(key, &value);
    value.extend_from_slice(&checksum);
    value
}

/// The value before the checksum.
pub(super) fn verify_checksum<'a>(key: &[u8], row: &'a [u8]) -> Result<&'a [u8], RowError> {
    let (value, found) = row.split_last_chunk().ok_or(RowError::Checksum)?;
    if *found == checksum(key, value) { Ok(value) } else { Err(RowError::Checksum) }
}

fn checksum(key: &[u8], value: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(value);
    hasher.finalize().to_le_bytes()
}
