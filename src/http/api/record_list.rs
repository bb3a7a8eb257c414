//! The list of records: which ones a query names, for the JSON of the API; and the URL that settles
//! one.
//!
//! A list has the records that the client may read, and the number of the others of its page, so
//! that it never passes for the whole. A search by key or path has no such number, and others'
//! records do not cut its pages: either would tell their keys and paths letter by letter. Tested in
//! `tests/api/record_list.rs`.

use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;

use super::Api;
use super::body::{Json, at_millis};
use crate::http::caller::Caller;
use crate::http::extract::{invalid_query, page, parameters, plain, segment, unknown_cursor};
use crate::http::problem::Problem;
use keylatch_axum::normalize_path;
use keylatch_core::idempotency::{
    PhaseName, RecordFilter, RecordKey, RecordScope, RecordStatus, RecordSummary,
};
use keylatch_core::store::ListRecords;
use keylatch_wire::{ListedRecord, RecordPage};

/// List records
///
/// Page by page, in no order: those that are `in-flight`, `done` or `unknown`, or all. An unknown
/// outcome comes with the URL at which an operator settles it. The number of unknown and unfinished
/// records decides what a list of them costs, and not the number of all.
#[utoipa::path(get, path = "/v1/idempotency",
    responses((status = 200, description = "Some of the records", body = RecordPage)))]
pub(crate) async fn list_idempotency(
    State(api): State<Arc<Api>>,
    caller: Caller,
    RecordQuery(mut query): RecordQuery,
) -> Result<Json<RecordPage>, Problem> {
    let reader = caller.record_reader()?;
    // A page of a search that others' records fill, or their number, would tell what their keys and
    // paths are.
    if is_search(&query.filter) {
        query.filter.reader = reader.clone();
    }
    let page = api.records()?.list(&query).await?.ok_or_else(unknown_cursor)?;
    let may_read = |scope| reader.as_ref().is_none_or(|reader| reader.may_read(scope));
    let readable = page.entries.iter().filter(|record| may_read(&record.scope));
    let records: Vec<_> = readable.map(listed).collect();
    let hidden = u64::try_from(page.entries.len() - records.len()).ok();
    let hidden = hidden.filter(|hidden| *hidden > 0);
    let next_cursor = page.next.map(|cursor| cursor.as_str().to_owned());
    Ok(Json(RecordPage { records, hidden, next_cursor }))
}

/// Which records a list is to have.
pub(crate) struct RecordQuery(ListRecords);

impl<S: Send + Sync> FromRequestParts<S> for RecordQuery {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        query(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

/// Whether the records of a list are chosen by their keys or paths.
fn is_search(filter: &RecordFilter) -> bool {
    filter.path.is_some() || !(filter.path_prefix.is_empty() && filter.key_prefix.is_empty())
}

/// The absolute path, with the whole scope, to which an operator posts how a request with it ended.
pub(in crate::http) fn resolve_url(scope: &RecordScope) -> String {
    let key = segment(scope.key().as_str());
    let principal = scope.principal().to_string();
    let [method, path, principal] = [scope.method(), scope.path(), &principal].map(plain);
    let mut url =
        format!("/v1/idempotency/{key}/resolve?method={method}&path={path}&principal={principal}");
    if !scope.source().is_empty() {
        url += &format!("&source={}", plain(scope.source()));
    }
    url
}

/// The same, if the scope is that of the record and kept whole.
pub(super) fn resolve_url_of(key: &RecordKey, scope: &RecordScope) -> Option<String> {
    scope.leads_to(key).then(|| resolve_url(scope))
}

fn query(text: &str) -> Result<ListRecords, Problem> {
    let names = ["state", "path", "prefix", "key_prefix", "limit", "cursor"];
    let [state, path, prefix, key_prefix, limit, cursor] = parameters(text, names)?;
    let must = "must be `unknown`, `in-flight` or `done`";
    let phase = |state: &str| state.parse::<PhaseName>().map_err(|_| invalid_query("state", must));
    let filter = RecordFilter {
        phase: state.as_deref().map(phase).transpose()?,
        path: path.map(|path| normalize_path(&path).into_owned()),
        path_prefix: prefix.unwrap_or_default().into_owned(),
        key_prefix: key_prefix.unwrap_or_default().into_owned(),
        reader: None,
    };
    let (limit, cursor) = page(limit, cursor)?;
    Ok(ListRecords { filter, limit, cursor })
}

fn listed(record: &RecordSummary) -> ListedRecord {
    let scope = &record.scope;
    let (ended_at, reason, status) = match &record.phase {
        RecordStatus::InFlight { .. } => (None, None, None),
        RecordStatus::Unknown { since_millis, reason, sent } => {
            let status = sent.as_ref().and_then(|sent| sent.status);
            (Some(*since_millis), Some(reason.as_str().into()), status)
        }
        RecordStatus::Done { at_millis, kept } => (Some(*at_millis), None, Some(kept.status())),
    };
    let is_unknown = matches!(record.phase, RecordStatus::Unknown { .. });
    let is_whole = scope.leads_to(&record.key);
    ListedRecord {
        key: scope.key().as_str().to_owned(),
        method: scope.method().to_owned(),
        path: scope.path().to_owned(),
        principal: scope.principal().to_string(),
        source: Some(scope.source()).filter(|source| !source.is_empty()).map(str::to_owned),
        is_whole,
        state: record.phase.name().as_str().into(),
        attempts: record.attempts,
        fencing_token: record.fencing_token.get(),
        begun_at: at_millis(record.begun_at_millis),
        ended_at: ended_at.map(at_millis),
        reason,
        status,
        resolve: (is_whole && is_unknown).then(|| resolve_url(scope)),
    }
}
