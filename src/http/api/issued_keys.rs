//! Issuing keys for forms: the shop's server fetches one and puts it into the page.
//!
//! Nothing is stored: a key proves itself at the guard that it is for. Tested in
//! `tests/api/issued_keys.rs`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;

use super::Api;
use super::body::{Json, at_millis, invalid};
use crate::access::Permissions;
use crate::http::caller::Caller;
use crate::http::extract::{NoQuery, OptionalJson};
use crate::http::problem::{Code, Problem};
use keylatch_axum::normalize_path;
use keylatch_core::idempotency::Scope;
use keylatch_wire::{IssueKeyRequest, IssuedKey, millis};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Issue a key
///
/// For a form without JavaScript, behind a guard that takes issued keys (`key = ["issued"]`). The
/// server of the page puts the key into the field `idempotency_key`. It is good for one request of
/// this method, path and principal.
#[utoipa::path(post, path = "/v1/idempotency-keys",
    responses((status = 201, description = "The key. Nothing is stored of it before it is used", body = IssuedKey)))]
pub(crate) async fn issue_idempotency_key(
    State(api): State<Arc<Api>>,
    caller: Caller,
    _: NoQuery,
    OptionalJson(body): OptionalJson<IssueKeyRequest>,
) -> Result<(StatusCode, Json<IssuedKey>), Problem> {
    // It is good on one route, to whoever may send requests there.
    caller.check_whole(Permissions::cover_issuing, "use any key")?;
    let principal = caller.principal(body.principal.as_deref())?;
    let method = body.method.to_ascii_uppercase();
    if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return Err(invalid("method", "must be a method of HTTP, such as `POST`"));
    }
    if !body.path.starts_with('/') || body.path.contains(['?', '#']) {
        return Err(invalid(
            "path",
            "must be that of the request, such as `/orders`, without its query",
        ));
    }
    let path = normalize_path(&body.path).into_owned();
    let ttl = ttl(&api, &method, &path, body.ttl_ms)?;
    let keys = api.issued_keys.as_ref().ok_or_else(|| {
        let detail =
            "Nothing signs keys here: `issued_keys.secret_file` has the secret. Nothing was done.";
        Problem::new(Code::NotSupported, detail)
    })?;
    let scope = Scope { principal: &principal, method: &method, path: &path, source: "" };
    let (key, expires) = keys.issue(&scope, ttl).map_err(|error| {
        Problem::new(Code::Internal, "No key could be made. Nothing was done.").caused_by(error)
    })?;
    let issued = IssuedKey { key, expires_at: at_millis(expires), ttl_ms: millis(ttl) };
    Ok((StatusCode::CREATED, Json(issued)))
}

/// How long a key is good: never longer than its guard keeps the response.
fn ttl(api: &Api, method: &str, path: &str, asked: Option<u64>) -> Result<Duration, Problem> {
    let guard = api.guard_of(method, path);
    let longest = guard.map_or(YEAR, |guard| guard.retention());
    let ttl = asked.map_or(longest.min(DAY), Duration::from_millis);
    if (Duration::from_secs(1)..=longest).contains(&ttl) {
        return Ok(ttl);
    }
    let why = if guard.is_some() { " (`retention_ms` of the guard)" } else { " (a year)" };
    Err(invalid("ttl_ms", format!("must be 1000 to {}{why}", millis(longest))))
}
