//! What the audit log has of a request.
//!
//! An act is written before the store is asked, so that none is done without a line, and again with what came
//! of it; the request's id joins the two. Tested in `tests/api/audit.rs`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::HeaderValue;
use axum::http::request::Parts;
use serde::Serialize;

use super::api::Api;
use super::body::in_millis;
use super::problem::Problem;
use crate::access::Identity;
use crate::audit::AuditLog;

/// The id of the request, in its extensions where there is an audit log.
#[derive(Debug, Clone)]
pub(super) struct RequestId(pub(super) HeaderValue);

/// What one client did to the work of another.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "act", rename_all = "lowercase")]
pub(super) enum Act {
    /// It broke the lease of a lock.
    Break { lock: String, fencing_token: u64, by: Option<String>, reason: String },
    /// It settled the unknown outcome of a key.
    Resolve {
        key: String,
        method: String,
        path: String,
        fencing_token: Option<u64>,
        outcome: &'static str,
        by: Option<String>,
        reason: Option<String>,
    },
    /// It erased the answer of a key.
    Erase { key: String, method: String, path: String },
    /// The request was refused because of its identity: 401 or 403.
    Refused { method: &'static str, route: String, status: u16 },
}

/// How far an act is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Progress {
    /// The store is asked.
    Asked,
    /// It is done.
    Done,
    /// It is not done.
    Refused,
    /// It may be done.
    Unknown,
}

#[derive(Serialize)]
struct Line<'a> {
    at: String,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    identity: Option<&'a str>,
    #[serde(flatten)]
    act: &'a Act,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Progress>,
}

/// Writes what a request does to the audit log, if there is one.
#[derive(Debug)]
pub(super) struct Auditor(Option<(Arc<AuditLog>, RequestId, Option<Arc<Identity>>)>);

impl FromRequestParts<Arc<Api>> for Auditor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        let id = parts.extensions.get::<RequestId>().cloned();
        let identity = parts.extensions.get::<Arc<Identity>>().cloned();
        Ok(Self(api.audit.clone().zip(id).map(|(log, id)| (log, id, identity))))
    }
}

impl Auditor {
    /// Does what asks the store, between a line that says so and one that says what came of it.
    pub(super) async fn follow<T>(
        &self,
        act: Act,
        done: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        let Some((log, id, identity)) = &self.0 else { return done.await };
        let write = |result| write(log, id, identity.as_deref(), &act, Some(result));
        write(Progress::Asked);
        let result = done.await;
        write(match &result {
            Ok(_) => Progress::Done,
            Err(problem) => match problem.document().outcome {
                Some(keylatch_wire::Effect::Unknown) => Progress::Unknown,
                _ => Progress::Refused,
            },
        });
        result
    }
}

/// Writes that a request was refused because of its identity.
pub(super) fn write_refusal(
    log: &AuditLog,
    id: &HeaderValue,
    identity: Option<&Identity>,
    act: &Act,
) {
    write(log, &RequestId(id.clone()), identity, act, None);
}

fn write(
    log: &AuditLog,
    RequestId(id): &RequestId,
    identity: Option<&Identity>,
    act: &Act,
    result: Option<Progress>,
) {
    let identity = identity.map(|identity| identity.name.as_str());
    let request_id = id.to_str().unwrap_or_default();
    log.write(&Line { at: in_millis(Duration::ZERO), request_id, identity, act, result });
}
