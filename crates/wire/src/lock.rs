//! Requests and answers about locks: create, hold, renew, look, list; and the token that proves a
//! lease.
//!
//! A token travels as a plain string and is a secret: no `Debug` of a response may print it. The
//! rules of its characters are in `keylatch-core`, where it is checked. A run of a record has one
//! too.
//!
//! Doc comments here are the descriptions in `openapi/openapi.json`, and a name in
//! `schema(as = …)` is the name of the schema there: both are published. `tests` hold the
//! committed document against these types.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::number::{ttl_ms, whole_number};

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
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = CreateLock))]
pub struct CreateLockRequest {
    /// How long the lease lasts unless renewed, in milliseconds. A store may take less: see
    /// `max_ttl_ms` in `GET /v1/info`.
    #[serde(default, deserialize_with = "ttl_ms", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(default = 30000, minimum = 100, maximum = 86400000))]
    pub ttl_ms: Option<u64>,
    /// A label for people that says who holds the lock: at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 256))]
    pub owner: Option<String>,
    /// How long to wait in the queue for the lock, in milliseconds. Longer than the service allows
    /// is refused; its default limit is five minutes.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(default = 0, minimum = 0, maximum = 300000))]
    pub wait_ms: Option<u64>,
    /// Wait only where at most so many wait already: else it is 409 at once. With 0 one holds the
    /// lock, and one waits. It needs `wait_ms`. Redlock, which has no queue, refuses it.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0))]
    pub max_ahead: Option<u64>,
    /// `exclusive`, which is the default, or `shared` with others that ask for `shared`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<LockMode>,
    /// With `shared`: at most so many hold the lock at a time, each in a `slot` of its own.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub limit: Option<u64>,
    /// The name under which to enter the lock: 1 to 64 bytes. A token that holds the lock may enter
    /// it again under other names, and the lock is free when the last is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 64))]
    pub entry: Option<String>,
}

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LockMode {
    /// By one holder alone.
    Exclusive,
    /// By any number of holders together, or by as many as they ask for.
    Shared,
}

/// What to hold a lock with. Every member is optional, and so is the whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = HoldLock))]
pub struct HoldLockRequest {
    /// How long the lease lasts if the service itself fails, in milliseconds: it renews at a third.
    #[serde(default, deserialize_with = "ttl_ms", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(default = 30000, minimum = 100, maximum = 86400000))]
    pub ttl_ms: Option<u64>,
    /// A label for people that says who holds the lock: at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 256))]
    pub owner: Option<String>,
    /// How long to wait in the queue for the lock, in milliseconds. Longer than the service allows
    /// is refused; its default limit is five minutes.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(default = 0, minimum = 0, maximum = 300000))]
    pub wait_ms: Option<u64>,
    /// Wait only where at most so many wait already: else it is 409 at once. With 0 one holds the
    /// lock, and one waits. It needs `wait_ms`. Redlock, which has no queue, refuses it.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0))]
    pub max_ahead: Option<u64>,
    /// For how long to hold the lock at most, in milliseconds. Longer than the service allows is
    /// refused; its default limit, which also holds where this member is absent, is a day.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(default = 86400000, minimum = 1, maximum = 86400000))]
    pub max_hold_ms: Option<u64>,
    /// `exclusive`, which is the default, or `shared` with others that ask for `shared`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<LockMode>,
    /// With `shared`: at most so many hold the lock at a time, each in a `slot` of its own.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub limit: Option<u64>,
    /// The name under which to enter the lock: 1 to 64 bytes. A token that holds the lock may enter
    /// it again under other names, and the lock is free when the last is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 64))]
    pub entry: Option<String>,
}

/// What to renew a lock with. Every member is optional, and so is the whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = RenewLock))]
pub struct RenewLockRequest {
    /// How long the lease lasts from now, in milliseconds. A store may take less: see `max_ttl_ms`
    /// in `GET /v1/info`. Absent, it is what the grant or the last renewal said.
    #[serde(default, deserialize_with = "ttl_ms", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 86400000))]
    pub ttl_ms: Option<u64>,
}

/// A lock as its holder sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lease<'a> {
    /// The lock's name, as the path of its requests has it.
    pub name: Cow<'a, str>,
    /// The proof that renewing and releasing ask for. Keep it secret.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub token: SecretToken<'a>,
    /// Larger than that of every earlier grant of this lock that this one cannot be held together
    /// with. Hand it to the resource that the lock protects, which refuses a smaller one. With a
    /// `limit` the resource compares the tokens of each `slot` by themselves.
    pub fencing_token: u64,
    /// The label that came with the request.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub owner: Option<Cow<'a, str>>,
    /// How long the lease lasts unless renewed.
    pub ttl_ms: u64,
    /// From the arrival of the request until this response was written. In a stream it grows with
    /// the stream's age.
    pub waited_ms: u64,
    /// What was left of the lease when this response was written: never above the TTL. The lock is
    /// exclusively yours until you sent the request + `waited_ms` + `valid_for_ms`.
    pub valid_for_ms: u64,
    /// When the lease ends by the service's clock (RFC 3339, UTC): for people. Programs count
    /// `waited_ms` and `valid_for_ms` on a monotonic clock of their own.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub expires_at: String,
    /// `shared`; absent where the lock is held exclusively.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<LockMode>,
    /// At most so many hold the lock at a time; absent where no limit was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Which of the `limit` places is the holder's, from 0, as long as the lease lasts: no other
    /// holder has it. Absent where no limit was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// The names under which the holder entered the lock; absent where it named none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<Cow<'a, str>>,
    /// The members of the request that changed nothing, because the token held the lock before with
    /// others; absent where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unchanged: Vec<Cow<'a, str>>,
}

impl Lease<'_> {
    /// How long after the sending of the request the lease is exclusive.
    pub fn valid_from_sending(&self) -> Duration {
        Duration::from_millis(self.waited_ms.saturating_add(self.valid_for_ms))
    }
}

/// A held lock as everybody sees it: by its one holder, or by those that share it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum HeldLock {
    /// Several hold it together, or might.
    Shared(SharedLock),
    /// One holds it alone.
    Exclusive(PublicLock),
}

/// A lock that several hold together, or might.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SharedLock {
    /// The lock's name, as the path of its requests has it.
    pub name: String,
    /// Null: each of `holders` has a label of its own.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub owner: Option<String>,
    /// How it is held.
    pub mode: LockMode,
    /// At most so many hold it at a time: the smallest limit among the holders that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The holders; in a list of locks, and where a lock was not to be had, ten at most.
    pub holders: Vec<PublicHolder>,
    /// How many hold it.
    pub holding: u64,
    /// How many wait in the queue for the lock.
    pub waiting: u64,
}

/// One of those that hold a lock together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PublicHolder {
    /// The holder's label.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub owner: Option<String>,
    /// The holder's fencing token.
    pub fencing_token: u64,
    /// The number of the holder among those that hold the lock together.
    pub slot: u32,
    /// When the lock was granted by the store's clock (RFC 3339, UTC).
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub acquired_at: String,
    /// How long the holder's lease lasts unless renewed.
    pub expires_in_ms: u64,
    /// Why the lease ends and cannot be renewed; absent where it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<BreakNote>,
}

/// Why a lease ends and cannot be renewed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BreakNote {
    /// The reason that was given.
    pub reason: String,
    /// The label of the one who broke it.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub by: Option<String>,
    /// When it was broken by the store's clock (RFC 3339, UTC).
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub at: String,
}

/// Whose lease to break, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = BreakLock))]
pub struct BreakLockRequest {
    /// Why, for the holder and for the history: 1 to 256 bytes. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required, min_length = 1, max_length = 256))]
    pub reason: Option<String>,
    /// The fencing token of the grant to break, so that no later grant is broken in its place.
    /// Required.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = u64, required))]
    pub fencing_token: Option<u64>,
    /// The slot of the holder; all that share the fencing token where it is absent.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// A label for people that says who breaks the lease: at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 256))]
    pub by: Option<String>,
    /// Lets the lease end so soon, in milliseconds from now, be that before its holder's validity
    /// ends. Absent, the lease ends when it would have ended unless renewed.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 86400000))]
    pub grace_ms: Option<u64>,
}

/// Whose wait to end, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = EndWait))]
pub struct EndWaitRequest {
    /// Why, for the client that waits: 1 to 256 bytes. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required, min_length = 1, max_length = 256))]
    pub reason: Option<String>,
    /// The `number` of the waiter, so that no other wait is ended in its place. Required.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = u64, required))]
    pub waiter: Option<u64>,
    /// A label for people that says who ends the wait: at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 256))]
    pub by: Option<String>,
}

/// A lease that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LockBreak {
    /// The fencing token of the grant.
    pub fencing_token: u64,
    /// When the lease ends at the latest, in milliseconds.
    pub ends_in_ms: u64,
}

/// The named entries by which a token still holds a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LockEntries {
    /// Their names. There is none where the unnamed entry alone is left.
    pub entries: Vec<String>,
}

/// How earlier grants of a lock ended that were not released.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LockHistory {
    /// The ends, oldest first, 16 at most. A break is kept for a day, and an expiry for as long as
    /// the lock has anything else to keep.
    pub ends: Vec<GrantEnd>,
}

/// How one grant of a lock ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GrantEnd {
    /// The fencing token of the grant.
    pub fencing_token: u64,
    /// The label of the client that held the lock.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub owner: Option<String>,
    /// When the lock was granted by the store's clock (RFC 3339, UTC).
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub acquired_at: String,
    /// When the grant ended by the same clock.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub ended_at: String,
    /// How it ended.
    pub how: EndKind,
    /// Why it was broken; absent for an expiry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The label of the one who broke it; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// How a grant ended that was not released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum EndKind {
    /// Its lease was broken.
    Broken,
    /// Its lease expired.
    Expired,
}

/// A holder of a lock as everybody sees it, with the lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PublicLock {
    /// The lock's name, as the path of its requests has it.
    pub name: String,
    /// The holder's label.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub owner: Option<String>,
    /// The holder's fencing token.
    pub fencing_token: u64,
    /// When the lock was granted by the store's clock (RFC 3339, UTC).
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub acquired_at: String,
    /// How long the lease lasts unless renewed.
    pub expires_in_ms: u64,
    /// How many wait in the queue for the lock.
    pub waiting: u64,
    /// `shared`; absent where the lock is held exclusively.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<LockMode>,
    /// At most so many hold the lock at a time; absent where the holder asked for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The number of the holder among those that hold the lock together; absent where one holds it
    /// alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// Why the lease ends and cannot be renewed; absent where it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<BreakNote>,
}

/// Some of the held locks, in the order that `GET /v1/locks` has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LockPage {
    /// The locks. There may be fewer than asked for, or none, although more follow.
    pub locks: Vec<HeldLock>,
    /// Pass it as `cursor` to read on; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// The first in the queue for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FirstWaiter {
    /// The waiter's label.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub owner: Option<String>,
    /// Which wait it is: the `waiter` of a break.
    pub number: u64,
    /// How long it has waited.
    pub waited_ms: u64,
}

/// Who holds a lock that was not acquired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Holder {
    /// The holder's label.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub owner: Option<String>,
    /// The holder's fencing token.
    pub fencing_token: u64,
    /// How long the holder's lease lasts unless renewed.
    pub expires_in_ms: u64,
}
