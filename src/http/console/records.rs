//! The records of keys as an operator sees them: a page of those in one state, and one of them with the headers
//! of its answer, which tell what a repeat reads. The body may be anything, and is for the client alone.
//!
//! A list has the records that the user may read, and the number of the others, so that it never passes for
//! the whole. Tested in `tests/api/console_keys.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use serde::Serialize;

use crate::access::KeyAct;
use crate::http::api::Api;
use crate::http::body::{Json, at_millis};
use crate::http::caller::Caller;
use crate::http::extract::{invalid_query, pairs, unknown_cursor};
use crate::http::idempotency::api::{self as of_api, RecordKeyPath, answer_headers};
use crate::http::problem::Problem;
use keylatch_core::idempotency::{
    PhaseName, RecordFilter, RecordPhase, RecordStatus, RecordSummary, StoredResponse,
};
use keylatch_core::store::{Cursor, ListRecords};
use keylatch_wire::IdempotencyRecord;

/// A record, and the headers of its answer if it has one.
#[derive(Debug, Serialize)]
pub(super) struct ShownRecord {
    #[serde(flatten)]
    record: IdempotencyRecord,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<BTreeMap<String, Vec<String>>>,
}

pub(super) async fn record(
    State(api): State<Arc<Api>>,
    caller: Caller,
    path: RecordKeyPath,
) -> Result<Json<ShownRecord>, Problem> {
    let (key, _) = path.permitted(&caller, KeyAct::Read)?;
    let view = api.records()?.find(&key).await?.ok_or_else(of_api::no_record)?;
    let headers = match &view.phase {
        RecordStatus::Done { kept: StoredResponse::Answer(answer), .. } => {
            Some(answer_headers(answer))
        }
        _ => None,
    };
    Ok(Json(ShownRecord { record: of_api::record(&view), headers }))
}

/// Some of the records, in no order.
#[derive(Debug, Serialize)]
pub(super) struct RecordPage {
    records: Vec<ListedRecord>,
    /// How many more of them the user may not read.
    hidden: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// A record and what it is about; without its key where an older version began it.
#[derive(Debug, Serialize)]
struct ListedRecord {
    key: Option<String>,
    method: Option<String>,
    path: Option<String>,
    principal: Option<String>,
    /// Whether all of it is here, so that it leads to the record: a store cuts a path that is very long.
    is_whole: bool,
    state: &'static str,
    attempts: u32,
    fencing_token: u64,
    begun_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
}

pub(super) async fn list(
    State(api): State<Arc<Api>>,
    caller: Caller,
    uri: Uri,
) -> Result<Json<RecordPage>, Problem> {
    let query = query(uri.query().unwrap_or_default())?;
    let page = api.records()?.list(&query).await?.ok_or_else(unknown_cursor)?;
    let all = page.entries.len();
    let readable = page.entries.iter().filter(|record| caller.may_read_record(record));
    let records: Vec<_> = readable.map(listed).collect();
    let next_cursor = page.next.map(|cursor| cursor.as_str().to_owned());
    Ok(Json(RecordPage { hidden: all - records.len(), records, next_cursor }))
}

fn query(text: &str) -> Result<ListRecords, Problem> {
    let mut query = ListRecords { filter: RecordFilter::default(), limit: 100, cursor: None };
    for (parameter, value) in pairs(text) {
        match &*parameter {
            "state" => {
                let name = PhaseName::parse(&value);
                let must = "must be `unknown`, `in-flight` or `done`";
                query.filter.phase = Some(name.ok_or_else(|| invalid_query("state", must))?);
            }
            "prefix" => query.filter.path_prefix = value.into_owned(),
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=1000).contains(limit));
                query.limit = limit.ok_or_else(|| invalid_query("limit", "must be 1 to 1000"))?;
            }
            "cursor" => {
                query.cursor = Some(Cursor::parse(&value).map_err(|_| unknown_cursor())?);
            }
            other => return Err(invalid_query(other, "is not a parameter")),
        }
    }
    Ok(query)
}

fn listed(record: &RecordSummary) -> ListedRecord {
    let scope = record.scope.as_ref();
    let (ended_at, reason, status) = match record.phase {
        RecordPhase::InFlight { .. } => (None, None, None),
        RecordPhase::Unknown { since_millis, reason } => {
            (Some(since_millis), Some(reason.as_str()), None)
        }
        RecordPhase::Done { at_millis, status } => (Some(at_millis), None, Some(status)),
    };
    ListedRecord {
        key: scope.map(|scope| scope.key().as_str().to_owned()),
        method: scope.map(|scope| scope.method().to_owned()),
        path: scope.map(|scope| scope.path().to_owned()),
        principal: scope.map(|scope| scope.principal().to_owned()),
        is_whole: scope.is_some_and(|scope| scope.leads_to(&record.key)),
        state: record.phase.name().as_str(),
        attempts: record.attempts,
        fencing_token: record.fencing_token.get(),
        begun_at: at_millis(record.begun_at_millis),
        ended_at: ended_at.map(at_millis),
        reason,
        status,
    }
}
