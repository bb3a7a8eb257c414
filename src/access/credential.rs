//! The credential of a request: an API key or a token in `Authorization`, or in
//! `Keylatch-Authorization` on a guarded route, whose `Authorization` is the upstream's.
//!
//! It travels as `Bearer KEY` or as the password of `Basic`, for programs that know users alone, as
//! `curl -u ci:KEY` and browsers do. The user is not looked at: the key says who it is. Two such
//! headers are refused, because two parts of a system could believe one each.

use std::borrow::Cow;

use axum::http::{HeaderMap, HeaderName};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::key::ApiKey;

/// The header of the key on a guarded route.
pub const KEYLATCH_AUTHORIZATION: HeaderName = HeaderName::from_static("keylatch-authorization");

/// Why a request has no identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the text of each says it")]
pub enum RefusedCredential {
    #[error("The request has no API key")]
    Missing,
    #[error("The request has no credential that is one API key, as `Bearer` or as a password")]
    Malformed,
    #[error("The token is not one that the issuer signed for this service")]
    InvalidToken,
    #[error("The token has expired")]
    ExpiredToken,
    #[error("The token is that of no identity")]
    UnknownClaim,
    #[error("The token is that of several identities")]
    AmbiguousClaim,
    #[error("The service does not have the keys of the issuer")]
    NoIssuerKeys,
    #[error("The API key is that of no identity")]
    Unknown,
    #[error("The API key has expired")]
    Expired,
    #[error("The client certificate is that of no identity, and the request has no API key")]
    UnknownCertificate,
    #[error("The client certificate is that of several identities, and the request has no API key")]
    AmbiguousCertificate,
}

/// What proves an identity. Nothing prints it.
pub(super) enum Credential<'a> {
    /// A text that looks like an API key, and need not be one.
    Key(Cow<'a, [u8]>),
    /// A text that looks like a JSON Web Token (RFC 7519): three parts with dots between them.
    Token(String),
}

pub(super) fn credential<'a>(
    headers: &'a HeaderMap,
    header: &HeaderName,
) -> Result<Credential<'a>, RefusedCredential> {
    let mut values = headers.get_all(header).iter();
    let value = values.next().ok_or(RefusedCredential::Missing)?;
    let only = values.next().is_none().then(|| value.as_bytes());
    only.and_then(read).ok_or(RefusedCredential::Malformed)
}

fn read(value: &[u8]) -> Option<Credential<'_>> {
    let (scheme, rest) = value.split_at(value.iter().position(|byte| *byte == b' ')?);
    let rest = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return parse(Cow::Borrowed(rest));
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let mut pair = STANDARD.decode(rest).ok()?;
    let user = pair.iter().position(|byte| *byte == b':')?;
    parse(Cow::Owned(pair.split_off(user + 1)))
}

fn parse(text: Cow<'_, [u8]>) -> Option<Credential<'_>> {
    if ApiKey::has_form(&text) {
        return Some(Credential::Key(text));
    }
    let text = std::str::from_utf8(&text).ok()?;
    let is_part = |part: &str| {
        let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        !part.is_empty() && part.bytes().all(is_base64url)
    };
    let is_token = text.split('.').count() == 3 && text.split('.').all(is_part);
    is_token.then(|| Credential::Token(text.to_owned()))
}
