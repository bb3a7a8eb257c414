//! The credential of a request: an API key in `Authorization`, or in `Keylatch-Authorization` on a guarded
//! route, whose `Authorization` is the upstream's.
//!
//! A key travels as `Bearer KEY` or as the password of `Basic`, for programs that know users alone, as
//! `curl -u ci:KEY` and browsers do. The user is not looked at: the key says who it is. Two such headers are
//! refused, because two parts of a system could believe one each.

use axum::http::{HeaderMap, HeaderName};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::key::ApiKey;

/// The header of the key on a guarded route.
pub const KEYLATCH_AUTHORIZATION: HeaderName = HeaderName::from_static("keylatch-authorization");

/// Why a request has no identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RefusedCredential {
    /// There is no credential.
    #[error("The request has no API key")]
    Missing,
    /// There are two, or one that is not an API key as Bearer or Basic carry it.
    #[error("The request has no credential that is one API key, as `Bearer` or as a password")]
    Malformed,
    /// The key is that of no identity.
    #[error("The API key is that of no identity")]
    Unknown,
    /// The time of the key is over.
    #[error("The API key has expired")]
    Expired,
    /// There is no key, and the certificate of the connection is that of no identity.
    #[error("The client certificate is that of no identity, and the request has no API key")]
    UnknownCertificate,
    /// The names in the certificate lead to several identities.
    #[error("The client certificate is that of several identities, and the request has no API key")]
    AmbiguousCertificate,
}

/// The key in a header.
pub(super) fn api_key(
    headers: &HeaderMap,
    header: &HeaderName,
) -> Result<ApiKey, RefusedCredential> {
    let mut values = headers.get_all(header).iter();
    let value = values.next().ok_or(RefusedCredential::Missing)?;
    let only = if values.next().is_none() { value.to_str().ok() } else { None };
    only.and_then(read).ok_or(RefusedCredential::Malformed)
}

fn read(value: &str) -> Option<ApiKey> {
    let (scheme, rest) = value.split_once(' ')?;
    let rest = rest.trim_matches(' ');
    if scheme.eq_ignore_ascii_case("bearer") {
        return ApiKey::parse(rest).ok();
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = STANDARD.decode(rest).ok()?;
    let (_, password) = std::str::from_utf8(&pair).ok()?.split_once(':')?;
    ApiKey::parse(password).ok()
}
