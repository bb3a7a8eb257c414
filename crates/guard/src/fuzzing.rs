//! What the fuzz targets call of this crate, which has it in no other build.
//!
//! The functions stay private to the crate otherwise, because their input is a part of a request
//! that the layer has checked before. Used by `fingerprint.rs`, `pointer.rs` and `issued_key.rs` in
//! `fuzz/targets`.

use axum::http::{HeaderMap, HeaderValue, header};
use bytes::Bytes;
use keylatch_core::idempotency::{Fingerprint, IdempotencyKey, Scope};
use tokio::runtime::Builder;

use crate::fields::CountedFields;
use crate::{FieldName, Guard, IssuedKeys};

/// The canonical form of JSON, if it has one.
pub fn canonical_json(body: &[u8]) -> Option<Vec<u8>> {
    crate::canonical_json::canonical_json(body, &CountedFields::AllBut(Vec::new()))
}

/// The canonical form of JSON without this field or, where it alone counts, of this field.
pub fn canonical_json_of(body: &[u8], field: &FieldName, only: bool) -> Option<Vec<u8>> {
    let fields = vec![field.clone()];
    let fields = if only { CountedFields::Only(fields) } else { CountedFields::AllBut(fields) };
    crate::canonical_json::canonical_json(body, &fields)
}

/// Whether a key was issued for this, and has not expired.
pub fn is_issued(keys: &IssuedKeys, key: &str, scope: &Scope<'_>) -> bool {
    IdempotencyKey::parse(key).is_ok_and(|key| keys.check(&key, scope).is_ok())
}

/// The fingerprint of a request with this content type; `None` where no header has it.
pub fn fingerprint_of(content_type: &str, query: &str, body: &[u8]) -> Option<Fingerprint> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_str(content_type).ok()?);
    let body = Bytes::copy_from_slice(body);
    let guard = Guard::default();
    let fingerprint = guard.fingerprint(("POST", "/", query), &headers, &body);
    Some(Builder::new_current_thread().build().ok()?.block_on(fingerprint))
}
