//! What is asked for, one lock or a set, in the words of the API, and the token that proves it.
//!
//! A set is one request at every step, so its locks are granted, renewed and released together.
//! Tested in `tests/api/rust_client.rs` and `tests/api/rust_client_sets.rs`.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use keylatch_core::lock::{FencingToken, ReleaseReply, Token};
use keylatch_wire::{
    self as wire, BreakNote, Code, Holder, LockEntries, ProblemDocument, SecretToken, millis,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::clock::BootInstant;
use crate::connection::{Call, Connection, Failure, escape};
use crate::session::Parting;
use crate::{AcquireOptions, Error, Held, Limit, LossReason, Result};

const LOCKS: &str = "/v1/locks";

/// One lock, or a set of them, and the token that proves who holds it.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) connection: Arc<Connection>,
    names: Vec<String>,
    is_set: bool,
    pub(crate) options: AcquireOptions,
    pub(crate) token: Token,
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

#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) first: LeasedLock,
    pub(crate) locks: Vec<LeasedLock>,
    /// Until when they are exclusive, counted from the sending of the request.
    pub(crate) until: BootInstant,
}

impl Claim {
    pub(crate) fn new(
        connection: &Arc<Connection>,
        names: Vec<String>,
        is_set: bool,
        options: &AcquireOptions,
    ) -> Result<Arc<Self>> {
        let token = options.token.clone().map_or_else(Token::generate, Ok)?;
        let (connection, options) = (Arc::clone(connection), options.clone());
        Ok(Arc::new(Self { connection, names, is_set, options, token }))
    }

    fn call(&self, method: Method, step: &str) -> Call {
        let path = match self.names.first() {
            Some(name) if !self.is_set => lock_path(name),
            _ => LOCKS.to_owned(),
        };
        Call::new(method, path + step).with_token(&self.token)
    }

    /// The request that asks for the locks, by this step of their path.
    pub(crate) fn creation(&self, step: &str, wait: Duration) -> Call {
        let options = &self.options;
        let mut body = self.lasting(options.ttl);
        body["wait_ms"] = millis(wait).into();
        let owner = options.owner.as_ref().or(self.connection.settings.owner.as_ref());
        body["owner"] = owner.map(String::as_str).into();
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
        if let Some(entry) = &options.entry {
            body["entry"] = entry.as_str().into();
        }
        self.call(Method::POST, step).with_body(&body)
    }

    pub(crate) async fn create(
        &self,
        parting: &mut Parting,
        wait: Duration,
        limit: Duration,
    ) -> Result<Grant, Failure> {
        let (call, sent) = (self.creation("", wait), self.connection.now());
        let answer = self.connection.send(&call, Duration::ZERO, limit);
        let answer = parting.venture(self.undo(), wait, answer).await?;
        self.fresh(self.grant(&answer, sent)?).await
    }

    fn lasting(&self, ttl: Duration) -> Value {
        let mut body = json!({"ttl_ms": millis(ttl)});
        if self.is_set {
            body["names"] = self.names.as_slice().into();
        }
        body
    }

    pub(crate) fn renewal(&self, ttl: Duration) -> Call {
        self.call(Method::PUT, "").with_body(&self.lasting(ttl))
    }

    /// Starts the TTL of the lease again, unless the response takes longer than `limit`.
    pub(crate) async fn renew(&self, limit: Duration) -> Result<Grant, Failure> {
        let (call, sent) = (self.renewal(self.options.ttl), self.connection.now());
        let answer = self.connection.send(&call, Duration::ZERO, limit).await?;
        Ok(self.grant(&answer, sent)?)
    }

    /// A grant that is renewed before it is used where little of it is left, since the response
    /// was slow or an earlier one was lost.
    async fn fresh(&self, grant: Grant) -> Result<Grant, Failure> {
        if grant.until.left() >= self.options.ttl / 2 {
            return Ok(grant);
        }
        let renewed = self.renew(self.connection.settings.timeout).await;
        renewed.map_err(|failure| match failure.error.problem().and_then(|it| self.loss(it)) {
            // The caller retries what is unavailable, and so asks for the lock again.
            Some(_) => Error::Unavailable("the lease was over before its use".to_owned()).into(),
            None => failure,
        })
    }

    pub(crate) fn release_call(&self) -> Call {
        let entry = self.options.entry.iter().map(|entry| ("entry", &**entry));
        let names = self.names.iter().map(|name| ("name", &**name));
        self.call(Method::DELETE, "").with_query(entry.chain(names.filter(|_| self.is_set)))
    }

    /// What takes back an acquire of which the caller does not learn. Under a token of the caller's
    /// own that may be what another acquisition holds, unless this one has an entry of its own.
    pub(crate) fn undo(&self) -> Option<Call> {
        let AcquireOptions { token, entry, keep, .. } = &self.options;
        (!keep && (token.is_none() || entry.is_some())).then(|| self.release_call())
    }

    pub(crate) async fn release(&self) -> Result<ReleaseReply> {
        let call = self.release_call();
        let mut tries = self.connection.tries(Duration::ZERO, Duration::ZERO);
        loop {
            let (wait, limit) = tries.next();
            let failure = match self.connection.send(&call, wait, limit).await {
                Ok(body) if self.is_released(&body) => return Ok(ReleaseReply::Released),
                Ok(_) => return Err(Error::not_keylatch()),
                Err(failure) => failure,
            };
            match failure.error.problem().and_then(ProblemDocument::known_code) {
                // The try whose response was lost has released what is gone now.
                Some(Code::LockNotHeld | Code::TokenMismatch) if tries.in_doubt => {
                    return Ok(ReleaseReply::Released);
                }
                Some(Code::LockNotHeld) => return Ok(ReleaseReply::NotHeld),
                Some(Code::TokenMismatch) => return Ok(ReleaseReply::Mismatch),
                _ => tries.failed(failure).await.map_err(Error::unavailable)?,
            }
        }
    }

    /// The grant of this claim that a response says, to a request that was sent then.
    pub(crate) fn grant(&self, response: &[u8], sent: BootInstant) -> Result<Grant> {
        let lease: LeaseResponse<'_> =
            serde_json::from_slice(response).map_err(|_| Error::not_of_this_request())?;
        let granted: Vec<_> = lease.lock.into_iter().chain(lease.locks).collect();
        let lock = |name: &String| {
            let lock = granted.iter().find(|lock| lock.name == name.as_str())?;
            let fencing_token = FencingToken::new(lock.fencing_token);
            Some(LeasedLock { name: name.clone(), fencing_token, slot: lock.slot })
        };
        let locks: Option<Vec<_>> = self.names.iter().map(lock).collect();
        let locks = locks.filter(|_| lease.token.expose() == self.token.expose());
        let locks = locks.ok_or_else(Error::not_of_this_request)?;
        let first = locks.first().cloned().ok_or_else(Error::not_keylatch)?;
        let valid = lease.waited_ms.saturating_add(lease.valid_for_ms);
        Ok(Grant { first, locks, until: sent + Duration::from_millis(valid) })
    }

    /// Of an entry, the token may still hold the lock by others.
    fn is_released(&self, response: &[u8]) -> bool {
        response.is_empty()
            || self.options.entry.is_some()
                && serde_json::from_slice::<LockEntries>(response).is_ok()
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

    pub(crate) fn refused(&self, error: Error) -> Error {
        match error {
            Error::Problem(problem) if problem.is(Code::LockHeld) => {
                let name = problem.name.clone().filter(|name| self.names.contains(name));
                let name = name.or_else(|| self.names.first().cloned()).unwrap_or_default();
                let ahead = problem.ahead.unwrap_or_default();
                Error::Held(Box::new(Held { name, holder: first_holder(*problem), ahead }))
            }
            error => error.unavailable(),
        }
    }

    pub(crate) fn text(&self) -> String {
        format!("`{}`", self.names.join("`, `"))
    }
}

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

pub(crate) fn lock_path(name: &str) -> String {
    format!("{LOCKS}/{}", escape(name))
}
