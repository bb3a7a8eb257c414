//! The two streams of server-sent events about a lock: one holds the lock for as long as its
//! connection lasts, the other watches the lock.
//!
//! A task of `LockService` makes the events, and the handlers write them down. `Streams` limits how
//! many streams of both kinds are open: each has a permit until its connection ends. While nothing
//! happens, a stream sends comments. `hold` keeps the head of its response back until the first
//! event, so that what is refused at once is refused by a status. Both end when their client may
//! not have them any more.
//!
//! Invariant: a stream that ends, for whatever reason, frees its permit and drops its events, which
//! ends the task. Tested in `tests/api/hold.rs`, `hold_endings.rs`, `watch.rs` and
//! `gone_clients.rs`.

use std::borrow::Cow;
use std::slice;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream::{self, StreamExt as _};
use serde::Serialize;
use tokio_stream::wrappers::ReceiverStream;

use super::Api;
use super::body::{break_note, held_lock, hold_request, in_millis, lease_body, public_lock};
use super::locks::with_token;
use crate::access::LockAct;
use crate::http::audit::{Auditor, loss_label};
use crate::http::caller::Caller;
use crate::http::extract::{Name, OptionalJson, OptionalToken, WatchLimit, WatchedName};
use crate::http::problem::{
    Code, Problem, crowded, forbidden, held, not_alone, of_lock_error, overloaded, too_many_holders,
};
use crate::http::revocation::Revocation;
use crate::metrics::{Metrics, StreamKind};
use keylatch_core::lock::{
    HoldEvent, HoldRefusal, Holder, LockError, LockName, LossReason, Token, WatchEvent,
};
use keylatch_wire::{
    EmptyEvent, EndEvent, HoldLockRequest, LossEvent, RenewalEvent, SnapshotEvent, WaitingEvent,
    millis,
};

/// Why a hold ends whose client may not hold the lock any more.
const REVOKED: &str = "You may not hold this lock any more.";

/// Hold a lock by a connection
///
/// The lock is yours for as long as you read the response, a stream of server-sent events. The
/// service renews it at each third of the TTL, and releases it when the connection ends, whatever
/// the reason.
///
/// The events are `waiting` (with how many are `ahead`), `acquired` (the lease), `renewed`, and at
/// the end `lost`, with the `reason`: `max-hold`, `shutdown`, `forbidden`, `lock-not-held`,
/// `lock-broken`, `token-mismatch` or `store-unavailable`. When you read it, stop. Comments are
/// sent while nothing happens.
///
/// Only `acquired` says that the lock is yours. Without `wait_ms` a lock that is held is 409,
/// before any stream begins; with it the stream begins while you wait, and ends with `refused`,
/// whose data is a problem, if the lock was not to be had.
#[utoipa::path(post, path = "/v1/locks/{name}/hold",
    responses((status = 200, description = "What happens to the lock, as server-sent events", body = String,
        content_type = "text/event-stream",
        headers(("Lock-Token" = String, description = "The token of the lease, if it is acquired")))))]
pub(crate) async fn hold_lock(
    State(api): State<Arc<Api>>,
    caller: Caller,
    revocation: Revocation,
    auditor: Auditor,
    Name(name): Name,
    OptionalToken(token): OptionalToken,
    OptionalJson(body): OptionalJson<HoldLockRequest>,
) -> Result<Response, Problem> {
    caller.check_lock(LockAct::Acquire, &name)?;
    let token =
        token.map_or_else(Token::generate, Ok).map_err(LockError::from).map_err(of_lock_error)?;
    let max_ttl = api.locks.max_ttl();
    let mut hold =
        hold_request(body, name.clone(), token.clone(), max_ttl, api.max_wait, api.max_hold)?;
    hold.acquire.owner = caller.label("owner", hold.acquire.owner)?;
    hold.observer = auditor.hold_observer(&name);
    let names = slice::from_ref(&name);
    let place = api.streams.open(StreamKind::Hold, caller.enter_stream(names)?)?;
    let mut room = caller.claim_locks(names, Some(&token), !hold.acquire.wait.is_zero())?;
    let lock = name.clone();
    let revoked = revocation.of(move |caller| caller.check_lock(LockAct::Acquire, &lock));
    let mut events = api.locks.hold(hold, api.closing.clone(), revoked);
    let first = match events.recv().await {
        Some(HoldEvent::Refused(refused)) => return Err(problem(refused)),
        Some(first) => first,
        None => return Err(Problem::new(Code::Internal, "The lock is not held.")),
    };
    let events = stream::iter([first]).chain(ReceiverStream::new(events));
    let metrics = Arc::clone(&api.metrics);
    let response = place.respond(events.map(move |event| {
        // The stream keeps the room for as long as it holds the lock, and waits for it until then.
        if let HoldEvent::Acquired(_) = event {
            room.stop_waiting();
        }
        encode_hold_event(event, &name, &metrics)
    }));
    Ok(with_token(response, &token))
}

fn encode_hold_event(
    happened: HoldEvent,
    name: &LockName,
    metrics: &Metrics,
) -> Result<Event, axum::Error> {
    match happened {
        HoldEvent::Waiting { ahead } => event("waiting", &WaitingEvent { ahead }),
        HoldEvent::Acquired(grant) => {
            metrics.wait(grant.validity.waited());
            event("acquired", &lease_body(name, &grant.token, grant.lease(), grant.validity))
        }
        HoldEvent::Renewed { lease, validity } => {
            let (waited, valid_for) = validity.spans();
            let renewed = RenewalEvent {
                fencing_token: lease.fencing_token.get(),
                waited_ms: millis(waited),
                valid_for_ms: millis(valid_for),
                expires_at: in_millis(lease.expires_in),
            };
            event("renewed", &renewed)
        }
        HoldEvent::Lost(lost) => {
            metrics.lost_hold(loss_label(&lost));
            event("lost", &why(&lost))
        }
        HoldEvent::Refused(refused) => {
            let problem = problem(refused);
            metrics.problem(problem.code());
            event("refused", problem.document())
        }
    }
}

fn why(lost: &LossReason) -> LossEvent {
    let broken = match lost {
        LossReason::Broken(why) => Some(break_note(why)),
        _ => None,
    };
    let (reason, detail) = match lost {
        LossReason::MaxHold => ("max-hold", "The lock was held for as long as it may be."),
        LossReason::Shutdown => ("shutdown", "The service shuts down and releases the lock."),
        LossReason::Revoked => (Code::Forbidden.slug(), REVOKED),
        LossReason::NotHeld => (
            Code::LockNotHeld.slug(),
            "No client holds the lock: it was released with its token, or has expired.",
        ),
        LossReason::TakenOver => {
            (Code::TokenMismatch.slug(), "Another client holds the lock, with another token.")
        }
        LossReason::Broken(_) => {
            (Code::LockBroken.slug(), "The lease was broken. Stop what you did under it.")
        }
        LossReason::Unrenewed => {
            (Code::StoreUnavailable.slug(), "The lease could not be renewed, and is about to end.")
        }
    };
    LossEvent { reason: reason.into(), detail: detail.into(), broken }
}

fn problem(refused: HoldRefusal) -> Problem {
    match refused {
        HoldRefusal::Held { contention, waited } => held(&contention, Some(waited)),
        HoldRefusal::Crowded(contention) => crowded(&contention),
        HoldRefusal::NotAlone(contention) => not_alone(&contention, false),
        HoldRefusal::Full => too_many_holders(),
        HoldRefusal::Failed(error) => of_lock_error(error),
        HoldRefusal::Shutdown => overloaded("The service is shutting down."),
        HoldRefusal::Revoked => forbidden(REVOKED),
    }
}

/// Watch a lock
///
/// A stream of server-sent events of what happens to a lock: first a `snapshot` of how it stands,
/// then `acquired`, `renewed`, `broken`, `released` and `expired`. Where several hold the lock
/// together, `slot` tells them apart. Tokens are never shown.
///
/// An event's `id` is the last fencing token, a hyphen, and the number of the event in this stream.
/// A client that reads too slowly gets `lagged` and a new `snapshot`; so does one that comes back,
/// whatever its `Last-Event-ID`. On `closing` the service shuts down. The stream of a client that
/// may not read the lock any more ends within a minute. Comments are sent while nothing happens.
#[utoipa::path(get, path = "/v1/locks/{name}/events",
    responses((status = 200, description = "What happens to the lock, as server-sent events", body = String,
        content_type = "text/event-stream")))]
pub(crate) async fn watch_lock(
    State(api): State<Arc<Api>>,
    caller: Caller,
    revocation: Revocation,
    WatchedName(name): WatchedName,
    WatchLimit(limit): WatchLimit,
) -> Result<Response, Problem> {
    caller.check_lock(LockAct::Read, &name)?;
    let permit = caller.enter_stream(slice::from_ref(&name))?;
    let place = api.streams.open(StreamKind::Watch, permit)?;
    let events = api.locks.watch(name.clone(), api.closing.clone()).await?;
    let revoked = revocation.of(move |caller| caller.check_lock(LockAct::Read, &name));
    // A stream without a fencing token so far has 0.
    let (mut fencing_token, mut number) = (0, 0);
    let events = ReceiverStream::new(events).map(move |happened| {
        number += 1;
        if let Some(holder) = holder(&happened) {
            fencing_token = holder.fencing_token.get();
        }
        encode_watch_event(&happened).map(|event| event.id(format!("{fencing_token}-{number}")))
    });
    Ok(place.respond(events.take(limit).take_until(revoked)))
}

fn holder(happened: &WatchEvent) -> Option<&Holder> {
    match happened {
        WatchEvent::Snapshot(holding) => holding.as_ref().map(|holding| &*holding.first),
        WatchEvent::Acquired(holder)
        | WatchEvent::Renewed(holder)
        | WatchEvent::Broken(holder)
        | WatchEvent::Released(holder)
        | WatchEvent::Expired(holder) => Some(holder),
        WatchEvent::Lagged | WatchEvent::Closing => None,
    }
}

fn encode_watch_event(happened: &WatchEvent) -> Result<Event, axum::Error> {
    match happened {
        WatchEvent::Snapshot(holding) => {
            let lock = holding.as_ref().map(held_lock);
            event("snapshot", &SnapshotEvent { held: lock.is_some(), lock })
        }
        WatchEvent::Acquired(holder) => event("acquired", &public_lock(holder)),
        WatchEvent::Renewed(holder) => event("renewed", &public_lock(holder)),
        WatchEvent::Broken(holder) => event("broken", &public_lock(holder)),
        WatchEvent::Released(holder) => event("released", &ended(holder)),
        WatchEvent::Expired(holder) => event("expired", &ended(holder)),
        WatchEvent::Lagged => event("lagged", &EmptyEvent {}),
        WatchEvent::Closing => event("closing", &EmptyEvent {}),
    }
}

fn ended(holder: &Holder) -> EndEvent<'_> {
    EndEvent {
        name: holder.name.as_str().into(),
        owner: holder.owner.as_ref().map(|owner| Cow::Borrowed(owner.as_str())),
        fencing_token: holder.fencing_token.get(),
        slot: holder.limit.is_shared().then_some(holder.slot),
    }
}

/// An event whose data is `data` as JSON.
fn event(name: &str, data: &impl Serialize) -> Result<Event, axum::Error> {
    // Whole, because `json_data` looks for ends of lines in each piece that the serializer writes.
    let json = serde_json::to_string(data).map_err(axum::Error::new)?;
    Ok(Event::default().event(name).data(json))
}
