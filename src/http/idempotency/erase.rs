//! Erasing a kept response, which may have personal data, while its key stays used.
//!
//! Tested in `tests/api/erasure.rs`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use keylatch_core::idempotency::{EraseReply, RecordStatus};

use super::api::{RecordKeyPath, no_record};
use super::list::resolve_url_of;
use crate::access::KeyAct;
use crate::http::api::Api;
use crate::http::audit::{Act, Auditor};
use crate::http::caller::Caller;
use crate::http::problem::{Code, Problem};

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
