//! The commands on locks, each with the type of its reply: helpers on the port, as those on a
//! record are.
//!
//! What takes a [`LockSet`] is on one lock or several; the others are on one. Each of them fails as
//! [`Store::execute`] does: the store could not find out, or takes no such step. Tested in
//! `tests/stores/lock_conformance.rs` and `set_conformance.rs`.

use super::{Command, Reply, Store, StoreError};
use crate::entry::Few;
use crate::lock::{
    AcquireCommand, AcquireReply, Attempt, BreakCommand, BreakReply, EntryName, GrantEnd, Holding,
    LockCommand, LockName, LockReply, LockSet, ReleaseReply, RenewReply, TokenHash, Ttl, Waiter,
};

impl dyn Store + '_ {
    /// Grants all locks, or none, and then keeps an entry in the queue of each if the command asks
    /// for it. The same token again is the same grants, or keeps the same entries.
    pub async fn acquire(
        &self,
        names: impl Into<LockSet>,
        command: AcquireCommand,
    ) -> Result<AcquireReply, StoreError> {
        let command = LockCommand::Acquire(command);
        reply!(self.lock(names, command), LockReply::Acquire(reply) => reply)
    }

    /// Undoes what `attempt` got with `token` of each lock, be it the lock or a queue entry, unless
    /// another attempt got the same or the grant was renewed: then a client may rely on it.
    pub async fn withdraw(
        &self,
        names: impl Into<LockSet>,
        token: &TokenHash,
        attempt: Attempt,
    ) -> Result<(), StoreError> {
        let command = LockCommand::Withdraw { token: *token, attempt };
        reply!(self.lock(names, command), LockReply::Withdraw => ())
    }

    /// Lets all leases of `token` last `ttl` from now, or none; without it each lasts its own TTL.
    /// Their fencing tokens stay.
    pub async fn renew(
        &self,
        names: impl Into<LockSet>,
        token: &TokenHash,
        ttl: impl Into<Option<Ttl>>,
    ) -> Result<RenewReply, StoreError> {
        let command = LockCommand::Renew { token: *token, ttl: ttl.into() };
        reply!(self.lock(names, command), LockReply::Renew(reply) => reply)
    }

    /// Ends the leases of `token`, or one entry of each; a lease ends with its last entry. Gives
    /// what became of each lock, in the order of the names, and which grant ended.
    pub async fn leave(
        &self,
        names: impl Into<LockSet>,
        token: &TokenHash,
        entry: Option<EntryName>,
    ) -> Result<Few<(ReleaseReply, Option<GrantEnd>)>, StoreError> {
        let command = LockCommand::Release { token: *token, entry };
        reply!(self.lock(names, command), LockReply::Release(released) => released)
    }

    /// Ends the lease of `token`.
    pub async fn release(
        &self,
        name: &LockName,
        token: &TokenHash,
    ) -> Result<ReleaseReply, StoreError> {
        let left = self.leave(name, token, None).await?.into_iter().next();
        left.map(|(reply, _)| reply).ok_or_else(StoreError::mismatched_reply)
    }

    /// Ends the lease of another holder, which cannot renew it any more.
    pub async fn break_lease(
        &self,
        name: &LockName,
        command: BreakCommand,
    ) -> Result<BreakReply, StoreError> {
        let command = LockCommand::Break(command);
        reply!(self.lock(name, command), LockReply::Break(reply) => reply)
    }

    /// The holders of the lock.
    pub async fn look(&self, name: &LockName) -> Result<Option<Holding>, StoreError> {
        let command = LockCommand::Look;
        reply!(self.lock(name, command), LockReply::Look(holding) => holding)
    }

    /// The waiters of the lock, in the order of the queue.
    pub async fn look_at_queue(&self, name: &LockName) -> Result<Vec<Waiter>, StoreError> {
        let command = LockCommand::LookAtQueue;
        reply!(self.lock(name, command), LockReply::LookAtQueue(waiters) => waiters)
    }

    /// How earlier grants of the lock ended that were not released, oldest first.
    pub async fn recall(&self, name: &LockName) -> Result<Vec<GrantEnd>, StoreError> {
        let command = LockCommand::Recall;
        reply!(self.lock(name, command), LockReply::Recall(ends) => ends)
    }

    async fn lock(
        &self,
        names: impl Into<LockSet>,
        command: LockCommand,
    ) -> Result<LockReply, StoreError> {
        let command = Command::Lock(names.into(), command);
        reply!(self.execute(command), Reply::Lock(reply) => reply)
    }
}
