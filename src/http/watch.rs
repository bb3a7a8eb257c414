use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::api::Api;
use super::body::public_lock;
use super::events::event;
use super::extract::{WatchLimit, WatchedName};
use super::problem::{Problem, WatchProblems};
use crate::metrics::StreamKind;
use keylatch_core::lock::{Holder, WatchEvent};
use keylatch_wire::{EmptyEvent, EndEvent, SnapshotEvent};

/// Watch a lock
///
/// A stream of server-sent events of what happens to a lock: first a `snapshot` of how it stands, then
/// `acquired`, `renewed`, `released` and `expired`. Tokens are never shown.
///
/// An event's `id` is the last fencing token, a hyphen, and the number of the event in this stream. A
/// client that reads too slowly gets `lagged` and a new `snapshot`; so does one that comes back,
/// whatever its `Last-Event-ID`. On `closing` the service shuts down. Comments are sent while nothing
/// happens.
#[utoipa::path(
    get,
    path = "/v1/locks/{name}/events",
    tag = "locks",
    params(
        ("name" = String, Path, min_length = 1, max_length = 255, example = "deploy", description = "The lock"),
        ("limit" = Option<u64>, Query, minimum = 1, example = 1,
            description = "End the stream after so many events; 1 is the snapshot alone"),
    ),
    responses(
        (status = 200, description = "What happens to the lock, as server-sent events", body = String,
            content_type = "text/event-stream",
            example = json!("id: 1779900000000000-1\nevent: snapshot\ndata: {\"held\":true,\"name\":\"deploy\",\"owner\":\"ci runner 7\",\"fencing_token\":1779900000000000,\"acquired_at\":\"2026-05-27T16:40:00.000Z\",\"expires_in_ms\":29950,\"waiting\":0}\n\nid: 1779900000000000-2\nevent: released\ndata: {\"name\":\"deploy\",\"owner\":\"ci runner 7\",\"fencing_token\":1779900000000000}\n\n")),
        WatchProblems,
    )
)]
pub(super) async fn events(
    State(api): State<Arc<Api>>,
    WatchedName(name): WatchedName,
    WatchLimit(limit): WatchLimit,
) -> Result<Response, Problem> {
    let place = api.streams.open(StreamKind::Watch)?;
    let events = api.locks.watch(name, api.closing.clone()).await?;
    let mut ids = Ids::default();
    let events = ReceiverStream::new(events).map(move |happened| {
        let id = ids.of(&happened);
        as_sent(&happened).map(|event| event.id(id))
    });
    Ok(place.respond(events.take(limit)))
}

/// Tells the events of one stream apart.
#[derive(Default)]
struct Ids {
    /// The last fencing token, 0 before there was one.
    fencing_token: u64,
    number: u64,
}

impl Ids {
    fn of(&mut self, happened: &WatchEvent) -> String {
        if let Some(holder) = holder(happened) {
            self.fencing_token = holder.fencing_token.get();
        }
        self.number += 1;
        format!("{}-{}", self.fencing_token, self.number)
    }
}

fn holder(happened: &WatchEvent) -> Option<&Holder> {
    match happened {
        WatchEvent::Snapshot(holder) => holder.as_ref(),
        WatchEvent::Acquired(holder)
        | WatchEvent::Renewed(holder)
        | WatchEvent::Released(holder)
        | WatchEvent::Expired(holder) => Some(holder),
        WatchEvent::Lagged | WatchEvent::Closing => None,
    }
}

fn as_sent(happened: &WatchEvent) -> Result<Event, axum::Error> {
    match happened {
        WatchEvent::Snapshot(holder) => {
            let lock = holder.as_ref().map(public_lock);
            event("snapshot", &SnapshotEvent { held: lock.is_some(), lock })
        }
        WatchEvent::Acquired(holder) => event("acquired", &public_lock(holder)),
        WatchEvent::Renewed(holder) => event("renewed", &public_lock(holder)),
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
    }
}
