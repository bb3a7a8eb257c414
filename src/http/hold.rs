use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderValue;
use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream::{self, StreamExt as _};
use tokio_stream::wrappers::ReceiverStream;

use super::api::Api;
use super::body::{hold_request, in_millis, lease_body};
use super::events::{event, overloaded};
use super::extract::{LOCK_TOKEN, Name, OptionalJson, OptionalToken};
use super::problem::{Code, HoldProblems, Problem, TOKEN_EXAMPLE, held, of_lock_error};
use crate::metrics::StreamKind;
use keylatch_core::lock::{HoldEvent, HoldRefusal, LockError, LockName, LossReason, Token};
use keylatch_wire::{HoldLockRequest, LossEvent, RenewalEvent, WaitingEvent, millis};

/// Hold a lock by a connection
///
/// The lock is yours for as long as you read the answer, a stream of server-sent events. The service
/// renews it at each third of the TTL, and releases it when the connection ends, whatever the reason.
///
/// The events are `waiting` (with how many are `ahead`), `acquired` (the lease), `renewed`, and at the
/// end `lost`, with the `reason`: `max-hold`, `shutdown`, `lock-not-held`, `token-mismatch` or
/// `store-unavailable`. When you read it, stop. Comments are sent while nothing happens.
///
/// Only `acquired` says that the lock is yours. Without `wait_ms` a lock that is held is 409, before
/// any stream begins; with it the stream begins while you wait, and ends with `refused`, whose data is
/// a problem, if the lock was not to be had.
#[utoipa::path(
    post,
    path = "/v1/locks/{name}/hold",
    tag = "locks",
    params(
        ("name" = String, Path, min_length = 1, max_length = 255, example = "deploy", description = "The lock"),
        ("Lock-Token" = Option<String>, Header, example = json!(TOKEN_EXAMPLE),
            description = "A token of your own: 20 to 128 of A-Z a-z 0-9 _ -. A lock that it holds already is held on"),
    ),
    request_body(content = Option<HoldLockRequest>, description = "Every member has a default",
        example = json!({"ttl_ms": 30000, "owner": "ci runner 7", "max_hold_ms": 1000})),
    responses(
        (status = 200, description = "What happens to the lock, as server-sent events", body = String,
            content_type = "text/event-stream",
            headers(("Lock-Token" = String, description = "The token of the lease, if it is acquired")),
            example = json!("event: acquired\ndata: {\"name\":\"deploy\",\"token\":\"aPbOQ2c1kG0x3nN7mYw5RzT4vL8sJdEf\",\"fencing_token\":1779900000000000,\"owner\":\"ci runner 7\",\"ttl_ms\":30000,\"waited_ms\":1,\"valid_for_ms\":29696,\"expires_at\":\"2026-05-27T16:40:30.000Z\"}\n\nevent: lost\ndata: {\"reason\":\"max-hold\",\"detail\":\"The lock was held for as long as it may be.\"}\n\n")),
        HoldProblems,
    )
)]
pub(super) async fn hold(
    State(api): State<Arc<Api>>,
    Name(name): Name,
    OptionalToken(token): OptionalToken,
    OptionalJson(body): OptionalJson<HoldLockRequest>,
) -> Result<Response, Problem> {
    let token =
        token.map_or_else(Token::generate, Ok).map_err(LockError::from).map_err(of_lock_error)?;
    let max_ttl = api.locks.max_ttl();
    let hold =
        hold_request(body, name.clone(), token.clone(), max_ttl, api.max_wait, api.max_hold)?;
    let place = api.streams.open(StreamKind::Hold)?;
    let mut events = api.locks.hold(hold, api.closing.clone());
    let first = match events.recv().await {
        Some(HoldEvent::Refused(refused)) => return Err(problem(refused)),
        Some(first) => first,
        None => return Err(Problem::new(Code::Internal, "The lock is not held.")),
    };
    let events = stream::iter([first]).chain(ReceiverStream::new(events));
    let mut response = place.respond(events.map(move |event| as_sent(event, &name)));
    // A token consists of visible ASCII, which a header always takes.
    if let Ok(mut token) = HeaderValue::from_str(token.expose()) {
        token.set_sensitive(true);
        response.headers_mut().insert(LOCK_TOKEN, token);
    }
    Ok(response)
}

fn as_sent(happened: HoldEvent, name: &LockName) -> Result<Event, axum::Error> {
    match happened {
        HoldEvent::Waiting { ahead } => event("waiting", &WaitingEvent { ahead }),
        HoldEvent::Acquired(grant) => {
            event("acquired", &lease_body(name, &grant.token, &grant.lease, grant.validity))
        }
        HoldEvent::Renewed { lease, validity } => {
            let renewed = RenewalEvent {
                fencing_token: lease.fencing_token.get(),
                waited_ms: millis(validity.waited()),
                valid_for_ms: millis(validity.valid_for()),
                expires_at: in_millis(lease.expires_in),
            };
            event("renewed", &renewed)
        }
        HoldEvent::Lost(lost) => event("lost", &why(lost)),
        HoldEvent::Refused(refused) => event("refused", problem(refused).document()),
    }
}

fn why(lost: LossReason) -> LossEvent {
    let (reason, detail) = match lost {
        LossReason::MaxHold => ("max-hold", "The lock was held for as long as it may be."),
        LossReason::Shutdown => ("shutdown", "The service shuts down and releases the lock."),
        LossReason::NotHeld => (
            Code::LockNotHeld.slug(),
            "No client holds the lock: it was released with its token, or has expired.",
        ),
        LossReason::TakenOver => {
            (Code::TokenMismatch.slug(), "Another client holds the lock, with another token.")
        }
        LossReason::Unrenewed => {
            (Code::StoreUnavailable.slug(), "The lease could not be renewed, and is about to end.")
        }
        _ => (Code::Internal.slug(), "The lock is lost."),
    };
    LossEvent { reason: reason.into(), detail: detail.into() }
}

fn problem(refused: HoldRefusal) -> Problem {
    match refused {
        HoldRefusal::Held { contention, waited } => held(&contention, Some(waited)),
        HoldRefusal::Failed(error) => of_lock_error(error),
        HoldRefusal::Shutdown => overloaded("The service is shutting down."),
    }
}
