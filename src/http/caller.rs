//! Who sends a request of the API, and whether it may have what it asks for.
//!
//! The one middleware finds the identity, once and before a handler runs; a handler takes it as a [`Caller`]
//! and asks it one pure question before it asks a service. Where there are no identities every client may do
//! everything. A handler under identities that no middleware has looked at answers 401: a mistake in how the
//! routes are put together closes the door. Tested in `tests/api/identities.rs`, `permissions.rs` and, for
//! each operation of the OpenAPI document, `access_matrix.rs`.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::api::Api;
use super::body::invalid;
use super::problem::{Problem, forbidden, unauthenticated};
use crate::access::{Identity, KeyAct, LockAct, Permissions, RefusedCredential};
use keylatch_core::idempotency::IdempotencyKey;
use keylatch_core::lock::{LockName, LockSet, Owner};

/// Who sends a request.
#[derive(Debug, Clone)]
pub(super) enum Caller {
    /// Some client of a service without identities.
    Anyone,
    /// An identity.
    Known(Arc<Identity>),
}

impl FromRequestParts<Arc<Api>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        match parts.extensions.get::<Arc<Identity>>() {
            Some(identity) => Ok(Self::Known(Arc::clone(identity))),
            None if api.has_identities => {
                Err(unauthenticated(RefusedCredential::Missing, "Authorization"))
            }
            None => Ok(Self::Anyone),
        }
    }
}

impl Caller {
    /// Refuses what may not be done with this lock.
    pub(super) fn check_lock(&self, act: LockAct, name: &LockName) -> Result<(), Problem> {
        if self.may(|permissions| permissions.cover_lock(act, name.as_str())) {
            return Ok(());
        }
        let verb = match act {
            LockAct::Acquire => "acquire",
            LockAct::Read => "read",
            LockAct::Break => "break",
        };
        Err(forbidden(format!("You may not {verb} this lock.")).with_name(name.as_str()))
    }

    /// Refuses what may not be done with one of these locks, and names the first.
    pub(super) fn check_set(&self, act: LockAct, set: &LockSet) -> Result<(), Problem> {
        set.names().iter().try_for_each(|name| self.check_lock(act, name))
    }

    /// Refuses a listing of names that may not all be read. It is not shortened to those that may, since a
    /// short list would pass for the whole.
    pub(super) fn check_list(&self, prefix: &str) -> Result<(), Problem> {
        if self.may(|permissions| permissions.cover_lock(LockAct::Read, prefix)) {
            return Ok(());
        }
        let detail = "You may not read all locks of this prefix: ask for a longer `prefix`.";
        Err(forbidden(detail).with_field("prefix"))
    }

    /// Refuses what may not be done with this idempotency key.
    pub(super) fn check_key(&self, act: KeyAct, key: &IdempotencyKey) -> Result<(), Problem> {
        if self.may(|permissions| permissions.cover_key(act, key.as_str())) {
            return Ok(());
        }
        let verb = match act {
            KeyAct::Use => "use",
            KeyAct::Read => "read",
            KeyAct::Resolve => "resolve",
        };
        Err(forbidden(format!("You may not {verb} this key.")).with_field("key"))
    }

    /// The principal of an idempotency key: the identity or, where it may act for it, the one that the request
    /// names.
    pub(super) fn principal(&self, named: Option<String>) -> Result<String, Problem> {
        match (self, named) {
            (Self::Anyone, named) => Ok(named.unwrap_or_default()),
            (Self::Known(identity), None) => Ok(identity.name.as_str().to_owned()),
            (Self::Known(identity), Some(named)) if identity.may_act_for(&named) => Ok(named),
            (Self::Known(_), Some(_)) => {
                Err(forbidden("You may not act for this principal.").with_field("principal"))
            }
        }
    }

    /// What people read of the client: the identity, and behind it the label that the request gives itself in
    /// `field`. No name of an identity has a colon, so no label passes for one.
    pub(super) fn label(
        &self,
        field: &'static str,
        label: Option<Owner>,
    ) -> Result<Option<Owner>, Problem> {
        let Self::Known(identity) = self else { return Ok(label) };
        let name = identity.name.as_str();
        let text =
            label.map_or_else(|| name.to_owned(), |label| format!("{name}: {}", label.as_str()));
        Owner::parse(&text).map_err(|_| {
            let most = Owner::MAX_BYTES - name.len() - ": ".len();
            invalid(field, format!("has at most {most} bytes beside the name of your identity"))
        })
    }

    fn may(&self, cover: impl FnOnce(&Permissions) -> bool) -> bool {
        match self {
            Self::Anyone => true,
            Self::Known(identity) => cover(&identity.permissions),
        }
    }
}
