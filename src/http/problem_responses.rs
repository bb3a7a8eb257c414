//! The problems that each operation may answer with, for the OpenAPI document.
//!
//! Each type lists codes; the document has one response for each status, with an example for each code.
//! `tests/api/openapi.rs` provokes the problems over HTTP and looks for each in the document.

use std::collections::BTreeMap;

use utoipa::IntoResponses;
use utoipa::openapi::{
    ContentBuilder, HeaderBuilder, ObjectBuilder, Ref, RefOr, Response, ResponseBuilder,
    schema::Type,
};

use keylatch_wire::Code;

/// The token with which the examples work one after the other: create, renew, release.
pub(super) const TOKEN_EXAMPLE: &str = "swagger-example-token-0001";

/// Defines the problems of an operation: a type that documents these codes.
macro_rules! problems {
    ($($operation:ident: [$($code:ident),+];)+) => {$(
        pub(super) struct $operation;

        impl IntoResponses for $operation {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                by_status(&[$(Code::$code),+])
            }
        }
    )+};
}

problems! {
    CreateProblems: [
        InvalidHost, InvalidName, InvalidToken, InvalidBody, InvalidQuery, RequestTimeout, LockHeld,
        PayloadTooLarge, TooManyWaiters, Internal, StoreUnavailable, StoreTooSlow, Overloaded, Timeout,
        MisdirectedRequest, CrossOrigin, UnsupportedMediaType
    ];
    HoldProblems: [
        InvalidHost, InvalidName, InvalidToken, InvalidBody, InvalidQuery, RequestTimeout, LockHeld,
        PayloadTooLarge, TooManyWaiters, Internal, StoreUnavailable, StoreTooSlow, Overloaded, Timeout,
        MisdirectedRequest, CrossOrigin, UnsupportedMediaType
    ];
    RenewProblems: [
        InvalidHost, InvalidName, InvalidToken, InvalidBody, InvalidQuery, LockNotHeld, RequestTimeout,
        TokenMismatch, PayloadTooLarge, TokenRequired, Internal, StoreUnavailable, StoreTooSlow, Overloaded,
        Timeout, MisdirectedRequest, CrossOrigin, UnsupportedMediaType
    ];
    ReleaseProblems: [
        InvalidHost, InvalidName, InvalidToken, InvalidQuery, LockNotHeld, TokenMismatch, TokenRequired,
        Internal, StoreUnavailable, Overloaded, Timeout, MisdirectedRequest, CrossOrigin
    ];
    GetProblems: [
        InvalidHost, InvalidName, InvalidQuery, LockNotHeld, Internal, StoreUnavailable, Overloaded, Timeout,
        MisdirectedRequest
    ];
    WatchProblems: [
        InvalidHost, InvalidName, InvalidQuery, Internal, StoreUnavailable, Overloaded, Timeout,
        MisdirectedRequest
    ];
    ListProblems: [
        InvalidHost, InvalidQuery, Internal, StoreUnavailable, Overloaded, Timeout, MisdirectedRequest
    ];
    BeginProblems: [
        InvalidHost, InvalidKey, InvalidToken, InvalidBody, InvalidQuery, RequestTimeout, RequestInProgress,
        OutcomeUnknown, PayloadTooLarge, IdempotencyKeyReused, Internal, NotSupported, StoreUnavailable,
        Overloaded, Timeout, MisdirectedRequest, CrossOrigin, UnsupportedMediaType
    ];
    CompleteProblems: [
        InvalidHost, InvalidKey, InvalidToken, InvalidBody, InvalidQuery, NoRecord, RequestTimeout,
        OutcomeUnknown, TokenMismatch, PayloadTooLarge, TokenRequired, Internal, NotSupported,
        StoreUnavailable, Overloaded, Timeout, MisdirectedRequest, CrossOrigin, UnsupportedMediaType
    ];
    ExtendProblems: [
        InvalidHost, InvalidKey, InvalidToken, InvalidQuery, TokenMismatch, TokenRequired, Internal,
        NotSupported, StoreUnavailable, Overloaded, Timeout, MisdirectedRequest, CrossOrigin
    ];
    AbandonProblems: [
        InvalidHost, InvalidKey, InvalidToken, InvalidQuery, NoRecord, OutcomeUnknown, TokenMismatch,
        TokenRequired, Internal, NotSupported, StoreUnavailable, Overloaded, Timeout, MisdirectedRequest,
        CrossOrigin
    ];
    FindProblems: [
        InvalidHost, InvalidKey, InvalidQuery, NoRecord, Internal, NotSupported, StoreUnavailable, Overloaded,
        Timeout, MisdirectedRequest
    ];
    ResolveProblems: [
        InvalidHost, InvalidKey, InvalidBody, InvalidQuery, NoRecord, RequestTimeout, NothingToResolve,
        PayloadTooLarge, Internal, NotSupported, StoreUnavailable, Overloaded, Timeout, MisdirectedRequest,
        CrossOrigin, UnsupportedMediaType
    ];
    GuardedProblems: [
        InvalidHost, InvalidKey, KeyRequired, InvalidBody, RequestTimeout, RequestInProgress, OutcomeUnknown,
        AnswerNotKept, PayloadTooLarge, IdempotencyKeyReused, Internal, StoreUnavailable, Overloaded, Timeout,
        MisdirectedRequest, CrossOrigin, UnsupportedMediaType
    ];
    SandboxProblems: [IdempotencyKeyReused, ValidationFailed];
    GatewayProblems: [UpstreamUnreachable, UpstreamSilent];
    PageProblems: [InvalidHost, NotFound, Internal, Overloaded, Timeout, MisdirectedRequest];
    SystemProblems: [InvalidHost, Internal, Overloaded, Timeout, MisdirectedRequest];
    ReadyProblems: [InvalidHost, Internal, StoreUnavailable, Overloaded, Timeout, MisdirectedRequest];
}

/// The responses for `codes`: one for each status, with an example for each code.
fn by_status(codes: &[Code]) -> BTreeMap<String, RefOr<Response>> {
    let mut statuses: BTreeMap<String, Vec<Code>> = BTreeMap::new();
    for &code in codes {
        statuses.entry(code.status().to_string()).or_default().push(code);
    }
    statuses.into_iter().map(|(status, codes)| (status, RefOr::T(response(&codes)))).collect()
}

fn response(codes: &[Code]) -> Response {
    let titles: Vec<_> =
        codes.iter().map(|code| format!("`{}`: {}", code.slug(), code.title())).collect();
    let examples = codes.iter().map(|&code| {
        let example = utoipa::openapi::example::ExampleBuilder::new().value(Some(example(code)));
        (code.slug(), RefOr::T(example.build()))
    });
    let content = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name("Problem")))
        .examples_from_iter(examples)
        .build();
    let mut response = ResponseBuilder::new()
        .description(titles.join("; "))
        .content("application/problem+json", content);
    if codes.iter().any(|code| matches!(code.status(), 409 | 429 | 503)) {
        let seconds = HeaderBuilder::new()
            .schema(Some(ObjectBuilder::new().schema_type(Type::Integer)))
            .description(Some("When it is worth trying again, in seconds"));
        response = response.header("Retry-After", seconds.build());
    }
    response.build()
}

fn example(code: Code) -> serde_json::Value {
    let mut example = serde_json::json!({
        "type": code.page(),
        "title": code.title(),
        "status": code.status(),
        "detail": code.advice(),
        "code": code.slug(),
    });
    match code {
        Code::LockHeld => {
            example["holder"] = serde_json::json!({
                "owner": "ci runner 7", "fencing_token": 1_779_900_000_000_000_u64,
                "expires_in_ms": 12345,
            });
            example["ahead"] = 0.into();
            example["retry_after_ms"] = 12345.into();
        }
        Code::StoreUnavailable | Code::StoreTooSlow | Code::Timeout => {
            example["outcome"] = "unknown".into();
            example["retry_after_ms"] = 1000.into();
        }
        _ => {}
    }
    example
}
