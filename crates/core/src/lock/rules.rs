//! The rules of a lock: what a command does to its state, as one pure function.
//!
//! [`LockState::apply`] is a function of the state, a command and the moment, so that a store which
//! executes Rust runs it, and a store with scripts is tested against it. Every timed thing is `since`
//! plus a span, so that a state can be written down and read on another clock without loss
//! (`snapshot.rs`). Invariants: a lock has at most one holder; a free lock goes to the first in its
//! queue; a grant's fencing token is above the bucket's last. The differential tests hold every
//! store to these rules.

use std::time::Duration;

use super::queue::{QueueEntry, WaitQueue};
use super::{
    AcquireCommand, AcquireReply, Attempt, Contention, FencingToken, Holder, Lease, LockCommand,
    LockName, LockReply, Moment, Owner, ReleaseReply, RenewReply, TokenHash, Ttl,
};
use crate::store::Change;

/// What a store remembers of one lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockState {
    holder: Option<HolderState>,
    queue: WaitQueue,
}

/// A holder as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderState {
    /// The proof of the grant.
    pub token: TokenHash,
    /// The grant's fencing token.
    pub fencing_token: FencingToken,
    /// The holder's label.
    pub owner: Option<Owner>,
    /// When the lease began or was last renewed, on the store's monotonic clock.
    pub since: Duration,
    /// How long the lease lasts from then.
    pub ttl: Duration,
    /// When the lock was granted by the store's wall clock, in milliseconds since 1970.
    pub acquired_at_millis: u64,
    /// The attempt that got the grant, for as long as no other attempt got it too.
    pub sole_attempt: Option<Attempt>,
}

impl LockState {
    /// A state of these parts, as a snapshot has them.
    pub fn new(holder: Option<HolderState>, queue: WaitQueue) -> Self {
        Self { holder, queue }
    }

    /// The holder, its lease expired or not.
    pub fn holder_state(&self) -> Option<&HolderState> {
        self.holder.as_ref()
    }

    /// The waiters, expired entries included.
    pub fn queue(&self) -> &WaitQueue {
        &self.queue
    }

    /// The state after `command`, and what the command found.
    ///
    /// A grant takes its fencing token from `moment`; the store has to keep it as the bucket's
    /// last.
    #[must_use]
    pub fn apply(
        &self,
        name: &LockName,
        command: &LockCommand,
        moment: &Moment,
    ) -> (Self, LockReply) {
        let mut state = self.live(moment);
        let reply = match command {
            LockCommand::Acquire(command) => {
                LockReply::Acquire(state.acquire(name, command, moment))
            }
            LockCommand::Withdraw { token, attempt } => {
                state.withdraw(token, *attempt);
                LockReply::Withdraw
            }
            LockCommand::Renew { token, ttl } => {
                LockReply::Renew(state.renew(token, *ttl, moment.now))
            }
            LockCommand::Release { token } => LockReply::Release(state.release(token)),
            LockCommand::Look => LockReply::Look(state.holder(name, moment.now)),
        };
        (state, reply)
    }

    /// What the state still says at `moment`, without leases and queue entries that have expired.
    #[must_use]
    pub fn live(&self, moment: &Moment) -> Self {
        let now = moment.now;
        let holder = self.holder.as_ref().filter(|holder| !holder.has_expired(now)).cloned();
        Self { holder, queue: self.queue.live(now) }
    }

    /// Whether [`LockState::live`] differs from the state at `moment`.
    pub fn is_stale(&self, moment: &Moment) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.has_expired(moment.now))
            || self.queue.is_stale(moment.now)
    }

    /// The times at which something in the state ends by itself: a decision on the state holds between
    /// the last of them before it and the first after it.
    pub fn ends(&self) -> impl Iterator<Item = Duration> {
        let queue = self.queue.entries().iter().map(QueueEntry::expires);
        self.holder.iter().map(HolderState::expires).chain(queue)
    }

    /// The state with each of its times on another clock: when the lease began, and each queue entry.
    #[must_use]
    pub fn map_times(&self, mut on_other: impl FnMut(Duration) -> Duration) -> Self {
        let holder = self.holder.clone();
        let holder = holder.map(|holder| HolderState { since: on_other(holder.since), ..holder });
        let entries = self.queue.entries().iter().cloned();
        let queue = entries.map(|entry| QueueEntry { since: on_other(entry.since), ..entry });
        Self { holder, queue: queue.collect() }
    }

    /// The waiter whose turn it is, if the lock is free.
    pub fn next_waiter(&self) -> Option<&TokenHash> {
        if self.holder.is_some() { None } else { self.queue.first() }
    }

    /// How the lock changed for its watchers when it became `after` at `now`.
    pub fn change(&self, after: &Self, name: &LockName, now: Duration) -> Option<Change> {
        let before = self.holder.as_ref().filter(|holder| !holder.has_expired(now));
        match (before, &after.holder) {
            (Some(before), Some(holder)) if before.is_same_lease(holder) => None,
            (Some(before), Some(holder)) if before.fencing_token == holder.fencing_token => {
                after.holder(name, now).map(Change::Renewed)
            }
            (_, Some(_)) => after.holder(name, now).map(Change::Acquired),
            (Some(before), None) => Some(Change::Released(before.fencing_token)),
            (None, None) => None,
        }
    }

    /// Whether there is neither a holder nor a waiter, expired ones included.
    pub fn is_empty(&self) -> bool {
        self.holder.is_none() && self.queue.is_empty()
    }

    /// The fencing token of the last grant, if the state still knows it.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.holder.as_ref().map(|holder| holder.fencing_token)
    }

    fn acquire(
        &mut self,
        name: &LockName,
        command: &AcquireCommand,
        moment: &Moment,
    ) -> AcquireReply {
        let now = moment.now;
        if let Some(holder) = &mut self.holder
            && holder.token == command.token
        {
            holder.sole_attempt = holder.sole_attempt.filter(|&sole| sole == command.attempt);
            let lease = holder.lease(now);
            self.queue.leave(&command.token, None);
            return AcquireReply::Repeated(lease);
        }
        let ahead = self.queue.ahead_of(&command.token);
        if self.holder.is_none() && ahead == 0 {
            self.queue.leave(&command.token, None);
            let holder = command.grant(moment);
            let lease = holder.lease(now);
            self.holder = Some(holder);
            return AcquireReply::Granted(lease);
        }
        if let Some(lasts) = command.queue {
            let (token, attempt) = (command.token, command.attempt);
            self.queue.join(QueueEntry { token, attempt, since: now, lasts });
        }
        AcquireReply::Busy(Contention { holder: self.holder(name, now), ahead })
    }

    /// Undoes what one attempt got, unless another attempt got the same.
    fn withdraw(&mut self, token: &TokenHash, attempt: Attempt) {
        let belongs =
            |holder: &HolderState| holder.token == *token && holder.sole_attempt == Some(attempt);
        if self.holder.as_ref().is_some_and(belongs) {
            self.holder = None;
        }
        self.queue.leave(token, Some(attempt));
    }

    /// Lets a lease last a full TTL from now.
    fn renew(&mut self, token: &TokenHash, ttl: Ttl, now: Duration) -> RenewReply {
        match &mut self.holder {
            None => RenewReply::NotHeld,
            Some(holder) if holder.token == *token => {
                (holder.since, holder.ttl) = (now, ttl.get());
                // A client that renews has read the grant, so no attempt may withdraw it any more.
                holder.sole_attempt = None;
                RenewReply::Renewed(holder.lease(now))
            }
            Some(_) => RenewReply::Mismatch,
        }
    }

    fn release(&mut self, token: &TokenHash) -> ReleaseReply {
        match &self.holder {
            None => ReleaseReply::NotHeld,
            Some(holder) if holder.token == *token => {
                self.holder = None;
                ReleaseReply::Released
            }
            Some(_) => ReleaseReply::Mismatch,
        }
    }

    /// The holder as any client may see it, its lease expired or not.
    pub fn holder(&self, name: &LockName, now: Duration) -> Option<Holder> {
        let holder = self.holder.as_ref()?;
        Some(Holder {
            name: name.clone(),
            owner: holder.owner.clone(),
            fencing_token: holder.fencing_token,
            acquired_at_millis: holder.acquired_at_millis,
            expires_in: holder.expires_in(now),
            waiting: self.queue.len(),
        })
    }
}

impl HolderState {
    fn expires(&self) -> Duration {
        self.since + self.ttl
    }

    /// Never more than the TTL, although `now` may be before `since`: two processes of one store estimate
    /// its clock, and one may be ahead of the other.
    fn expires_in(&self, now: Duration) -> Duration {
        self.expires().saturating_sub(now).min(self.ttl)
    }

    fn has_expired(&self, now: Duration) -> bool {
        self.expires() <= now
    }

    fn is_same_lease(&self, other: &Self) -> bool {
        self.fencing_token == other.fencing_token && self.expires() == other.expires()
    }

    fn lease(&self, now: Duration) -> Lease {
        Lease {
            fencing_token: self.fencing_token,
            owner: self.owner.clone(),
            ttl: self.ttl,
            expires_in: self.expires_in(now),
        }
    }
}

impl AcquireCommand {
    fn grant(&self, moment: &Moment) -> HolderState {
        HolderState {
            token: self.token,
            fencing_token: moment.last_fencing_token.next(moment.unix_micros),
            owner: self.owner.clone(),
            since: moment.now,
            ttl: self.ttl.get(),
            acquired_at_millis: moment.unix_micros / 1000,
            sole_attempt: Some(self.attempt),
        }
    }
}
