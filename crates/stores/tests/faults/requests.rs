//! What the tests ask of the store: locks and runs that outlast any test.
//!
//! Leases last the longest TTL and runs an hour, so that nothing expires by itself while a fault is
//! under way. A test that needs an end asks for it.

use std::sync::Arc;
use std::time::Duration;

use keylatch_core::idempotency::{
    BeginCommand, Fingerprint, IdempotencyKey, OnCrash, Principal, RecordKey, RecordScope, Scope,
};
use keylatch_core::lock::{
    AcquireCommand, AcquireReply, Attempt, LockName, Owner, Token, TokenHash, Ttl,
};
use keylatch_core::store::{Store, StoreError};
use keylatch_stores::test_medium::TestStore;
use tokio::task::JoinHandle;

use crate::disk::Disk;

/// For how long a run may go unheard.
pub(crate) const LEASE: Duration = Duration::from_secs(60 * 60);

/// A lock, and what acquires it.
#[derive(Debug, Clone)]
pub(crate) struct Acquire {
    pub(crate) name: LockName,
    pub(crate) command: AcquireCommand,
}

impl Acquire {
    pub(crate) fn new(lock: &str, holder: &str) -> Self {
        let command = AcquireCommand {
            owner: Owner::parse(holder).unwrap(),
            ..AcquireCommand::new(token(holder), Ttl::MAX, Attempt::new(1))
        };
        Self { name: name(lock), command }
    }

    pub(crate) async fn run(&self, store: &dyn Store) -> Result<AcquireReply, StoreError> {
        store.acquire(&self.name, self.command.clone()).await
    }

    /// Runs it on a disk that hangs, and waits until it waits for that.
    pub(crate) async fn hang(
        &self,
        store: &Arc<TestStore>,
        disk: &Disk,
    ) -> JoinHandle<Result<AcquireReply, StoreError>> {
        disk.hang();
        let (store, acquire) = (Arc::clone(store), self.clone());
        let acquire = tokio::spawn(async move { acquire.run(store.port()).await });
        disk.until_it_hangs().await;
        acquire
    }

    pub(crate) async fn withdraw(&self, store: &dyn Store) -> Result<(), StoreError> {
        store.withdraw(&self.name, &self.command.token, self.command.attempt).await
    }
}

pub(crate) fn begin(record: &str, runner: &str) -> BeginCommand {
    BeginCommand {
        key: key(record),
        scope: scope(record),
        token: token(runner),
        fingerprint: Fingerprint::of_text("an order"),
        lease: LEASE,
        retention: 24 * LEASE,
        on_crash: OnCrash::Unknown,
        has_room: true,
    }
}

pub(crate) fn name(lock: &str) -> LockName {
    LockName::parse(lock).unwrap()
}

pub(crate) fn key(record: &str) -> RecordKey {
    RecordKey::from_bytes(*Fingerprint::of_text(record).as_bytes())
}

fn scope(record: &str) -> RecordScope {
    let scope =
        Scope { principal: &Principal::None, method: "POST", path: "/v1/orders", source: "" };
    RecordScope::new(&scope, &IdempotencyKey::parse(&record.replace(' ', "-")).unwrap())
}

/// What a client of a service sends.
pub(crate) fn secret(holder: &str) -> Token {
    Token::parse(&format!("token-of-the-holder-{holder}")).unwrap()
}

pub(crate) fn token(holder: &str) -> TokenHash {
    secret(holder).hash()
}
