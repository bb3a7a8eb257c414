//! Breaking a lease, and how earlier grants ended: `/v1/locks/{name}/break` and `/history`.
//!
//! A break is for people and their tools, when a holder is gone for good or hangs. It names the fencing
//! token of the grant that was seen, so that it never takes a later grant, and by default it shortens
//! nothing: the lease ends when it would have ended, and cannot be renewed. An identity breaks what it is allowed
//! to; where clients other than those of this machine come without one, `lock.break` keeps it off. Tested in `tests/api/breaks.rs`.

use std::sync::Arc;

use axum::extract::State;

use super::api::Api;
use super::audit::{Act, Auditor};
use super::body::{Json, break_command, lock_history};
use super::caller::Caller;
use super::extract::{Name, OptionalJson};
use super::problem::{Code, Problem, fence_mismatch, lock_not_held};
use crate::access::LockAct;
use keylatch_core::lock::BreakReply;
use keylatch_wire::{BreakLockRequest, LockBreak, LockHistory, millis};

/// Break a lease
///
/// Ends the lease of another client, which cannot renew it any more and reads the reason when it tries. The
/// lease ends when it would have ended unless renewed; `grace_ms` lets it end sooner, although its holder may
/// still work under it then: the fencing token of the next grant is what stops it.
///
/// With `waiter` it ends a wait instead: the client reads 409 `wait-ended`, and leaves the queues of all locks that it
/// asked for. The `waiter` of a 409 `lock-held`, or of a 404 at a look, has the number of the first in the queue.
#[utoipa::path(post, path = "/v1/locks/{name}/break",
    request_body(content = BreakLockRequest, description = "Whose lease to break, and why"),
    responses((status = 200, description = "The lease is broken, or the wait ended", body = LockBreak)))]
pub(super) async fn break_lock(
    State(api): State<Arc<Api>>,
    caller: Caller,
    auditor: Auditor,
    Name(name): Name,
    OptionalJson(body): OptionalJson<BreakLockRequest>,
) -> Result<Json<LockBreak>, Problem> {
    caller.check_lock(LockAct::Break, &name)?;
    if !api.breaks {
        let detail = "This service breaks no lease: see `lock.break`. Nothing was done.";
        return Err(Problem::new(Code::BreakDisabled, detail));
    }
    let (fencing_token, waiter) = (body.fencing_token, body.waiter);
    let mut command = break_command(body)?;
    command.by = caller.label("by", command.by)?;
    let act = Act::Break {
        lock: name.as_str().to_owned(),
        fencing_token,
        waiter,
        by: command.by.as_ref().map(|by| by.as_str().to_owned()),
        reason: command.reason.as_str().to_owned(),
    };
    let done = async {
        match api.locks.break_lease(&name, command).await? {
            BreakReply::Broken { ends_in } => Ok(millis(ends_in)),
            BreakReply::NotHeld => Err(lock_not_held()),
            BreakReply::Mismatch(holding) => Err(fence_mismatch(&holding)),
        }
    };
    let ends_in_ms = auditor.follow(act, done, |_, _| ()).await?;
    Ok(Json(LockBreak { fencing_token, waiter, ends_in_ms }))
}

/// Read how earlier grants ended
///
/// The breaks of a day, and expiries for as long as the lock has anything else to keep; 16 at most. What was
/// released is not here.
#[utoipa::path(get, path = "/v1/locks/{name}/history",
    responses((status = 200, description = "How earlier grants ended", body = LockHistory)))]
pub(super) async fn get_lock_history(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Name(name): Name,
) -> Result<Json<LockHistory>, Problem> {
    caller.check_lock(LockAct::Read, &name)?;
    Ok(Json(lock_history(&api.locks.recall(&name).await?)))
}
