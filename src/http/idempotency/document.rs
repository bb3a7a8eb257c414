//! What the OpenAPI document says of the guarded routes of the configuration.

use utoipa::IntoResponses as _;
use utoipa::openapi::path::OperationBuilder;
use utoipa::openapi::{
    HttpMethod, OpenApi, OpenApiBuilder, Paths, ResponseBuilder, ResponsesBuilder,
};

use super::{Guard, operation};
use crate::http::problem::{GatewayProblems, GuardedProblems};

/// The document of the guarded routes alone.
pub(in crate::http) fn document(guards: &[Guard]) -> OpenApi {
    let mut paths = Paths::new();
    for guard in guards {
        paths.merge(forwarded(guard));
    }
    OpenApiBuilder::new().paths(paths).build()
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
        let mut one = OperationBuilder::new()
            .summary(Some("Send on, once"))
            .description(Some("Sent on to the service behind, once for each Idempotency-Key."))
            .responses(responses)
            .build();
        operation::add_headers(&mut one);
        operation::name(&mut one, &method.to_ascii_lowercase(), &guard.path);
        paths.add_path_operation(guard.path.clone(), vec![kind], one);
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
