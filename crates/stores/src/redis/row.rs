//! A row as Redis has it: a string of 16 bytes of version and the value that the adapter
//! understands.
//!
//! What is no row, because another program wrote it, becomes one whose value nothing understands:
//! the commands on it are refused with a sentence, and it stays.

use bb8_redis::redis::{Value, from_redis_value};
use keylatch_core::lock::FencingToken;

use crate::optimistic::conditional::{Key, Row, Version};
use crate::optimistic::floor_row;

const VERSION_BYTES: usize = 16;

pub(super) fn row_bytes(version: Version, value: &[u8]) -> Vec<u8> {
    [&version.0.to_be_bytes(), value].concat()
}

pub(super) fn parse_string(bytes: &[u8]) -> Row {
    let row = bytes.split_first_chunk::<VERSION_BYTES>().map(|(version, value)| Row {
        version: Version(u128::from_be_bytes(*version)),
        value: value.to_vec(),
    });
    row.unwrap_or_else(foreign)
}

/// The row that a script read; `None` where there is none.
pub(super) fn parse_row(key: &Key, found: Value) -> Option<Row> {
    match (key, found) {
        (_, Value::Nil) => None,
        (Key::Floor(_), counter) => {
            let last = from_redis_value::<u64>(counter).ok();
            let row = last.and_then(|last| floor_row(FencingToken::new(last)).ok());
            Some(row.unwrap_or_else(foreign))
        }
        (_, Value::BulkString(bytes)) => Some(parse_string(&bytes)),
        _ => Some(foreign()),
    }
}

/// A row that nothing understands.
fn foreign() -> Row {
    Row { version: Version(0), value: Vec::new() }
}
