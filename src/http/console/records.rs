//! A record of a key as an operator sees it: with the headers of its response, which tell what a
//! repeat reads.
//!
//! The body may be anything, and is for the client alone, so the console never gets it. Tested in
//! `tests/api/console_keys.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;

use crate::access::KeyAct;
use crate::http::api::Api;
use crate::http::api::body::Json;
use crate::http::api::records::{self as of_api, RecordKeyPath, answer_headers};
use crate::http::caller::Caller;
use crate::http::problem::Problem;
use keylatch_core::idempotency::{RecordStatus, StoredResponse};
use keylatch_wire::IdempotencyRecord;

/// A record, and the headers of its response if it has one.
#[derive(Debug, Serialize)]
pub(super) struct ShownRecord {
    #[serde(flatten)]
    record: IdempotencyRecord,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<BTreeMap<String, Vec<String>>>,
    /// The id that the request of an unknown outcome had, here and at the upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

pub(super) async fn record(
    State(api): State<Arc<Api>>,
    caller: Caller,
    path: RecordKeyPath,
) -> Result<Json<ShownRecord>, Problem> {
    let (key, _) = path.permitted(&caller, KeyAct::Read)?;
    let view = api.records()?.find(&key).await?.ok_or_else(of_api::no_record)?;
    let (headers, request_id) = match &view.phase {
        RecordStatus::Done { kept: StoredResponse::Answer(answer), .. } => {
            (Some(answer_headers(answer)), None)
        }
        RecordStatus::Unknown { sent: Some(sent), .. } => (None, sent.request_id.clone()),
        _ => (None, None),
    };
    Ok(Json(ShownRecord { record: of_api::record(&view), headers, request_id }))
}
