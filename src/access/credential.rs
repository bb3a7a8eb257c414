//! The credential of a request: an API key or a token in `Authorization`, or in
//! `Keylatch-Authorization` on a guarded route, whose `Authorization` is the upstream's.
//!
//! It travels as `Bearer KEY` or as the password of `Basic`, for programs that know users alone, as
//! `curl -u ci:KEY` and browsers do. The user is not looked at: the key says who it is. Two such
//! headers are refused, because two parts of a system could believe one each.

use std::borrow::Cow;
use std::fmt;

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
    /// The issuer did not sign the token, or not for this service, or not for now.
    #[error("The token is not one that the issuer signed for this service")]
    InvalidToken,
    /// The time of the token is over.
    #[error("The token has expired")]
    ExpiredToken,
    /// The claim of the token is that of no identity.
    #[error("The token is that of no identity")]
    UnknownClaim,
    /// The values of the claim lead to several identities.
    #[error("The token is that of several identities")]
    AmbiguousClaim,
    /// The service does not have the issuer's keys, so nothing says whether the token is good.
    #[error("The service does not have the keys of the issuer")]
    NoIssuerKeys,
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

/// What proves an identity. It prints without it.
pub(super) enum Credential<'a> {
    /// A text that looks like an API key, and need not be one.
    Key(Cow<'a, [u8]>),
    /// A token, which is not looked at yet.
    Token(SignedToken),
}

impl fmt::Debug for Credential<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key(_) => "Key(..)",
            Self::Token(_) => "Token(..)",
        })
    }
}

/// A JSON Web Token (RFC 7519) by its form: three parts with dots between them. It prints without
/// them.
pub(super) struct SignedToken(String);

impl SignedToken {
    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let is_part = |part: &str| {
            let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            !part.is_empty() && part.bytes().all(is_base64url)
        };
        let is_token = text.split('.').count() == 3 && text.split('.').all(is_part);
        is_token.then(|| Self(text.to_owned()))
    }

    /// The token as the client sent it.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SignedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignedToken(..)")
    }
}

/// The credential in a header.
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
    SignedToken::parse(&text).map(Credential::Token)
}
