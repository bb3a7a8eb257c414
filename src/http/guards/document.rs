//! What the OpenAPI document says of guarded operations: the routes of the configuration, and the
//! name, the tag and the headers that every guarded operation has, those of the toy shop included.
//!
//! The routes are known only once the configuration is read, so they are built here and not by a
//! macro. What else a service behind responses is its own to document. Tested in
//! `tests/api/openapi.rs`.

use utoipa::openapi::path::{Operation, OperationBuilder};
use utoipa::openapi::security::SecurityRequirement;
use utoipa::openapi::{
    HttpMethod, OpenApi, OpenApiBuilder, Paths, ResponseBuilder, ResponsesBuilder,
};

use crate::http::openapi::{GUARD_KEY, operation_id, parameters, problems};
use crate::http::problem::Code;
use keylatch_axum::{Guard, GuardAccess};

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
            .description("The response of the service behind. A retry gets the same");
        let gateway = [Code::UpgradeRefused, Code::UpstreamUnreachable, Code::UpstreamSilent];
        let mut codes = problems::guarded(&gateway);
        let asks = guard.access == GuardAccess::Identity;
        if asks {
            codes.extend([Code::Unauthenticated, Code::QuotaExceeded]);
        }
        if !guard.principal_header.is_empty() {
            codes.extend([Code::InvalidPrincipal, Code::PrincipalRequired]);
        }
        if guard.takes_issued_keys() {
            codes.push(Code::KeyExpired);
        }
        if !guard.once_per.is_empty() {
            codes.push(Code::AlreadyDone);
        }
        let no_scopes: [&str; 0] = [];
        let mut one = OperationBuilder::new()
            .securities(asks.then(|| [SecurityRequirement::new(GUARD_KEY, no_scopes)]))
            .summary(Some("Send a request on, once"))
            .description(Some("Sent on to the service behind, once for each Idempotency-Key."))
            .responses(ResponsesBuilder::new().response("default", answer).build())
            .build();
        problems::add(&mut one, &codes);
        add_headers(&mut one, guard.asks_for_header());
        name_operation(&mut one, operation_id(&method.to_ascii_lowercase(), &guard.path));
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

/// Gives an operation its own name, and the tag of guarded routes.
pub(in crate::http) fn name_operation(operation: &mut Operation, id: String) {
    operation.operation_id = Some(id);
    operation.tags = Some(vec!["guarded".to_owned()]);
}

/// Adds the headers that a guarded request may have, the key among them where no request does
/// without it.
pub(in crate::http) fn add_headers(operation: &mut Operation, needs_key: bool) {
    if needs_key {
        parameters::add(operation, "Idempotency-Key", "IdempotencyKey");
    }
    parameters::add(operation, "Prefer", "Prefer");
}
