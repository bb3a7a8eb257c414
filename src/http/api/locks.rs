//! The resource `/v1/locks`: create, renew, release, look at one lock, list them.
//!
//! Each handler parses, makes one call of `LockService`, and maps the value that it gives to a
//! response. A held lock is a value, and its 409 is made here; an error means that the service
//! could not find out. Tested in `tests/api/locks.rs`, `listing.rs` and `waiting.rs`.

use std::borrow::Cow;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::Api;
use super::body::{Json, acquire_request, asked_ttl, held_lock, lease_body, unchanged};
use crate::access::LockAct;
use crate::http::audit::Auditor;
use crate::http::caller::Caller;
use crate::http::extract::{
    LOCK_TOKEN, LeftEntry, ListQuery, Name, OptionalJson, OptionalToken, RequiredToken,
    WatchedName, segment, unknown_cursor,
};
use crate::http::problem::{
    Code, Problem, crowded, free, held, lost, not_alone, of_lock_error, too_many_holders,
};
use keylatch_core::lock::{
    self, AcquireRequest, Acquisition, Contention, Grant, LockLoss, LockName, ReleaseReply,
    Renewal, Token,
};
use keylatch_wire::{CreateLockRequest, HeldLock, Lease, LockEntries, LockPage, RenewLockRequest};

/// Create a lock
///
/// Asks for the lock, and with `wait_ms` waits for it in the queue: first come, first served. The
/// response carries the token, which renewing and releasing ask for, and the fencing token, for the
/// resource that the lock protects.
///
/// Safe to repeat: with a Lock-Token of your own, the same token again is the same grant with what
/// is left of it, so a lost response costs nothing.
///
/// With `"mode": "shared"` others that ask for `shared` hold the lock at the same time, with a
/// `limit` as many as that. There is one queue for all: a reader behind a waiting writer waits. The
/// token of an exclusive lock may ask for `shared` at any time; the other way it is to be the only
/// holder, with none in the queue, or gets 409 at once. With an `entry` the token enters the lock
/// again under that name.
#[utoipa::path(post, path = "/v1/locks/{name}",
    responses(
        (status = 201, description = "The lock is yours", body = Lease<'static>, headers(
            ("Location" = String, description = "The lock's own URL"),
            ("Lock-Token" = String, description = "The token of the lease"),
        )),
        (status = 200, description = "The lock was yours already: the same grant, with what is left of it",
            body = Lease<'static>, headers(("Lock-Token" = String, description = "The token of the lease"))),
    ))]
pub(crate) async fn create_lock(
    State(api): State<Arc<Api>>,
    caller: Caller,
    auditor: Auditor,
    Name(name): Name,
    OptionalToken(token): OptionalToken,
    OptionalJson(body): OptionalJson<CreateLockRequest>,
) -> Result<Response, Problem> {
    caller.check_lock(LockAct::Acquire, &name)?;
    let request = acquire_request(body, name.clone(), token, api.locks.max_ttl(), api.max_wait)?;
    let (status, grant, unchanged) = acquire(&api, &caller, auditor, request, false).await?;
    let lease = lease_body(&name, &grant.token, grant.lease(), grant.validity);
    let body = Json(Lease { unchanged, ..lease });
    let mut response = with_token((status, body).into_response(), &grant.token);
    if status == StatusCode::CREATED {
        response.headers_mut().insert(header::LOCATION, location(&name));
    }
    Ok(response)
}

/// Acquires locks: gives the status, the grant, and the members of the request that changed nothing
/// of it. Of a set a problem names the lock that is not to be had.
pub(super) async fn acquire(
    api: &Api,
    caller: &Caller,
    auditor: Auditor,
    mut request: AcquireRequest,
    is_set: bool,
) -> Result<(StatusCode, Grant, Vec<Cow<'static, str>>), Problem> {
    request.owner = caller.label("owner", request.owner)?;
    let (set, wait) = (request.names.clone(), request.wait);
    let (ttl, owner) = (request.ttl, request.owner.clone());
    let room = caller.claim_locks(set.names(), request.token.as_ref(), !wait.is_zero())?;
    let longest = |grant: &Grant, of: fn(&lock::Lease) -> Duration| {
        grant.leases.iter().map(of).max().unwrap_or_default()
    };
    let named = |problem: Problem, contention: &Contention| {
        let name = is_set.then(|| contention.name.as_str().to_owned());
        Err(problem.with(|problem| problem.name = name))
    };
    let (status, grant) = match api.locks.acquire(request).await.map_err(of_lock_error)? {
        Acquisition::New(grant) => {
            if !wait.is_zero() {
                api.metrics.wait(grant.validity.waited());
            }
            room.keep(&grant.token, longest(&grant, |lease| lease.ttl));
            auditor.granted(set.names().iter().zip(&grant.leases));
            (StatusCode::CREATED, grant)
        }
        Acquisition::Again(grant) => {
            room.keep(&grant.token, longest(&grant, |lease| lease.expires_in));
            (StatusCode::OK, grant)
        }
        Acquisition::Held { contention, waited } => {
            return named(held(&contention, (!wait.is_zero()).then_some(waited)), &contention);
        }
        Acquisition::Crowded(contention) => return named(crowded(&contention), &contention),
        Acquisition::NotAlone(contention) => {
            return named(not_alone(&contention, is_set), &contention);
        }
        Acquisition::Full => return Err(too_many_holders()),
    };
    let unchanged = unchanged(&grant.leases, ttl, owner.as_ref());
    Ok((status, grant, unchanged))
}

/// Renew a lock
///
/// The lease lasts `ttl_ms` from now, be that longer or shorter than what was left; without it, as
/// long as the grant or the last renewal said. The fencing token stays. When the outcome is
/// unknown, count the shorter of both until you know.
#[utoipa::path(put, path = "/v1/locks/{name}",
    responses((status = 200, description = "The lease continues", body = Lease<'static>,
        headers(("Lock-Token" = String, description = "The token of the lease")))))]
pub(crate) async fn renew_lock(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Name(name): Name,
    RequiredToken(token): RequiredToken,
    OptionalJson(body): OptionalJson<RenewLockRequest>,
) -> Result<Response, Problem> {
    caller.check_lock(LockAct::Acquire, &name)?;
    let ttl = asked_ttl(body.ttl_ms, api.locks.max_ttl())?;
    let names = slice::from_ref(&name);
    match api.locks.renew(&name, &token, ttl).await.map_err(of_lock_error)? {
        Renewal::Renewed { leases, validity } => {
            let grant = Grant { token, leases, validity };
            caller.note_locks(names, &grant.token, grant.lease().ttl);
            let lease = lease_body(&name, &grant.token, grant.lease(), grant.validity);
            Ok(with_token(Json(lease).into_response(), &grant.token))
        }
        Renewal::Lost(all) => Err(lost(all.first().map_or(&LockLoss::NotHeld, |one| &one.loss))),
    }
}

/// Release a lock
///
/// Only the token of the lease releases it. After a lost response it is safe to repeat: 404 then
/// says that no client holds the lock. With `entry` the token leaves that entry alone, and releases
/// the lock with the last.
#[utoipa::path(delete, path = "/v1/locks/{name}",
    responses(
        (status = 204, description = "The lease is over"),
        (status = 200, description = "The token holds the lock by other entries: these have names", body = LockEntries),
    ))]
pub(crate) async fn release_lock(
    State(api): State<Arc<Api>>,
    caller: Caller,
    auditor: Auditor,
    LeftEntry(entry): LeftEntry,
    WatchedName(name): WatchedName,
    RequiredToken(token): RequiredToken,
) -> Result<Response, Problem> {
    caller.check_lock(LockAct::Acquire, &name)?;
    let left = api.locks.leave(&name, &token, entry).await?;
    match left.into_iter().next() {
        Some((ReleaseReply::Released, end)) => {
            caller.remove_locks(slice::from_ref(&name), &token);
            auditor.released(&name, end.as_ref());
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        Some((ReleaseReply::Entered(entries), _)) => {
            let entries = entries.iter().map(|entry| entry.as_str().to_owned()).collect();
            Ok(Json(LockEntries { entries }).into_response())
        }
        Some((ReleaseReply::Mismatch, _)) => Err(lost(&LockLoss::Mismatch)),
        Some((ReleaseReply::NotHeld, _)) | None => Err(lost(&LockLoss::NotHeld)),
    }
}

/// Look at a lock
///
/// Who holds it and for how long; all holders, where several share it. No token is ever shown. The
/// 404 of a free lock says how many wait before it (`ahead`), and who is the first (`waiter`): one
/// that waits for other locks as well.
#[utoipa::path(get, path = "/v1/locks/{name}",
    responses((status = 200, description = "A client holds it", body = HeldLock)))]
pub(crate) async fn get_lock(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Name(name): Name,
) -> Result<Json<HeldLock>, Problem> {
    caller.check_lock(LockAct::Read, &name)?;
    match api.locks.look(&name).await? {
        Some(holding) => Ok(Json(held_lock(&holding))),
        // Redlock has no queue to say anything of.
        None => Err(free(&api.locks.look_at_queue(&name).await.unwrap_or_default())),
    }
}

/// List held locks
///
/// Page by page, in the order of the bytes of the names on `memory:`, `embedded:`, `postgres:` and
/// `etcd:`. There a lock that is held throughout is listed once. On Redis and Redlock there is no
/// order, and on ZooKeeper one that is its own; such a lock is then listed at least once. A lock
/// that comes or goes meanwhile may be missing. An identity lists by a `prefix` below which it may
/// read everything.
#[utoipa::path(get, path = "/v1/locks",
    responses((status = 200, description = "Some of the held locks", body = LockPage)))]
pub(crate) async fn list_locks(
    State(api): State<Arc<Api>>,
    caller: Caller,
    ListQuery(query): ListQuery,
) -> Result<Json<LockPage>, Problem> {
    caller.check_list(&query.prefix)?;
    let page = api.locks.list(&query).await?.ok_or_else(unknown_cursor)?;
    let next_cursor = page.next.map(|cursor| cursor.as_str().to_owned());
    Ok(Json(LockPage { locks: page.entries.iter().map(held_lock).collect(), next_cursor }))
}

/// What a path without a name is answered.
pub(crate) async fn empty_name() -> Problem {
    Problem::new(Code::InvalidName, "The name is not valid: it is empty.").with_field("name")
}

/// The response with the token in its header.
pub(crate) fn with_token(mut response: Response, token: &Token) -> Response {
    // A token consists of visible ASCII, which a header always takes.
    if let Ok(mut token) = HeaderValue::from_str(token.expose()) {
        token.set_sensitive(true);
        response.headers_mut().insert(LOCK_TOKEN, token);
    }
    response
}

fn location(name: &LockName) -> HeaderValue {
    let path = format!("/v1/locks/{}", segment(name.as_str()));
    // Percent-encoded text is ASCII, which a header always takes.
    HeaderValue::try_from(path).unwrap_or_else(|_| HeaderValue::from_static("/v1/locks"))
}
