//! Who waits for a lock, in order and since when, at whatever instance: the queue as the store has
//! it. Redlock keeps no queue (501).
//!
//! Only a client that may read the lock sees the waiters, and no token is among what it sees.
//! Tested in `tests/api/console.rs`, and over several instances in
//! `tests/api/queue_across_instances.rs`.

use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;

use super::NamedLock;
use crate::access::LockAct;
use crate::http::api::Api;
use crate::http::body::{Json, mode, slots};
use crate::http::caller::Caller;
use crate::http::problem::Problem;
use keylatch_core::lock;
use keylatch_wire::{LockMode, millis};

/// The waiters of a lock, first come first.
#[derive(Debug, Serialize)]
pub(super) struct Queue {
    waiting: Vec<Waiter>,
}

#[derive(Debug, Serialize)]
struct Waiter {
    owner: Option<String>,
    waiting_for_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<LockMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
}

pub(super) async fn queue(
    State(api): State<Arc<Api>>,
    caller: Caller,
    NamedLock(name): NamedLock,
) -> Result<Json<Queue>, Problem> {
    caller.check_lock(LockAct::Read, &name)?;
    let waiters = api.locks.look_at_queue(&name).await?;
    Ok(Json(Queue { waiting: waiters.into_iter().map(waiter).collect() }))
}

fn waiter(lock::Waiter { owner, waited, limit, .. }: lock::Waiter) -> Waiter {
    Waiter {
        owner: owner.map(|owner| owner.as_str().to_owned()),
        waiting_for_ms: millis(waited),
        mode: mode(limit),
        limit: slots(limit),
    }
}
