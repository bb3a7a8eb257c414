//! How a service knows the client, and how the client knows the service.
//!
//! Certificates come from files that the environment names, as the API key does, so that no secret is in an
//! argument list. A file that cannot be read is an error at once and no connection without it. Tested in
//! `tests/api/client_certificates.rs` and `tests/api/tls.rs`.

use std::io;
use std::path::PathBuf;

use crate::https::ClientCertificate;
use crate::{ApiKey, Error};

/// The variable that names the file of authorities.
const AUTHORITIES: &str = "KEYLATCH_CA";
/// Those that name the client's own certificate and its key.
const CERTIFICATE: &str = "KEYLATCH_CLIENT_CERT";
const KEY: &str = "KEYLATCH_CLIENT_KEY";

/// How a service knows the client, and how the client knows the service.
///
/// ```
/// use keylatch_client::{Client, Security};
///
/// # fn main() -> Result<(), keylatch_client::Error> {
/// // The key, the authorities and the certificate that the variables KEYLATCH_… have, if they are set.
/// let client = Client::with_security("http://127.0.0.1:7070", Security::from_environment()?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Security {
    /// What the client sends to say who it is.
    pub api_key: Option<ApiKey>,
    /// A PEM file with the authorities that vouch for a service with `https`, in place of the system's.
    pub authorities: Option<PathBuf>,
    /// What the client shows to a service with `https` that asks for a certificate.
    pub certificate: Option<ClientCertificate>,
}

impl Security {
    /// The API key in `KEYLATCH_API_KEY`, the file of authorities that `KEYLATCH_CA` names, and the certificate in
    /// the files that `KEYLATCH_CLIENT_CERT` and `KEYLATCH_CLIENT_KEY` name; none of what is not set or empty.
    ///
    /// # Errors
    ///
    /// `KEYLATCH_API_KEY` has something else, or there is a certificate without a key or a key without one.
    pub fn from_environment() -> Result<Self, Error> {
        let certificate = match (file(CERTIFICATE), file(KEY)) {
            (Some(cert), Some(key)) => Some(ClientCertificate { cert, key }),
            (None, None) => None,
            _ => {
                let both = format!("{CERTIFICATE} and {KEY} belong together");
                return Err(Error::Certificates(io::Error::other(both)));
            }
        };
        Ok(Self {
            api_key: ApiKey::from_environment()?,
            authorities: file(AUTHORITIES),
            certificate,
        })
    }
}

fn file(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|file| !file.is_empty()).map(PathBuf::from)
}
