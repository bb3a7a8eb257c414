//! Who sends a request: by its API key, by the token of an issuer, or by the certificate of its
//! connection.
//!
//! A header counts before the certificate. Tested in `tests/api/identities.rs`, `tokens.rs` and
//! `client_certificates.rs`.

use std::path::Path;
use std::sync::{Arc, RwLockReadGuard};

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName};
use jiff::Timestamp;

use super::certificate::CertificateNames;
use super::credential::{Credential, RefusedCredential, credential};
use super::file::{IdentityFile, IdentityFileError};
use super::identity::{Identities, Identity};
use super::jwt::{Issuer, IssuerError, JwtSettings};

/// The identities, and what proves them.
#[derive(Debug)]
pub struct Authenticator {
    identities: IdentityFile,
    issuer: Option<Issuer>,
}

/// Why nothing proves an identity.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthenticatorError {
    /// The file of identities is of no use.
    #[error(transparent)]
    Identities(#[from] IdentityFileError),
    /// The issuer of tokens is of no use.
    #[error(transparent)]
    Issuer(#[from] IssuerError),
}

impl Authenticator {
    /// The identities of a file, and the issuer of their tokens if the settings have one.
    pub fn open(identities: &Path, jwt: &JwtSettings) -> Result<Self, AuthenticatorError> {
        let issuer = jwt.is_on().then(|| Issuer::open(jwt)).transpose()?;
        Ok(Self { identities: IdentityFile::open(identities)?, issuer })
    }

    /// The identities as they are now. Their file is not read again as long as this is kept.
    pub fn identities(&self) -> RwLockReadGuard<'_, Identities> {
        self.identities.current()
    }

    /// The identity as it is now, if what proved it still does. Of a token that was proof enough
    /// once.
    pub fn confirm(
        &self,
        identity: &Identity,
        headers: &HeaderMap,
        certificate: Option<&CertificateNames>,
    ) -> Option<Arc<Identity>> {
        if let Ok(Credential::Token(_)) = credential(headers, &AUTHORIZATION) {
            return self.identities().find_name(&identity.name);
        }
        self.identify(headers, &AUTHORIZATION, certificate).ok()
    }

    /// Follows the file and the keys of the issuer until it is dropped.
    pub async fn follow(self: Arc<Self>) {
        let of_issuer = async {
            if let Some(issuer) = &self.issuer {
                issuer.follow().await;
            }
        };
        tokio::join!(self.identities.follow(), of_issuer);
    }

    /// Whose key or token a header of a request has or, where the request has no such header, whose
    /// certificate its connection has. A key that is wrong is not made good by a certificate.
    pub fn identify(
        &self,
        headers: &HeaderMap,
        header: &HeaderName,
        certificate: Option<&CertificateNames>,
    ) -> Result<Arc<Identity>, RefusedCredential> {
        match (credential(headers, header), certificate) {
            (Ok(Credential::Key(key)), _) => self.identities().find(&key, Timestamp::now),
            (Ok(Credential::Token(token)), _) => {
                let issuer = self.issuer.as_ref().ok_or(RefusedCredential::Malformed)?;
                let names = issuer.verify(&token)?;
                self.identities().find_claim(&names)
            }
            (Err(RefusedCredential::Missing), Some(names)) => {
                self.identities().find_certificate(names)
            }
            (Err(why), _) => Err(why),
        }
    }
}
