//! Kept responses that are encrypted: the keys of `idempotency.encryption_keys_file`, followed, and
//! the store over which the service of records then works.
//!
//! Without the setting nothing is encrypted, and what was encrypted before is answered as if its
//! key were missing. Tested in `tests/api/encrypted_responses.rs` and `tests/cli/config`.

mod keys;
mod store;

use std::sync::Arc;

use crate::config::Config;
use crate::error::Error;
use crate::followed_files::FollowedFile;
use keylatch_core::store::Store;
use keys::EncryptionKeys;
use store::EncryptedStore;

/// The setting that names the file.
const SETTING: &str = "idempotency.encryption_keys_file";

/// The keys of kept responses, and their file.
#[derive(Debug)]
pub(crate) struct Encryption {
    keys: EncryptionKeys,
    file: FollowedFile,
}

impl Encryption {
    /// Reads the keys, if the configuration names a file.
    pub(crate) fn open(config: &Config) -> Result<Option<Self>, Error> {
        let path = &config.idempotency.encryption_keys_file;
        if path.is_empty() {
            return Ok(None);
        }
        let (file, keys) = FollowedFile::read(path, EncryptionKeys::read)
            .map_err(|reason| Error::Secrets { place: SETTING.into(), reason })?;
        Ok(Some(Self { keys, file }))
    }

    /// The store, with its responses encrypted.
    pub(crate) fn over(&self, store: &Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(EncryptedStore { inner: Arc::clone(store), keys: self.keys.clone() })
    }

    /// Follows the file until it is dropped.
    pub(crate) async fn follow(self) {
        let replace = |text: &[u8]| self.keys.replace(text);
        self.file.follow("the encryption keys of kept responses", replace).await;
    }
}
