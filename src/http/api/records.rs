//! The API of idempotency records: its handlers, and the JSON of records, mapped to and from the
//! types of the core.
//!
//! A handler parses the request, makes one call of `IdempotencyService` and maps the reply: what
//! another run did is a value with a status of its own, and an error becomes a problem. The JSON
//! types are those of `keylatch-wire`. What types alone do not rule out is checked here, and a
//! member that is wrong is named in the problem. The response of a run is given only to a client
//! that begins again. Tested in `tests/api/idempotency_records.rs`, `erasure.rs` and
//! `invalid_bodies.rs`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequestParts, Path, RawQuery, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Api;
use super::body::{Json, at_millis, invalid};
use super::locks::with_token;
use super::record_list::resolve_url_of;
use crate::access::KeyAct;
use crate::http::audit::{Act, Auditor};
use crate::http::caller::Caller;
use crate::http::extract::{
    OptionalJson, OptionalToken, PreferredWait, RequiredToken, ResultJson, invalid_query,
    parameters,
};
use crate::http::problem::{Code, Problem};
use keylatch_axum::{
    CHOSEN, CHOSEN_BY, CHOSEN_REASON, Guard, IDEMPOTENT_BODY, has_body, kept_within,
    normalize_path, repeat_response, stored_headers, with_applied_wait, with_resolve,
};
use keylatch_core::idempotency::{
    Answer, BeginCommand, BeginReply, EndReply, EraseReply, Fingerprint, IdempotencyError,
    IdempotencyKey, NoRoom, OnCrash, RecordKey, RecordScope, RecordStatus, RecordView,
    ResolveCommand, ResolveReply, Run, RunEnd, RunRenewal, Scope, Settlement, Share,
    StoredResponse, UNKNOWN_RETENTION, UnknownReason,
};
use keylatch_core::lock::{FencingToken, Owner, Reason, Token, TokenHash, Ttl};
use keylatch_wire::{
    self as wire, BeginRecordRequest, CompleteRecordRequest, FailRecordRequest, HeaderValues,
    IdempotencyAnswer, IdempotencyRecord, ResolveRecordRequest, SecretToken, SettlementNote,
    millis,
};

const DAY_MILLIS: u64 = 24 * 60 * 60 * 1000;
const YEAR_MILLIS: u64 = 365 * DAY_MILLIS;
/// Why a body that is given in two ways is refused.
const BODIES: &str = "and `body_base64` and `json` exclude one another";

/// Begin a run
///
/// Asks whether to do a thing now. 201: do it, then complete it with the token, before the lease
/// ends; after that its outcome is unknown. 200: it was done, and this is what it came to. The same
/// Lock-Token again is the same beginning and gets 201 again, so a lost response costs nothing.
/// With `Prefer: wait` it waits while another client does it, and then answers as if it had come
/// afterwards.
#[utoipa::path(post, path = "/v1/idempotency/{key}",
    responses(
        (status = 201, description = "Do it now. The token that began gets this again, for as long as its run lasts", body = IdempotencyRecord,
            headers(("Lock-Token" = String, description = "The token that completes it"))),
        (status = 200, description = "It was done: its response", body = IdempotencyRecord),
    ))]
pub(crate) async fn begin_idempotency(
    State(api): State<Arc<Api>>,
    caller: Caller,
    path: RecordKeyPath,
    OptionalToken(token): OptionalToken,
    PreferredWait(preferred): PreferredWait,
    OptionalJson(mut body): OptionalJson<BeginRecordRequest>,
) -> Result<Response, Problem> {
    let of_record = path.permitted(&caller, KeyAct::Use)?;
    let own = token.is_some();
    let random = |_| Problem::new(Code::Internal, "No token could be made. Nothing was begun.");
    let token = token.map_or_else(Token::generate, Ok).map_err(random)?;
    let fingerprint = fingerprint(&api, &path, &mut body).await?;
    let ask = begin_command(&body, of_record, fingerprint, token.hash())?;
    let (bytes, wait) = (api.body_limits.bytes, preferred.unwrap_or_default());
    let room = caller.claim_record(ask.scope.key(), ask.key, bytes, !wait.is_zero())?;
    let records = api.records()?;
    let response = match records.begin_or_wait(&ask, own, bytes, wait).await? {
        // To who lost the response to the first, a 200 would say that the work was done.
        BeginReply::Started(run) | BeginReply::Again(run) => {
            // For as long as it may be there: a run that is left alone has an unknown outcome.
            room.keep(ask.key, ask.lease + ask.retention.max(UNKNOWN_RETENTION));
            let record = Json(begun_record(run, &ask, &token));
            with_token((StatusCode::CREATED, record).into_response(), &token)
        }
        BeginReply::Reused(_) => {
            let detail = "The key was used with another fingerprint.";
            return Err(Problem::new(Code::IdempotencyKeyReused, detail).with_retry());
        }
        BeginReply::Found(view) => found(&view, &ask),
        BeginReply::NoRoom => {
            let why = records.take_room(&ask.scope, bytes).err().unwrap_or(NoRoom::Bytes);
            return Err(IdempotencyError::from(why).into());
        }
    };
    Ok(match preferred {
        Some(wait) => with_applied_wait(response, wait),
        None => response,
    })
}

/// Complete a run
///
/// Keeps the result for every client that begins the work again. Safe to repeat.
#[utoipa::path(put, path = "/v1/idempotency/{key}",
    request_body(content = CompleteRecordRequest, description = "What it came to"),
    responses((status = 200, description = "It is kept", body = IdempotencyRecord)))]
pub(crate) async fn complete_idempotency(
    State(api): State<Arc<Api>>,
    caller: Caller,
    path: RecordKeyPath,
    RequiredToken(token): RequiredToken,
    ResultJson(body, _): ResultJson<CompleteRecordRequest>,
) -> Result<Json<IdempotencyRecord>, Problem> {
    let (key, scope) = path.permitted(&caller, KeyAct::Use)?;
    let (answer, records) = (answer(body)?, api.records()?);
    // A run takes room for as much as most requests have.
    let (limit, usual) = (api.response_limit()?, api.body_limits.bytes);
    let reply = if answer.body.len() > usual {
        let forms = [limit, usual].map(|limit| kept_within(answer.clone(), limit));
        records.complete_long((&key, &scope), &token.hash(), forms).await?
    } else {
        records.complete(&key, &token.hash(), RunEnd::Done(kept_within(answer, limit))).await?
    };
    let view = of_own_run(reply, &key, &scope)?;
    api.count_record(&key, Some(&view));
    Ok(Json(record(&view)))
}

/// Renew a run
///
/// Lets the lease last its full time from now. Do so at a third of it.
#[utoipa::path(post, path = "/v1/idempotency/{key}/renew",
    responses((status = 204, description = "The lease continues")))]
pub(crate) async fn renew_idempotency(
    State(api): State<Arc<Api>>,
    caller: Caller,
    path: RecordKeyPath,
    RequiredToken(token): RequiredToken,
) -> Result<StatusCode, Problem> {
    let (key, _) = path.permitted(&caller, KeyAct::Use)?;
    match api.records()?.extend(&key, &token.hash()).await? {
        RunRenewal::Extended => Ok(StatusCode::NO_CONTENT),
        RunRenewal::Lost => {
            let detail = "The run is no longer yours: it has ended, or its lease has.";
            Err(Problem::new(Code::TokenMismatch, detail))
        }
    }
}

/// Abandon a run
///
/// Nothing was done: the key is free again.
#[utoipa::path(delete, path = "/v1/idempotency/{key}",
    responses((status = 204, description = "The key is free")))]
pub(crate) async fn abandon_idempotency(
    State(api): State<Arc<Api>>,
    caller: Caller,
    path: RecordKeyPath,
    RequiredToken(token): RequiredToken,
) -> Result<StatusCode, Problem> {
    let (key, scope) = path.permitted(&caller, KeyAct::Use)?;
    of_own_run(api.records()?.abandon(&key, &token.hash()).await?, &key, &scope)?;
    api.count_record(&key, None);
    Ok(StatusCode::NO_CONTENT)
}

/// Report a failed run
///
/// You know that you failed half way: the outcome is unknown at once, for an operator to resolve.
/// Safe to repeat.
#[utoipa::path(post, path = "/v1/idempotency/{key}/fail",
    responses((status = 200, description = "The outcome is unknown", body = IdempotencyRecord)))]
pub(crate) async fn fail_idempotency(
    State(api): State<Arc<Api>>,
    caller: Caller,
    auditor: Auditor,
    path: RecordKeyPath,
    RequiredToken(token): RequiredToken,
    OptionalJson(body): OptionalJson<FailRecordRequest>,
) -> Result<Json<IdempotencyRecord>, Problem> {
    let (key, scope) = path.permitted(&caller, KeyAct::Use)?;
    let reason = body.reason.as_deref().map(Reason::parse).transpose();
    let reason = reason.map_err(|error| invalid("reason", error))?;
    let end = RunEnd::Unknown(UnknownReason::Reported);
    let reply = api.records()?.complete(&key, &token.hash(), end).await?;
    let view = of_own_run(reply, &key, &scope)?;
    api.count_record(&key, Some(&view));
    auditor.failed(&scope, view.fencing_token, reason.as_ref());
    Ok(Json(record(&view)))
}

/// Look at a record
///
/// How far it is, since when, how many runs there were, and the fencing token of the last. The
/// answer itself is given only to a client that begins again.
#[utoipa::path(get, path = "/v1/idempotency/{key}",
    responses((status = 200, description = "The record", body = IdempotencyRecord)))]
pub(crate) async fn get_idempotency(
    State(api): State<Arc<Api>>,
    caller: Caller,
    path: RecordKeyPath,
) -> Result<Json<IdempotencyRecord>, Problem> {
    let (key, _) = path.permitted(&caller, KeyAct::Read)?;
    let view = api.records()?.find(&key).await?.ok_or_else(no_record)?;
    Ok(Json(record(&view)))
}

/// Resolve an unknown outcome
///
/// For an operator who has found out what happened. `completed` keeps a response that every repeat
/// is given; `not-executed` frees the key. With a `fencing_token`, only if no later run began.
#[utoipa::path(post, path = "/v1/idempotency/{key}/resolve",
    responses(
        (status = 200, description = "Every retry gets the response", body = IdempotencyRecord),
        (status = 204, description = "The key is free"),
    ))]
pub(crate) async fn resolve_idempotency(
    State(api): State<Arc<Api>>,
    caller: Caller,
    auditor: Auditor,
    path: RecordKeyPath,
    ResultJson(body, _): ResultJson<ResolveRecordRequest>,
) -> Result<Response, Problem> {
    let (key, scope) = path.permitted(&caller, KeyAct::Resolve)?;
    let settler = settler(&caller, &body)?;
    let command = resolve_command(body, key, &settler, api.response_limit()?)?;
    let act = resolve_act(&scope, &command, settler);
    let done = async {
        match api.records()?.resolve(&command).await? {
            ResolveReply::Completed(view) => {
                api.count_record(&key, Some(&view));
                Ok((Json(record(&view)).into_response(), view.fencing_token))
            }
            ResolveReply::Freed(run) => {
                api.count_record(&key, None);
                Ok((StatusCode::NO_CONTENT.into_response(), run))
            }
            ResolveReply::Refused(_) => {
                let detail = "Only an unknown outcome can be resolved, and only a done one undone; a `fencing_token` has to be that of its last run.";
                Err(Problem::new(Code::NothingToResolve, detail))
            }
            ResolveReply::Absent => Err(no_record()),
        }
    };
    let (response, _) = auditor.follow(act, done, |act, (_, run)| act.name_run(*run)).await?;
    Ok(response)
}

/// Erase a response
///
/// Removes the body and the headers of a finished record, which may be personal data. Its status
/// stays, and the key stays used until its retention ends: a repeat is not run, and reads that the
/// response was not kept.
#[utoipa::path(delete, path = "/v1/idempotency/{key}/answer",
    responses((status = 204, description = "Nothing but the status is kept")))]
pub(crate) async fn erase_idempotency_answer(
    State(api): State<Arc<Api>>,
    caller: Caller,
    auditor: Auditor,
    path: RecordKeyPath,
) -> Result<StatusCode, Problem> {
    let (key, scope) = path.permitted(&caller, KeyAct::Erase)?;
    let act = Act::Erase {
        key: scope.key().as_str().to_owned(),
        method: scope.method().to_owned(),
        path: scope.path().to_owned(),
    };
    let done = async {
        match api.records()?.erase(&key).await? {
            EraseReply::Done(view) => {
                api.count_record(&key, Some(&view));
                Ok(StatusCode::NO_CONTENT)
            }
            EraseReply::Refused(view) => Err(match view.phase {
                RecordStatus::Unknown { .. } => {
                    let detail = "There is no response: the outcome is unknown.";
                    let problem = Problem::new(Code::OutcomeUnknown, detail);
                    problem.with(|problem| problem.resolve = resolve_url_of(&key, &scope))
                }
                RecordStatus::InFlight { .. } | RecordStatus::Done { .. } => {
                    Problem::new(Code::RequestInProgress, "There is no response yet.")
                }
            }),
            EraseReply::Absent => Err(no_record()),
        }
    };
    auditor.follow(act, done, |_, _| ()).await
}

/// The key that the path names, and its scope as the query does.
pub(crate) struct RecordKeyPath {
    key: IdempotencyKey,
    method: String,
    path: String,
    source: String,
    principal: Option<String>,
}

impl RecordKeyPath {
    /// The record, and what it is about, if the caller may do this with it.
    pub(crate) fn permitted(
        &self,
        caller: &Caller,
        act: KeyAct,
    ) -> Result<(RecordKey, RecordScope), Problem> {
        let Self { key, method, path, source, principal } = self;
        caller.check_key(act, key)?;
        let principal = caller.principal(principal.as_deref())?;
        let scope = Scope { principal: &principal, method, path, source };
        let share = Share::of("", caller.identity());
        Ok((scope.record(key), RecordScope::new(&scope, key).in_share(share)))
    }
}

impl FromRequestParts<Arc<Api>> for RecordKeyPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        let invalid = |why: &dyn Display| {
            Problem::new(Code::InvalidKey, format!("The key is not valid: {why}."))
                .with_field("key")
        };
        let RawQuery(query) =
            RawQuery::from_request_parts(parts, api).await.unwrap_or(RawQuery(None));
        let path = Path::<String>::from_request_parts(parts, api).await;
        let Path(key) = path.map_err(|_| invalid(&"it is not UTF-8"))?;
        let key = IdempotencyKey::parse(&key).map_err(|error| invalid(&error))?;
        let names = ["method", "path", "source", "principal"];
        let [method, path, source, principal] =
            parameters(query.as_deref().unwrap_or_default(), names)?;
        let method = method.unwrap_or_default().to_ascii_uppercase();
        let path = normalize_path(&path.unwrap_or_default()).into_owned();
        let source = source.unwrap_or_default().into_owned();
        if source == RecordScope::INTERNAL {
            return Err(invalid_query("source", "must be that of a guarded route"));
        }
        Ok(Self { key, method, path, source, principal: principal.map(Cow::into_owned) })
    }
}

/// The response to a begin that finds an earlier run.
fn found(view: &RecordView, begin: &BeginCommand) -> Response {
    match view.phase {
        RecordStatus::Done { kept: StoredResponse::Sealed(_), .. } => repeat_response(view.clone()),
        RecordStatus::Done { ref kept, .. } => {
            let mut response = Json(record_with_answer(view)).into_response();
            if !has_body(kept) {
                let not_kept = HeaderValue::from_static("not-kept");
                response.headers_mut().insert(IDEMPOTENT_BODY, not_kept);
            }
            response
        }
        RecordStatus::InFlight { .. } | RecordStatus::Unknown { .. } => {
            let resolve = || resolve_url_of(&begin.key, &begin.scope);
            with_resolve(repeat_response(view.clone()), resolve)
        }
    }
}

/// What was done to a run with its token, if the token has the run.
fn of_own_run<T>(reply: EndReply<T>, key: &RecordKey, scope: &RecordScope) -> Result<T, Problem> {
    match reply {
        EndReply::Done(done) => Ok(done),
        EndReply::Refused(view) => Err(not_yours(&view, key, scope)),
        EndReply::Absent => Err(no_record()),
    }
}

fn not_yours(view: &RecordView, key: &RecordKey, scope: &RecordScope) -> Problem {
    match view.phase {
        RecordStatus::Unknown { .. } => {
            let detail = "The lease ended before, so the outcome is unknown.";
            let problem = Problem::new(Code::OutcomeUnknown, detail).with_retry();
            problem.with(|problem| problem.resolve = resolve_url_of(key, scope))
        }
        RecordStatus::InFlight { .. } | RecordStatus::Done { .. } => {
            let detail = "The run is no longer yours: it has ended, or its lease has.";
            Problem::new(Code::TokenMismatch, detail)
        }
    }
}

pub(crate) fn no_record() -> Problem {
    Problem::new(Code::NoRecord, "There is no record of this key in this scope.")
}

/// What is to be done: in words, or as a request of which a guard makes the fingerprint.
async fn fingerprint(
    api: &Api,
    path: &RecordKeyPath,
    body: &mut BeginRecordRequest,
) -> Result<Fingerprint, Problem> {
    let request = match (body.fingerprint.as_deref(), body.request.take()) {
        (Some(text), None) if text.len() > 1024 => {
            return Err(invalid("fingerprint", "must have at most 1024 bytes"));
        }
        (text, None) => return Ok(Fingerprint::of_text(text.unwrap_or_default())),
        (Some(_), Some(_)) => {
            return Err(invalid("request", "replaces `fingerprint`: leave that out"));
        }
        (None, Some(request)) => request,
    };
    let mut headers = header_map(request.headers.unwrap_or_default())?;
    if let Some(media_type) = request.content_type {
        let media_type = HeaderValue::try_from(media_type);
        let media_type = media_type.map_err(|_| invalid("content_type", "is no header's value"))?;
        headers.insert(header::CONTENT_TYPE, media_type);
    }
    let content = bytes_of(request.body, request.body_base64)?.unwrap_or_default();
    let default = Guard::default();
    let guard = api.guard_of(&path.method, &path.path).unwrap_or(&default);
    let target = (&*path.method, &*path.path, request.query.as_deref().unwrap_or_default());
    Ok(guard.fingerprint(target, &headers, &content).await)
}

fn begin_command(
    body: &BeginRecordRequest,
    (key, scope): (RecordKey, RecordScope),
    fingerprint: Fingerprint,
    token: TokenHash,
) -> Result<BeginCommand, Problem> {
    let lease = Ttl::from_millis(body.lease_ms.unwrap_or(30_000));
    let retention = body.retention_ms.unwrap_or(DAY_MILLIS);
    if !(1000..=YEAR_MILLIS).contains(&retention) {
        return Err(invalid("retention_ms", "must be 1000 to 31536000000 (a year)"));
    }
    Ok(BeginCommand {
        key,
        scope,
        token,
        fingerprint,
        lease: lease.map_err(|error| invalid("lease_ms", error))?.get(),
        retention: Duration::from_millis(retention),
        on_crash: match body.on_crash {
            Some(wire::OnCrash::Rerun) => OnCrash::Rerun,
            _ => OnCrash::Unknown,
        },
        has_room: true,
    })
}

/// The response that a request says a run came to.
fn answer(body: CompleteRecordRequest) -> Result<Answer, Problem> {
    let status = body.status.unwrap_or(200);
    if !(200..600).contains(&status) {
        return Err(invalid("status", "must be 200 to 599"));
    }
    let mut headers = header_map(body.headers.unwrap_or_default())?;
    let body = match (bytes_of(body.body, body.body_base64)?, body.json) {
        (body, None) => body.unwrap_or_default(),
        (None, Some(json)) => {
            let kind = HeaderValue::from_static("application/json");
            headers.entry(header::CONTENT_TYPE).or_insert(kind);
            json.to_string().into()
        }
        _ => return Err(invalid("body", BODIES)),
    };
    let mut headers = stored_headers(&headers);
    headers.push((CHOSEN.to_owned(), Bytes::new()));
    Ok(Answer { status, headers, body })
}

/// A body that is given as text or in base64, if it is.
fn bytes_of(text: Option<String>, base64: Option<String>) -> Result<Option<Bytes>, Problem> {
    match (text, base64) {
        (text, None) => Ok(text.map(Bytes::from)),
        (None, Some(base64)) => {
            let bytes = STANDARD.decode(base64);
            bytes
                .map(|bytes| Some(bytes.into()))
                .map_err(|_| invalid("body_base64", "is not base64"))
        }
        _ => Err(invalid("body", BODIES)),
    }
}

fn header_map(named: BTreeMap<String, HeaderValues>) -> Result<HeaderMap, Problem> {
    let mut headers = HeaderMap::new();
    for (name, values) in named {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| invalid("headers", "has a name that is none"))?;
        let values = match values {
            HeaderValues::One(value) => vec![value],
            HeaderValues::Many(values) => values,
        };
        for value in values {
            let value = HeaderValue::try_from(value)
                .map_err(|_| invalid("headers", "has a value that no header takes"))?;
            headers
                .try_append(&name, value)
                .map_err(|_| invalid("headers", "has more of them than an answer takes"))?;
        }
    }
    Ok(headers)
}

/// Who settles an unknown outcome, and why, as people read it.
type Settler = (Option<String>, Option<String>);

/// What the record keeps of it, beside the headers of the response.
fn marks((by, reason): &Settler) -> impl Iterator<Item = (String, Bytes)> {
    let all = [(CHOSEN_BY, by), (CHOSEN_REASON, reason)].into_iter();
    all.filter_map(|(name, text)| Some((name.to_owned(), Bytes::from(text.clone()?))))
}

/// What a record keeps of who settled it.
fn settlement(answer: &Answer) -> Option<SettlementNote> {
    let mark = |mark| answer.headers.iter().find(|(name, _)| name == mark);
    let text =
        |mark_name| mark(mark_name).map(|(_, value)| String::from_utf8_lossy(value).into_owned());
    let note = SettlementNote { by: text(CHOSEN_BY), reason: text(CHOSEN_REASON) };
    (note != SettlementNote::default()).then_some(note)
}

fn settler(caller: &Caller, body: &ResolveRecordRequest) -> Result<Settler, Problem> {
    let by = Owner::parse(body.by.as_deref().unwrap_or_default());
    let by = caller.label("by", by.map_err(|error| invalid("by", error))?)?;
    let reason = body.reason.as_deref().map(Reason::parse).transpose();
    let reason = reason.map_err(|error| invalid("reason", error))?;
    let text = (by.map(|by| by.as_str().to_owned()), reason.map(|why| why.as_str().to_owned()));
    Ok(text)
}

fn resolve_act(scope: &RecordScope, command: &ResolveCommand, (by, reason): Settler) -> Act {
    Act::Resolve {
        key: scope.key().as_str().to_owned(),
        method: scope.method().to_owned(),
        path: scope.path().to_owned(),
        fencing_token: command.fencing_token.map(FencingToken::get),
        outcome: match command.end {
            Settlement::Done(_) | Settlement::DoneFor(..) => "completed",
            Settlement::NotExecuted => "not-executed",
            Settlement::Undone => "undone",
        },
        by,
        reason,
    }
}

fn resolve_command(
    body: ResolveRecordRequest,
    key: RecordKey,
    settler: &Settler,
    limit: usize,
) -> Result<ResolveCommand, Problem> {
    let fencing_token = body.fencing_token.map(FencingToken::new);
    let end = match (body.outcome.as_deref(), body.answer) {
        (Some("completed"), given) => {
            let mut answer = answer(given.unwrap_or_default())?;
            answer.headers.extend(marks(settler));
            Settlement::Done(kept_within(answer, limit))
        }
        (Some("not-executed"), None) => Settlement::NotExecuted,
        (Some("undone"), None) => Settlement::Undone,
        (Some("not-executed" | "undone"), Some(_)) => {
            return Err(invalid("answer", "must be absent where the key becomes free"));
        }
        _ => return Err(invalid("outcome", "must be `completed`, `not-executed` or `undone`")),
    };
    Ok(ResolveCommand { key, fencing_token, end })
}

/// The record of a run that was begun, with the token that completes it.
fn begun_record(run: Run, begin: &BeginCommand, token: &Token) -> IdempotencyRecord {
    IdempotencyRecord {
        state: "in-flight".into(),
        fencing_token: run.fencing_token.get(),
        attempts: run.attempts,
        lease_expires_in_ms: Some(millis(run.lease)),
        expires_in_ms: millis(begin.lease + begin.retention),
        token: Some(SecretToken::new(token.expose().to_owned())),
        ..IdempotencyRecord::default()
    }
}

/// The record as any client may see it.
pub(crate) fn record(view: &RecordView) -> IdempotencyRecord {
    let mut record = IdempotencyRecord {
        fencing_token: view.fencing_token.get(),
        attempts: view.attempts,
        begun_at: Some(at_millis(view.begun_at_millis)),
        expires_in_ms: millis(view.expires_in),
        ..IdempotencyRecord::default()
    };
    let (state, ended_at_millis) = match &view.phase {
        RecordStatus::InFlight { lease } => {
            record.lease_expires_in_ms = Some(millis(*lease));
            ("in-flight", None)
        }
        RecordStatus::Done { kept, at_millis } => {
            record.status = Some(kept.status());
            record.answer_kept = Some(has_body(kept));
            if let StoredResponse::Answer(answer) = kept {
                record.settled = settlement(answer);
            }
            ("done", Some(*at_millis))
        }
        RecordStatus::Unknown { reason, since_millis, sent } => {
            record.reason = Some(reason.as_str().into());
            record.status = sent.as_ref().and_then(|sent| sent.status);
            ("unknown", Some(*since_millis))
        }
    };
    IdempotencyRecord { state: state.into(), ended_at: ended_at_millis.map(at_millis), ..record }
}

/// The record with its response, for a client that begins again.
fn record_with_answer(view: &RecordView) -> IdempotencyRecord {
    let (answer, headers) = match &view.phase {
        RecordStatus::Done { kept: kept @ StoredResponse::Answer(answer), .. } => {
            let has_body = has_body(kept);
            let answer_body = has_body.then(|| answer_body(answer));
            (answer_body, (!has_body).then(|| answer_headers(answer)))
        }
        _ => (None, None),
    };
    // How an operator settled it is for those who look.
    IdempotencyRecord { answer, headers, settled: None, ..record(view) }
}

/// The headers of a response as text, each with its values.
pub(crate) fn answer_headers(answer: &Answer) -> BTreeMap<String, Vec<String>> {
    let mut headers: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (name, value) in answer.headers.iter().filter(|(name, _)| !name.starts_with(':')) {
        let value = String::from_utf8_lossy(value).into_owned();
        headers.entry(name.clone()).or_default().push(value);
    }
    headers
}

fn answer_body(answer: &Answer) -> IdempotencyAnswer {
    let headers = answer_headers(answer);
    let text = std::str::from_utf8(&answer.body);
    IdempotencyAnswer {
        status: answer.status,
        headers,
        body: text.ok().map(str::to_owned),
        body_base64: text.is_err().then(|| STANDARD.encode(&answer.body)),
    }
}
