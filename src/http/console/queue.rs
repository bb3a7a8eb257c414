//! Who waits for a lock at this instance: what a store does not know, since a queue entry has no label.
//!
//! The waiters of other instances are in the lock's count alone. Only a client that may read the lock sees them, and
//! no token is among what it sees. Tested in `tests/api/console.rs`.

use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;

use super::NamedLock;
use crate::access::LockAct;
use crate::http::api::Api;
use crate::http::body::{Json, mode, slots};
use crate::http::caller::Caller;
use crate::http::problem::Problem;
use keylatch_core::lock::WaitingRequest;
use keylatch_wire::{LockMode, millis};

/// The requests that wait for a lock at this instance, first come first.
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
    Ok(Json(Queue { waiting: api.locks.waiting_for(&name).iter().map(waiter).collect() }))
}

fn waiter(WaitingRequest { owner, since, limit }: &WaitingRequest) -> Waiter {
    Waiter {
        owner: owner.as_ref().map(|owner| owner.as_str().to_owned()),
        waiting_for_ms: millis(since.elapsed()),
        mode: mode(*limit),
        limit: slots(*limit),
    }
}
