//! Rows of format 4, for the migration to format 5.
//!
//! `tables::migrate` reads every row with this and writes it again, in one transaction. A file that a
//! build of format 4 wrote is in the repository, and a test opens it.

use std::time::Duration;

use serde::Deserialize;

use super::row::RowError;
use keylatch_core::idempotency::{
    Fingerprint, OnCrash, Record, RecordStage, RecordState, StoredResponse, UnknownReason,
};
use keylatch_core::lock::{FencingToken, HolderState, LockState, Owner, TokenHash, WaitQueue};

/// The number of the format.
pub(super) const FORMAT: u64 = 4;

#[derive(Deserialize)]
struct LockRow<'a> {
    token: [u8; 32],
    fencing_token: u64,
    ttl_millis: u64,
    acquired_at_millis: u64,
    owner: Option<&'a str>,
}

#[derive(Deserialize)]
struct RecordRow {
    token: [u8; 32],
    fingerprint: [u8; 32],
    fencing_token: u64,
    attempts: u32,
    begun_at_millis: u64,
    lease: Duration,
    retention: Duration,
    on_crash: OnCrash,
    stage: StageRow,
}

#[derive(Deserialize)]
enum StageRow {
    InFlight,
    Done(u64, Vec<u8>),
    Unknown(u64, UnknownReason),
}

/// The lock of a row.
pub(super) fn decode_lock(row: &[u8]) -> Result<LockState, RowError> {
    let row: LockRow<'_> = postcard::from_bytes(row)?;
    let owner = Owner::parse(row.owner.unwrap_or_default()).map_err(|_| RowError::Older)?;
    let holder = HolderState {
        token: TokenHash::from_bytes(row.token),
        fencing_token: FencingToken::new(row.fencing_token),
        owner,
        since: Duration::ZERO,
        ttl: Duration::from_millis(row.ttl_millis),
        acquired_at_millis: row.acquired_at_millis,
        sole_attempt: None,
    };
    Ok(LockState::new(Some(holder), WaitQueue::default()))
}

/// The record of a row.
pub(super) fn decode_record(row: &[u8]) -> Result<RecordState, RowError> {
    let row: RecordRow = postcard::from_bytes(row)?;
    let record = Record {
        token: TokenHash::from_bytes(row.token),
        fingerprint: Fingerprint::from_bytes(row.fingerprint),
        fencing_token: FencingToken::new(row.fencing_token),
        attempts: row.attempts,
        begun_at_millis: row.begun_at_millis,
        lease: row.lease,
        retention: row.retention,
        on_crash: row.on_crash,
        stage: match row.stage {
            StageRow::InFlight => RecordStage::InFlight,
            StageRow::Done(at, kept) => RecordStage::Done(
                at,
                StoredResponse::from_bytes(&kept).map_err(|_| RowError::Older)?,
            ),
            StageRow::Unknown(since, reason) => RecordStage::Unknown(since, reason),
        },
        since: Duration::ZERO,
    };
    Ok(RecordState::new(Some(record)))
}
