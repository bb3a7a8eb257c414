use std::time::Duration;

use super::super::*;
use super::disk::Disk;
use keylatch_core::idempotency::{Begin, Fingerprint, OnCrash};
use keylatch_core::lock::{FencingToken, Owner, Token};

pub(super) fn open(disk: &Disk) -> Result<EmbeddedStore, OpenError> {
    EmbeddedStore::on(disk.medium(), "a disk".into())
}

impl EmbeddedStore {
    /// The least that the counters start from: what was on disk, without the floor of the time.
    pub(super) fn last_fence(&self) -> FencingToken {
        self.table.look::<LockState>(&name("any")).1.last_fence
    }
}

/// An acquire for longer than any test lasts.
pub(super) fn ask(lock: &str, holder: &str) -> Acquire {
    Acquire {
        name: name(lock),
        token: token(holder),
        ttl: Ttl::from_millis(Ttl::MAX_MILLIS).unwrap(),
        owner: Owner::parse(holder).unwrap(),
        attempt: Attempt::new(1),
        place: None,
    }
}

/// The beginning of a run that is kept for longer than any test lasts.
pub(super) fn begin(record: &str, runner: &str) -> Begin {
    Begin {
        key: key(record),
        token: token(runner),
        fingerprint: Fingerprint::of_text("an order"),
        lease: Duration::from_secs(24 * 3600),
        retention: Duration::from_secs(24 * 3600),
        on_crash: OnCrash::Unknown,
    }
}

pub(super) fn name(lock: &str) -> LockName {
    LockName::parse(lock).unwrap()
}

pub(super) fn key(record: &str) -> RecordKey {
    RecordKey::from_bytes(*Fingerprint::of_text(record).as_bytes())
}

pub(super) fn token(holder: &str) -> TokenHash {
    Token::parse(&format!("token-of-the-holder-{holder}")).unwrap().hash()
}
