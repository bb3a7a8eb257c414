//! The OpenAPI document as it is served: what the handlers say, and what holds for all of them.
//!
//! It is put together from the documents of the routers, so that it cannot leave a route out. What a name
//! alone decides, for every schema and every parameter that has it, is in `members.rs` and `parameters.rs`.
//! `tests/api/openapi.rs` holds the service to it.

mod document;
mod events;
mod held_lock;
mod members;
mod parameters;
pub(super) mod problems;
mod signature;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{
    ContactBuilder, Info, InfoBuilder, LicenseBuilder, OpenApi, PathItem, RefOr, ServerBuilder,
    tag::TagBuilder,
};
use utoipa::{PartialSchema, ToSchema};

pub use self::document::Document;
pub(super) use self::signature::{describe, routes};
use super::system::PROMISE;
use crate::access::KEYLATCH_AUTHORIZATION;
use keylatch_wire::{HeldLock, ProblemDocument, SharedLock};

/// The tags in the order of the story. The document has those under which there is an operation.
const TAGS: [(&str, &str); 4] = [
    ("locks", "Leases by name"),
    ("idempotency", "Doing a thing once"),
    ("guarded", "Routes that run once"),
    ("system", "The service itself"),
];

/// What `examples.json` has for a schema, a member of one, a request, a stream, or a problem beside what all have.
fn example(of: &str, name: &str) -> Option<Value> {
    static EXAMPLES: LazyLock<Value> =
        LazyLock::new(|| serde_json::from_str(include_str!("examples.json")).unwrap_or_default());
    EXAMPLES[of].get(name).cloned()
}

/// The tag of an operation that names none.
fn tag(path: &str) -> &'static str {
    match path {
        path if path.starts_with("/v1/locks") => "locks",
        path if path.starts_with("/v1/idempotency") => "idempotency",
        _ => "system",
    }
}

/// The document of all routes, with what holds for all of them.
pub(super) fn complete(mut document: OpenApi) -> Document {
    document.info = info();
    let server = ServerBuilder::new().url("/").description(Some("The service with this document"));
    document.servers = Some(vec![server.build()]);
    let mut used = BTreeSet::new();
    let mut asks_at_a_guard = false;
    let components = document.components.get_or_insert_default();
    for (path, item) in &mut document.paths.paths {
        for operation in operations(item) {
            asks_at_a_guard |= operation.security.is_some();
            let tag = operation.tags.get_or_insert_with(|| vec![tag(path).to_owned()]);
            used.extend(tag.iter().cloned());
            complete_operation(operation);
            problems::share(operation, components);
        }
    }
    let used = TAGS.iter().filter(|(name, _)| used.contains(*name));
    let tags = used.map(|(name, what)| TagBuilder::new().name(*name).description(Some(*what)));
    document.tags = Some(tags.map(TagBuilder::build).collect());
    components.schemas.insert("Problem".to_owned(), ProblemDocument::schema());
    components.security_schemes.extend([
        (BEARER.to_owned(), RefOr::T(scheme(HttpAuthScheme::Bearer, "An API key"))),
        (BASIC.to_owned(), RefOr::T(scheme(HttpAuthScheme::Basic, "An API key as a password"))),
    ]);
    if asks_at_a_guard {
        components.security_schemes.insert(GUARD_KEY.to_owned(), RefOr::T(guard_scheme()));
    }
    let mut referenced = Vec::new();
    ProblemDocument::schemas(&mut referenced);
    components.schemas.extend(referenced);
    components.schemas.extend(events::schemas());
    components.schemas.insert(HeldLock::name().into_owned(), held_lock::held_lock().into());
    components.schemas.remove(&*SharedLock::name());
    for (name, schema) in &mut components.schemas {
        members::describe(name, schema);
    }
    document.into()
}

fn info() -> Info {
    let license = LicenseBuilder::new().name("MIT OR Apache-2.0");
    let license = license.identifier(Some("MIT OR Apache-2.0")).build();
    let contact = ContactBuilder::new().name(Some("The maintainers of keylatch")).build();
    InfoBuilder::new()
        .title("keylatch")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(description()))
        .contact(Some(contact))
        .license(Some(license))
        .build()
}

/// Completes an operation with what holds for all of them.
fn complete_operation(operation: &mut Operation) {
    // A guard that asks for an identity says so itself.
    if operation.security.is_none() {
        let asks = operation.responses.responses.contains_key("401");
        operation.security = Some(if asks { key_or_none() } else { Vec::new() });
    }
    events::describe(operation);
    parameters::describe(operation);
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

fn scheme(scheme: HttpAuthScheme, description: &str) -> SecurityScheme {
    let scheme = Http::builder().scheme(scheme).description(Some(description));
    SecurityScheme::Http(scheme.build())
}

fn guard_scheme() -> SecurityScheme {
    let header = KEYLATCH_AUTHORIZATION;
    let description = "`Bearer` and an API key, on guarded routes that ask for one";
    SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::with_description(
        header.as_str(),
        description,
    )))
}

fn operations(path: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut path.get, &mut path.put, &mut path.post, &mut path.patch, &mut path.delete]
        .into_iter()
        .flatten()
}

fn description() -> String {
    let mut text = String::from(
        "Locks over HTTP: leases by name, with a secret token that proves who holds one and a \
         fencing token for the resource to compare.\n\n\
         No lease alone gives mutual exclusion: clients pause, clocks jump, failovers forget. So \
         this is what is promised:\n\n",
    );
    for (number, promise) in (1..).zip(PROMISE) {
        text.push_str(&format!("{number}. {promise}\n"));
    }
    text.push_str(
        "\nHow much a grant is worth when the store itself crashes depends on the store: see \
         `tier` in `GET /v1/info`. Every error is `application/problem+json` (RFC 9457).",
    );
    text
}
