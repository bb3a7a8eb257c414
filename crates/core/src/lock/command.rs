//! The commands on a lock and their replies, as data.
//!
//! A command names no lock: the store runs it under a [`LockName`](super::LockName). Every command
//! is safe to repeat. What each one does is in `rules.rs`.

use std::time::Duration;

use super::{Attempt, Holder, Lease, Owner, TokenHash, Ttl};

/// One step on one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockCommand {
    /// Grants the lock, or keeps a place in its queue.
    Acquire(AcquireCommand),
    /// Undoes what one attempt got, be it the lock or a queue entry, unless another attempt got the
    /// same.
    Withdraw {
        /// The token of the attempt.
        token: TokenHash,
        /// The attempt.
        attempt: Attempt,
    },
    /// Lets a lease last a full TTL from now.
    Renew {
        /// The holder's token.
        token: TokenHash,
        /// The new TTL.
        ttl: Ttl,
    },
    /// Ends a lease.
    Release {
        /// The holder's token.
        token: TokenHash,
    },
    /// Reads the holder.
    Look,
}

impl LockCommand {
    /// Whether it undoes another command, which may still be on its way.
    pub fn is_undo(&self) -> bool {
        matches!(self, Self::Withdraw { .. })
    }
}

/// What an acquire asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireCommand {
    /// The token that is to hold the lock.
    pub token: TokenHash,
    /// How long the lease is to last.
    pub ttl: Ttl,
    /// The holder's label.
    pub owner: Option<Owner>,
    /// Which try this is.
    pub attempt: Attempt,
    /// How long a queue entry lasts that the command keeps when the lock is not to be had now.
    /// Acquiring again with the same token keeps the entry. `None` keeps no entry.
    pub queue: Option<Duration>,
}

impl AcquireCommand {
    /// An acquire by `token`, without a label and without a queue entry.
    pub fn new(token: TokenHash, ttl: Ttl, attempt: Attempt) -> Self {
        Self { token, ttl, owner: None, attempt, queue: None }
    }
}

/// What a [`LockCommand`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockReply {
    /// To [`LockCommand::Acquire`].
    Acquire(AcquireReply),
    /// To [`LockCommand::Withdraw`].
    Withdraw,
    /// To [`LockCommand::Renew`].
    Renew(RenewReply),
    /// To [`LockCommand::Release`].
    Release(ReleaseReply),
    /// To [`LockCommand::Look`]: the holder, if the lock is held.
    Look(Option<Holder>),
}

/// What became of an acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquireReply {
    /// The lock was free and is now the token's.
    Granted(Lease),
    /// The token held the lock already: the same grant, with what is left of it.
    Repeated(Lease),
    /// Another token holds it, or has a queue entry before this one.
    Busy(Contention),
}

/// Why a lock is not to be had now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contention {
    /// The holder; `None` when the lock is free for the first in its queue, or several nodes have
    /// not agreed yet on its holder.
    pub holder: Option<Holder>,
    /// How many waiters are before this token.
    pub ahead: u64,
}

/// What became of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenewReply {
    /// The lease lasts a full TTL from now; its fencing token is what it was.
    Renewed(Lease),
    /// No token holds the lock.
    NotHeld,
    /// Another token holds it.
    Mismatch,
}

/// What became of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseReply {
    /// The token held the lock and no longer does.
    Released,
    /// No token holds the lock.
    NotHeld,
    /// Another token holds it.
    Mismatch,
}
