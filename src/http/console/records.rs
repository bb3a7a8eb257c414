//! A record of a key as an operator sees it: with the headers of its response, which tell what a
//! retry gets, or the id of the request whose outcome is unknown.
//!
//! The body may be anything, and is for the client alone, so the console never gets it. Tested in
//! `tests/api/console_keys.rs`.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};

use crate::access::KeyAct;
use crate::http::api::Api;
use crate::http::api::body::Json;
use crate::http::api::records::{self as of_api, RecordKeyPath, answer_headers};
use crate::http::caller::Caller;
use crate::http::problem::Problem;
use keylatch_core::idempotency::{RecordStatus, StoredResponse};

pub(super) async fn record(
    State(api): State<Arc<Api>>,
    caller: Caller,
    path: RecordKeyPath,
) -> Result<Json<Value>, Problem> {
    let (key, _) = path.permitted(&caller, KeyAct::Read)?;
    let view = api.records()?.find(&key).await?.ok_or_else(of_api::no_record)?;
    let mut record = json!(of_api::record(&view));
    match &view.phase {
        RecordStatus::Done { kept: StoredResponse::Answer(answer), .. } => {
            record["headers"] = json!(answer_headers(answer));
        }
        // The id that the request had, here and at the upstream.
        RecordStatus::Unknown { sent: Some(sent), .. } => {
            record["request_id"] = json!(sent.request_id);
        }
        _ => {}
    }
    Ok(Json(record))
}
