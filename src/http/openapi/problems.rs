//! The problems that each operation may answer with: one response for each status, with an example
//! for each code.
//!
//! An operation has the problems of all, those of its signature (`signature.rs`), and its [`own`].
//! They stand in the order of the table of `keylatch-wire`. Responses are components of the
//! document, named by status and codes. `tests/api/openapi.rs` provokes the problems over HTTP and
//! looks for each in the document.

use std::collections::BTreeMap;
use std::mem;

use serde_json::{Value, json};
use utoipa::openapi::path::Operation;
use utoipa::openapi::{
    Components, ContentBuilder, Header, HeaderBuilder, ObjectBuilder, Ref, RefOr, Response,
    ResponseBuilder, example::ExampleBuilder, schema::Type,
};

use crate::http::problem::Code::{self, *};

const PROBLEM: &str = "application/problem+json";
const REQUEST_ID: &str = "X-Request-Id";
const RETRY_AFTER: &str = "Retry-After";

/// The problems of every operation.
const ALL: &[Code] = &[InvalidHost, Internal, Overloaded, Timeout, MisdirectedRequest];
/// Those of one that changes something.
pub(super) const CHANGE: &[Code] = &[CrossOrigin, StoreFull];
/// Those of one that reads a body.
pub(super) const BODY: &[Code] =
    &[InvalidBody, RequestTimeout, PayloadTooLarge, UnsupportedMediaType];
/// Those of one that asks how the store is.
pub(in crate::http) const HEALTH: &[Code] = &[StoreUnavailable, StoreFull];
/// Those of a guarded operation, which reads a body and changes something.
const GUARDED: &[Code] = &[
    InvalidKey,
    KeyRequired,
    RequestInProgress,
    OutcomeUnknown,
    AnswerNotKept,
    IdempotencyKeyReused,
    AnswerUnreadable,
    StoreUnavailable,
];

/// The problems of a guarded operation, with these of its own.
pub(in crate::http) fn guarded(own: &[Code]) -> Vec<Code> {
    [GUARDED, BODY, CHANGE, own].concat()
}

/// What the operation of this handler may answer beside what its method and its signature say.
pub(super) fn own(handler: &str) -> &'static [Code] {
    match handler {
        "create_lock" | "hold_lock" | "create_lock_set" => {
            &[LockHeld, WaitEnded, TooManyWaiters, TooManyHolders, NotSupported, StoreTooSlow]
        }
        "renew_lock" => &[LockNotHeld, LockBroken, TokenMismatch, StoreTooSlow],
        "renew_lock_set" => &[LockNotHeld, LockBroken, TokenMismatch, NotSupported, StoreTooSlow],
        "release_lock" | "release_lock_set" => &[LockNotHeld, TokenMismatch, NotSupported],
        "break_lock" | "end_lock_wait" => {
            &[BreakDisabled, LockNotHeld, FenceMismatch, NotSupported]
        }
        "get_lock" => &[LockNotHeld],
        "get_lock_history" => &[NotSupported],
        "watch_lock" => &[CrossOrigin],
        "begin_idempotency" => {
            &[RequestInProgress, OutcomeUnknown, IdempotencyKeyReused, AnswerUnreadable]
        }
        "complete_idempotency" | "abandon_idempotency" | "fail_idempotency" => {
            &[NoRecord, OutcomeUnknown, TokenMismatch]
        }
        "renew_idempotency" => &[TokenMismatch],
        "issue_idempotency_key" => &[NotSupported],
        "get_idempotency" => &[NoRecord],
        "resolve_idempotency" => &[NoRecord, NothingToResolve],
        "erase_idempotency_answer" => &[NoRecord, RequestInProgress, OutcomeUnknown],
        "get_backup" => &[
            InvalidQuery,
            Forbidden,
            BackupDisabled,
            CrossOrigin,
            CopyUnderWay,
            NotSupported,
            StoreUnavailable,
        ],
        "get_metrics" => &[Forbidden],
        "get_liveness" | "get_readiness" => HEALTH,
        "get_problem_page" => &[NotFound],
        _ => &[],
    }
}

/// Adds the responses for `codes`, and for those that every operation has.
pub(in crate::http) fn add(operation: &mut Operation, codes: &[Code]) {
    let mut statuses: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    for code in Code::all().filter(|code| ALL.contains(code) || codes.contains(code)) {
        statuses.entry(code.status()).or_default().push(code);
    }
    let responses = statuses.iter().map(|(status, codes)| (status.to_string(), response(codes)));
    operation.responses.responses.extend(responses.map(|(status, one)| (status, RefOr::T(one))));
}

/// Makes components of the problems of an operation, and of the headers that many responses have.
pub(super) fn share(operation: &mut Operation, components: &mut Components) {
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(found) = response else { continue };
        let id = "The X-Request-Id of the request, or one that the service gave it";
        found.headers.insert(REQUEST_ID.to_owned(), RefOr::T(header(Type::String, id)));
        for name in [REQUEST_ID, RETRY_AFTER] {
            if let Some(header) = found.headers.get_mut(name) {
                let reference = RefOr::Ref(Ref::new(format!("#/components/headers/{name}")));
                components.headers.insert(name.to_owned(), mem::replace(header, reference));
            }
        }
        let Some(RefOr::T(content)) = found.content.get_mut(PROBLEM) else { continue };
        let mut name = status.clone();
        for (slug, example) in &mut content.examples {
            name = name + "-" + slug;
            let of_status = format!("{status}-{slug}");
            let reference = Ref::new(format!("#/components/examples/{of_status}"));
            components.examples.insert(of_status, mem::replace(example, RefOr::Ref(reference)));
        }
        let reference = RefOr::Ref(Ref::from_response_name(&name));
        components.responses.insert(name, mem::replace(response, reference));
    }
}

fn header(kind: Type, description: &str) -> Header {
    let schema = ObjectBuilder::new().schema_type(kind);
    HeaderBuilder::new().schema(Some(schema)).description(Some(description)).build()
}

fn response(codes: &[Code]) -> Response {
    let titles: Vec<_> =
        codes.iter().map(|code| format!("`{}`: {}", code.slug(), code.title())).collect();
    let examples = codes.iter().map(|&code| {
        let example = ExampleBuilder::new().value(Some(example(code)));
        (code.slug(), RefOr::T(example.build()))
    });
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem")));
    let content = content.examples_from_iter(examples).build();
    let mut response = ResponseBuilder::new().description(titles.join("; "));
    response = response.content(PROBLEM, content);
    if codes.iter().any(|code| matches!(code.status(), 409 | 429 | 503)) {
        let seconds = header(Type::Integer, "When it is worth trying again, in seconds");
        response = response.header(RETRY_AFTER, seconds);
    }
    if codes.contains(&Unauthenticated) {
        let challenges = header(Type::String, "`Basic` and `Bearer`, a header line each");
        response = response.header("WWW-Authenticate", challenges);
    }
    response.build()
}

fn example(code: Code) -> Value {
    let mut example = json!({
        "type": code.page(), "title": code.title(), "status": code.status(), "detail": code.advice(),
        "code": code.slug(),
    });
    let more = super::example("problems", code.slug());
    if let (Some(example), Some(Value::Object(more))) = (example.as_object_mut(), more) {
        example.extend(more);
    }
    example
}
