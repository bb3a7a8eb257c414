//! Requests and answers about locks: create, hold, renew, look, list; and the token that proves a lease.
//!
//! A token travels as a plain string and is a secret: no `Debug` of an answer may print it. The rules of
//! its characters are in `keylatch-core`, where it is checked. A run of a record has one too.
//!
//! Doc comments here are the descriptions in `openapi/openapi.json`, and a name in
//! `schema(as = …)` is the name of the schema there: both are published. `tests` hold the
//! committed document against these types.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A token: the proof that renewing, releasing and completing ask for. It prints as `Token(..)`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretToken<'a>(Cow<'a, str>);

impl<'a> SecretToken<'a> {
    /// Wraps the text of a token, without checking it.
    pub fn new(token: impl Into<Cow<'a, str>>) -> Self {
        Self(token.into())
    }

    /// The secret itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// What to create a lock with. Every member is optional, and so is the whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[cfg_attr(
    feature = "openapi",
    schema(as = CreateLock, example = json!({"ttl_ms": 30000, "owner": "ci runner 7"}))
)]
pub struct CreateLockRequest {
    /// How long the lease lasts unless renewed, in milliseconds. A store may take less: see
    /// `max_ttl_ms` in `GET /v1/info`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(default = 30000, minimum = 100, maximum = 86400000))]
    pub ttl_ms: Option<u64>,
    /// A label for people that says who holds the lock: at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 256))]
    pub owner: Option<String>,
    /// How long to wait in line for the lock, in milliseconds. Longer than the service allows is
    /// refused; its default limit is five minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(default = 0, minimum = 0, maximum = 300000))]
    pub wait_ms: Option<u64>,
}

/// What to hold a lock with. Every member is optional, and so is the whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[cfg_attr(
    feature = "openapi",
    schema(
        as = HoldLock,
        example = json!({"ttl_ms": 30000, "owner": "ci runner 7", "max_hold_ms": 600000})
    )
)]
pub struct HoldLockRequest {
    /// How long the lease lasts if the service itself fails, in milliseconds: it renews at a third.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(default = 30000, minimum = 100, maximum = 86400000))]
    pub ttl_ms: Option<u64>,
    /// A label for people that says who holds the lock: at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 256))]
    pub owner: Option<String>,
    /// How long to wait in line for the lock, in milliseconds. Longer than the service allows is
    /// refused; its default limit is five minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(default = 0, minimum = 0, maximum = 300000))]
    pub wait_ms: Option<u64>,
    /// For how long to hold the lock at most, in milliseconds. Longer than the service allows is
    /// refused; its default limit, which also holds where this member is absent, is a day.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(default = 86400000, minimum = 1, maximum = 86400000))]
    pub max_hold_ms: Option<u64>,
}

/// What to renew a lock with. Every member is optional, and so is the whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[cfg_attr(feature = "openapi", schema(as = RenewLock, example = json!({"ttl_ms": 60000})))]
pub struct RenewLockRequest {
    /// How long the lease lasts from now, in milliseconds. A store may take less: see `max_ttl_ms`
    /// in `GET /v1/info`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(default = 30000, minimum = 100, maximum = 86400000))]
    pub ttl_ms: Option<u64>,
}

/// A lock as its holder sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({
    "name": "deploy", "token": "aPbOQ2c1kG0x3nN7mYw5RzT4vL8sJdEf",
    "fencing_token": 1_779_900_000_000_000_u64,
    "owner": "ci runner 7", "ttl_ms": 30000, "waited_ms": 1, "valid_for_ms": 29696,
    "expires_at": "2026-05-27T16:40:30.000Z"
})))]
pub struct Lease<'a> {
    /// The lock.
    pub name: Cow<'a, str>,
    /// The proof that renewing and releasing ask for. Keep it secret.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub token: SecretToken<'a>,
    /// Larger than that of every earlier grant of this lock. Hand it to the resource that the
    /// lock protects, which refuses a smaller one, and an equal one from another holder.
    pub fencing_token: u64,
    /// The label that came with the request.
    pub owner: Option<Cow<'a, str>>,
    /// How long the lease lasts unless renewed.
    pub ttl_ms: u64,
    /// From the arrival of the request until this answer was written. In a stream it grows with the
    /// stream's age.
    pub waited_ms: u64,
    /// What was left of the lease when this answer was written: never above the TTL. The lock is
    /// exclusively yours until you sent the request + `waited_ms` + `valid_for_ms`.
    pub valid_for_ms: u64,
    /// When the lease ends by the service's clock (RFC 3339, UTC): for people. Programs count
    /// `waited_ms` and `valid_for_ms` on a monotonic clock of their own.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub expires_at: String,
}

impl Lease<'_> {
    /// How long after the sending of the request the lease is exclusive.
    pub fn valid_from_sending(&self) -> Duration {
        Duration::from_millis(self.waited_ms.saturating_add(self.valid_for_ms))
    }
}

/// A held lock as everybody sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({
    "name": "deploy", "owner": "ci runner 7", "fencing_token": 1_779_900_000_000_000_u64,
    "acquired_at": "2026-05-27T16:40:00.000Z", "expires_in_ms": 29950, "waiting": 0
})))]
pub struct PublicLock {
    /// The lock.
    pub name: String,
    /// The holder's label.
    pub owner: Option<String>,
    /// The holder's fencing token.
    pub fencing_token: u64,
    /// When the lock was granted by the store's clock (RFC 3339, UTC).
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub acquired_at: String,
    /// How long the lease lasts unless renewed.
    pub expires_in_ms: u64,
    /// How many wait in line for the lock.
    pub waiting: u64,
}

/// Some of the held locks, in no order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LockPage {
    /// The locks. There may be fewer than asked for, or none, although more follow.
    pub locks: Vec<PublicLock>,
    /// Pass it as `cursor` to read on; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Who holds a lock that was not acquired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Holder {
    /// The holder's label.
    #[cfg_attr(feature = "openapi", schema(example = "ci runner 7"))]
    pub owner: Option<String>,
    /// The holder's fencing token.
    #[cfg_attr(feature = "openapi", schema(example = 1_779_900_000_000_000_u64))]
    pub fencing_token: u64,
    /// How long the holder's lease lasts unless renewed.
    #[cfg_attr(feature = "openapi", schema(example = 12345))]
    pub expires_in_ms: u64,
}
