//! The state of a lock as bytes: complete, versioned, and without loss.
//!
//! A snapshot is a format byte and the parts in postcard. `decode(encode(state)) == state` for every
//! state that the rules reach, which `snapshots` in the tests of this crate shows; golden files
//! there hold every published format for ever. Times are those of the store's monotonic clock, so
//! a store that is opened on another clock decides what they mean there.
//!
//! The format has room for what later versions remember: several holders with a limit, a slot and
//! named entries each, and how earlier grants ended. This version writes none of these, and refuses a
//! snapshot that has them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::queue::{QueueEntry, WaitQueue};
use super::rules::{HolderState, LockState};
use super::{Attempt, FencingToken, Owner, TokenHash};
use crate::snapshot::{SnapshotError, decode_parts, encode_parts};

/// The format that [`LockState::encode`] writes.
const FORMAT: u8 = 1;

#[derive(Serialize, Deserialize)]
struct Parts {
    holders: Vec<HolderParts>,
    queue: Vec<EntryParts>,
    /// How earlier grants ended other than by a release.
    ends: Vec<EndParts>,
}

#[derive(Serialize, Deserialize)]
struct HolderParts {
    token: [u8; 32],
    fencing_token: u64,
    owner: Option<String>,
    since: Duration,
    ttl: Duration,
    acquired_at_millis: u64,
    sole_attempt: Option<u64>,
    /// At most so many hold the lock together, this one included; `None` for any number.
    limit: Option<u32>,
    /// The number of the holder among those that hold the lock together.
    slot: u32,
    /// The names under which the holder entered the lock again.
    entries: Vec<String>,
    /// Why the lease ends and cannot be renewed.
    broken: Option<BreakParts>,
}

#[derive(Serialize, Deserialize)]
struct EntryParts {
    token: [u8; 32],
    attempt: u64,
    since: Duration,
    lasts: Duration,
    limit: Option<u32>,
}

#[derive(Serialize, Deserialize)]
struct EndParts {
    fencing_token: u64,
    owner: Option<String>,
    acquired_at_millis: u64,
    ended_at_millis: u64,
    broken: Option<BreakParts>,
}

#[derive(Serialize, Deserialize)]
struct BreakParts {
    reason: String,
    by: Option<String>,
    at_millis: u64,
}

/// The limit of a holder that holds the lock alone.
const EXCLUSIVE: Option<u32> = Some(1);

impl LockState {
    /// The state as bytes.
    ///
    /// # Errors
    ///
    /// The codec failed, which it does on no state that the rules reach.
    pub fn encode(&self) -> Result<Vec<u8>, SnapshotError> {
        let parts = Parts {
            holders: self.holder_state().map(HolderParts::of).into_iter().collect(),
            queue: self.queue().entries().iter().map(EntryParts::of).collect(),
            ends: Vec::new(),
        };
        encode_parts(FORMAT, &parts)
    }

    /// The state that [`LockState::encode`] wrote.
    ///
    /// # Errors
    ///
    /// The bytes are no snapshot, or one of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let Parts { mut holders, queue, ends } = decode_parts(FORMAT, bytes)?;
        let holder = holders.pop().map(HolderParts::into_state).transpose()?;
        if !holders.is_empty() || !ends.is_empty() {
            return Err(SnapshotError::Newer);
        }
        let queue: Result<WaitQueue, _> = queue.into_iter().map(EntryParts::into_entry).collect();
        Ok(Self::new(holder, queue?))
    }
}

impl HolderParts {
    fn of(holder: &HolderState) -> Self {
        Self {
            token: *holder.token.as_bytes(),
            fencing_token: holder.fencing_token.get(),
            owner: holder.owner.as_ref().map(|owner| owner.as_str().to_owned()),
            since: holder.since,
            ttl: holder.ttl,
            acquired_at_millis: holder.acquired_at_millis,
            sole_attempt: holder.sole_attempt.map(Attempt::get),
            limit: EXCLUSIVE,
            slot: 0,
            entries: Vec::new(),
            broken: None,
        }
    }

    fn into_state(self) -> Result<HolderState, SnapshotError> {
        if self.limit != EXCLUSIVE
            || self.slot != 0
            || !self.entries.is_empty()
            || self.broken.is_some()
        {
            return Err(SnapshotError::Newer);
        }
        let owner = Owner::parse(&self.owner.unwrap_or_default());
        Ok(HolderState {
            token: TokenHash::from_bytes(self.token),
            fencing_token: FencingToken::new(self.fencing_token),
            owner: owner.map_err(|_| SnapshotError::Malformed)?,
            since: self.since,
            ttl: self.ttl,
            acquired_at_millis: self.acquired_at_millis,
            sole_attempt: self.sole_attempt.map(Attempt::new),
        })
    }
}

impl EntryParts {
    fn of(entry: &QueueEntry) -> Self {
        let QueueEntry { token, attempt, since, lasts } = entry;
        let (token, attempt) = (*token.as_bytes(), attempt.get());
        Self { token, attempt, since: *since, lasts: *lasts, limit: EXCLUSIVE }
    }

    fn into_entry(self) -> Result<QueueEntry, SnapshotError> {
        if self.limit != EXCLUSIVE {
            return Err(SnapshotError::Newer);
        }
        let (token, attempt) = (TokenHash::from_bytes(self.token), Attempt::new(self.attempt));
        Ok(QueueEntry { token, attempt, since: self.since, lasts: self.lasts })
    }
}
