//! The secrets that issued keys are signed with: the operator's file, or one that the embedded
//! store keeps.
//!
//! The file is followed as that of identities, so that a secret is rotated without a restart. Where
//! a guard takes issued keys and there is no secret, the service does not start. Tested in
//! `tests/api/issued_keys.rs` and `tests/cli/keys.rs`.

use std::sync::Arc;

use crate::config::Config;
use crate::error::Error;
use crate::followed_files::FollowedFile;
use keylatch_axum::IssuedKeys;
use keylatch_stores::{own_secret, scheme_of};

/// What signs issued keys, and where its secrets come from.
#[derive(Debug)]
pub(crate) struct Issuing {
    pub(crate) keys: IssuedKeys,
    file: Option<FollowedFile>,
}

impl Issuing {
    /// Reads the secrets, if there are any; the directory of the store is open.
    pub(crate) fn open(config: &Config) -> Result<Option<Arc<Self>>, Error> {
        if let Some(issuing) = Self::of_file(config)? {
            return Ok(Some(Arc::new(issuing)));
        }
        let takes_issued = config.guard.iter().any(|guard| guard.takes_issued_keys());
        let secret =
            takes_issued.then(|| own_secret(config.store.expose())).flatten().transpose()?;
        let keys = secret.map(|secret| IssuedKeys::read(&secret)).transpose();
        let keys = keys.map_err(|error| of_secrets("the secret of the store", &error))?;
        Ok(keys.map(|keys| Arc::new(Self { keys, file: None })))
    }

    /// Whether [`open`](Self::open) would find secrets where a guard needs some.
    pub(crate) fn check(config: &Config) -> Result<(), Error> {
        let store = scheme_of(config.store.expose()).unwrap_or_default();
        let guard = config.guard.iter().find(|guard| guard.takes_issued_keys());
        match guard.filter(|_| Self::of_file_is_unset(config) && store != "embedded") {
            Some(guard) => {
                Err(Error::NoSecret { path: guard.path.clone(), store: store.to_owned() })
            }
            None => Self::of_file(config).map(drop),
        }
    }

    fn of_file_is_unset(config: &Config) -> bool {
        config.issued_keys.secret_file.is_empty()
    }

    fn of_file(config: &Config) -> Result<Option<Self>, Error> {
        if Self::of_file_is_unset(config) {
            return Ok(None);
        }
        let (file, keys) = FollowedFile::read(&config.issued_keys.secret_file, IssuedKeys::read)
            .map_err(|error| of_secrets("issued_keys.secret_file", &error))?;
        Ok(Some(Self { keys, file: Some(file) }))
    }

    /// Follows the file, if there is one, until it is dropped.
    pub(crate) async fn follow(&self) {
        if let Some(file) = &self.file {
            file.follow("the secrets of issued keys", |text| self.keys.replace(text)).await;
        }
    }
}

fn of_secrets(place: &str, source: &dyn ToString) -> Error {
    Error::Secrets { place: place.into(), reason: source.to_string() }
}
