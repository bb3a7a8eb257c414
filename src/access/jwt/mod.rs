//! JSON Web Tokens of an issuer (OpenID Connect), as an alternative to API keys.
//!
//! A token is good if a key of the issuer signed it, `iss` and `aud` are as configured, and it is
//! neither too early (`nbf`) nor too late (`exp`), with 60 s for clocks that differ. A claim of it
//! then leads to an identity of the file, which says what it may do. The issuer's keys come from a
//! file, which is followed as the others of the operator are, or from a URL: they are fetched at
//! start and every five minutes, and sooner where a token names a key that is not among them. Keys
//! that cannot be fetched change nothing: the previous ones stay. Until the first are there, a
//! token gets 503, because nothing says whether it is good.
//!
//! Invariant: nothing here prints or logs a token or a claim. Tested in `tests/api/tokens.rs`.

mod keys;
mod signature;
mod source;

use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Header, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use self::keys::IssuerKeys;
use self::source::{Fetch, KeySource};
use super::credential::RefusedCredential;
use crate::followed_files::FollowedFile;

/// By how much the clock of the issuer may differ from that of the service, in seconds.
const LEEWAY: u64 = 60;
/// How often the keys are fetched.
const PERIOD: Duration = Duration::from_secs(300);
/// The least time between two fetches, and after one that failed.
const PAUSE: Duration = Duration::from_secs(10);

/// The section `jwt` of the configuration, which says what each setting means.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the file of defaults documents every setting")]
pub struct JwtSettings {
    pub issuer: String,
    pub audience: String,
    pub jwks: String,
    pub claim: String,
}

impl JwtSettings {
    /// Whether tokens are taken.
    pub fn is_on(&self) -> bool {
        !self.issuer.is_empty()
    }

    /// What types alone do not rule out.
    pub(crate) fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if !self.is_on() {
            let is_empty = self.audience.is_empty() && self.jwks.is_empty();
            return if is_empty { Ok(()) } else { Err(("jwt.issuer", "must name the issuer")) };
        }
        if self.audience.is_empty() {
            return Err(("jwt.audience", "must name what the tokens are for"));
        }
        if self.claim.is_empty() {
            return Err(("jwt.claim", "must name the claim that has the identity"));
        }
        match KeySource::parse(&self.jwks) {
            Some(_) => Ok(()),
            None => {
                Err(("jwt.jwks", "must be a file or a URL of `https`, or of `http` on loopback"))
            }
        }
    }
}

/// An issuer of tokens, and its keys as they are now.
#[derive(Debug)]
pub(super) struct Issuer {
    settings: JwtSettings,
    source: Source,
    keys: RwLock<Option<IssuerKeys>>,
    unknown_key: Notify,
}

#[derive(Debug)]
enum Source {
    File(FollowedFile),
    Url(Fetch),
}

impl Issuer {
    /// An issuer with the keys of its file; those of a URL are fetched by [`follow`](Self::follow).
    pub(super) fn open(settings: &JwtSettings) -> Result<Self, String> {
        signature::use_ring();
        let source = KeySource::parse(&settings.jwks);
        let (source, keys) = match source.ok_or("`jwt.jwks` is neither a file nor a URL")? {
            KeySource::File(path) => {
                let (file, keys) = FollowedFile::read(&path, IssuerKeys::parse)
                    .map_err(|error| format!("the keys of the issuer in {error}"))?;
                (Source::File(file), Some(keys))
            }
            KeySource::Url(url) => {
                let fetch = Fetch::new(url);
                let no_client = |error| format!("the keys of the issuer: {error}");
                (Source::Url(fetch.map_err(no_client)?), None)
            }
        };
        let (settings, keys) = (settings.clone(), RwLock::new(keys));
        Ok(Self { settings, source, keys, unknown_key: Notify::new() })
    }

    /// The values of the claim that names the identity, in a token that is good.
    pub(super) fn verify(&self, token: &str) -> Result<Vec<String>, RefusedCredential> {
        let header = decode_header(token).map_err(|_| RefusedCredential::Malformed)?;
        // No extension is known here, and one that is critical may change what the token says (RFC
        // 7515, section 4.1.11).
        if header.crit.is_some() {
            return Err(RefusedCredential::InvalidToken);
        }
        let claims = self.claims(token, &header)?;
        // The library takes a list that has the issuer among others.
        if claims.get("iss").and_then(Value::as_str) != Some(&self.settings.issuer) {
            return Err(RefusedCredential::InvalidToken);
        }
        Ok(match claims.get(&self.settings.claim) {
            Some(Value::String(value)) => vec![value.clone()],
            Some(Value::Array(values)) => {
                values.iter().filter_map(|value| value.as_str().map(str::to_owned)).collect()
            }
            _ => Vec::new(),
        })
    }

    fn claims(
        &self,
        token: &str,
        header: &Header,
    ) -> Result<Map<String, Value>, RefusedCredential> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let keys = keys.as_ref().ok_or(RefusedCredential::NoIssuerKeys)?;
        let validation = self.validation(header.alg);
        let mut why = None;
        for key in keys.of(header) {
            match decode(token, key, &validation) {
                Ok(data) => return Ok(data.claims),
                Err(error) => why = Some(error),
            }
        }
        match why.map(jsonwebtoken::errors::Error::into_kind) {
            Some(ErrorKind::ExpiredSignature) => return Err(RefusedCredential::ExpiredToken),
            Some(_) => {}
            None => self.unknown_key.notify_one(),
        }
        Err(RefusedCredential::InvalidToken)
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.set_issuer(&[&self.settings.issuer]);
        validation.set_audience(&[&self.settings.audience]);
        validation
    }

    /// Follows the keys until it is dropped.
    pub(super) async fn follow(&self) {
        match &self.source {
            Source::File(file) => {
                let replace = |text: &[u8]| IssuerKeys::parse(text).map(|keys| self.replace(keys));
                file.follow("the keys of the issuer", replace).await;
            }
            Source::Url(fetch) => self.follow_url(fetch).await,
        }
    }

    async fn follow_url(&self, fetch: &Fetch) {
        let from = fetch.url();
        let mut failed_before = false;
        loop {
            let fetched = fetch.get().await.and_then(|text| IssuerKeys::parse(&text));
            let failed = fetched.is_err();
            match fetched {
                Ok(keys) => {
                    tracing::info!(from, keys = keys.count(), "the keys of the issuer are read");
                    self.replace(keys);
                }
                Err(_) if failed_before => {}
                Err(error) => {
                    let message =
                        "the keys of the issuer are not read: the previous ones stay in force";
                    tracing::error!(from, error, "{message}");
                }
            }
            failed_before = failed;
            sleep(PAUSE).await;
            if !failed {
                // Either end means the same: it is time.
                let _ = timeout(PERIOD - PAUSE, self.unknown_key.notified()).await;
            }
        }
    }

    fn replace(&self, keys: IssuerKeys) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Some(keys);
    }
}
