//! The data of server-sent events: of a hold (`POST /v1/locks/{name}/hold`) and of a watch
//! (`GET /v1/locks/{name}/events`).
//!
//! An event's name says which type its data has. A hold sends `waiting`, `acquired` (a
//! [`Lease`](crate::Lease)), `renewed`, and ends with `lost` or `refused` (a
//! [`ProblemDocument`](crate::ProblemDocument)). A watch sends `snapshot`, `acquired`, `renewed`
//! and `broken` (a [`PublicLock`](crate::PublicLock) each), `released`, `expired`, and `lagged` and
//! `closing` without data. No event of a watch carries a token.

use std::borrow::Cow;

use serde::{Deserialize, Serialize, Serializer};

use crate::{BreakNote, HeldLock};

/// `waiting` of a hold: the lock is held, and the client waits in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WaitingEvent {
    /// How many waiters are before the client.
    pub ahead: u64,
}

/// `renewed` of a hold: the service renewed the lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RenewalEvent {
    /// The fencing token of the grant, which a renewal keeps.
    pub fencing_token: u64,
    /// From the arrival of the request until this event was written.
    pub waited_ms: u64,
    /// What was left of the lease when this event was written: never above the TTL.
    pub valid_for_ms: u64,
    /// When the lease ends by the service's clock (RFC 3339, UTC): for people.
    pub expires_at: String,
}

/// `lost` of a hold, its last event: the client no longer holds the lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LossEvent {
    /// Why, for programs: `max-hold`, `shutdown`, or the code of a problem.
    pub reason: Cow<'static, str>,
    /// Why, for people.
    pub detail: Cow<'static, str>,
    /// Why the lease was broken; absent where it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<BreakNote>,
}

/// `snapshot` of a watch: the present state of the lock.
///
/// A free lock has no holder's label: `{"held":false,"owner":null}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotEvent {
    /// Whether a client holds the lock.
    pub held: bool,
    /// The lock, if it is held.
    #[serde(flatten, serialize_with = "lock_or_no_owner")]
    pub lock: Option<HeldLock>,
}

fn lock_or_no_owner<S: Serializer>(
    lock: &Option<HeldLock>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct NoOwner {
        owner: (),
    }
    match lock {
        Some(lock) => lock.serialize(serializer),
        None => NoOwner { owner: () }.serialize(serializer),
    }
}

/// `released` or `expired` of a watch: a grant ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EndEvent<'a> {
    /// The name of the lock whose lease ended.
    pub name: Cow<'a, str>,
    /// The label of the client that held it.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub owner: Option<Cow<'a, str>>,
    /// The fencing token of the grant.
    pub fencing_token: u64,
    /// The slot of the holder; absent where one holds the lock alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
}

/// `lagged` or `closing` of a watch: an empty object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EmptyEvent {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PublicLock;

    #[test]
    fn snapshot_of_a_free_lock_has_no_members_of_a_lock() {
        let free = SnapshotEvent { held: false, lock: None };
        assert_eq!(serde_json::to_string(&free).unwrap(), r#"{"held":false,"owner":null}"#);
        for json in [r#"{"held":false,"owner":null}"#, r#"{"held":false}"#] {
            assert_eq!(serde_json::from_str::<SnapshotEvent>(json).unwrap(), free, "{json}");
        }

        let lock = PublicLock {
            name: "deploy".to_owned(),
            owner: None,
            fencing_token: 7,
            acquired_at: "2026-05-27T16:40:00Z".to_owned(),
            expires_in_ms: 29_950,
            waiting: 0,
            mode: None,
            limit: None,
            slot: None,
            broken: None,
        };
        let held = SnapshotEvent { held: true, lock: Some(HeldLock::Exclusive(lock)) };
        let json = serde_json::to_string(&held).unwrap();
        assert!(json.starts_with(r#"{"held":true,"name":"deploy","owner":null,"#), "{json}");
        assert_eq!(serde_json::from_str::<SnapshotEvent>(&json).unwrap(), held);
    }
}
