//! What the fuzz targets call of this crate, which has it in no other build.
//!
//! The functions stay private to the crate otherwise, because their input is a part of a request that the layer
//! has checked before. Used by `fuzz/targets/fingerprint.rs`.

use axum::http::{HeaderMap, HeaderValue, header};
use bytes::Bytes;
use keylatch_core::idempotency::Fingerprint;
use tokio::runtime::Builder;

use crate::fields::CountedFields;
use crate::fingerprint::FingerprintInput;
use crate::media_type::MediaType;

/// The canonical form of JSON, if it has one.
pub fn canonical_json(body: &[u8]) -> Option<Vec<u8>> {
    crate::canonical_json::canonical_json(body, &CountedFields::AllBut(Vec::new()))
}

/// The fingerprint of a request with this content type; `None` where no header has it.
pub fn fingerprint_of(content_type: &str, query: &str, body: &[u8]) -> Option<Fingerprint> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_str(content_type).ok()?);
    let input = FingerprintInput {
        method: "POST".into(),
        path: "/".into(),
        query: query.into(),
        media_type: MediaType::of(&headers),
        coding: String::new(),
        body: Bytes::copy_from_slice(body),
        fields: CountedFields::AllBut(Vec::new()),
        headers: Vec::new(),
    };
    Some(Builder::new_current_thread().build().ok()?.block_on(input.fingerprint()))
}
