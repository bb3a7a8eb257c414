//! What the OpenAPI document says of the guarded routes.

use utoipa::openapi::path::{Operation, OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::Type;
use utoipa::openapi::{
    Components, HttpMethod, ObjectBuilder, Paths, RefOr, Required, ResponseBuilder,
    ResponsesBuilder, Schema,
};
use utoipa::{IntoResponses as _, PartialSchema, ToSchema};

use super::{Guard, guard, sandbox};
use crate::http::openapi::{GatewayProblems, GuardedProblems};

/// With this key the examples work, and pressing one again shows a repeat.
const KEY_EXAMPLE: &str = "swagger-example-key-0001";

/// Adds the guarded routes to a document.
pub(crate) fn add(guards: &[Guard], paths: &mut Paths, components: &mut Components) {
    for guard in guards {
        let routes = if guard.upstream == guard::SANDBOX {
            sandbox::document(&guard.path)
        } else {
            forwarded(guard)
        };
        paths.merge(routes);
    }
    if guards.iter().any(|guard| guard.upstream == guard::SANDBOX) {
        let mut schemas = Vec::new();
        for (name, schema) in [entry::<sandbox::New>(), entry::<sandbox::Orders>()] {
            components.schemas.insert(name, schema);
        }
        sandbox::New::schemas(&mut schemas);
        sandbox::Orders::schemas(&mut schemas);
        components.schemas.extend(schemas);
    }
}

/// Gives an operation a name of its own, and the guard's path for a tag.
pub(super) fn name(operation: &mut Operation, verb: &str, path: &str) {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let id: Vec<_> = std::iter::once(verb).chain(words).collect();
    operation.operation_id = Some(id.join("_"));
    operation.tags = Some(vec!["guarded".to_owned()]);
}

/// Adds the headers that every guarded request may have.
pub(super) fn add_headers(operation: &mut Operation) {
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

/// The guarded methods of a service behind; what else it has is its own to say.
fn forwarded(guard: &Guard) -> Paths {
    let mut paths = Paths::new();
    for method in &guard.methods {
        let Some(kind) = http_method(method) else { continue };
        let answer = ResponseBuilder::new()
            .description("What the service behind answers. A repeat reads the same");
        let responses = ResponsesBuilder::new()
            .response("default", answer)
            .responses_from_iter(GuardedProblems::responses())
            .responses_from_iter(GatewayProblems::responses());
        let mut operation = OperationBuilder::new()
            .summary(Some("Send on, once"))
            .description(Some("Sent on to the service behind, once for each Idempotency-Key."))
            .responses(responses)
            .build();
        add_headers(&mut operation);
        name(&mut operation, &method.to_ascii_lowercase(), &guard.path);
        paths.add_path_operation(guard.path.clone(), vec![kind], operation);
    }
    paths
}

fn http_method(method: &str) -> Option<HttpMethod> {
    match method {
        "POST" => Some(HttpMethod::Post),
        "PATCH" => Some(HttpMethod::Patch),
        "PUT" => Some(HttpMethod::Put),
        "DELETE" => Some(HttpMethod::Delete),
        _ => None,
    }
}

fn entry<T: ToSchema + PartialSchema>() -> (String, RefOr<Schema>) {
    (T::name().into_owned(), T::schema())
}
