//! The OpenAPI document as it is served: what the handlers say, and what holds for all of them.
//!
//! It is put together from the documents of the routers, so that it cannot leave a route out. What
//! follows from the signature of a handler is in `signature.rs`, which problems an operation has in
//! `problems.rs`, what a name alone decides in `members.rs` and `parameters.rs`. `base.json` has
//! what no operation changes, and `examples.json` the examples. `tests/api/openapi.rs` holds the
//! service to it.

mod document;
mod events;
mod members;
pub(super) mod parameters;
pub(super) mod problems;
mod signature;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::SecurityRequirement;
use utoipa::openapi::{OpenApi, PathItem};
use utoipa::{PartialSchema, ToSchema};

pub use self::document::Document;
pub(super) use self::signature::{describe, operation_id, routes};
use super::api::system::PROMISE;
use keylatch_wire::{HeldLock, ProblemDocument, SharedLock};

/// What `examples.json` has for a schema, a member of one, a request, a stream, or a problem beside
/// what all have.
fn example(of: &str, name: &str) -> Option<Value> {
    static EXAMPLES: LazyLock<Value> =
        LazyLock::new(|| serde_json::from_str(include_str!("examples.json")).unwrap_or_default());
    EXAMPLES[of].get(name).cloned()
}

/// What no operation changes, and what operations refer to.
static BASE: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("base.json")).unwrap_or_default());

/// The tag of an operation that names none.
fn tag(path: &str) -> &'static str {
    match path {
        path if path.starts_with("/v1/locks") => "locks",
        path if path.starts_with("/v1/idempotency") => "idempotency",
        _ => "system",
    }
}

/// The document of all routes, with what holds for all of them: what is in `base.json`, but for
/// what no operation uses.
pub(super) fn complete(routes: OpenApi) -> Document {
    let mut document: OpenApi = serde_json::from_value(BASE.clone()).unwrap_or_default();
    env!("CARGO_PKG_VERSION").clone_into(&mut document.info.version);
    let promises = (1..).zip(PROMISE).map(|(number, one)| format!("{number}. {one}\n"));
    let description = document.info.description.unwrap_or_default();
    document.info.description =
        Some(description.replace("{promise}", &promises.collect::<String>()));
    document.merge(routes);
    let (mut used, mut taken) = (BTreeSet::new(), BTreeSet::new());
    let mut asks_at_a_guard = false;
    let components = document.components.get_or_insert_default();
    for (path, item) in &mut document.paths.paths {
        for operation in operations(item) {
            asks_at_a_guard |= operation.security.is_some();
            let tag = operation.tags.get_or_insert_with(|| vec![tag(path).to_owned()]);
            used.extend(tag.iter().cloned());
            let parameters = operation.parameters.iter().flatten();
            taken.extend(parameters.filter_map(parameters::component).map(str::to_owned));
            complete_operation(operation);
            problems::share(operation, components);
        }
    }
    document.tags.get_or_insert_default().retain(|tag| used.contains(&tag.name));
    components.parameters.retain(|name, _| taken.contains(name));
    parameters::describe(components.parameters.values_mut());
    components.security_schemes.retain(|name, _| name != GUARD_KEY || asks_at_a_guard);
    components.schemas.insert("Problem".to_owned(), ProblemDocument::schema());
    let mut referenced = Vec::new();
    ProblemDocument::schemas(&mut referenced);
    components.schemas.extend(referenced);
    components.schemas.extend(events::schemas());
    components.schemas.insert(HeldLock::name().into_owned(), events::held_lock().into());
    components.schemas.remove(&*SharedLock::name());
    for (name, schema) in &mut components.schemas {
        members::describe(name, schema);
    }
    document.into()
}

/// Completes an operation with what holds for all of them.
fn complete_operation(operation: &mut Operation) {
    // A guard that asks for an identity says so itself.
    if operation.security.is_none() {
        let asks = operation.responses.responses.contains_key("401");
        operation.security = Some(if asks { key_or_none() } else { Vec::new() });
    }
    events::describe(operation);
    parameters::describe(operation.parameters.iter_mut().flatten());
}

/// The names of the ways in which a client says who it is.
const BEARER: &str = "apiKey";
const BASIC: &str = "password";
/// The same for a guarded route.
pub(super) const GUARD_KEY: &str = "guardKey";

/// A service without identities asks for none.
fn key_or_none() -> Vec<SecurityRequirement> {
    let none: [&str; 0] = [];
    vec![
        SecurityRequirement::new(BEARER, none),
        SecurityRequirement::new(BASIC, none),
        SecurityRequirement::default(),
    ]
}

fn operations(path: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut path.get, &mut path.put, &mut path.post, &mut path.patch, &mut path.delete]
        .into_iter()
        .flatten()
}
