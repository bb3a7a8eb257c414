//! How a service knows the client, and how the client knows the service.

use std::path::PathBuf;

use crate::{ApiKey, Error};

/// The variable that names the file of authorities.
const VARIABLE: &str = "KEYLATCH_CA";

/// How a service knows the client, and how the client knows the service.
///
/// ```
/// use keylatch_client::{Client, Security};
///
/// # fn main() -> Result<(), keylatch_client::Error> {
/// // The API key in KEYLATCH_API_KEY and the authorities in KEYLATCH_CA, if they are set.
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
}

impl Security {
    /// The API key in `KEYLATCH_API_KEY` and the file that `KEYLATCH_CA` names; none of what is not set or empty.
    ///
    /// # Errors
    ///
    /// `KEYLATCH_API_KEY` has something else.
    pub fn from_environment() -> Result<Self, Error> {
        let file = std::env::var_os(VARIABLE).filter(|file| !file.is_empty());
        Ok(Self { api_key: ApiKey::from_environment()?, authorities: file.map(PathBuf::from) })
    }
}
