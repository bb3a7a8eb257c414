//! A held lock in the document: one object with the members of either of its two shapes.
//!
//! The service writes a lock that one client holds with its holder's members, and one that several
//! hold together with a list of them. Generators of clients differ in what they make of `oneOf`:
//! some import nothing, some refuse a member that is new. All of them take an object in which what
//! only one of the shapes has may be absent. `tests/api/openapi_rules.rs` holds the document to it.

use utoipa::PartialSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};

use keylatch_wire::{PublicLock, SharedLock};

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
pub(super) fn snapshot() -> Object {
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

pub(super) fn object(schema: RefOr<Schema>) -> Object {
    match schema {
        RefOr::T(Schema::Object(object)) => object,
        _ => Object::default(),
    }
}
