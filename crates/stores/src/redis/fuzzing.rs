//! What the fuzz target of replies calls of this engine, which has it in no other build.
//!
//! A reply comes from another process, so reading one must never panic. Used by
//! `fuzz/targets/redis_reply.rs`. The readers themselves are those of the engine.

use bb8_redis::redis::{FromRedisValue as _, Value, parse_redis_value};
use keylatch_core::idempotency::{RecordKey, RecordState};
use keylatch_core::lock::{LockName, LockState};

use super::engine::{BatchReply, RowsReply};
use super::row::parse_row;
use crate::optimistic::conditional::{EngineTime, Key};
use crate::optimistic::value;

/// Reads bytes as a reply of Redis, as that of each script, and as the rows in it.
pub fn read_redis_reply(bytes: &[u8]) {
    let Ok(reply) = parse_redis_value(bytes) else { return };
    let _ = BatchReply::from_redis_value(reply.clone());
    match RowsReply::from_redis_value(reply.clone()) {
        Ok(rows) => rows.rows.into_iter().for_each(|row| read_row(row, rows.now)),
        Err(_) => read_row(reply, EngineTime::from_secs(1_800_000_000)),
    }
}

fn read_row(row: Value, now: EngineTime) {
    let name = LockName::parse("a");
    let record = RecordKey::from_bytes([7; 32]);
    for key in name.into_iter().map(Key::Lock).chain([Key::Record(record), Key::Floor(7)]) {
        let Some(row) = parse_row(&key, row.clone()) else { continue };
        if let Ok(value) = value::Value::<LockState>::decode(&row, None) {
            let _ = value.live(now);
        }
        if let Ok(value) = value::Value::<RecordState>::decode(&row, None) {
            let _ = value.live(now);
        }
    }
}
