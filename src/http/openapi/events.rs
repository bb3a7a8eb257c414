//! The schemas that the types of `keylatch-wire` do not derive: those of a held lock, and of the
//! events of the two streams.
//!
//! OpenAPI 3.1 has no word for the items of a stream. So the body is a string, and `contentSchema`
//! says what is in it: a member for each event, by its name.
//!
//! The service writes a lock that one client holds with its holder's members, and one that several
//! hold together with a list of them. Generators of clients differ in what they make of `oneOf`:
//! some import nothing, some refuse a member that is new. All of them take an object in which what
//! only one of the shapes has may be absent. `tests/api/openapi_rules.rs` holds the document to it.

use keylatch_wire::{
    EmptyEvent, EndEvent, Lease, LossEvent, ProblemDocument, PublicLock, RenewalEvent, SharedLock,
    SnapshotEvent, WaitingEvent,
};
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema as _, ToSchema};

use super::example;

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
    schemas.push((SnapshotEvent::name().into_owned(), snapshot().into()));
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
            let mut events = object(events);
            events.required.clear();
            let stream = ObjectBuilder::new().schema_type(Type::String);
            let stream = stream.content_media_type(STREAM);
            let stream = stream.content_schema(Some(RefOr::T(Schema::Object(events))));
            content.schema = Some(RefOr::T(Schema::Object(stream.build())));
            content.example = example("streams", id);
        }
    }
}

/// The schema of `keylatch_wire::HeldLock`.
pub(super) fn held_lock() -> Object {
    let (mut lock, shared) = (object(PublicLock::schema()), object(SharedLock::schema()));
    lock.required.retain(|name| shared.required.contains(name));
    for (name, member) in shared.properties {
        lock.properties.entry(name).or_insert(member);
    }
    lock.description = Some(
        "A held lock as everybody sees it: with the members of its one holder, or with `holders` and `holding` \
         where several hold it together, or might."
            .to_owned(),
    );
    lock
}

/// The schema of `keylatch_wire::SnapshotEvent`: whether the lock is held, and if so the lock.
fn snapshot() -> Object {
    let mut event = held_lock();
    let held = ObjectBuilder::new().schema_type(Type::Boolean);
    let held = held.description(Some(
        "Whether a client holds the lock; without it `owner` is null, and no other member is there",
    ));
    event.properties.insert("held".to_owned(), held.into());
    event.required = ["held", "owner"].map(str::to_owned).to_vec();
    event.description = Some(
        "`snapshot` of a watch: the present state of the lock, with the lock if it is held."
            .to_owned(),
    );
    event
}

fn object(schema: RefOr<Schema>) -> Object {
    match schema {
        RefOr::T(Schema::Object(object)) => object,
        _ => Object::default(),
    }
}
