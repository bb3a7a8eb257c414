//! How the earlier grants of a lock ended: those that the store keeps, and the releases that this
//! instance served, which no store keeps. Redlock keeps no end and says nothing of a release, so it
//! has no history (501).
//!
//! Only a client that may read the lock sees them. Tested in `tests/api/console.rs`.

use std::sync::Arc;

use axum::extract::State;
use jiff::Timestamp;
use serde::Serialize;

use super::NamedLock;
use crate::access::LockAct;
use crate::http::api::Api;
use crate::http::body::{Json, at_millis, grant_end};
use crate::http::caller::Caller;
use crate::http::problem::Problem;
use keylatch_core::lock::{self, EndCause};
use keylatch_wire::GrantEnd;

/// The earlier grants of a lock, the oldest end first.
#[derive(Debug, Serialize)]
pub(super) struct History {
    /// Since when the instance remembers releases.
    releases_since: Timestamp,
    ends: Vec<End>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum End {
    Release(Release),
    Other(GrantEnd),
}

#[derive(Debug, Serialize)]
struct Release {
    fencing_token: u64,
    owner: Option<String>,
    acquired_at: String,
    ended_at: String,
    how: &'static str,
}

pub(super) async fn history(
    State(api): State<Arc<Api>>,
    caller: Caller,
    NamedLock(name): NamedLock,
) -> Result<Json<History>, Problem> {
    caller.check_lock(LockAct::Read, &name)?;
    let kept = api.locks.recall(&name).await?;
    let ends = api.past_grants.of(&name, kept).iter().map(end).collect();
    Ok(Json(History { releases_since: api.past_grants.since(), ends }))
}

fn end(end: &lock::GrantEnd) -> End {
    if end.cause != EndCause::Release {
        return End::Other(grant_end(end));
    }
    End::Release(Release {
        fencing_token: end.fencing_token.get(),
        owner: end.owner.as_ref().map(|owner| owner.as_str().to_owned()),
        acquired_at: at_millis(end.acquired_at_millis),
        ended_at: at_millis(end.ended_at_millis),
        how: "released",
    })
}
