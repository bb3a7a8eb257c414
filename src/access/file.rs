//! The file of identities: read at start, and again when it changes or on SIGHUP.
//!
//! A new file that is wrong changes nothing: the identities of before stay, and the log says what
//! is wrong, once. Requests take the identities that were current when they came. Invariant: there
//! are identities at every moment, so no request passes while a file is read. Tested in
//! `tests/cli/keys.rs`.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use super::identity::{Identities, InvalidIdentities};
use crate::followed_files::{FollowedFiles, UnreadableFile};

/// The identities of a file, as they are now.
#[derive(Debug)]
pub(super) struct IdentityFile {
    path: PathBuf,
    file: FollowedFiles,
    current: RwLock<Identities>,
}

/// Why a file gives no identities.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityFileError {
    /// It cannot be read.
    #[error("the identities in {0}")]
    Unreadable(#[from] UnreadableFile),
    /// It is wrong.
    #[error("the identities in {}: {source}", path.display())]
    Invalid {
        /// The path of the setting `identities`.
        path: PathBuf,
        /// What is wrong with it.
        source: InvalidIdentities,
    },
}

impl IdentityFile {
    /// Reads a file.
    pub(super) fn open(path: &Path) -> Result<Self, IdentityFileError> {
        let invalid = |source| IdentityFileError::Invalid { path: path.to_owned(), source };
        let file = FollowedFiles::read(vec![path.to_owned()])?;
        let identities = parse(file.first(), &Identities::default()).map_err(invalid)?;
        Ok(Self { path: path.to_owned(), file, current: RwLock::new(identities) })
    }

    /// The identities as they are now. The file is not replaced as long as this is kept.
    pub(super) fn current(&self) -> RwLockReadGuard<'_, Identities> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the file until it is dropped.
    pub(super) async fn follow(&self) {
        self.file.follow(|read| self.replace(read)).await;
    }

    /// Takes the identities of a text, or keeps those that there are.
    fn replace(&self, read: Result<&[Vec<u8>], &str>) {
        let file = self.path.display();
        let parsed = match read {
            Ok(files) => parse(files, &self.current()).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_owned()),
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

fn parse(files: &[Vec<u8>], before: &Identities) -> Result<Identities, InvalidIdentities> {
    let text = std::str::from_utf8(&files[0]).map_err(|error| {
        let before = &files[0][..error.valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        InvalidIdentities::Text { line, message: "it is not text in UTF-8".to_owned() }
    })?;
    Identities::parse(text, before)
}
