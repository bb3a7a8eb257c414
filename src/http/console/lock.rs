//! What the page of a lock shows beside the lock: who waits for it, in order and since when, at
//! whatever instance, and how its earlier grants ended: those that the store keeps, and the
//! releases that this instance served, which no store keeps.
//!
//! Redlock keeps no queue and no end, and has neither (501). Only a client that may read the lock
//! sees them, and no token is among what it sees. Tested in `tests/api/console.rs`, and over
//! several instances in `tests/api/queue_across_instances.rs`.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};

use super::NamedLock;
use crate::access::LockAct;
use crate::http::api::Api;
use crate::http::api::body::{Json, at_millis, grant_end, mode, slots};
use crate::http::caller::Caller;
use crate::http::problem::Problem;
use keylatch_core::lock::{self, EndCause, Owner};
use keylatch_wire::millis;

/// The waiters of a lock, first come first.
pub(super) async fn queue(
    State(api): State<Arc<Api>>,
    caller: Caller,
    NamedLock(name): NamedLock,
) -> Result<Json<Value>, Problem> {
    caller.check_lock(LockAct::Read, &name)?;
    let waiters = api.locks.look_at_queue(&name).await?.into_iter();
    let waiting = waiters.map(|lock::Waiter { owner, waited, limit, .. }| {
        json!({
            "owner": owner.as_ref().map(Owner::as_str),
            "waiting_for_ms": millis(waited),
            "mode": mode(limit),
            "limit": slots(limit),
        })
    });
    Ok(Json(json!({"waiting": waiting.collect::<Vec<_>>()})))
}

/// The earlier grants of a lock, the oldest end first, and since when the instance remembers
/// releases.
pub(super) async fn history(
    State(api): State<Arc<Api>>,
    caller: Caller,
    NamedLock(name): NamedLock,
) -> Result<Json<Value>, Problem> {
    caller.check_lock(LockAct::Read, &name)?;
    let kept = api.locks.recall(&name).await?;
    let ends = api.past_grants.of(&name, kept).into_iter().map(|end| match end.cause {
        EndCause::Release => json!({
            "fencing_token": end.fencing_token.get(),
            "owner": end.owner.as_ref().map(Owner::as_str),
            "acquired_at": at_millis(end.acquired_at_millis),
            "ended_at": at_millis(end.ended_at_millis),
            "how": "released",
        }),
        _ => json!(grant_end(&end)),
    });
    let ends: Vec<_> = ends.collect();
    Ok(Json(json!({"releases_since": api.past_grants.since(), "ends": ends})))
}
