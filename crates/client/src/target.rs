//! What a session is about, in the words of the API: one lock, or a set of them.
//!
//! Waiting, renewing and releasing are the same for both and written once. A [`Target`] says where a
//! request goes, what is in it, and how its answer is read. A set is one request at every step, so
//! its locks are granted, renewed and released together. Tested in `tests/api/rust_client.rs` and
//! `tests/api/rust_client_sets.rs`.

use std::time::Duration;

use keylatch_core::lock::{EntryName, FencingToken, Limit, LockName, LockSet, Ttl};
use keylatch_wire::{
    self as wire, Code, CreateLockRequest, CreateLocksRequest, LockEntries, LockMode,
    ProblemDocument, RenewLockRequest, RenewLocksRequest, millis,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::error::not_keylatch;
use crate::{AcquireOptions, Error, LossReason};

/// What may stand in a path segment or a query as it is. A dot may not: `..` would be a step in the path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');
/// Where the locks are.
const LOCKS: &str = "/v1/locks";

/// One lock, or a set of them.
#[derive(Debug)]
pub(crate) enum Target {
    /// One lock, and the entry that a release leaves; `None` leaves all.
    Lock(LockName, Option<EntryName>),
    /// Several locks.
    Set(LockSet),
}

/// A lock that a guard holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedLock {
    /// The lock's name, one of those that were acquired.
    pub name: LockName,
    /// Larger than that of every earlier grant of the lock that this one cannot be held together with.
    pub fencing_token: FencingToken,
    /// Which of the places is the guard's, from 0, where the lock was asked for with a number of them.
    pub slot: Option<u32>,
}

/// What the service granted, or renewed.
#[derive(Debug)]
pub(crate) struct Grant {
    /// The locks, in the order of the target.
    pub(crate) locks: Vec<LeasedLock>,
    /// How long after the sending of the request they are exclusive.
    pub(crate) valid_from_sending: Duration,
}

impl Target {
    /// The path of the requests that create and renew.
    pub(crate) fn path(&self) -> String {
        match self {
            Self::Lock(name, _) => lock_path(name),
            Self::Set(_) => LOCKS.to_owned(),
        }
    }

    /// The path and the query of the request that releases.
    pub(crate) fn release_path(&self) -> String {
        match self {
            Self::Lock(_, None) => self.path(),
            Self::Lock(_, Some(entry)) => {
                format!("{}?entry={}", self.path(), plain(entry.as_str()))
            }
            Self::Set(set) => {
                let names = set.names().iter().map(|name| format!("name={}", plain(name.as_str())));
                format!("{LOCKS}?{}", names.collect::<Vec<_>>().join("&"))
            }
        }
    }

    /// The body of a request that creates, and waits for `wait`.
    pub(crate) fn creation(
        &self,
        options: &AcquireOptions,
        wait: Duration,
    ) -> serde_json::Result<Vec<u8>> {
        let (ttl_ms, wait_ms) = (Some(options.ttl.as_millis()), Some(millis(wait)));
        let owner = options.owner.as_ref().map(|owner| owner.as_str().to_owned());
        let mode = options.limit.is_shared().then_some(LockMode::Shared);
        let limit = match options.limit {
            Limit::Counted(slots) => Some(slots.get().into()),
            Limit::Exclusive | Limit::Shared => None,
        };
        match self {
            Self::Lock(_, entry) => {
                let entry = entry.as_ref().map(|entry| entry.as_str().to_owned());
                let body = CreateLockRequest { ttl_ms, owner, wait_ms, mode, limit, entry };
                serde_json::to_vec(&body)
            }
            Self::Set(set) => {
                let names = texts(set);
                let body = CreateLocksRequest { names, ttl_ms, owner, wait_ms, mode, limit };
                serde_json::to_vec(&body)
            }
        }
    }

    /// The body of a request that renews.
    pub(crate) fn renewal(&self, ttl: Ttl) -> serde_json::Result<Vec<u8>> {
        let ttl_ms = Some(ttl.as_millis());
        match self {
            Self::Lock(..) => serde_json::to_vec(&RenewLockRequest { ttl_ms }),
            Self::Set(set) => serde_json::to_vec(&RenewLocksRequest { names: texts(set), ttl_ms }),
        }
    }

    /// The grant that an answer says.
    pub(crate) fn grant(&self, answer: &[u8]) -> Result<Grant, Error> {
        let grant = match self {
            Self::Lock(name, _) => serde_json::from_slice(answer).ok().map(|it| of_one(name, &it)),
            Self::Set(set) => serde_json::from_slice(answer).ok().and_then(|it| of_set(set, &it)),
        };
        grant.ok_or_else(not_keylatch)
    }

    /// Whether an answer to a release says that the token still holds the lock, by other entries.
    pub(crate) fn has_entries(&self, answer: &[u8]) -> bool {
        matches!(self, Self::Lock(_, Some(_)))
            && serde_json::from_slice::<LockEntries>(answer).is_ok()
    }

    /// Why the token does not hold the target, if a problem says that; of several lost locks, of the first.
    pub(crate) fn loss(&self, problem: &ProblemDocument) -> Option<LossReason> {
        let reason = match problem.known_code()? {
            Code::LockNotHeld => LossReason::NotHeld,
            Code::TokenMismatch => LossReason::TakenOver,
            Code::LockBroken => {
                let broken = problem.broken.as_ref();
                LossReason::Broken(broken.map(|it| it.reason.clone()).unwrap_or_default())
            }
            _ => return None,
        };
        let name = problem.locks.first().and_then(|lost| self.member(&lost.name));
        Some(match name {
            Some(name) => LossReason::OneOfSet { name, reason: Box::new(reason) },
            None => reason,
        })
    }

    /// The lock of a set that is called so.
    pub(crate) fn member(&self, name: &str) -> Option<LockName> {
        let Self::Set(set) = self else { return None };
        set.names().iter().find(|member| member.as_str() == name).cloned()
    }
}

/// The path of a lock.
pub(crate) fn lock_path(name: &LockName) -> String {
    format!("{LOCKS}/{}", plain(name.as_str()))
}

pub(crate) fn plain(text: &str) -> impl std::fmt::Display {
    utf8_percent_encode(text, PLAIN)
}

fn texts(set: &LockSet) -> Vec<String> {
    set.names().iter().map(|name| name.as_str().to_owned()).collect()
}

fn of_one(name: &LockName, lease: &wire::Lease<'_>) -> Grant {
    let fencing_token = FencingToken::new(lease.fencing_token);
    let lock = LeasedLock { name: name.clone(), fencing_token, slot: lease.slot };
    Grant { locks: vec![lock], valid_from_sending: lease.valid_from_sending() }
}

fn of_set(set: &LockSet, leases: &wire::LeaseSet<'_>) -> Option<Grant> {
    let lock = |name: &LockName| {
        let lease = leases.locks.iter().find(|lease| lease.name == name.as_str())?;
        let fencing_token = FencingToken::new(lease.fencing_token);
        Some(LeasedLock { name: name.clone(), fencing_token, slot: lease.slot })
    };
    let locks = set.names().iter().map(lock).collect::<Option<_>>()?;
    Some(Grant { locks, valid_from_sending: leases.valid_from_sending() })
}
