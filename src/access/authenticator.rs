//! Who sends a request: by its API key, by the token of an issuer, or by the certificate of its
//! connection.
//!
//! A header counts before the certificate. The file of identities is read at start, and again when
//! it changes or on SIGHUP; one that is wrong changes nothing. Tested in `tests/api/identities.rs`,
//! `tokens.rs` and `client_certificates.rs`, and in `tests/cli/keys.rs`.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName};
use jiff::Timestamp;

use super::certificate::CertificateNames;
use super::credential::{Credential, RefusedCredential, credential};
use super::identity::{Identities, Identity, InvalidIdentities};
use super::jwt::{Issuer, JwtSettings};
use crate::followed_files::FollowedFile;

/// The identities, and what proves them.
///
/// Invariant: there are identities at every moment, so no request passes while their file is read.
#[derive(Debug)]
pub struct Authenticator {
    file: FollowedFile,
    identities: RwLock<Identities>,
    issuer: Option<Issuer>,
}

impl Authenticator {
    /// The identities of a file, and the issuer of their tokens if the settings have one. The error
    /// names the file that is of no use, and why.
    pub fn open(identities: &str, jwt: &JwtSettings) -> Result<Self, String> {
        let issuer = jwt.is_on().then(|| Issuer::open(jwt)).transpose()?;
        let parse = |text: &[u8]| Identities::parse(text, &Identities::default());
        let (file, identities) = FollowedFile::read(identities, parse)
            .map_err(|error| format!("the identities in {error}"))?;
        Ok(Self { file, identities: RwLock::new(identities), issuer })
    }

    /// The identities as they are now. Their file is not read again as long as this is kept.
    pub fn identities(&self) -> RwLockReadGuard<'_, Identities> {
        self.identities.read().unwrap_or_else(PoisonError::into_inner)
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
        let replace = |text: &[u8]| {
            let read = Identities::parse(text, &self.identities())?;
            *self.identities.write().unwrap_or_else(PoisonError::into_inner) = read;
            Ok::<_, InvalidIdentities>(())
        };
        tokio::join!(self.file.follow("the identities", replace), of_issuer);
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
