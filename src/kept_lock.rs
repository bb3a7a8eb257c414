//! A lock of keylatch's own about a guard, which an instance keeps for as long as it runs.
//!
//! No client may name such a lock, and no list shows it. Invariant: an instance that has ended has
//! it for its TTL at most. Tested in `tests/api/guard_settings.rs` and `settling.rs`.

use keylatch_core::idempotency::FingerprintHasher;
use keylatch_core::lock::{
    AcquireRequest, Acquisition, LockError, LockName, LockService, Renewal, Token, Ttl,
};

use crate::error::Error;

/// A lock, and what this instance proves with that it has it.
#[derive(Debug, Clone)]
pub(crate) struct KeptLock {
    pub(crate) name: LockName,
    pub(crate) token: Token,
}

impl KeptLock {
    /// The lock for a purpose, which every instance with a guard of this path means.
    pub(crate) fn of_guard(purpose: &str, path: &str) -> Result<Self, Error> {
        let name = format!("{}{purpose}/{}", LockName::RESERVED, digest(&[path]));
        let name = LockName::stored(&name).map_err(std::io::Error::other)?;
        Ok(Self { name, token: Token::generate()? })
    }

    /// Renews it, or takes it as `request` says. Whether this instance has it now.
    pub(crate) async fn keep(
        &self,
        locks: &LockService,
        ttl: Ttl,
        request: impl FnOnce(AcquireRequest) -> AcquireRequest,
    ) -> Result<bool, LockError> {
        if !matches!(locks.renew(&self.name, &self.token, ttl).await?, Renewal::Lost(_)) {
            return Ok(true);
        }
        let new = AcquireRequest::new(self.name.clone(), ttl);
        let new = request(AcquireRequest { token: Some(self.token.clone()), ..new });
        let acquired = locks.acquire(new).await?;
        Ok(matches!(acquired, Acquisition::New(_) | Acquisition::Again(_)))
    }
}

/// Enough of the digest of some texts to tell them from others.
pub(crate) fn digest(texts: &[impl AsRef<[u8]>]) -> String {
    let mut hasher = FingerprintHasher::new("guard");
    for text in texts {
        hasher.add(text);
    }
    let digest = hasher.finish();
    format!("{:016x}", digest.as_bytes().first_chunk().copied().map_or(0, u64::from_be_bytes))
}
