//! What a session is about, in the words of the API: one lock, or a set of them.
//!
//! Waiting, renewing and releasing are the same for both and written once. A [`Target`] says where
//! a request goes, what is in it, and how its answer is read. A set is one request at every step,
//! so its locks are granted, renewed and released together. Tested in `tests/api/rust_client.rs`
//! and `tests/api/rust_client_sets.rs`.

use std::time::Duration;

use keylatch_core::lock::{FencingToken, Token};
use keylatch_wire::{
    self as wire, BreakNote, Holder, LockEntries, ProblemDocument, SecretToken, millis,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::connection::plain;
use crate::error::not_of_this_request;
use crate::{AcquireOptions, Error, Held, Limit, LossReason};

/// Where the locks are.
const LOCKS: &str = "/v1/locks";

/// One lock, or a set of them.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) names: Vec<String>,
    /// Whether the requests are those for sets.
    pub(crate) is_set: bool,
    /// Of one lock: the entry that a release leaves; `None` leaves all.
    pub(crate) entry: Option<String>,
}

/// A lock that a guard holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedLock {
    /// The lock's name, one of those that were acquired.
    pub name: String,
    /// Larger than that of every earlier grant of the lock that this one cannot be held together
    /// with.
    pub fencing_token: FencingToken,
    /// Which of the places is the guard's, from 0, where the lock was asked for with a number of
    /// them.
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
    pub(crate) fn lock(name: String, entry: Option<String>) -> Self {
        Self { names: vec![name], is_set: false, entry }
    }

    /// The path of the requests that create and renew.
    pub(crate) fn path(&self) -> String {
        match self.names.first() {
            Some(name) if !self.is_set => lock_path(name),
            _ => LOCKS.to_owned(),
        }
    }

    /// What the query of the request that releases names.
    pub(crate) fn release_query(&self) -> impl Iterator<Item = (&str, &str)> {
        let entry = self.entry.iter().map(|entry| ("entry", &**entry));
        let names = self.names.iter().map(|name| ("name", &**name));
        entry.chain(names.filter(|_| self.is_set))
    }

    /// The body of a request that creates, and waits for `wait`.
    pub(crate) fn creation(
        &self,
        options: &AcquireOptions,
        owner: Option<&str>,
        wait: Duration,
    ) -> Value {
        let mut body = self.renewal(options.ttl);
        body["wait_ms"] = millis(wait).into();
        body["owner"] = options.owner.as_deref().or(owner).into();
        if options.limit != Limit::Exclusive {
            body["mode"] = "shared".into();
        }
        if let Limit::Counted(slots) = options.limit {
            body["limit"] = slots.into();
        }
        if let Some(most) = options.max_ahead {
            body["max_ahead"] = most.into();
        }
        if let Some(longest) = options.max_hold {
            body["max_hold_ms"] = millis(longest).into();
        }
        if let Some(entry) = &self.entry {
            body["entry"] = entry.as_str().into();
        }
        body
    }

    /// The body of a request that renews.
    pub(crate) fn renewal(&self, ttl: Duration) -> Value {
        let mut body = json!({"ttl_ms": millis(ttl)});
        if self.is_set {
            body["names"] = self.names.as_slice().into();
        }
        body
    }

    /// The grant of this target to this token that a response says.
    pub(crate) fn grant(&self, token: &Token, response: &[u8]) -> Result<Grant, Error> {
        self.read_grant(token, response).ok_or_else(not_of_this_request)
    }

    fn read_grant(&self, token: &Token, response: &[u8]) -> Option<Grant> {
        let lease: LeaseResponse<'_> = serde_json::from_slice(response).ok()?;
        let granted = if self.is_set { lease.locks } else { vec![lease.lock?] };
        let lock = |name: &String| {
            let lock = granted.iter().find(|lock| lock.name == name.as_str())?;
            let fencing_token = FencingToken::new(lock.fencing_token);
            Some(LeasedLock { name: name.clone(), fencing_token, slot: lock.slot })
        };
        let locks = self.names.iter().map(lock).collect::<Option<_>>()?;
        let valid = lease.waited_ms.saturating_add(lease.valid_for_ms);
        let valid_from_sending = Duration::from_millis(valid);
        (lease.token.expose() == token.expose()).then_some(Grant { locks, valid_from_sending })
    }

    /// Whether a response to a release says that it is done; the token may still hold the lock by
    /// other entries.
    pub(crate) fn is_released(&self, response: &[u8]) -> bool {
        response.is_empty()
            || self.entry.is_some() && serde_json::from_slice::<LockEntries>(response).is_ok()
    }

    /// Why the token does not hold the target, if a problem says that; of several lost locks, of
    /// the first.
    pub(crate) fn loss(&self, problem: &ProblemDocument) -> Option<LossReason> {
        let reason = loss_of(&problem.code, problem.broken.clone())?;
        let lost =
            problem.locks.first().filter(|lost| self.is_set && self.names.contains(&lost.name));
        Some(match lost {
            Some(lost) => {
                LossReason::OneOfSet { name: lost.name.clone(), reason: Box::new(reason) }
            }
            None => reason,
        })
    }

    /// Who holds it, as a refusal says.
    pub(crate) fn held(&self, problem: Option<ProblemDocument>) -> Held {
        let name = problem.as_ref().and_then(|problem| problem.name.clone());
        let name = name.filter(|name| self.names.contains(name));
        let name = name.or_else(|| self.names.first().cloned()).unwrap_or_default();
        let ahead = problem.as_ref().and_then(|problem| problem.ahead).unwrap_or_default();
        Held { name, holder: problem.and_then(first_holder), ahead }
    }

    /// The locks, as a message names them.
    pub(crate) fn text(&self) -> String {
        format!("`{}`", self.names.join("`, `"))
    }
}

/// The lease of one lock, or of several.
#[derive(Deserialize)]
struct LeaseResponse<'a> {
    token: SecretToken<'a>,
    waited_ms: u64,
    valid_for_ms: u64,
    #[serde(flatten, borrow)]
    lock: Option<wire::LeasedLock<'a>>,
    #[serde(default)]
    locks: Vec<wire::LeasedLock<'a>>,
}

/// The holder that a problem names, or of several the one whose lease ends first.
fn first_holder(problem: ProblemDocument) -> Option<Holder> {
    let first = problem.holders.into_iter().min_by_key(|holder| holder.expires_in_ms);
    problem.holder.or(first.map(|holder| Holder {
        owner: holder.owner,
        fencing_token: holder.fencing_token,
        expires_in_ms: holder.expires_in_ms,
    }))
}

/// The loss that a code says, if it says one.
pub(crate) fn loss_of(code: &str, broken: Option<BreakNote>) -> Option<LossReason> {
    Some(match code {
        "lock-not-held" => LossReason::NotHeld,
        "token-mismatch" => LossReason::TakenOver,
        "lock-broken" => {
            let (reason, by) = broken.map(|note| (note.reason, note.by)).unwrap_or_default();
            LossReason::Broken { reason, by }
        }
        _ => return None,
    })
}

/// The path of a lock.
pub(crate) fn lock_path(name: &str) -> String {
    format!("{LOCKS}/{}", plain(name))
}
