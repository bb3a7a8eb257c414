//! A copy of the store while it serves: `/v1/backup`.
//!
//! The copy has what every client keeps here, so it is for the operator alone: an identity needs a permission
//! of its own, and where clients other than those of this machine come without one, `backup` keeps it off.
//! Invariant: an answer that is not the whole copy ends with an error and not as a whole answer. Tested in
//! `tests/api/backup.rs`, and with the command in `tests/cli/backup.rs`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use futures_util::TryStreamExt as _;

use super::api::Api;
use super::audit::{Act, Auditor};
use super::caller::Caller;
use super::problem::{BackupProblems, Code, Problem};

/// Copy the store
///
/// The bytes of a file that keylatch starts on: `locks.sqlite` of an `embedded:` store, as it is after every
/// change that was answered before this request. The service takes changes meanwhile. One copy is made at a
/// time. An engine that is shared makes its own copies.
#[utoipa::path(
    get,
    path = "/v1/backup",
    operation_id = "getBackup",
    tag = "system",
    responses(
        (status = 200, description = "The copy", body = Vec<u8>, content_type = "application/octet-stream"),
        BackupProblems,
    )
)]
pub(super) async fn back_up(
    State(api): State<Arc<Api>>,
    caller: Caller,
    auditor: Auditor,
) -> Result<Response, Problem> {
    caller.check_backup()?;
    if !api.backups {
        let detail = "This service gives no copy of its store: see `backup`. Nothing was done.";
        return Err(Problem::new(Code::BackupDisabled, detail));
    }
    let copied = async { Ok(api.locks.back_up().await?) };
    let backup = auditor.follow(Act::Backup, copied, |_, _| ()).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, backup.length.to_string()),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ];
    let chunks = backup.chunks.inspect_err(|error| tracing::warn!(%error, "a backup is cut short"));
    Ok((headers, Body::from_stream(chunks)).into_response())
}
