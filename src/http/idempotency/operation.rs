//! What the OpenAPI document says of every guarded operation: its name, its tag and its headers.

use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::Type;
use utoipa::openapi::{ObjectBuilder, RefOr, Required};

/// With this key the examples work, and pressing one again shows a repeat.
const KEY_EXAMPLE: &str = "swagger-example-key-0001";

/// Gives an operation its own name, and the guard's path for a tag.
pub(in crate::http) fn name(operation: &mut Operation, verb: &str, path: &str) {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let id: Vec<_> = std::iter::once(verb).chain(words).collect();
    operation.operation_id = Some(id.join("_"));
    operation.tags = Some(vec!["guarded".to_owned()]);
}

/// Adds the headers that every guarded request may have.
pub(in crate::http) fn add_headers(operation: &mut Operation) {
    let key = ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .required(Required::True)
        .description(Some(
            "Your name for this intent, new for each and the same for every try of it: 1 to 255 \
             visible ASCII characters, bare or in double quotes",
        ))
        .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
        .example(Some(KEY_EXAMPLE.into()));
    let prefer = ParameterBuilder::new()
        .name("Prefer")
        .parameter_in(ParameterIn::Header)
        .description(Some(
            "`wait=SECONDS`: while the same request is being carried out, wait for its answer",
        ))
        .schema(Some(ObjectBuilder::new().schema_type(Type::String)));
    let parameters = operation.parameters.get_or_insert_default();
    parameters.extend([key.build(), prefer.build()].map(RefOr::T));
}
