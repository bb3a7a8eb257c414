//! JSON Web Tokens of an issuer (OpenID Connect), as an alternative to API keys.
//!
//! A token is good if a key of the issuer signed it, `iss` and `aud` are as configured, and it is
//! neither too early (`nbf`) nor too late (`exp`), with 60 s for clocks that differ. A claim of it
//! then leads to an identity of the file, which says what it may do. The issuer's keys come from a
//! file, which is followed as the others of the operator are, or from a URL: they are fetched at
//! start and every five minutes, and sooner where a token names a key that is not among them. Keys
//! that cannot be fetched change nothing: those of before stay. Until the first are there, a token
//! gets 503, because nothing says whether it is good.
//!
//! Invariant: nothing here prints or logs a token or a claim. Tested in `tests/api/tokens.rs`.

mod keys;
mod signature;
mod source;

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use self::keys::{InvalidIssuerKeys, IssuerKeys};
use self::source::{Fetch, KeySource};
use super::credential::{RefusedCredential, SignedToken};
use crate::followed_files::{FollowedFiles, UnreadableFile};

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

/// Why there is no issuer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssuerError {
    /// The file of its keys cannot be read.
    #[error("the keys of the issuer in {0}")]
    Unreadable(#[from] UnreadableFile),
    /// The file of its keys is wrong.
    #[error("the keys of the issuer in {}: {source}", path.display())]
    Invalid {
        /// The path of the setting `jwt.jwks`.
        path: PathBuf,
        /// What is wrong with it.
        source: InvalidIssuerKeys,
    },
    /// No certificates are there to know its server by.
    #[error("the keys of the issuer: {0}")]
    Client(std::io::Error),
    /// The settings are wrong.
    #[error("`jwt.jwks` is neither a file nor a URL")]
    Source,
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
    File(PathBuf, FollowedFiles),
    Url(Fetch),
}

impl Issuer {
    /// An issuer with the keys of its file; those of a URL are fetched by [`follow`](Self::follow).
    pub(super) fn open(settings: &JwtSettings) -> Result<Self, IssuerError> {
        signature::use_ring();
        let (source, keys) = match KeySource::parse(&settings.jwks).ok_or(IssuerError::Source)? {
            KeySource::File(path) => {
                let file = FollowedFiles::read(vec![path.clone()])?;
                let keys = IssuerKeys::parse(&file.first()[0]);
                let invalid = |source| IssuerError::Invalid { path: path.clone(), source };
                let keys = keys.map_err(invalid)?;
                (Source::File(path, file), Some(keys))
            }
            KeySource::Url(url) => {
                (Source::Url(Fetch::new(url).map_err(IssuerError::Client)?), None)
            }
        };
        let (settings, keys) = (settings.clone(), RwLock::new(keys));
        Ok(Self { settings, source, keys, unknown_key: Notify::new() })
    }

    /// The values of the claim that names the identity, in a token that is good.
    pub(super) fn verify(&self, token: &SignedToken) -> Result<Vec<String>, RefusedCredential> {
        let header = decode_header(token.expose()).map_err(|_| RefusedCredential::Malformed)?;
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
        token: &SignedToken,
        header: &Header,
    ) -> Result<Map<String, Value>, RefusedCredential> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let keys = keys.as_ref().ok_or(RefusedCredential::NoIssuerKeys)?;
        let validation = self.validation(header.alg);
        let mut why = None;
        for key in keys.of(header) {
            match decode_by(key, token, &validation) {
                Ok(claims) => return Ok(claims),
                Err(error) => why = Some(error),
            }
        }
        Err(why.unwrap_or_else(|| {
            self.unknown_key.notify_one();
            RefusedCredential::InvalidToken
        }))
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
            Source::File(path, file) => {
                let from = path.display().to_string();
                let keys = |read: Result<&[Vec<u8>], &str>| {
                    let text = read.map_err(str::to_owned)?;
                    IssuerKeys::parse(&text[0]).map_err(|error| error.to_string())
                };
                file.follow(|read| self.replace(&from, keys(read))).await;
            }
            Source::Url(fetch) => self.follow_url(fetch).await,
        }
    }

    async fn follow_url(&self, fetch: &Fetch) {
        let from = fetch.url();
        let mut failed_before = false;
        loop {
            let fetched = fetch.get().await;
            let keys = fetched
                .and_then(|text| IssuerKeys::parse(&text).map_err(|error| error.to_string()));
            let failed = keys.is_err();
            if !(failed && failed_before) {
                self.replace(&from, keys);
            }
            failed_before = failed;
            sleep(PAUSE).await;
            if !failed {
                // Either end means the same: it is time.
                let _ = timeout(PERIOD - PAUSE, self.unknown_key.notified()).await;
            }
        }
    }

    /// Takes new keys, or keeps those that there are.
    fn replace(&self, from: &str, keys: Result<IssuerKeys, String>) {
        match keys {
            Ok(keys) => {
                tracing::info!(from, keys = keys.count(), "the keys of the issuer are read");
                *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Some(keys);
            }
            Err(error) => {
                tracing::error!(
                    from,
                    error,
                    "the keys of the issuer are not read: those of before stay"
                );
            }
        }
    }
}

fn decode_by(
    key: &DecodingKey,
    token: &SignedToken,
    validation: &Validation,
) -> Result<Map<String, Value>, RefusedCredential> {
    match decode::<Map<String, Value>>(token.expose(), key, validation) {
        Ok(data) => Ok(data.claims),
        Err(error) => Err(match error.kind() {
            ErrorKind::ExpiredSignature => RefusedCredential::ExpiredToken,
            _ => RefusedCredential::InvalidToken,
        }),
    }
}
