//! What an attempt asks for: one lock, or a set of them.
//!
//! Deadlines, waiting and withdrawals are the same for both and written once, over a [`Target`]; it says how
//! the store is asked, which hints count, and what a reply means for a waiter.

use std::fmt;
use std::slice;

use futures_util::stream::select_all;

use super::{
    AcquireCommand, AcquireReply, Contention, Lease, LockName, LockSet, SetContention, TokenHash,
};
use crate::store::{Hints, Store, StoreError, Topic};

/// What a store replies to an attempt at a target.
pub(super) type Reply<T> = AcquireReply<<T as Target>::Lease, <T as Target>::Contention>;

/// One lock, or a set of them.
pub(super) trait Target: Clone + fmt::Debug + Send + Sync + 'static {
    /// What a holder gets.
    type Lease: Send + 'static;
    /// Why a target is not to be had.
    type Contention: Send + 'static;

    /// Asks the store for all of the target, in one step.
    fn acquire(
        &self,
        store: &dyn Store,
        command: AcquireCommand,
    ) -> impl Future<Output = Result<Reply<Self>, StoreError>> + Send;

    /// Undoes what an acquire got, in one step.
    fn withdraw(
        &self,
        store: &dyn Store,
        command: &AcquireCommand,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Hints that the lock may be free for a waiter.
    fn wakeups(&self, store: &dyn Store, token: &TokenHash) -> Hints;

    /// By which bucket the waiters of this process keep their entries together.
    fn bucket(&self) -> u8;

    /// All leases.
    fn leases(lease: &Self::Lease) -> &[Lease];

    /// What a waiter waits for first.
    fn contention(contention: &Self::Contention) -> &Contention;

    /// How many waiters are before this one in the longest queue.
    fn most_ahead(contention: &Self::Contention) -> u64;
}

impl Target for LockName {
    type Lease = Lease;
    type Contention = Contention;

    fn acquire(
        &self,
        store: &dyn Store,
        command: AcquireCommand,
    ) -> impl Future<Output = Result<AcquireReply, StoreError>> {
        store.acquire(self, command)
    }

    fn withdraw(
        &self,
        store: &dyn Store,
        command: &AcquireCommand,
    ) -> impl Future<Output = Result<(), StoreError>> {
        store.withdraw(self, &command.token, command.attempt)
    }

    fn wakeups(&self, store: &dyn Store, token: &TokenHash) -> Hints {
        store.subscribe(Topic::Turn(self.clone(), *token))
    }

    fn bucket(&self) -> u8 {
        self.bucket()
    }

    fn leases(lease: &Lease) -> &[Lease] {
        slice::from_ref(lease)
    }

    fn contention(contention: &Contention) -> &Contention {
        contention
    }

    fn most_ahead(contention: &Contention) -> u64 {
        contention.ahead
    }
}

impl Target for LockSet {
    type Lease = Vec<Lease>;
    type Contention = SetContention;

    fn acquire(
        &self,
        store: &dyn Store,
        command: AcquireCommand,
    ) -> impl Future<Output = Result<Reply<Self>, StoreError>> {
        store.acquire_set(self, command)
    }

    fn withdraw(
        &self,
        store: &dyn Store,
        command: &AcquireCommand,
    ) -> impl Future<Output = Result<(), StoreError>> {
        store.withdraw_set(self, &command.token, command.attempt)
    }

    fn wakeups(&self, store: &dyn Store, token: &TokenHash) -> Hints {
        let names = self.names().iter();
        let hints = names.map(|name| store.subscribe(Topic::Turn(name.clone(), *token)));
        Box::pin(select_all(hints))
    }

    fn bucket(&self) -> u8 {
        self.names().iter().map(LockName::bucket).min().unwrap_or_default()
    }

    fn leases(leases: &Vec<Lease>) -> &[Lease] {
        leases
    }

    fn contention(contention: &SetContention) -> &Contention {
        &contention.contention
    }

    fn most_ahead(contention: &SetContention) -> u64 {
        contention.most_ahead
    }
}
