//! The commands on a lock and their replies, as data.
//!
//! A command names no lock: the store runs it under the names of a [`LockSet`](super::LockSet), in
//! one step. Every command is safe to repeat. What each one does is in `rules.rs`.

use std::sync::Arc;
use std::time::Duration;

use super::{
    Attempt, Break, EntryName, FencingToken, GrantEnd, Holding, Lease, Limit, LockName, Owner,
    Reason, TokenHash, Ttl, Waiter,
};
use crate::entry::Few;

/// One step on a lock, or on several. What reads or breaks is on one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockCommand {
    /// Grants all locks, or keeps a place in the queue of each.
    Acquire(AcquireCommand),
    /// Undoes what one attempt got of each, be it the lock or a queue entry, unless another attempt
    /// got the same.
    Withdraw {
        /// The token of the attempt.
        token: TokenHash,
        /// The attempt.
        attempt: Attempt,
    },
    /// Lets all leases of the token last a full TTL from now, or none.
    Renew {
        /// The holder's token.
        token: TokenHash,
        /// The new TTL; `None` keeps that of each lease.
        ttl: Option<Ttl>,
    },
    /// Ends each lease of the token, or one entry of it.
    Release {
        /// The holder's token.
        token: TokenHash,
        /// The entry to leave; `None` leaves all.
        entry: Option<EntryName>,
    },
    /// Ends the lease of another holder, which cannot renew it any more; or the wait of a waiter.
    Break(BreakCommand),
    /// Reads the holders.
    Look,
    /// Reads the waiters.
    LookAtQueue,
    /// Reads how earlier grants ended.
    Recall,
}

impl LockCommand {
    /// Whether a store runs it only that knows more than locks which one holder has alone, and no
    /// queue.
    pub fn needs_modes(&self) -> bool {
        match self {
            Self::Acquire(command) => {
                let has_mode = command.limit.is_shared() || command.entry.is_some();
                has_mode || command.max_ahead.is_some()
            }
            Self::Release { entry, .. } => entry.is_some(),
            Self::Break(_) | Self::Recall | Self::LookAtQueue => true,
            Self::Withdraw { .. } | Self::Renew { .. } | Self::Look => false,
        }
    }
}

/// What an acquire asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireCommand {
    /// The token that is to hold the lock.
    pub token: TokenHash,
    /// How long the lease is to last.
    pub ttl: Ttl,
    /// The label of the holder, and of the waiter before.
    pub owner: Option<Owner>,
    /// Which try this is.
    pub attempt: Attempt,
    /// How long a queue entry lasts that the command keeps when the lock is not to be had now.
    /// Acquiring again with the same token keeps the entry. `None` keeps no entry.
    pub queue: Option<Duration>,
    /// Behind how many waiters the command keeps a new queue entry at most; `None` for any number.
    pub max_ahead: Option<u64>,
    /// How many may hold the lock together with the token.
    pub limit: Limit,
    /// The name of the entry; `None` for the unnamed one.
    pub entry: Option<EntryName>,
}

impl AcquireCommand {
    /// An acquire by `token` alone, without a label and without a queue entry.
    pub fn new(token: TokenHash, ttl: Ttl, attempt: Attempt) -> Self {
        let (limit, entry) = (Limit::Exclusive, None);
        Self { token, ttl, owner: None, attempt, queue: None, max_ahead: None, limit, entry }
    }
}

/// Whose lease to break, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakCommand {
    /// Whether a wait is to end, and no lease.
    pub is_of_wait: bool,
    /// The fencing token of the grant, so that no later grant is broken in its place. Several
    /// holders may have it. Of a wait it is the number.
    pub fencing_token: FencingToken,
    /// The slot of the holder; `None` for all that have the fencing token.
    pub slot: Option<u32>,
    /// The reason that the holder reads.
    pub reason: Reason,
    /// The label of the one who breaks it.
    pub by: Option<Owner>,
    /// How long the lease lasts at most from now; `None` for as long as it lasts anyway.
    pub grace: Option<Duration>,
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
    /// To [`LockCommand::Release`]: what became of each lock, and the end of the grant, where it
    /// ended and the store says more.
    Release(Few<(ReleaseReply, Option<GrantEnd>)>),
    /// To [`LockCommand::Break`].
    Break(BreakReply),
    /// To [`LockCommand::Look`]: the holders, if the lock is held.
    Look(Option<Holding>),
    /// To [`LockCommand::LookAtQueue`]: the waiters, first come first.
    LookAtQueue(Vec<Waiter>),
    /// To [`LockCommand::Recall`]: the ends of earlier grants, oldest first.
    Recall(Vec<GrantEnd>),
}

/// What became of an acquire of one lock or several. The leases are in the order of the names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquireReply {
    /// The locks were to be had and are now the token's: of several, one at least is new.
    Granted(Few<Lease>),
    /// The token held them already: the same grants, with what is left of them.
    Repeated(Few<Lease>),
    /// Others hold one, or have queue entries before this one.
    Busy(Contention),
    /// More wait for one than it would wait behind. It has no queue entry.
    Crowded(Contention),
    /// The token holds one already, and would have to be alone for what it asks: others hold it or
    /// wait for it, or its lease is broken. Or it would wait for others of the locks. Neither is
    /// ever waited for, because two such holders would wait for each other.
    NotAlone(Contention),
    /// An earlier attempt of the request waited, and another client ended that.
    WaitEnded(Arc<Break>),
    /// As many hold a lock as may, or the token has as many entries as it may.
    Full,
}

/// Why a lock is not to be had now: of several, the first that is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contention {
    /// The name of the lock.
    pub name: LockName,
    /// The holders; `None` when the lock is free for the first in its queue, or several nodes have
    /// not agreed yet on its holder.
    pub holding: Option<Holding>,
    /// How many waiters are before this token.
    pub ahead: u64,
    /// The first of them.
    pub first: Option<Waiter>,
    /// How many waiters are before the token in the longest of the queues.
    pub most_ahead: u64,
}

/// What became of a renewal of one lock or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenewReply {
    /// All leases, in the order of the names, last a full TTL from now. Their fencing tokens are
    /// what they were.
    Renewed(Few<Lease>),
    /// The token does not hold these, or cannot renew them. None is renewed.
    Lost(Few<LostLock>),
}

impl RenewReply {
    /// The reply of a step on this lock alone, which is lost.
    pub fn lost(name: &LockName, loss: LockLoss) -> Self {
        Self::Lost(Few::from_buf([LostLock { name: name.clone(), loss }]))
    }
}

/// A lock of a step that the token does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostLock {
    /// The name of the lock.
    pub name: LockName,
    /// How it was lost.
    pub loss: LockLoss,
}

/// How a token lost a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockLoss {
    /// The lease is broken, or was.
    Broken(Arc<Break>),
    /// No token holds the lock.
    NotHeld,
    /// Other tokens hold it.
    Mismatch,
}

/// What became of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReleaseReply {
    /// The token held the lock and no longer does.
    Released,
    /// The token still holds the lock, by other entries: these are the named ones.
    Entered(Vec<EntryName>),
    /// No token holds the lock.
    NotHeld,
    /// Other tokens hold it.
    Mismatch,
}

impl ReleaseReply {
    /// How the token had lost the lock; `None` where it held it.
    pub fn loss(&self) -> Option<LockLoss> {
        match self {
            Self::Released | Self::Entered(_) => None,
            Self::NotHeld => Some(LockLoss::NotHeld),
            Self::Mismatch => Some(LockLoss::Mismatch),
        }
    }
}

/// What became of a break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BreakReply {
    /// The lease is broken, or the wait ended.
    Broken {
        /// When it ends at the latest.
        ends_in: Duration,
    },
    /// No token holds the lock.
    NotHeld,
    /// The grant is over, and others hold the lock.
    Mismatch(Holding),
}
