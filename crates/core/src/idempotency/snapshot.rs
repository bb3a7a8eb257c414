//! The state of a record as bytes: complete, versioned, and without loss.
//!
//! See `lock/snapshot.rs` for the format and what it promises. Format 1 always had room for the scope and
//! the key of a record, so it did not change when they came to be kept. The versions before that wrote
//! none, and such a record has none here. They refuse a snapshot that has one as [`SnapshotError::Newer`]
//! and drop nothing: on a store that two versions share, the older one answers an error under a key that
//! the newer one began, and never runs it again.
//!
//! There is room as well for the person and the reason of a resolution. This version writes neither, and
//! refuses a snapshot that has them.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::rules::{Record, RecordStage, RecordState};
use super::{Fingerprint, OnCrash, RecordScope, StoredResponse, UnknownReason};
use crate::lock::{FencingToken, TokenHash};
use crate::snapshot::{SnapshotError, decode_parts, deserialize_time, encode_parts};

/// The format that [`RecordState::encode`] writes.
const FORMAT: u8 = 1;

#[derive(Serialize, Deserialize)]
struct Parts<'a> {
    #[serde(borrow)]
    record: Option<RecordParts<'a>>,
}

#[derive(Serialize, Deserialize)]
struct RecordParts<'a> {
    token: [u8; 32],
    fingerprint: [u8; 32],
    fencing_token: u64,
    attempts: u32,
    begun_at_millis: u64,
    #[serde(deserialize_with = "deserialize_time")]
    lease: Duration,
    #[serde(deserialize_with = "deserialize_time")]
    retention: Duration,
    on_crash: OnCrash,
    #[serde(borrow)]
    stage: StageParts<'a>,
    #[serde(deserialize_with = "deserialize_time")]
    since: Duration,
    /// What the key is of: principal, method, path and the client's own text.
    scope: Option<[String; 4]>,
    /// Why and by whom the outcome was resolved.
    resolution: Option<[String; 2]>,
}

#[derive(Serialize, Deserialize)]
enum StageParts<'a> {
    InFlight,
    /// A response that is read is a part of the snapshot, so that a large one is copied once.
    Done {
        at_millis: u64,
        #[serde(borrow)]
        response: Cow<'a, [u8]>,
    },
    Unknown {
        since_millis: u64,
        reason: UnknownReason,
    },
}

impl RecordState {
    /// The state as bytes.
    ///
    /// # Errors
    ///
    /// The codec failed, which it does on no state that the rules reach.
    pub fn encode(&self) -> Result<Vec<u8>, SnapshotError> {
        let record = self.record().map(RecordParts::of).transpose()?;
        encode_parts(FORMAT, &Parts { record })
    }

    /// The state that [`RecordState::encode`] wrote.
    ///
    /// # Errors
    ///
    /// The bytes are no snapshot, or one of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let Parts { record } = decode_parts(FORMAT, bytes)?;
        Ok(Self::new(record.map(RecordParts::into_record).transpose()?))
    }
}

impl RecordParts<'_> {
    fn of(record: &Record) -> Result<Self, SnapshotError> {
        Ok(Self {
            token: *record.token.as_bytes(),
            fingerprint: *record.fingerprint.as_bytes(),
            fencing_token: record.fencing_token.get(),
            attempts: record.attempts,
            begun_at_millis: record.begun_at_millis,
            lease: record.lease,
            retention: record.retention,
            on_crash: record.on_crash,
            stage: match &record.stage {
                RecordStage::InFlight => StageParts::InFlight,
                RecordStage::Done(at_millis, kept) => {
                    let response = kept.to_bytes().map_err(|_| SnapshotError::Malformed)?;
                    StageParts::Done { at_millis: *at_millis, response: response.into() }
                }
                RecordStage::Unknown(since_millis, reason) => {
                    StageParts::Unknown { since_millis: *since_millis, reason: *reason }
                }
            },
            since: record.since,
            scope: record.scope.as_ref().map(RecordScope::to_parts),
            resolution: None,
        })
    }

    fn into_record(self) -> Result<Record, SnapshotError> {
        if self.resolution.is_some() {
            return Err(SnapshotError::Newer);
        }
        Ok(Record {
            token: TokenHash::from_bytes(self.token),
            fingerprint: Fingerprint::from_bytes(self.fingerprint),
            scope: self
                .scope
                .map(RecordScope::from_parts)
                .transpose()
                .map_err(|_| SnapshotError::Malformed)?,
            fencing_token: FencingToken::new(self.fencing_token),
            attempts: self.attempts,
            begun_at_millis: self.begun_at_millis,
            lease: self.lease,
            retention: self.retention,
            on_crash: self.on_crash,
            stage: match self.stage {
                StageParts::InFlight => RecordStage::InFlight,
                StageParts::Done { at_millis, response } => {
                    let kept = StoredResponse::from_bytes(&response)
                        .map_err(|_| SnapshotError::Malformed)?;
                    RecordStage::Done(at_millis, kept)
                }
                StageParts::Unknown { since_millis, reason } => {
                    RecordStage::Unknown(since_millis, reason)
                }
            },
            since: self.since,
        })
    }
}
