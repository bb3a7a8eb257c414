//! Who sends a request of the API, whether it may have what it asks for, and so much of it.
//!
//! The one middleware finds the identity, once and before a handler runs; a handler takes it as a
//! [`Caller`] and asks it one pure question before it asks a service. Where there are no identities
//! every client may do everything. A handler under identities that no middleware has looked at
//! answers 401: a mistake in how the routes are put together closes the door. Tested in
//! `tests/api/identities.rs`, `permissions.rs`, `quotas.rs` and, for each operation of the OpenAPI
//! document, `access_matrix.rs`.

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::api::Api;
use super::api::body::invalid;
use super::origin::ConnectionInfo;
use super::problem::{Problem, forbidden, quota_exceeded, unauthenticated};
use crate::access::{
    Identity, KeyAct, LockAct, LockClaim, Meter, Permissions, QuotaPermit, QuotaRefusal,
    RecordClaim, RefusedCredential,
};
use keylatch_core::idempotency::{IdempotencyKey, Principal, RecordKey, RecordReader};
use keylatch_core::lock::{LockName, LockSet, Owner, Token};

/// Who sends a request: an identity, or some client of a service that has none.
#[derive(Debug, Clone)]
pub(super) struct Caller(Option<Arc<Identity>>);

/// Room for locks in the quota of a client, until they are granted or this is dropped.
#[derive(Debug)]
pub(super) struct LockRoom {
    /// Those of each meter, with the locks that it counts.
    claims: Vec<(LockClaim, Vec<LockName>)>,
    permit: QuotaPermit,
}

impl LockRoom {
    pub(super) fn stop_waiting(&mut self) {
        self.permit = QuotaPermit::default();
    }

    pub(super) fn keep(self, token: &Token, lasts: Duration) {
        for (claim, names) in self.claims {
            claim.keep(&names, token, lasts);
        }
    }
}

/// Room for the record of a key in the quota of a client, until a run began or this is dropped.
#[derive(Debug)]
pub(super) struct RecordRoom {
    claims: Vec<RecordClaim>,
    _permit: QuotaPermit,
}

impl RecordRoom {
    pub(super) fn keep(self, key: RecordKey, lasts: Duration) {
        for claim in self.claims {
            claim.keep(key, lasts);
        }
    }
}

impl From<Arc<Identity>> for Caller {
    fn from(identity: Arc<Identity>) -> Self {
        Self(Some(identity))
    }
}

impl FromRequestParts<Arc<Api>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        let identity = ConnectionInfo::identity(&parts.extensions).cloned();
        if identity.is_none() && api.authenticator.is_some() {
            return Err(unauthenticated(RefusedCredential::Missing, "Authorization"));
        }
        Ok(Self(identity))
    }
}

impl Caller {
    /// Refuses what may not be done with this lock.
    pub(super) fn check_lock(&self, act: LockAct, name: &LockName) -> Result<(), Problem> {
        if self.may(|permissions| permissions.cover_lock(act, name.as_str())) {
            return Ok(());
        }
        let verb = <&str>::from(act);
        Err(forbidden(format!("You may not {verb} this lock."))
            .with(|problem| problem.name = Some(name.as_str().to_owned())))
    }

    /// Refuses what may not be done with one of these locks, and names the first.
    pub(super) fn check_set(&self, act: LockAct, set: &LockSet) -> Result<(), Problem> {
        set.names().iter().try_for_each(|name| self.check_lock(act, name))
    }

    /// Refuses a listing of names that may not all be read. It is not shortened to those that may,
    /// since a short list would pass for the whole.
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
        let verb = <&str>::from(act);
        Err(forbidden(format!("You may not {verb} this key.")).with_field("key"))
    }

    /// Refuses what concerns the service as a whole.
    pub(super) fn check_whole(
        &self,
        cover: impl FnOnce(&Permissions) -> bool,
        what: &str,
    ) -> Result<(), Problem> {
        if self.may(cover) { Ok(()) } else { Err(forbidden(format!("You may not {what}."))) }
    }

    /// The principal of an idempotency key: the identity or, where it may act for it, the one that
    /// the request names.
    pub(super) fn principal(&self, named: Option<&str>) -> Result<Principal, Problem> {
        match (&self.0, named.map(Principal::parse)) {
            (None, named) => Ok(named.unwrap_or_default()),
            (Some(identity), None) => Ok(Principal::Identity(identity.name.as_str().to_owned())),
            (Some(identity), Some(named)) if identity.may_act_for(&named) => Ok(named),
            _ => Err(forbidden("You may not act for this principal.").with_field("principal")),
        }
    }

    /// What people read of the client: the identity, and behind it the label that the request gives
    /// itself in `field`. No name of an identity has a colon, so no label passes for one.
    pub(super) fn label(
        &self,
        field: &'static str,
        label: Option<Owner>,
    ) -> Result<Option<Owner>, Problem> {
        let Self(Some(identity)) = self else { return Ok(label) };
        let name = identity.name.as_str();
        let text =
            label.map_or_else(|| name.to_owned(), |label| [name, ": ", label.as_str()].concat());
        Owner::parse(&text).map_err(|_| {
            let most = Owner::MAX_BYTES - name.len() - ": ".len();
            invalid(field, format!("has at most {most} bytes beside the name of your identity"))
        })
    }

    /// Room for these locks in the quota of the client, and a permit to wait where it `waits`.
    pub(super) fn claim_locks(
        &self,
        names: &[LockName],
        token: Option<&Token>,
        waits: bool,
    ) -> Result<LockRoom, Problem> {
        let claims = self.meters_of_locks(names);
        let claims = claims.map(|(meter, names)| Ok((meter.claim_locks(&names, token)?, names)));
        let claims = claims.collect::<Result<_, _>>().map_err(quota_exceeded)?;
        let meters = self.meters_of_locks(names).filter(|_| waits).map(|(meter, _)| meter);
        Ok(LockRoom { claims, permit: enter(meters, Meter::enter_waiter)? })
    }

    /// Notes in the quota of the client that it holds these locks for so long.
    pub(super) fn note_locks(&self, names: &[LockName], token: &Token, lasts: Duration) {
        for (meter, names) in self.meters_of_locks(names) {
            meter.note_locks(&names, token, lasts);
        }
    }

    /// Notes in the quota of the client that it holds these locks no longer.
    pub(super) fn remove_locks(&self, names: &[LockName], token: &Token) {
        for (meter, names) in self.meters_of_locks(names) {
            meter.remove_locks(&names, token);
        }
    }

    /// A permit of the client's quota for one more stream of events, about these locks or about
    /// all.
    pub(super) fn enter_stream(&self, names: &[LockName]) -> Result<QuotaPermit, Problem> {
        enter(self.meters_of_locks(names).map(|(meter, _)| meter), Meter::enter_stream)
    }

    /// The meters that count what the client does with these locks, if it is an identity, each with
    /// those that it counts.
    fn meters_of_locks<'a>(
        &'a self,
        names: &'a [LockName],
    ) -> impl Iterator<Item = (&'a Meter, Vec<LockName>)> {
        self.0.iter().flat_map(|identity| {
            let own = (&identity.meter, names.to_vec());
            iter::once(own).chain(identity.namespaces_of_locks(names))
        })
    }

    /// Room in the quota of the client for the record of a key, and for a response of so many
    /// bytes, and a permit to wait where it `waits`.
    pub(super) fn claim_record(
        &self,
        name: &IdempotencyKey,
        key: RecordKey,
        bytes: usize,
        waits: bool,
    ) -> Result<RecordRoom, Problem> {
        let claims = self.meters_of_key(name).map(|meter| meter.claim_record(key, bytes as u64));
        let claims = claims.collect::<Result<_, _>>().map_err(quota_exceeded)?;
        let meters = self.meters_of_key(name).filter(|_| waits);
        Ok(RecordRoom { claims, _permit: enter(meters, Meter::enter_waiter)? })
    }

    /// The meters that count what the client does with a key, if it is an identity.
    fn meters_of_key(&self, name: &IdempotencyKey) -> impl Iterator<Item = &Meter> {
        self.0.iter().flat_map(|identity| identity.meters_of_key(name.as_str()))
    }

    /// Whether the client may read what this identity has of its quota: where it is its own, or it
    /// may read all.
    pub(super) fn may_read_quota(&self, identity: &Identity) -> bool {
        self.identity() == Some(identity.name.as_str()) || self.may(Permissions::cover_all_reading)
    }

    /// Which records the client may read; `None` for all.
    ///
    /// # Errors
    ///
    /// It may read no key.
    pub(super) fn record_reader(&self) -> Result<Option<RecordReader>, Problem> {
        let reader = self.0.as_ref().map(|identity| identity.record_reader());
        if reader.as_ref().is_some_and(|reader| reader.keys.is_empty()) {
            return Err(forbidden("You may not read any key."));
        }
        Ok(reader)
    }

    pub(super) fn permissions(&self) -> Permissions {
        let identity = self.0.as_ref();
        identity.map_or_else(Permissions::everything, |identity| identity.permissions.clone())
    }

    pub(super) fn identity(&self) -> Option<&str> {
        self.0.as_ref().map(|identity| identity.name.as_str())
    }

    fn may(&self, cover: impl FnOnce(&Permissions) -> bool) -> bool {
        self.0.as_ref().is_none_or(|identity| cover(&identity.permissions))
    }
}

fn enter<'a>(
    mut meters: impl Iterator<Item = &'a Meter>,
    enter: impl Fn(&Meter) -> Result<QuotaPermit, QuotaRefusal>,
) -> Result<QuotaPermit, Problem> {
    let permit = meters
        .try_fold(QuotaPermit::default(), |permit, meter| enter(meter).map(|one| permit.and(one)));
    permit.map_err(quota_exceeded)
}
