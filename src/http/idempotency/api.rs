use std::sync::Arc;

use axum::extract::{Path, RawQuery, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::api_body;
use crate::http::api::Api;
use crate::http::body::Json;
use crate::http::extract::{LOCK_TOKEN, OptionalJson, OptionalToken, RequiredToken, pairs};
use crate::http::problem::{
    AbandonProblems, BeginProblems, Code, CompleteProblems, ExtendProblems, FindProblems, Problem,
    ResolveProblems, TOKEN_EXAMPLE,
};
use keylatch_axum::{normalize_path, repeat_response};
use keylatch_core::idempotency::{
    AbandonReply, BeginReply, CompleteReply, IdempotencyKey, RecordKey, RecordStatus, RecordView,
    ResolveReply, RunEnd, RunRenewal, Scope,
};
use keylatch_core::lock::Token;
use keylatch_wire::{
    BeginRecordRequest, CompleteRecordRequest, IdempotencyRecord, ResolveRecordRequest,
};

/// Begin
///
/// Asks whether to do a thing now. 201: do it, then complete it with the token, before the lease
/// ends. 200: it was done, and this is what it came to. The same Lock-Token again is the same
/// beginning, so a lost answer costs nothing.
#[utoipa::path(
    post,
    path = "/v1/idempotency/{key}",
    operation_id = "begin_record",
    tag = "idempotency",
    params(
        ("key" = String, Path, min_length = 1, max_length = 255, example = "order-17", description = "The client's name for its intent"),
        ("method" = Option<String>, Query, description = "With `path` and `principal` the scope of the key; empty for keys of this API's own"),
        ("path" = Option<String>, Query, description = "See `method`"),
        ("principal" = Option<String>, Query, description = "See `method`"),
        ("Lock-Token" = Option<String>, Header, example = json!(TOKEN_EXAMPLE),
            description = "A token of your own, to make the request safe to repeat: 20 to 128 of A-Z a-z 0-9 _ -"),
    ),
    request_body(content = Option<BeginRecordRequest>, description = "Every member has a default",
        example = json!({"fingerprint": "order of 2 coffees"})),
    responses(
        (status = 201, description = "Do it now", body = IdempotencyRecord,
            headers(("Lock-Token" = String, description = "The token that completes it"))),
        (status = 200, description = "It was done: its answer. Or your token had begun it already", body = IdempotencyRecord),
        BeginProblems,
    )
)]
pub(crate) async fn begin(
    State(api): State<Arc<Api>>,
    RecordKeyPath(key): RecordKeyPath,
    OptionalToken(token): OptionalToken,
    OptionalJson(body): OptionalJson<BeginRecordRequest>,
) -> Result<Response, Problem> {
    let own = token.is_some();
    let random = |_| Problem::new(Code::Internal, "No token could be made. Nothing was begun.");
    let token = token.map_or_else(Token::generate, Ok).map_err(random)?;
    let ask = api_body::begin(body, key, token.hash())?;
    let (run, status) = match api.records()?.begin(ask.clone(), own).await? {
        BeginReply::Started(run) => (run, StatusCode::CREATED),
        BeginReply::Again(run) => (run, StatusCode::OK),
        BeginReply::Reused(_) => {
            let detail = "The key was used with another fingerprint.";
            return Err(Problem::new(Code::IdempotencyKeyReused, detail).with_retry());
        }
        BeginReply::Found(view) => return found(&view),
    };
    let mut response = (status, Json(api_body::begun_record(run, &ask, &token))).into_response();
    // A token consists of visible ASCII, which a header always takes.
    if let Ok(mut value) = HeaderValue::from_str(token.expose()) {
        value.set_sensitive(true);
        response.headers_mut().insert(LOCK_TOKEN, value);
    }
    Ok(response)
}

/// Complete
///
/// Keeps the result for every client that begins the work again. Safe to repeat.
#[utoipa::path(
    put,
    path = "/v1/idempotency/{key}",
    operation_id = "complete_record",
    tag = "idempotency",
    params(
        ("key" = String, Path, min_length = 1, max_length = 255, example = "order-17", description = "The key"),
        ("Lock-Token" = String, Header, example = json!(TOKEN_EXAMPLE), description = "The token that began"),
    ),
    request_body(content = Option<CompleteRecordRequest>, description = "What it came to",
        example = json!({"status": 201, "headers": {"Location": "/orders/17"}, "json": {"id": 17}})),
    responses((status = 200, description = "It is kept", body = IdempotencyRecord), CompleteProblems)
)]
pub(crate) async fn complete(
    State(api): State<Arc<Api>>,
    RecordKeyPath(key): RecordKeyPath,
    RequiredToken(token): RequiredToken,
    OptionalJson(body): OptionalJson<CompleteRecordRequest>,
) -> Result<Json<IdempotencyRecord>, Problem> {
    let end = RunEnd::Done(api_body::answer(body)?);
    match api.records()?.complete(&key, &token.hash(), end).await? {
        CompleteReply::Kept(view) => Ok(Json(api_body::record(&view))),
        CompleteReply::Refused(view) => Err(not_yours(&view)),
        CompleteReply::Absent => Err(no_record()),
    }
}

/// Renew
///
/// Lets the lease last its full time from now. Do so at a third of it.
#[utoipa::path(
    post,
    path = "/v1/idempotency/{key}/renew",
    operation_id = "renew_record",
    tag = "idempotency",
    params(
        ("key" = String, Path, min_length = 1, max_length = 255, example = "order-17", description = "The key"),
        ("Lock-Token" = String, Header, example = json!(TOKEN_EXAMPLE), description = "The token that began"),
    ),
    responses((status = 204, description = "The lease continues"), ExtendProblems)
)]
pub(crate) async fn renew(
    State(api): State<Arc<Api>>,
    RecordKeyPath(key): RecordKeyPath,
    RequiredToken(token): RequiredToken,
) -> Result<StatusCode, Problem> {
    match api.records()?.extend(&key, &token.hash()).await? {
        RunRenewal::Extended => Ok(StatusCode::NO_CONTENT),
        RunRenewal::Lost => {
            let detail = "The run is no longer yours: it has ended, or its lease has.";
            Err(Problem::new(Code::TokenMismatch, detail))
        }
    }
}

/// Abandon
///
/// Nothing was done: the key is free again.
#[utoipa::path(
    delete,
    path = "/v1/idempotency/{key}",
    operation_id = "abandon_record",
    tag = "idempotency",
    params(
        ("key" = String, Path, min_length = 1, max_length = 255, example = "order-17", description = "The key"),
        ("Lock-Token" = String, Header, example = json!(TOKEN_EXAMPLE), description = "The token that began"),
    ),
    responses((status = 204, description = "The key is free"), AbandonProblems)
)]
pub(crate) async fn abandon(
    State(api): State<Arc<Api>>,
    RecordKeyPath(key): RecordKeyPath,
    RequiredToken(token): RequiredToken,
) -> Result<StatusCode, Problem> {
    match api.records()?.abandon(&key, &token.hash()).await? {
        AbandonReply::Abandoned => Ok(StatusCode::NO_CONTENT),
        AbandonReply::Refused(view) => Err(not_yours(&view)),
        AbandonReply::Absent => Err(no_record()),
    }
}

/// Look at a record
///
/// How far it is, since when, how many runs there were, and the fencing token of the last. The
/// answer itself is given only to a client that begins again.
#[utoipa::path(
    get,
    path = "/v1/idempotency/{key}",
    operation_id = "get_record",
    tag = "idempotency",
    params(
        ("key" = String, Path, min_length = 1, max_length = 255, example = "order-17", description = "The key"),
        ("method" = Option<String>, Query, description = "The method of a guarded route, as `POST`"),
        ("path" = Option<String>, Query, description = "The path of a guarded route, as `/v1/orders`"),
        ("principal" = Option<String>, Query, description = "Who sent the request, where the route tells people apart"),
    ),
    responses((status = 200, description = "The record", body = IdempotencyRecord), FindProblems)
)]
pub(crate) async fn find(
    State(api): State<Arc<Api>>,
    RecordKeyPath(key): RecordKeyPath,
) -> Result<Json<IdempotencyRecord>, Problem> {
    let view = api.records()?.find(&key).await?.ok_or_else(no_record)?;
    Ok(Json(api_body::record(&view)))
}

/// Resolve an unknown outcome
///
/// For an operator who has found out what happened. `completed` keeps an answer that every repeat is
/// given; `not-executed` frees the key. With a `fencing_token`, only if no later run began.
#[utoipa::path(
    post,
    path = "/v1/idempotency/{key}/resolve",
    operation_id = "resolve_record",
    tag = "idempotency",
    params(
        ("key" = String, Path, min_length = 1, max_length = 255, example = "order-17", description = "The key"),
        ("method" = Option<String>, Query, description = "The method of a guarded route, as `POST`"),
        ("path" = Option<String>, Query, description = "The path of a guarded route, as `/v1/orders`"),
        ("principal" = Option<String>, Query, description = "Who sent the request, where the route tells people apart"),
    ),
    request_body(content = ResolveRecordRequest, example = json!({"outcome": "not-executed"})),
    responses(
        (status = 200, description = "Every repeat is given the answer", body = IdempotencyRecord),
        (status = 204, description = "The key is free"),
        ResolveProblems,
    )
)]
pub(crate) async fn resolve(
    State(api): State<Arc<Api>>,
    RecordKeyPath(key): RecordKeyPath,
    OptionalJson(body): OptionalJson<ResolveRecordRequest>,
) -> Result<Response, Problem> {
    match api.records()?.resolve(&api_body::resolve(body, key)?).await? {
        ResolveReply::Completed(view) => Ok(Json(api_body::record(&view)).into_response()),
        ResolveReply::Freed => Ok(StatusCode::NO_CONTENT.into_response()),
        ResolveReply::Refused(_) => {
            let detail = "The outcome is not unknown, or another run than the one you mean.";
            Err(Problem::new(Code::NothingToResolve, detail))
        }
        ResolveReply::Absent => Err(no_record()),
    }
}

/// The record that the path and the query name.
pub(crate) struct RecordKeyPath(RecordKey);

impl axum::extract::FromRequestParts<Arc<Api>> for RecordKeyPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        let invalid = |why: &dyn std::fmt::Display| {
            Problem::new(Code::InvalidKey, format!("The key is not valid: {why}."))
                .with_field("key")
        };
        let RawQuery(query) =
            RawQuery::from_request_parts(parts, api).await.unwrap_or(RawQuery(None));
        let path = Path::<String>::from_request_parts(parts, api).await;
        let Path(key) = path.map_err(|_| invalid(&"it is not UTF-8"))?;
        let key = IdempotencyKey::parse(&key).map_err(|error| invalid(&error))?;
        let (mut method, mut path, mut principal) = (None, None, None);
        for (parameter, value) in pairs(query.as_deref().unwrap_or_default()) {
            let slot = match &*parameter {
                "method" => &mut method,
                "path" => &mut path,
                "principal" => &mut principal,
                _ => return Err(unknown_parameter(&parameter, "is not a parameter")),
            };
            if slot.replace(value.into_owned()).is_some() {
                return Err(unknown_parameter(&parameter, "is there twice"));
            }
        }
        let method = method.unwrap_or_default().to_ascii_uppercase();
        let (path, principal) = (path.unwrap_or_default(), principal.unwrap_or_default());
        let scope = Scope { principal: &principal, method: &method, path: &normalize_path(&path) };
        Ok(Self(scope.record(&key)))
    }
}

fn unknown_parameter(parameter: &str, what: &str) -> Problem {
    Problem::new(Code::InvalidQuery, format!("`{parameter}` {what}.")).with_field(parameter)
}

/// The answer to a begin that finds an earlier run.
fn found(view: &RecordView) -> Result<Response, Problem> {
    match view.phase {
        RecordStatus::Done { .. } => Ok(Json(api_body::record_with_answer(view)).into_response()),
        RecordStatus::InFlight { .. } | RecordStatus::Unknown { .. } => {
            Ok(repeat_response(view.clone()))
        }
    }
}

/// The answer to a token that does not have the run.
fn not_yours(view: &RecordView) -> Problem {
    match view.phase {
        RecordStatus::Unknown { .. } => {
            let detail = "The lease ended before, so the outcome is unknown.";
            Problem::new(Code::OutcomeUnknown, detail).with_retry()
        }
        RecordStatus::InFlight { .. } | RecordStatus::Done { .. } => {
            let detail = "The run is no longer yours: it has ended, or its lease has.";
            Problem::new(Code::TokenMismatch, detail)
        }
    }
}

fn no_record() -> Problem {
    Problem::new(Code::NoRecord, "There is no record of this key in this scope.")
}
