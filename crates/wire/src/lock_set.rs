//! Requests and answers about several locks at once: create, renew, and what a problem says of
//! each.
//!
//! As in `lock.rs`, doc comments are the descriptions in `openapi/openapi.json`, and the names in
//! `schema(as = …)` are published there.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::number::{ttl_ms, whole_number};
use crate::{LockMode, SecretToken};

/// What to create several locks with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = CreateLocks))]
pub struct CreateLocksRequest {
    /// The locks: 1 to 16 names, each once. Their order has no meaning but that of the response.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required, min_items = 1, max_items = 16))]
    pub names: Vec<String>,
    /// How long the leases last unless renewed, in milliseconds.
    #[serde(default, deserialize_with = "ttl_ms", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(default = 30000, minimum = 100, maximum = 86400000))]
    pub ttl_ms: Option<u64>,
    /// A label for people that says who holds the locks: at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 256))]
    pub owner: Option<String>,
    /// How long to wait in all lines for the locks, in milliseconds. Longer than the service allows
    /// is refused; its default limit is five minutes.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(default = 0, minimum = 0, maximum = 300000))]
    pub wait_ms: Option<u64>,
    /// Wait only where at most so many wait already for each of the locks: else it is 409 at once.
    /// It needs `wait_ms`.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0))]
    pub max_ahead: Option<u64>,
    /// `exclusive`, which is the default, or `shared` with others that ask for `shared`: the same
    /// for all locks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<LockMode>,
    /// With `shared`: at most so many hold each lock at a time, each in a `slot` of its own.
    #[serde(default, deserialize_with = "whole_number", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub limit: Option<u64>,
}

/// What to renew several locks with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = RenewLocks))]
pub struct RenewLocksRequest {
    /// The locks: 1 to 16 names, each once.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required, min_items = 1, max_items = 16))]
    pub names: Vec<String>,
    /// How long the leases last from now, in milliseconds. Absent, each lasts what its grant or its
    /// last renewal said.
    #[serde(default, deserialize_with = "ttl_ms", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 86400000))]
    pub ttl_ms: Option<u64>,
}

/// Several locks as their holder sees them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseSet<'a> {
    /// The proof that renewing and releasing ask for, of all the locks. Keep it secret.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub token: SecretToken<'a>,
    /// How long the leases last unless renewed: the shortest.
    pub ttl_ms: u64,
    /// From the arrival of the request until this response was written.
    pub waited_ms: u64,
    /// What was left of the leases when this response was written, of the one that ends first.
    pub valid_for_ms: u64,
    /// When the first lease ends by the service's clock (RFC 3339, UTC): for people.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub expires_at: String,
    /// The locks, in the order of the request.
    pub locks: Vec<LeasedLock<'a>>,
    /// The members of the request that changed nothing, because the token held one of the locks
    /// before with others; absent where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unchanged: Vec<Cow<'a, str>>,
}

impl LeaseSet<'_> {
    /// How long after the sending of the request all leases are exclusive.
    pub fn valid_from_sending(&self) -> Duration {
        Duration::from_millis(self.waited_ms.saturating_add(self.valid_for_ms))
    }
}

/// One lock of several that were created together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeasedLock<'a> {
    /// The lock's name, one of those of the request.
    pub name: Cow<'a, str>,
    /// Larger than that of every earlier grant of this lock that this one cannot be held together
    /// with.
    pub fencing_token: u64,
    /// Which of the `limit` places is the holder's. Absent where no limit was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
}

/// A lock of several that the client does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LostLock {
    /// The name of the lock that the token does not hold.
    pub name: String,
    /// The code of the problem that a request for this lock alone would have read.
    pub code: String,
}
