//! When what let a client open a stream is taken from it: the permission, the identity, or the key.
//!
//! A token is not looked at again: a stream may outlive it, and what its identity may do counts.
//! Invariant: within [`PERIOD`] after the change the stream has ended. Tested in
//! `tests/api/open_ends.rs`.

use std::future;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use tokio::time::sleep;

use super::api::Api;
use super::caller::Caller;
use super::origin::ConnectionInfo;
use super::problem::Problem;
use crate::access::Authenticator;

/// How often a stream looks.
const PERIOD: Duration = Duration::from_secs(5);

/// Ends when the client of a request may not have what it asked for any more.
pub(super) struct Revocation(Option<Proof>);

/// What a request proved its identity by.
struct Proof {
    authenticator: Arc<Authenticator>,
    connection: ConnectionInfo,
    headers: HeaderMap,
}

impl FromRequestParts<Arc<Api>> for Revocation {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        let known = parts.extensions.get::<ConnectionInfo>().zip(api.authenticator.clone());
        Ok(Self(known.map(|(connection, authenticator)| {
            let (connection, headers) = (connection.clone(), parts.headers.clone());
            Proof { authenticator, connection, headers }
        })))
    }
}

impl Revocation {
    /// Waits until `check` refuses the client, or nothing proves any more who it is.
    pub(super) async fn of(self, check: impl Fn(&Caller) -> Result<(), Problem>) {
        let Some(Proof { authenticator, connection, headers }) = self.0 else {
            return future::pending().await;
        };
        let Some(identity) = connection.identity else { return future::pending().await };
        let is_in = |identity| check(&Caller::from(identity)).is_ok();
        let now = || authenticator.confirm(&identity, &headers, connection.certificate.as_deref());
        while now().is_some_and(is_in) {
            sleep(PERIOD).await;
        }
    }
}
