//! JSON bodies: the type [`Json`] of every response, and the JSON of locks, mapped to and from the
//! types of the core.
//!
//! Every handler answers with [`Json`] in the place of axum's, because the body ends with a
//! newline: people read answers in a terminal, and without the newline the shell's prompt follows
//! the last brace. Problems end alike; the data of an event stream has its own frame and ends as
//! that says. Tested in `tests/api/json.rs`.
//!
//! The JSON types of locks are those of `keylatch-wire`. A request is checked here: its limits are
//! those of the store and of the configuration, and a member that is wrong is named in the problem.
//! Tested in `tests/api/invalid_bodies.rs`.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;

use keylatch_axum::{Code, Problem};
use keylatch_core::lock::{
    self, Break, BreakCommand, EntryName, FencingToken, GrantEnd, Holder, Holding, Limit, LockName,
    LockSet, Owner, Reason, Slots, Token, Ttl, Validity,
};
use keylatch_core::time::unix_micros;
use keylatch_wire::{
    BreakLockRequest, BreakNote, CreateLockRequest, CreateLocksRequest, EndKind, EndWaitRequest,
    HeldLock, HoldLockRequest, Lease, LeaseSet, LeasedLock, LockMode, PublicHolder, PublicLock,
    SecretToken, SharedLock, millis,
};

/// A value as the body of a response.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let mut body = Vec::with_capacity(256);
        if let Err(error) = serde_json::to_writer(&mut body, &self.0) {
            let detail = "The response could not be written as JSON.";
            return Problem::new(Code::Internal, detail).caused_by(error).into_response();
        }
        body.push(b'\n');
        ([(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}

/// What the core is to acquire.
pub(crate) fn acquire_request(
    body: CreateLockRequest,
    names: impl Into<LockSet>,
    token: Option<Token>,
    max_ttl: Ttl,
    max_wait: Duration,
) -> Result<lock::AcquireRequest, Problem> {
    if body.max_ahead.is_some() && body.wait_ms.is_none() {
        return Err(invalid("max_ahead", "is for a request that waits: give it `wait_ms`"));
    }
    let wait = Duration::from_millis(body.wait_ms.unwrap_or_default());
    if wait > max_wait {
        return Err(invalid("wait_ms", format!("must be at most {}", millis(max_wait))));
    }
    let owner = Owner::parse(&body.owner.unwrap_or_default());
    Ok(lock::AcquireRequest {
        names: names.into(),
        token,
        wait,
        max_ahead: body.max_ahead,
        ttl: ttl(body.ttl_ms, max_ttl)?,
        owner: owner.map_err(|error| invalid("owner", error))?,
        limit: limit(body.mode, body.limit)?,
        entry: body.entry.as_deref().map(entry).transpose()?,
    })
}

/// How many may hold a lock together that is asked for so.
fn limit(mode: Option<LockMode>, limit: Option<u64>) -> Result<Limit, Problem> {
    match (mode, limit) {
        (Some(LockMode::Shared), None) => Ok(Limit::Shared),
        (Some(LockMode::Shared), Some(limit)) => {
            Slots::new(limit).map(Limit::Counted).map_err(|error| invalid("limit", error))
        }
        (_, None) => Ok(Limit::Exclusive),
        (_, Some(_)) => Err(invalid("limit", "is for a lock whose `mode` is `shared`")),
    }
}

pub(crate) fn entry(name: &str) -> Result<EntryName, Problem> {
    EntryName::parse(name).map_err(|error| invalid("entry", error))
}

pub(crate) fn break_command(body: BreakLockRequest) -> Result<BreakCommand, Problem> {
    let BreakLockRequest { reason, fencing_token, slot, by, grace_ms } = body;
    let fencing_token = fencing_token.ok_or_else(|| {
        invalid("fencing_token", "is required: it names the grant that is to be broken")
    })?;
    if grace_ms.is_some_and(|grace| grace > Ttl::MAX_MILLIS) {
        return Err(invalid("grace_ms", format!("must be at most {}", Ttl::MAX_MILLIS)));
    }
    let grace = grace_ms.map(Duration::from_millis);
    Ok(BreakCommand { slot, grace, ..end_command(false, fencing_token, reason, by)? })
}

pub(crate) fn end_wait_command(body: EndWaitRequest) -> Result<BreakCommand, Problem> {
    let EndWaitRequest { reason, waiter, by } = body;
    let waiter =
        waiter.ok_or_else(|| invalid("waiter", "is required: it names the wait that is to end"))?;
    end_command(true, waiter, reason, by)
}

fn end_command(
    is_of_wait: bool,
    number: u64,
    reason: Option<String>,
    by: Option<String>,
) -> Result<BreakCommand, Problem> {
    let reason = Reason::parse(&reason.unwrap_or_default());
    let by = Owner::parse(&by.unwrap_or_default());
    Ok(BreakCommand {
        is_of_wait,
        fencing_token: FencingToken::new(number),
        slot: None,
        reason: reason.map_err(|error| invalid("reason", error))?,
        by: by.map_err(|error| invalid("by", error))?,
        grace: None,
    })
}

/// What the core is to hold.
pub(crate) fn hold_request(
    body: HoldLockRequest,
    name: LockName,
    token: Token,
    max_ttl: Ttl,
    max_wait: Duration,
    longest: Duration,
) -> Result<lock::HoldRequest, Problem> {
    let HoldLockRequest { ttl_ms, owner, wait_ms, max_ahead, max_hold_ms, mode, limit, entry } =
        body;
    let max_hold = max_hold_ms.map_or(longest, Duration::from_millis);
    if max_hold.is_zero() || max_hold > longest {
        return Err(invalid("max_hold_ms", format!("must be 1 to {}", millis(longest))));
    }
    let create = CreateLockRequest { ttl_ms, owner, wait_ms, max_ahead, mode, limit, entry };
    let acquire = acquire_request(create, name, None, max_ttl, max_wait)?;
    Ok(lock::HoldRequest { acquire, token, max_hold, observer: None })
}

/// The several locks that the core is to acquire.
pub(crate) fn set_acquire_request(
    body: CreateLocksRequest,
    token: Option<Token>,
    max_ttl: Ttl,
    max_wait: Duration,
) -> Result<lock::AcquireRequest, Problem> {
    let CreateLocksRequest { names, ttl_ms, owner, wait_ms, max_ahead, mode, limit } = body;
    let set = lock_set(&names)?;
    let entry = None;
    let create = CreateLockRequest { ttl_ms, owner, wait_ms, max_ahead, mode, limit, entry };
    // What holds for one lock holds for each.
    acquire_request(create, set, token, max_ttl, max_wait)
}

pub(crate) fn lock_set(names: &[String]) -> Result<LockSet, Problem> {
    let names = names.iter().enumerate().map(|(index, name)| {
        LockName::parse(name).map_err(|error| {
            let field = format!("names[{index}]");
            Problem::new(Code::InvalidBody, format!("`{field}`: {error}.")).with_field(field)
        })
    });
    let names = names.collect::<Result<Vec<_>, _>>()?;
    LockSet::new(names).map_err(|error| invalid("names", error))
}

/// Several locks as their holder sees them.
pub(crate) fn lease_set<'a>(
    set: &'a LockSet,
    token: &'a Token,
    leases: &[lock::Lease],
    validity: Validity,
) -> LeaseSet<'a> {
    let (waited, valid_for) = validity.spans();
    let shortest =
        |of: fn(&lock::Lease) -> Duration| leases.iter().map(of).min().unwrap_or_default();
    let locks = set.names().iter().zip(leases).map(|(name, lease)| LeasedLock {
        name: name.as_str().into(),
        fencing_token: lease.fencing_token.get(),
        slot: slots(lease.limit).map(|_| lease.slot),
    });
    LeaseSet {
        token: SecretToken::new(token.expose()),
        ttl_ms: millis(shortest(|lease| lease.ttl)),
        waited_ms: millis(waited),
        valid_for_ms: millis(valid_for),
        expires_at: in_millis(shortest(|lease| lease.expires_in)),
        locks: locks.collect(),
        unchanged: Vec::new(),
    }
}

/// A lock as its holder sees it.
pub(crate) fn lease_body<'a>(
    name: &'a LockName,
    token: &'a Token,
    lease: &'a lock::Lease,
    validity: Validity,
) -> Lease<'a> {
    let (waited, valid_for) = validity.spans();
    Lease {
        name: name.as_str().into(),
        token: SecretToken::new(token.expose()),
        fencing_token: lease.fencing_token.get(),
        owner: lease.owner.as_ref().map(|owner| Cow::Borrowed(owner.as_str())),
        ttl_ms: millis(lease.ttl),
        waited_ms: millis(waited),
        valid_for_ms: millis(valid_for),
        expires_at: in_millis(lease.expires_in),
        mode: mode(lease.limit),
        limit: slots(lease.limit),
        slot: slots(lease.limit).map(|_| lease.slot),
        entries: lease.entries.iter().map(|entry| Cow::Borrowed(entry.as_str())).collect(),
        unchanged: Vec::new(),
    }
}

/// The members of a request for this TTL and owner that changed nothing of these leases, which a
/// grant of before has.
pub(crate) fn unchanged(
    leases: &[lock::Lease],
    ttl: Ttl,
    owner: Option<&Owner>,
) -> Vec<Cow<'static, str>> {
    let has_other_ttl = leases.iter().any(|lease| lease.ttl != ttl.get());
    let has_other_owner =
        owner.is_some() && leases.iter().any(|lease| lease.owner.as_ref() != owner);
    let members = [(has_other_ttl, "ttl_ms"), (has_other_owner, "owner")];
    members.into_iter().filter(|(differs, _)| *differs).map(|(_, name)| name.into()).collect()
}

/// The mode as a response has it: an exclusive lock has none.
pub(crate) fn mode(limit: Limit) -> Option<LockMode> {
    limit.is_shared().then_some(LockMode::Shared)
}

/// How many were asked for to hold the lock together, if any number was.
pub(crate) fn slots(limit: Limit) -> Option<u64> {
    match limit {
        Limit::Counted(slots) => Some(slots.get().into()),
        Limit::Exclusive | Limit::Shared => None,
    }
}

/// A held lock as any client sees it.
pub(crate) fn held_lock(holding: &Holding) -> HeldLock {
    let Holding { first, count, .. } = holding;
    if !first.limit.is_shared() {
        return HeldLock::Exclusive(public_lock(first));
    }
    HeldLock::Shared(SharedLock {
        name: first.name.as_str().to_owned(),
        owner: None,
        mode: LockMode::Shared,
        limit: holding.holders().filter_map(|holder| slots(holder.limit)).min(),
        holders: public_holders(holding),
        holding: *count as u64,
        waiting: first.waiting,
    })
}

/// Those that hold a lock together, by slot.
pub(crate) fn public_holders(holding: &Holding) -> Vec<PublicHolder> {
    let mut holders: Vec<_> = holding.holders().map(public_holder).collect();
    holders.sort_unstable_by_key(|holder| holder.slot);
    holders
}

fn public_holder(holder: &Holder) -> PublicHolder {
    PublicHolder {
        owner: owner_of(holder),
        fencing_token: holder.fencing_token.get(),
        slot: holder.slot,
        acquired_at: at_millis(holder.acquired_at_millis),
        expires_in_ms: millis(holder.expires_in),
        broken: holder.broken.as_deref().map(break_note),
    }
}

fn owner_of(holder: &Holder) -> Option<String> {
    holder.owner.as_ref().map(|owner| owner.as_str().to_owned())
}

pub(crate) fn break_note(why: &Break) -> BreakNote {
    BreakNote {
        reason: why.reason.as_str().to_owned(),
        by: why.by.as_ref().map(|by| by.as_str().to_owned()),
        at: at_millis(why.at_millis),
    }
}

/// How a grant ended, as any client sees it.
pub(crate) fn grant_end(end: &GrantEnd) -> keylatch_wire::GrantEnd {
    let broken = end.broken().map(|why| break_note(why));
    keylatch_wire::GrantEnd {
        fencing_token: end.fencing_token.get(),
        owner: end.owner.as_ref().map(|owner| owner.as_str().to_owned()),
        acquired_at: at_millis(end.acquired_at_millis),
        ended_at: at_millis(end.ended_at_millis),
        how: if broken.is_some() { EndKind::Broken } else { EndKind::Expired },
        by: broken.as_ref().and_then(|broken| broken.by.clone()),
        reason: broken.map(|broken| broken.reason),
    }
}

/// A holder with its lock, as any client sees them.
pub(crate) fn public_lock(holder: &Holder) -> PublicLock {
    PublicLock {
        name: holder.name.as_str().to_owned(),
        owner: owner_of(holder),
        fencing_token: holder.fencing_token.get(),
        acquired_at: at_millis(holder.acquired_at_millis),
        expires_in_ms: millis(holder.expires_in),
        waiting: holder.waiting,
        mode: mode(holder.limit),
        limit: slots(holder.limit),
        slot: holder.limit.is_shared().then_some(holder.slot),
        broken: holder.broken.as_deref().map(break_note),
    }
}

/// The TTL that is asked for, or the default, if the store takes that long a one.
pub(crate) fn ttl(millis: Option<u64>, max: Ttl) -> Result<Ttl, Problem> {
    Ok(asked_ttl(millis, max)?.unwrap_or_else(|| Ttl::DEFAULT.min(max)))
}

/// The TTL that is asked for, if one is.
pub(crate) fn asked_ttl(millis: Option<u64>, max: Ttl) -> Result<Option<Ttl>, Problem> {
    let Some(millis) = millis else { return Ok(None) };
    let ttl = Ttl::from_millis(millis).map_err(|error| invalid("ttl_ms", error))?;
    if ttl > max {
        let most = max.as_millis();
        return Err(invalid(
            "ttl_ms",
            format!("must be at most {most} on this store, not {millis}"),
        ));
    }
    Ok(Some(ttl))
}

pub(crate) fn invalid(field: &'static str, why: impl std::fmt::Display) -> Problem {
    Problem::new(Code::InvalidBody, format!("`{field}` {why}.")).with_field(field)
}

/// The time so many milliseconds after 1970 began, as RFC 3339.
pub(crate) fn at_millis(millis: u64) -> String {
    let millis = i64::try_from(millis).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX).to_string()
}

/// The time on the wall clock after `duration`, to the millisecond, as RFC 3339.
pub(crate) fn in_millis(duration: Duration) -> String {
    let then = Duration::from_micros(unix_micros()).saturating_add(duration);
    at_millis(u64::try_from(then.as_millis()).unwrap_or(u64::MAX))
}
