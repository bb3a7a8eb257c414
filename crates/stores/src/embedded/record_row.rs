//! How a record of an idempotency key is written.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use keylatch_core::idempotency::{Fingerprint, Kept, Malformed, OnCrash, Reason, Record, Stage};
use keylatch_core::lock::{FencingToken, TokenHash};

/// A [`Record`] without the moment since when it is so: no clock that goes on while the process is
/// away can be trusted.
#[derive(Serialize, Deserialize)]
struct Row {
    token: [u8; 32],
    fingerprint: [u8; 32],
    fence: u64,
    attempts: u32,
    begun_at_millis: u64,
    lease: Duration,
    retention: Duration,
    on_crash: OnCrash,
    stage: StageRow,
}

#[derive(Serialize, Deserialize)]
enum StageRow {
    InFlight,
    Done(u64, Vec<u8>),
    Unknown(u64, Reason),
}

/// Why a row cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum RowError {
    #[error("a record cannot be read")]
    Row(#[from] postcard::Error),
    #[error(transparent)]
    Kept(#[from] Malformed),
}

pub(super) fn encode(record: &Record) -> Result<Vec<u8>, RowError> {
    let stage = match &record.stage {
        Stage::InFlight => StageRow::InFlight,
        Stage::Done(at, kept) => StageRow::Done(*at, kept.to_bytes()?),
        Stage::Unknown(since, reason) => StageRow::Unknown(*since, *reason),
    };
    let row = Row {
        token: *record.token.as_bytes(),
        fingerprint: *record.fingerprint.as_bytes(),
        fence: record.fence.get(),
        attempts: record.attempts,
        begun_at_millis: record.begun_at_millis,
        lease: record.lease,
        retention: record.retention,
        on_crash: record.on_crash,
        stage,
    };
    Ok(postcard::to_allocvec(&row)?)
}

pub(super) fn decode(bytes: &[u8]) -> Result<Record, RowError> {
    let row: Row = postcard::from_bytes(bytes)?;
    Ok(Record {
        token: TokenHash::from_bytes(row.token),
        fingerprint: Fingerprint::from_bytes(row.fingerprint),
        fence: FencingToken::new(row.fence),
        attempts: row.attempts,
        begun_at_millis: row.begun_at_millis,
        lease: row.lease,
        retention: row.retention,
        on_crash: row.on_crash,
        stage: match row.stage {
            StageRow::InFlight => Stage::InFlight,
            StageRow::Done(at, kept) => Stage::Done(at, Kept::from_bytes(&kept)?),
            StageRow::Unknown(since, reason) => Stage::Unknown(since, reason),
        },
        since: Duration::ZERO,
    })
}
