//! The events of the two streams: which schema the data of each has.
//!
//! OpenAPI 3.1 has no word for the items of a stream. So the body is a string, and `contentSchema`
//! says what is in it: a member for each event, by its name.

use keylatch_wire::{
    EmptyEvent, EndEvent, Lease, LossEvent, ProblemDocument, PublicLock, RenewalEvent,
    SnapshotEvent, WaitingEvent,
};
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema as _, ToSchema};

use super::{example, held_lock};

const STREAM: &str = "text/event-stream";

#[derive(ToSchema)]
#[expect(dead_code, reason = "only the schema is used")]
struct HoldEvents<'a> {
    waiting: WaitingEvent,
    acquired: Lease<'a>,
    renewed: RenewalEvent,
    lost: LossEvent,
    refused: ProblemDocument,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "only the schema is used")]
struct WatchEvents<'a> {
    snapshot: SnapshotEvent,
    acquired: PublicLock,
    renewed: PublicLock,
    broken: PublicLock,
    released: EndEvent<'a>,
    expired: EndEvent<'a>,
    lagged: EmptyEvent,
    closing: EmptyEvent,
}

/// The schemas of the data, by their names.
pub(super) fn schemas() -> Vec<(String, RefOr<Schema>)> {
    let mut schemas = Vec::new();
    HoldEvents::schemas(&mut schemas);
    WatchEvents::schemas(&mut schemas);
    schemas.push((SnapshotEvent::name().into_owned(), held_lock::snapshot().into()));
    schemas
}

/// Names the events of an operation that answers with a stream.
pub(super) fn describe(operation: &mut Operation) {
    let id = operation.operation_id.as_deref().unwrap_or_default();
    for response in operation.responses.responses.values_mut() {
        let RefOr::T(response) = response else { continue };
        if let Some(RefOr::T(content)) = response.content.get_mut(STREAM) {
            let events =
                if id == "holdLock" { HoldEvents::schema() } else { WatchEvents::schema() };
            let mut events = held_lock::object(events);
            events.required.clear();
            let stream = ObjectBuilder::new().schema_type(Type::String);
            let stream = stream.content_media_type(STREAM);
            let stream = stream.content_schema(Some(RefOr::T(Schema::Object(events))));
            content.schema = Some(RefOr::T(Schema::Object(stream.build())));
            content.example = example("streams", id);
        }
    }
}
