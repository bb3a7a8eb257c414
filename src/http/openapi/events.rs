//! The events of the two streams: which schema the data of each has.
//!
//! OpenAPI 3.1 has no word for the items of a stream. So the body is a string, and `contentSchema` says what is
//! in it: a member for each event, by its name.

use utoipa::ToSchema;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{Ref, RefOr, Schema};

use keylatch_wire::{
    EmptyEvent, EndEvent, Lease, LossEvent, ProblemDocument, PublicLock, RenewalEvent, WaitingEvent,
};

use super::held_lock;

const STREAM: &str = "text/event-stream";
/// The schema of `keylatch_wire::SnapshotEvent`, which has the members of a lock that is held.
const SNAPSHOT: &str = "SnapshotEvent";

/// The schemas that the streams alone have, by their names.
pub(super) fn schemas() -> Vec<(String, RefOr<Schema>)> {
    fn one<T: ToSchema>() -> (String, RefOr<Schema>) {
        (T::name().into_owned(), T::schema())
    }
    vec![
        one::<WaitingEvent>(),
        one::<RenewalEvent>(),
        one::<LossEvent>(),
        one::<EndEvent<'_>>(),
        one::<EmptyEvent>(),
        (SNAPSHOT.to_owned(), held_lock::snapshot().into()),
    ]
}

/// Names the events of an operation that answers with a stream.
pub(super) fn describe(operation: &mut Operation) {
    let holds = operation.operation_id.as_deref() == Some("holdLock");
    for response in operation.responses.responses.values_mut() {
        let RefOr::T(response) = response else { continue };
        if let Some(RefOr::T(content)) = response.content.get_mut(STREAM) {
            let events = if holds { of_hold() } else { of_watch() };
            let object = ObjectBuilder::new().schema_type(Type::Object);
            let object =
                events.into_iter().fold(object, |all, (name, data)| all.property(name, data));
            let stream = ObjectBuilder::new().schema_type(Type::String);
            let stream = stream.content_media_type(STREAM);
            let stream = stream.content_schema(Some(RefOr::T(Schema::Object(object.build()))));
            content.schema = Some(RefOr::T(Schema::Object(stream.build())));
        }
    }
}

fn of_hold() -> Vec<(&'static str, Ref)> {
    vec![
        ("waiting", reference::<WaitingEvent>()),
        ("acquired", reference::<Lease<'_>>()),
        ("renewed", reference::<RenewalEvent>()),
        ("lost", reference::<LossEvent>()),
        ("refused", reference::<ProblemDocument>()),
    ]
}

fn of_watch() -> Vec<(&'static str, Ref)> {
    vec![
        ("snapshot", Ref::from_schema_name(SNAPSHOT)),
        ("acquired", reference::<PublicLock>()),
        ("renewed", reference::<PublicLock>()),
        ("broken", reference::<PublicLock>()),
        ("released", reference::<EndEvent<'_>>()),
        ("expired", reference::<EndEvent<'_>>()),
        ("lagged", reference::<EmptyEvent>()),
        ("closing", reference::<EmptyEvent>()),
    ]
}

fn reference<T: ToSchema>() -> Ref {
    Ref::from_schema_name(T::name())
}
