//! What the page of a lock shows beside the lock: who waits for it, in order and since when, at
//! whatever instance, and how its earlier grants ended: those that the store keeps, and the
//! releases that this instance served, which no store keeps.
//!
//! Redlock keeps no queue and no end, and has neither (501). Only a client that may read the lock
//! sees them, and no token is among what it sees. Tested in `tests/api/console.rs`, and over
//! several instances in `tests/api/queue_across_instances.rs`.

use std::sync::Arc;

use axum::extract::State;
use jiff::Timestamp;
use serde::Serialize;

use super::NamedLock;
use crate::access::LockAct;
use crate::http::api::Api;
use crate::http::api::body::{Json, at_millis, grant_end, mode, slots};
use crate::http::caller::Caller;
use crate::http::problem::Problem;
use crate::past_grants::PastGrant;
use keylatch_core::lock;
use keylatch_wire::{GrantEnd, LockMode, millis};

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
    let waiters = api.locks.look_at_queue(&name).await?.into_iter();
    let waiting = waiters.map(|lock::Waiter { owner, waited, limit, .. }| Waiter {
        owner: owner.map(|owner| owner.as_str().to_owned()),
        waiting_for_ms: millis(waited),
        mode: mode(limit),
        limit: slots(limit),
    });
    Ok(Json(Queue { waiting: waiting.collect() }))
}

/// The earlier grants of a lock, the oldest end first.
#[derive(Debug, Serialize)]
pub(super) struct History {
    /// Since when the instance remembers releases.
    releases_since: Timestamp,
    ends: Vec<End>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum End {
    Release {
        fencing_token: u64,
        owner: Option<String>,
        acquired_at: String,
        ended_at: String,
        how: &'static str,
    },
    Other(GrantEnd),
}

pub(super) async fn history(
    State(api): State<Arc<Api>>,
    caller: Caller,
    NamedLock(name): NamedLock,
) -> Result<Json<History>, Problem> {
    caller.check_lock(LockAct::Read, &name)?;
    let kept = api.locks.recall(&name).await?;
    let ends = api.past_grants.of(&name, kept).into_iter().map(|past| match past {
        PastGrant::End(end) => End::Other(grant_end(&end)),
        PastGrant::Release { fencing_token, owner, span } => End::Release {
            fencing_token: fencing_token.get(),
            owner: owner.map(|owner| owner.as_str().to_owned()),
            acquired_at: at_millis(span.acquired_at_millis),
            ended_at: at_millis(span.ended_at_millis),
            how: "released",
        },
    });
    Ok(Json(History { releases_since: api.past_grants.since(), ends: ends.collect() }))
}
