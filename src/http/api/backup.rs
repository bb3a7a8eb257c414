//! A copy of the store while it serves: `/v1/backup`.
//!
//! The copy has what every client keeps here, so it is for the operator alone: an identity needs a
//! permission of its own, and where clients other than those of this machine come without one,
//! `backup` keeps it off. Invariants: a response that is not the whole copy ends with an error and
//! not as a whole response; the one place is free again when a copy has had its time, read or not.
//! Tested in `tests/api/backup.rs`, and with the command in `tests/cli/backup.rs`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{Stream, StreamExt as _, TryStreamExt as _, try_unfold};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::Api;
use crate::access::Permissions;
use crate::http::audit::{Act, Auditor};
use crate::http::caller::Caller;
use crate::http::problem::{Code, Problem};
use keylatch_core::store::Backup;

/// Copy the store
///
/// The bytes of a file that keylatch starts on: `locks.sqlite` of an `embedded:` store, as it is
/// after every change that was answered before this request. The service takes changes meanwhile.
/// One copy is made at a time. An engine that is shared makes its own copies.
#[utoipa::path(get, path = "/v1/backup",
    responses((status = 200, description = "The copy", body = Vec<u8>, content_type = "application/octet-stream")))]
pub(crate) async fn get_backup(
    State(api): State<Arc<Api>>,
    caller: Caller,
    auditor: Auditor,
) -> Result<Response, Problem> {
    caller.check_whole(Permissions::cover_backup, "copy the store")?;
    let detail = "This service gives no copy of its store: see `backup`. Nothing was done.";
    let disabled = || Problem::new(Code::BackupDisabled, detail);
    let backups = api.backups.as_ref().ok_or_else(disabled)?;
    let place = backups.enter()?;
    let copied = async { Ok(api.locks.back_up().await?) };
    let backup = auditor.follow(Act::Backup, copied, |_, _| ()).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, backup.length.to_string()),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ];
    let chunks = in_time(backup, backups.limit, place);
    let chunks = chunks.inspect_err(|error| tracing::warn!(%error, "a backup is cut short"));
    Ok((headers, Body::from_stream(chunks)).into_response())
}

/// The copy as a task reads it ahead of the client, which may be too slow to see the end of its
/// time.
fn in_time(
    backup: Backup,
    limit: Duration,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = io::Result<Bytes>> {
    let Backup { length, chunks } = backup;
    let (sender, receiver) = mpsc::channel(1);
    let task = tokio::spawn(async move {
        // The store ends the copy before the place is free.
        let mut copy = (chunks, place);
        let relay = async {
            while let Some(chunk) = copy.0.next().await {
                if sender.send(chunk).await.is_err() {
                    return;
                }
            }
        };
        // The stream below says so where it is cut short.
        let _ = timeout(limit, relay).await;
    });
    let copy = (receiver, length, AbortOnDropHandle::new(task));
    try_unfold(copy, |(mut receiver, left, task)| async move {
        match receiver.recv().await {
            Some(Ok(chunk)) => {
                let left = left - chunk.len() as u64;
                Ok(Some((chunk, (receiver, left, task))))
            }
            Some(Err(error)) => Err(error),
            None if left == 0 => Ok(None),
            None => Err(io::Error::other("the copy took longer than `backup_timeout_ms`")),
        }
    })
}
