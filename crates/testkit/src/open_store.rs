//! A store that is open: the port, and steps as tests write them.
//!
//! It derefs to the port, so a test calls a store as a service does. An [`Acquire`] is a command
//! with the lock that it is for, which tests change in one member at a time. It knows no engine;
//! `stores.rs` opens them.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use keylatch_core::lock::{AcquireCommand, AcquireReply, Attempt, LockName, Owner, TokenHash, Ttl};
use keylatch_core::store::{Hints, Store, StoreError, Topic};

/// A store that is open: the port, and steps as tests write them.
#[derive(Debug, Clone)]
pub struct OpenStore(pub Arc<dyn Store>);

impl Deref for OpenStore {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl OpenStore {
    /// Acquires a lock, or keeps a queue entry.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn acquire(&self, acquire: &Acquire) -> Result<AcquireReply, StoreError> {
        self.0.acquire(&acquire.name, acquire.command()).await
    }

    /// Resolves at the next wakeup of a waiter from now on.
    pub fn wakeup(
        &self,
        name: &LockName,
        token: &TokenHash,
    ) -> impl Future<Output = ()> + Send + use<> {
        let mut hints = self.0.subscribe(Topic::Turn(name.clone(), *token));
        async move { drop(hints.next().await) }
    }

    /// Hints about a lock from now on.
    pub fn changes(&self, name: &LockName) -> Hints {
        self.0.subscribe(Topic::Changes(name.clone()))
    }

    /// Hints about grants that end unreleased from now on.
    pub fn ends(&self) -> Hints {
        self.0.subscribe(Topic::Ends)
    }
}

/// An acquire and the lock that it is for.
#[derive(Debug, Clone)]
pub struct Acquire {
    /// The lock to acquire; each test has names of its own.
    pub name: LockName,
    /// The token that is to hold it.
    pub token: TokenHash,
    /// How long the lease is to last.
    pub ttl: Ttl,
    /// The holder's label.
    pub owner: Option<Owner>,
    /// Which try this is.
    pub attempt: Attempt,
    /// How long a queue entry lasts, if one is wanted.
    pub queue: Option<Duration>,
}

impl Acquire {
    /// The command for the store.
    pub fn command(&self) -> AcquireCommand {
        let Self { token, ttl, owner, attempt, queue, .. } = self.clone();
        AcquireCommand { owner, queue, ..AcquireCommand::new(token, ttl, attempt) }
    }
}
