//! Breaking a lease, ending a wait, and how earlier grants ended: `/v1/locks/{name}/break`,
//! `/end-wait` and `/history`.
//!
//! A break is for people and their tools, when a holder is gone for good or hangs. It names the
//! fencing token of the grant that was seen, so that it never takes a later grant, and by default
//! it shortens nothing: the lease ends when it would have ended, and cannot be renewed. An identity
//! breaks what it is allowed to; where clients other than those of this machine come without one,
//! `lock.break` keeps it off. Tested in `tests/api/breaks.rs` and `ended_waits.rs`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;

use super::Api;
use super::body::{Json, break_command, end_wait_command, grant_end};
use crate::access::LockAct;
use crate::http::audit::{Act, Auditor};
use crate::http::caller::Caller;
use crate::http::extract::{Name, OptionalJson};
use crate::http::problem::{Code, Problem, fence_mismatch, lock_not_held};
use keylatch_core::lock::{BreakCommand, BreakReply, LockName};
use keylatch_wire::{BreakLockRequest, EndWaitRequest, LockBreak, LockHistory, millis};

/// Break a lease
///
/// Ends the lease of another client, which cannot renew it any more and reads the reason when it
/// tries. The lease ends when it would have ended unless renewed; `grace_ms` lets it end sooner,
/// although its holder may still work under it then: the fencing token of the next grant is what
/// stops it.
#[utoipa::path(post, path = "/v1/locks/{name}/break",
    request_body(content = BreakLockRequest, description = "Whose lease to break, and why"),
    responses((status = 200, description = "The lease is broken", body = LockBreak)))]
pub(crate) async fn break_lock(
    State(api): State<Arc<Api>>,
    caller: Caller,
    auditor: Auditor,
    Name(name): Name,
    OptionalJson(body): OptionalJson<BreakLockRequest>,
) -> Result<Json<LockBreak>, Problem> {
    let command = permitted(&api, &caller, &name, || break_command(body))?;
    let fencing_token = command.fencing_token.get();
    let ends_in_ms = millis(end(&api, auditor, &name, command).await?);
    Ok(Json(LockBreak { fencing_token, ends_in_ms }))
}

/// End a wait
///
/// The client that waits gets 409 `wait-ended`, and leaves the queues of all locks that it asked
/// for. The `waiter` of a 409 `lock-held`, or of a 404 at a look, has the number of the first in
/// the queue. Safe to repeat for a minute.
#[utoipa::path(post, path = "/v1/locks/{name}/end-wait",
    request_body(content = EndWaitRequest, description = "Whose wait to end, and why"),
    responses((status = 204, description = "The wait has ended")))]
pub(crate) async fn end_lock_wait(
    State(api): State<Arc<Api>>,
    caller: Caller,
    auditor: Auditor,
    Name(name): Name,
    OptionalJson(body): OptionalJson<EndWaitRequest>,
) -> Result<StatusCode, Problem> {
    let command = permitted(&api, &caller, &name, || end_wait_command(body))?;
    end(&api, auditor, &name, command).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What the caller asks for, if it may.
fn permitted(
    api: &Api,
    caller: &Caller,
    name: &LockName,
    command: impl FnOnce() -> Result<BreakCommand, Problem>,
) -> Result<BreakCommand, Problem> {
    caller.check_lock(LockAct::Break, name)?;
    if !api.breaks {
        let detail = "This service breaks no lease: see `lock.break`. Nothing was done.";
        return Err(Problem::new(Code::BreakDisabled, detail));
    }
    let command = command()?;
    Ok(BreakCommand { by: caller.label("by", command.by)?, ..command })
}

/// Ends a lease or a wait, with a line of the audit log; gives the time until it ends.
async fn end(
    api: &Api,
    auditor: Auditor,
    name: &LockName,
    command: BreakCommand,
) -> Result<Duration, Problem> {
    let number = Some(command.fencing_token.get());
    let act = Act::Break {
        lock: name.as_str().to_owned(),
        fencing_token: number.filter(|_| !command.is_of_wait),
        waiter: number.filter(|_| command.is_of_wait),
        by: command.by.as_ref().map(|by| by.as_str().to_owned()),
        reason: command.reason.as_str().to_owned(),
    };
    let done = async {
        match api.locks.break_lease(name, command).await? {
            BreakReply::Broken { ends_in } => Ok(ends_in),
            BreakReply::NotHeld => Err(lock_not_held()),
            BreakReply::Mismatch(holding) => Err(fence_mismatch(&holding)),
        }
    };
    auditor.follow(act, done, |_, _| ()).await
}

/// Read how earlier grants ended
///
/// The breaks of a day, and expiries for as long as the lock has anything else to keep; 16 at most.
/// What was released is not here.
#[utoipa::path(get, path = "/v1/locks/{name}/history",
    responses((status = 200, description = "How earlier grants ended", body = LockHistory)))]
pub(crate) async fn get_lock_history(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Name(name): Name,
) -> Result<Json<LockHistory>, Problem> {
    caller.check_lock(LockAct::Read, &name)?;
    let ends = api.locks.recall(&name).await?;
    Ok(Json(LockHistory { ends: ends.iter().map(grant_end).collect() }))
}
