//! Positions in a listing in the order of keys: after the lock of a name, or after a record.
//!
//! A cursor of records begins with `r.`, which no base64url has, so a store does not take a cursor
//! of one kind for one of the other. Tested by the conformance tests of listing.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use keylatch_core::idempotency::RecordKey;
use keylatch_core::lock::LockName;
use keylatch_core::store::Cursor;

/// What a cursor of records begins with.
const RECORDS: &str = "r.";

/// The position after the lock of this name.
pub(crate) fn encode_lock_cursor(name: &LockName) -> Option<Cursor> {
    Cursor::parse(&URL_SAFE_NO_PAD.encode(name.as_str())).ok()
}

/// The lock after which a listing continues, if after any; `None` for a cursor that no listing of
/// locks gave.
pub(crate) fn decode_lock_cursor(cursor: Option<&Cursor>) -> Option<Option<LockName>> {
    let Some(cursor) = cursor else { return Some(None) };
    let bytes = URL_SAFE_NO_PAD.decode(cursor.as_str()).ok()?;
    LockName::stored(std::str::from_utf8(&bytes).ok()?).ok().map(Some)
}

/// The position after this record.
pub(crate) fn encode_record_cursor(key: &RecordKey) -> Option<Cursor> {
    Cursor::parse(&format!("{RECORDS}{}", URL_SAFE_NO_PAD.encode(key.as_bytes()))).ok()
}

/// The record after which a listing continues, if after any; `None` for a cursor that no listing of
/// records gave.
pub(crate) fn decode_record_cursor(cursor: Option<&Cursor>) -> Option<Option<RecordKey>> {
    let Some(cursor) = cursor else { return Some(None) };
    let bytes = URL_SAFE_NO_PAD.decode(cursor.as_str().strip_prefix(RECORDS)?).ok()?;
    bytes.try_into().ok().map(|bytes| Some(RecordKey::from_bytes(bytes)))
}
