//! The commands on several locks at once, each with the type of its reply: helpers on the port, as those for
//! one lock and for a record are.
//!
//! A store that cannot do them replies [`StoreError::Unsupported`]. Tested in `tests/stores/set_conformance.rs`.

use super::{Command, Reply, Store, StoreError};
use crate::lock::{
    AcquireCommand, Attempt, LockSet, SetAcquireReply, SetCommand, SetRelease, SetRenewReply,
    SetReply, TokenHash, Ttl,
};

impl dyn Store + '_ {
    /// Grants all locks of the set, or none, and then keeps an entry in the queue of each if the command
    /// asks for it. The same token again is the same grants, or keeps the same entries.
    pub async fn acquire_set(
        &self,
        set: &LockSet,
        command: AcquireCommand,
    ) -> Result<SetAcquireReply, StoreError> {
        reply!(self.set(set, SetCommand::Acquire(command)), SetReply::Acquire(reply) => reply)
    }

    /// Undoes what `attempt` got with `token` of each lock, as [`withdraw`](#method.withdraw) does of one.
    pub async fn withdraw_set(
        &self,
        set: &LockSet,
        token: &TokenHash,
        attempt: Attempt,
    ) -> Result<(), StoreError> {
        let command = SetCommand::Withdraw { token: *token, attempt };
        reply!(self.set(set, command), SetReply::Withdraw => ())
    }

    /// Lets all leases of `token` last `ttl` from now, or none.
    pub async fn renew_set(
        &self,
        set: &LockSet,
        token: &TokenHash,
        ttl: Ttl,
    ) -> Result<SetRenewReply, StoreError> {
        let command = SetCommand::Renew { token: *token, ttl };
        reply!(self.set(set, command), SetReply::Renew(reply) => reply)
    }

    /// Ends all leases of `token`.
    pub async fn release_set(
        &self,
        set: &LockSet,
        token: &TokenHash,
    ) -> Result<SetRelease, StoreError> {
        let command = SetCommand::Release { token: *token };
        reply!(self.set(set, command), SetReply::Release(release) => release)
    }

    async fn set(&self, set: &LockSet, command: SetCommand) -> Result<SetReply, StoreError> {
        reply!(self.execute(Command::Set(set.clone(), command)), Reply::Set(reply) => reply)
    }
}
