//! Several locks at once, in `/v1/locks` itself: create, renew and release 1 to 16 of them in one
//! step.
//!
//! One token is that of all of them, and each may also be renewed and released by itself with it. A
//! handler maps what the core found as those of one lock do; a 409 names the first lock that was
//! not to be had, and where locks are lost, the problem is that of the first and lists all. Tested
//! in `tests/api/sets.rs`.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::Api;
use super::body::{Json, asked_ttl, lease_set, lock_set, set_acquire_request};
use super::locks::{acquire, with_token};
use crate::access::LockAct;
use crate::http::audit::Auditor;
use crate::http::caller::Caller;
use crate::http::extract::{NamedSet, NoQuery, OptionalJson, OptionalToken, RequiredToken};
use crate::http::problem::{Problem, of_lock_error, set_lost};
use keylatch_core::lock::{Grant, LockSet, LostLock, ReleaseReply, Renewal};
use keylatch_wire::{CreateLocksRequest, LeaseSet, RenewLocksRequest};

/// Create several locks
///
/// All of them or none, in one step; with `wait_ms` it waits in the lines of all of them and holds
/// none meanwhile, so the order of the names has no meaning and no two requests wait for each
/// other. One token is that of all, and each lock may be renewed and released by itself with it.
///
/// Safe to repeat with a Lock-Token of your own, as the creation of one lock is. A token that holds
/// one of the locks already does not wait for the others.
#[utoipa::path(post, path = "/v1/locks",
    request_body(content = CreateLocksRequest, description = "Which locks, and how"),
    responses(
        (status = 201, description = "The locks are yours", body = LeaseSet<'static>,
            headers(("Lock-Token" = String, description = "The token of the leases"))),
        (status = 200, description = "The locks were yours already: the same grants, with what is left of them",
            body = LeaseSet<'static>, headers(("Lock-Token" = String, description = "The token of the leases"))),
    ))]
pub(crate) async fn create_lock_set(
    State(api): State<Arc<Api>>,
    caller: Caller,
    auditor: Auditor,
    _: NoQuery,
    OptionalToken(token): OptionalToken,
    OptionalJson(body): OptionalJson<CreateLocksRequest>,
) -> Result<Response, Problem> {
    let request = set_acquire_request(body, token, api.locks.max_ttl(), api.max_wait)?;
    let set = request.names.clone();
    caller.check_set(LockAct::Acquire, &set)?;
    let (status, grant, unchanged) = acquire(&api, &caller, auditor, request, true).await?;
    Ok(granted(status, &set, &grant, unchanged))
}

/// Renew several locks
///
/// All leases last `ttl_ms` from now, or without it each its own TTL; or none does, and the problem
/// lists the locks that are lost.
#[utoipa::path(put, path = "/v1/locks",
    request_body(content = RenewLocksRequest, description = "Which locks, and for how long"),
    responses((status = 200, description = "The leases continue", body = LeaseSet<'static>,
        headers(("Lock-Token" = String, description = "The token of the leases")))))]
pub(crate) async fn renew_lock_set(
    State(api): State<Arc<Api>>,
    caller: Caller,
    _: NoQuery,
    RequiredToken(token): RequiredToken,
    OptionalJson(body): OptionalJson<RenewLocksRequest>,
) -> Result<Response, Problem> {
    let set = lock_set(&body.names)?;
    let ttl = asked_ttl(body.ttl_ms, api.locks.max_ttl())?;
    caller.check_set(LockAct::Acquire, &set)?;
    match api.locks.renew(&set, &token, ttl).await.map_err(of_lock_error)? {
        Renewal::Renewed { leases, validity } => {
            let longest = leases.iter().map(|lease| lease.ttl).max().unwrap_or_default();
            caller.note_locks(set.names(), &token, longest);
            Ok(granted(StatusCode::OK, &set, &Grant { token, leases, validity }, Vec::new()))
        }
        Renewal::Lost(lost) => Err(set_lost(&lost, "None was renewed.")),
    }
}

/// Release several locks
///
/// The token releases all that it holds of them, in one step. The problem lists those that were
/// lost before.
#[utoipa::path(delete, path = "/v1/locks",
    responses((status = 204, description = "The leases are over")))]
pub(crate) async fn release_lock_set(
    State(api): State<Arc<Api>>,
    caller: Caller,
    auditor: Auditor,
    NamedSet(set): NamedSet,
    RequiredToken(token): RequiredToken,
) -> Result<StatusCode, Problem> {
    caller.check_set(LockAct::Acquire, &set)?;
    let released = api.locks.leave(&set, &token, None).await?;
    caller.remove_locks(set.names(), &token);
    let mut lost = Vec::new();
    for (name, (reply, end)) in set.names().iter().zip(released) {
        if reply == ReleaseReply::Released {
            auditor.released(name, end.as_ref());
        }
        lost.extend(reply.loss().map(|loss| LostLock { name: name.clone(), loss }));
    }
    if lost.is_empty() {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(set_lost(&lost, "The others are released."))
}

fn granted(
    status: StatusCode,
    set: &LockSet,
    grant: &Grant,
    unchanged: Vec<Cow<'_, str>>,
) -> Response {
    let Grant { token, leases, validity } = grant;
    let body = LeaseSet { unchanged, ..lease_set(set, token, leases, *validity) };
    with_token((status, Json(body)).into_response(), token)
}
