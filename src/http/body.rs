use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::problem::{Code, Problem};
use keylatch_core::lock::{self, Holder, LockName, Owner, Page, Token, Ttl};

/// What to create a lock with. Every member is optional, and so is the whole.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[schema(example = json!({"ttl_ms": 30000, "owner": "ci runner 7"}))]
pub(super) struct CreateLock {
    /// How long the lease lasts unless renewed, in milliseconds. A store may take less: see
    /// `max_ttl_ms` in `GET /v1/info`.
    #[schema(default = 30000, minimum = 100, maximum = 86400000)]
    ttl_ms: Option<u64>,
    /// A label for people that says who holds the lock: at most 256 bytes.
    #[schema(max_length = 256)]
    owner: Option<String>,
    /// How long to wait in line for the lock, in milliseconds. Longer than the service allows is
    /// refused; its default limit is five minutes.
    #[schema(default = 0, minimum = 0, maximum = 300000)]
    wait_ms: Option<u64>,
}

impl CreateLock {
    pub(super) fn into_request(
        self,
        name: LockName,
        token: Option<Token>,
        max_ttl: Ttl,
        max_wait: Duration,
    ) -> Result<lock::Request, Problem> {
        let wait = Duration::from_millis(self.wait_ms.unwrap_or_default());
        if wait > max_wait {
            return Err(invalid("wait_ms", format!("must be at most {}", millis(max_wait))));
        }
        let owner = Owner::parse(&self.owner.unwrap_or_default());
        Ok(lock::Request {
            name,
            token,
            wait,
            ttl: ttl(self.ttl_ms, max_ttl)?,
            owner: owner.map_err(|error| invalid("owner", error))?,
        })
    }
}

/// What to hold a lock with. Every member is optional, and so is the whole.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[schema(example = json!({"ttl_ms": 30000, "owner": "ci runner 7", "max_hold_ms": 600000}))]
pub(super) struct HoldLock {
    /// How long the lease lasts if the service itself fails, in milliseconds: it renews at a third.
    #[schema(default = 30000, minimum = 100, maximum = 86400000)]
    ttl_ms: Option<u64>,
    /// A label for people that says who holds the lock: at most 256 bytes.
    #[schema(max_length = 256)]
    owner: Option<String>,
    /// How long to wait in line for the lock, in milliseconds. Longer than the service allows is
    /// refused; its default limit is five minutes.
    #[schema(default = 0, minimum = 0, maximum = 300000)]
    wait_ms: Option<u64>,
    /// For how long to hold the lock at most, in milliseconds. Longer than the service allows is
    /// refused; its default limit, and what holds if nothing is said, is a day.
    #[schema(default = 86400000, minimum = 1, maximum = 86400000)]
    max_hold_ms: Option<u64>,
}

impl HoldLock {
    pub(super) fn into_hold(
        self,
        name: LockName,
        token: Token,
        max_ttl: Ttl,
        max_wait: Duration,
        longest: Duration,
    ) -> Result<lock::Hold, Problem> {
        let Self { ttl_ms, owner, wait_ms, max_hold_ms } = self;
        let max_hold = max_hold_ms.map_or(longest, Duration::from_millis);
        if max_hold.is_zero() || max_hold > longest {
            return Err(invalid("max_hold_ms", format!("must be 1 to {}", millis(longest))));
        }
        let create = CreateLock { ttl_ms, owner, wait_ms };
        let lock::Request { name, ttl, owner, wait, .. } =
            create.into_request(name, None, max_ttl, max_wait)?;
        Ok(lock::Hold { name, token, ttl, owner, wait, max_hold })
    }
}

/// What to renew a lock with. Every member is optional, and so is the whole.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[schema(example = json!({"ttl_ms": 60000}))]
pub(super) struct RenewLock {
    /// How long the lease lasts from now, in milliseconds. A store may take less: see `max_ttl_ms`
    /// in `GET /v1/info`.
    #[schema(default = 30000, minimum = 100, maximum = 86400000)]
    ttl_ms: Option<u64>,
}

impl RenewLock {
    pub(super) fn ttl(&self, max: Ttl) -> Result<Ttl, Problem> {
        ttl(self.ttl_ms, max)
    }
}

/// A lock as its holder sees it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "name": "deploy", "token": "aPbOQ2c1kG0x3nN7mYw5RzT4vL8sJdEf", "fencing_token": 1_779_900_000_000_000_u64,
    "owner": "ci runner 7", "ttl_ms": 30000, "valid_for_ms": 29697,
    "expires_at": "2026-05-27T16:40:30.000Z"
}))]
pub(super) struct Lease<'a> {
    /// The lock.
    name: &'a str,
    /// The proof that renewing and releasing ask for. Keep it secret.
    token: &'a str,
    /// Larger than that of every earlier grant of this lock. Hand it to the resource that the
    /// lock protects, which refuses a smaller one, and an equal one from another holder.
    fencing_token: u64,
    /// The label that came with the request.
    owner: Option<&'a str>,
    /// How long the lease lasts unless renewed.
    ttl_ms: u64,
    /// For how long the lock is exclusively yours, counted from the moment you sent the request.
    valid_for_ms: u64,
    /// When the lease ends by the service's clock (RFC 3339, UTC): for people. Programs count
    /// `valid_for_ms` on a clock of their own.
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
}

impl<'a> Lease<'a> {
    pub(super) fn new(
        name: &'a LockName,
        token: &'a Token,
        lease: &'a lock::Lease,
        valid_for: Duration,
    ) -> Self {
        Self {
            name: name.as_str(),
            token: token.expose(),
            fencing_token: lease.fence.get(),
            owner: lease.owner.as_ref().map(Owner::as_str),
            ttl_ms: millis(lease.ttl),
            valid_for_ms: millis(valid_for),
            expires_at: in_millis(lease.expires_in),
        }
    }
}

/// A held lock as everybody sees it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "name": "deploy", "owner": "ci runner 7", "fencing_token": 1_779_900_000_000_000_u64,
    "acquired_at": "2026-05-27T16:40:00.000Z", "expires_in_ms": 29950, "waiting": 0
}))]
pub(super) struct PublicLock {
    /// The lock.
    name: String,
    /// The holder's label.
    owner: Option<String>,
    /// The holder's fencing token.
    fencing_token: u64,
    /// When the lock was granted by the store's clock (RFC 3339, UTC).
    #[schema(value_type = String, format = DateTime)]
    acquired_at: Timestamp,
    /// How long the lease lasts unless renewed.
    expires_in_ms: u64,
    /// How many wait in line for the lock.
    waiting: u64,
}

impl PublicLock {
    pub(super) fn new(holder: &Holder) -> Self {
        Self {
            name: holder.name.as_str().to_owned(),
            owner: holder.owner.as_ref().map(|owner| owner.as_str().to_owned()),
            fencing_token: holder.fence.get(),
            acquired_at: at_millis(holder.acquired_at_millis),
            expires_in_ms: millis(holder.expires_in),
            waiting: holder.waiting,
        }
    }
}

/// Some of the held locks, in no order.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LockPage {
    /// The locks. There may be fewer than asked for, or none, although more follow.
    locks: Vec<PublicLock>,
    /// Pass it as `cursor` to read on; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl LockPage {
    pub(super) fn new(page: &Page) -> Self {
        Self {
            locks: page.locks.iter().map(PublicLock::new).collect(),
            next_cursor: page.next.as_ref().map(|cursor| cursor.as_str().to_owned()),
        }
    }
}

/// Who holds a lock that was not acquired.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Holder)]
pub(super) struct HolderView {
    /// The holder's label.
    #[schema(example = "ci runner 7")]
    owner: Option<String>,
    /// The holder's fencing token.
    #[schema(example = 1_779_900_000_000_000_u64)]
    fencing_token: u64,
    /// How long the holder's lease lasts unless renewed.
    #[schema(example = 12345)]
    expires_in_ms: u64,
}

impl HolderView {
    pub(super) fn new(holder: &Holder) -> Self {
        Self {
            owner: holder.owner.as_ref().map(|owner| owner.as_str().to_owned()),
            fencing_token: holder.fence.get(),
            expires_in_ms: millis(holder.expires_in),
        }
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The TTL that is asked for, or the default, if the store takes that long a one.
fn ttl(millis: Option<u64>, max: Ttl) -> Result<Ttl, Problem> {
    let Some(millis) = millis else { return Ok(Ttl::DEFAULT.min(max)) };
    let ttl = Ttl::from_millis(millis).map_err(|error| invalid("ttl_ms", error))?;
    if ttl > max {
        let most = max.as_millis();
        return Err(invalid(
            "ttl_ms",
            format!("must be at most {most} on this store, not {millis}"),
        ));
    }
    Ok(ttl)
}

/// A member of the body is wrong.
pub(super) fn invalid(field: &'static str, why: impl std::fmt::Display) -> Problem {
    Problem::new(Code::InvalidBody, format!("`{field}` {why}.")).with_field(field)
}

/// The time so many milliseconds after 1970 began.
pub(super) fn at_millis(millis: u64) -> Timestamp {
    let millis = i64::try_from(millis).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX)
}

/// The time on the wall clock after `duration`, to the millisecond.
pub(super) fn in_millis(duration: Duration) -> Timestamp {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let then = i64::try_from((since_1970 + duration).as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(then).unwrap_or(Timestamp::MAX)
}
