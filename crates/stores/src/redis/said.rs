use std::time::Duration;

use super::script::Keys;
use keylatch_core::lock::{FencingToken, Holder, LockName, Owner};
use keylatch_core::store::Change;

/// What is said on the channel for changes: fields with a line feed between them, the key of the lock
/// at the end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Somebody watches the lock.
    Watched(LockName),
    /// A step on a lock that is watched changed it.
    Changed(LockName, Change),
}

impl Said {
    /// What a message says, if it is one of ours.
    pub(super) fn parse(keys: &Keys, message: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(message).ok()?;
        let (fields, key) = text.rsplit_once('\n')?;
        let name = keys.lock_name(key.as_bytes())?;
        let fields: Vec<_> = fields.split('\n').collect();
        let change = match fields[..] {
            ["watched"] => return Some(Self::Watched(name)),
            ["released", fence] => Change::Released(FencingToken::new(fence.parse().ok()?)),
            [kind, fence, expires_in, acquired_at, waiting, owner] => {
                let holder = Holder {
                    name: name.clone(),
                    owner: Owner::parse(owner).ok()?,
                    fence: FencingToken::new(fence.parse().ok()?),
                    acquired_at_millis: acquired_at.parse().ok()?,
                    expires_in: Duration::from_millis(expires_in.parse().ok()?),
                    waiting: waiting.parse().ok()?,
                };
                match kind {
                    "acquired" => Change::Acquired(holder),
                    "renewed" => Change::Renewed(holder),
                    _ => return None,
                }
            }
            _ => return None,
        };
        Some(Self::Changed(name, change))
    }
}
