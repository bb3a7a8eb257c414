//! What a session is about, in the words of the API: one lock, or a set of them.
//!
//! Waiting, renewing and releasing are the same for both and written once. A [`Target`] says where a
//! request goes, what is in it, and how its answer is read. A set is one request at every step, so
//! its locks are granted, renewed and released together. Tested in `tests/api/rust_client.rs` and
//! `tests/api/rust_client_sets.rs`.

use std::time::Duration;

use keylatch_core::lock::{FencingToken, Token};
use keylatch_wire::{
    self as wire, BreakNote, Code, CreateLockRequest, CreateLocksRequest, LockEntries, LockMode,
    ProblemDocument, RenewLockRequest, RenewLocksRequest, millis,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::error::not_of_this_request;
use crate::{AcquireOptions, Error, Limit, LossReason};

/// What may stand in a path segment or a query as it is. A dot may not: `..` would be a step in the path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');
/// Where the locks are.
const LOCKS: &str = "/v1/locks";

/// One lock, or a set of them.
#[derive(Debug)]
pub(crate) enum Target {
    /// One lock, and the entry that a release leaves; `None` leaves all.
    Lock(String, Option<String>),
    /// Several locks.
    Set(Vec<String>),
}

/// A lock that a guard holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedLock {
    /// The lock's name, one of those that were acquired.
    pub name: String,
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
                format!("{}?entry={}", self.path(), plain(entry))
            }
            Self::Set(set) => {
                let names = set.iter().map(|name| format!("name={}", plain(name)));
                format!("{LOCKS}?{}", names.collect::<Vec<_>>().join("&"))
            }
        }
    }

    /// The body of a request that creates, and waits for `wait`.
    pub(crate) fn creation(
        &self,
        options: &AcquireOptions,
        owner: Option<&str>,
        wait: Duration,
    ) -> Value {
        let (ttl_ms, wait_ms) = (Some(millis(options.ttl)), Some(millis(wait)));
        let owner = options.owner.as_deref().or(owner).map(str::to_owned);
        let mode = (options.limit != Limit::Exclusive).then_some(LockMode::Shared);
        let limit = match options.limit {
            Limit::Counted(slots) => Some(slots),
            Limit::Exclusive | Limit::Shared => None,
        };
        match self {
            Self::Lock(_, entry) => {
                let entry = entry.clone();
                json!(CreateLockRequest { ttl_ms, owner, wait_ms, mode, limit, entry })
            }
            Self::Set(names) => {
                let names = names.clone();
                json!(CreateLocksRequest { names, ttl_ms, owner, wait_ms, mode, limit })
            }
        }
    }

    /// The body of a request that renews.
    pub(crate) fn renewal(&self, ttl: Duration) -> Value {
        let ttl_ms = Some(millis(ttl));
        match self {
            Self::Lock(..) => json!(RenewLockRequest { ttl_ms }),
            Self::Set(names) => json!(RenewLocksRequest { names: names.clone(), ttl_ms }),
        }
    }

    /// The grant of this target to this token that a response says.
    pub(crate) fn grant(&self, token: &Token, response: &[u8]) -> Result<Grant, Error> {
        let grant = match self {
            Self::Lock(name, _) => {
                let lease = serde_json::from_slice::<wire::Lease<'_>>(response).ok();
                let lease = lease
                    .filter(|it| it.name == name.as_str() && it.token.expose() == token.expose());
                lease.map(|lease| of_one(name, &lease))
            }
            Self::Set(names) => {
                let leases = serde_json::from_slice::<wire::LeaseSet<'_>>(response).ok();
                let leases = leases.filter(|it| it.token.expose() == token.expose());
                leases.and_then(|leases| of_set(names, &leases))
            }
        };
        grant.ok_or_else(not_of_this_request)
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
            Code::LockBroken => broken(problem.broken.clone()),
            _ => return None,
        };
        let name = problem.locks.first().and_then(|lost| self.member(&lost.name));
        Some(match name {
            Some(name) => LossReason::OneOfSet { name, reason: Box::new(reason) },
            None => reason,
        })
    }

    /// The lock of a set that is called so.
    pub(crate) fn member(&self, name: &str) -> Option<String> {
        let Self::Set(names) = self else { return None };
        names.iter().find(|member| *member == name).cloned()
    }

    /// The first of the locks.
    pub(crate) fn first(&self) -> Option<&String> {
        match self {
            Self::Lock(name, _) => Some(name),
            Self::Set(names) => names.first(),
        }
    }

    /// The locks, as a message names them.
    pub(crate) fn names(&self) -> String {
        match self {
            Self::Lock(name, _) => format!("`{name}`"),
            Self::Set(names) => format!("`{}`", names.join("`, `")),
        }
    }
}

/// The loss of a lease that was broken.
pub(crate) fn broken(note: Option<BreakNote>) -> LossReason {
    let (reason, by) = note.map(|note| (note.reason, note.by)).unwrap_or_default();
    LossReason::Broken { reason, by }
}

/// The path of a lock.
pub(crate) fn lock_path(name: &str) -> String {
    format!("{LOCKS}/{}", plain(name))
}

pub(crate) fn plain(text: &str) -> impl std::fmt::Display {
    utf8_percent_encode(text, PLAIN)
}

fn of_one(name: &str, lease: &wire::Lease<'_>) -> Grant {
    let fencing_token = FencingToken::new(lease.fencing_token);
    let lock = LeasedLock { name: name.to_owned(), fencing_token, slot: lease.slot };
    Grant { locks: vec![lock], valid_from_sending: lease.valid_from_sending() }
}

fn of_set(names: &[String], leases: &wire::LeaseSet<'_>) -> Option<Grant> {
    let lock = |name: &String| {
        let lease = leases.locks.iter().find(|lease| lease.name == name.as_str())?;
        let fencing_token = FencingToken::new(lease.fencing_token);
        Some(LeasedLock { name: name.clone(), fencing_token, slot: lease.slot })
    };
    let locks = names.iter().map(lock).collect::<Option<_>>()?;
    Some(Grant { locks, valid_from_sending: leases.valid_from_sending() })
}
