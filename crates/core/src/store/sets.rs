//! The commands on several locks at once, each with the type of its reply: helpers on the port, as those for
//! one lock and for a record are.
//!
//! A store that cannot do them replies [`StoreError::Unsupported`], and one that replies to another command has a
//! defect, which is an error and no panic. Tested in `tests/stores/set_conformance.rs`.

use super::{Command, Reply, Store, StoreError};
use crate::lock::{
    AcquireCommand, Attempt, LockSet, SetAcquireReply, SetCommand, SetRelease, SetRenewReply,
    SetReply, TokenHash, Ttl,
};

impl dyn Store + '_ {
    /// Grants all locks of the set, or none, and then keeps an entry in the queue of each if the command
    /// asks for it. The same token again is the same grants, or keeps the same entries.
    ///
    /// # Errors
    ///
    /// The store could not find out, or takes no step on several locks.
    pub async fn acquire_set(
        &self,
        set: &LockSet,
        command: AcquireCommand,
    ) -> Result<SetAcquireReply, StoreError> {
        match self.set(set, SetCommand::Acquire(command)).await? {
            SetReply::Acquire(reply) => Ok(reply),
            _ => Err(StoreError::mismatched_reply()),
        }
    }

    /// Undoes what `attempt` got with `token` of each lock, as [`withdraw`](#method.withdraw) does of one.
    ///
    /// # Errors
    ///
    /// The store could not find out, or takes no step on several locks.
    pub async fn withdraw_set(
        &self,
        set: &LockSet,
        token: &TokenHash,
        attempt: Attempt,
    ) -> Result<(), StoreError> {
        match self.set(set, SetCommand::Withdraw { token: *token, attempt }).await? {
            SetReply::Withdraw => Ok(()),
            _ => Err(StoreError::mismatched_reply()),
        }
    }

    /// Lets all leases of `token` last `ttl` from now, or none.
    ///
    /// # Errors
    ///
    /// The store could not find out, or takes no step on several locks.
    pub async fn renew_set(
        &self,
        set: &LockSet,
        token: &TokenHash,
        ttl: Ttl,
    ) -> Result<SetRenewReply, StoreError> {
        match self.set(set, SetCommand::Renew { token: *token, ttl }).await? {
            SetReply::Renew(reply) => Ok(reply),
            _ => Err(StoreError::mismatched_reply()),
        }
    }

    /// Ends all leases of `token`.
    ///
    /// # Errors
    ///
    /// The store could not find out, or takes no step on several locks.
    pub async fn release_set(
        &self,
        set: &LockSet,
        token: &TokenHash,
    ) -> Result<SetRelease, StoreError> {
        match self.set(set, SetCommand::Release { token: *token }).await? {
            SetReply::Release(release) => Ok(release),
            _ => Err(StoreError::mismatched_reply()),
        }
    }

    async fn set(&self, set: &LockSet, command: SetCommand) -> Result<SetReply, StoreError> {
        match self.execute(Command::Set(set.clone(), command)).await? {
            Reply::Set(reply) => Ok(reply),
            Reply::Lock(_) | Reply::Record(_) => Err(StoreError::mismatched_reply()),
        }
    }
}
