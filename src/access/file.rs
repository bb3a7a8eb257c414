//! The file of identities: read at start, and again when it changes or on SIGHUP.
//!
//! The file is read every two seconds and compared as a whole, which also sees a Secret of Kubernetes that is
//! replaced behind a link. A new file that is wrong changes nothing: the identities of before stay, and the
//! log says what is wrong, once. Requests take the identities that were current when they came. Invariant:
//! there are identities at every moment, so no request passes while a file is read. Tested in
//! `tests/cli/keys.rs`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};
use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use super::credential::{RefusedCredential, api_key};
use super::identity::{Identities, Identity, InvalidIdentities};

/// How often the file is compared with what was read of it.
const PERIOD: Duration = Duration::from_secs(2);

/// The identities of a file, as they are now.
#[derive(Debug)]
pub struct IdentityFile {
    path: PathBuf,
    /// What was read first; later readings are compared with the last of them.
    text: String,
    current: RwLock<Identities>,
}

/// Why a file gives no identities.
#[derive(Debug, thiserror::Error)]
pub enum IdentityFileError {
    /// It cannot be read.
    #[error("the identities in {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is wrong.
    #[error("the identities in {}: {source}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: InvalidIdentities,
    },
}

impl IdentityFile {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is wrong.
    pub fn open(path: &Path) -> Result<Self, IdentityFileError> {
        let unreadable = |source| IdentityFileError::Unreadable { path: path.to_owned(), source };
        let invalid = |source| IdentityFileError::Invalid { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let identities = Identities::parse(&text).map_err(invalid)?;
        Ok(Self { path: path.to_owned(), text, current: RwLock::new(identities) })
    }

    /// Whose key a header of a request has.
    ///
    /// # Errors
    ///
    /// There is no key, or none that is known and valid now.
    pub fn identify(
        &self,
        headers: &HeaderMap,
        header: &HeaderName,
    ) -> Result<Arc<Identity>, RefusedCredential> {
        let key = api_key(headers, header)?;
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.find(&key, Timestamp::now)
    }

    /// Follows the file until it is dropped.
    pub async fn follow(self: Arc<Self>) {
        // A process that cannot catch the signal still compares the file.
        let mut hangup = signal(SignalKind::hangup()).ok();
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = Ok(self.text.clone());
        loop {
            let asked = async {
                match &mut hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            let is_asked = tokio::select! {
                _ = ticks.tick() => false,
                _ = asked => true,
            };
            let path = self.path.clone();
            let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await;
            let Ok(read) = read else { continue };
            let read = read.map_err(|error| error.to_string());
            if is_asked || read != seen {
                self.replace(&read);
                seen = read;
            }
        }
    }

    /// Takes the identities of a text, or keeps those that there are.
    fn replace(&self, read: &Result<String, String>) {
        let file = self.path.display();
        let parsed = match read {
            Ok(text) => Identities::parse(text).map_err(|error| error.to_string()),
            Err(error) => Err(error.clone()),
        };
        match parsed {
            Ok(identities) => {
                tracing::info!(%file, identities = identities.count(), "identities are read again");
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = identities;
            }
            Err(error) => {
                tracing::error!(%file, error, "identities are not read: those of before stay");
            }
        }
    }
}
