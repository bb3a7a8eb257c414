//! The routes in front of other services: those of the guards, and what passes through beside them.
//!
//! Around each is the one middleware, with the time, the pages and the admission of its guard; the layer that runs a
//! request once is within. Tested in `tests/api/idempotency_gateway.rs` and `pass_through.rs`.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;

use super::idempotency::GATEWAY_HOOKS;
use super::pass_through::{OWN, PassThrough};
use super::{RequestLayer, layered, layered_over};
use keylatch_axum::gateway::{Admission, SettleObserver};
use keylatch_axum::{Guard, InvalidSetting, IssuedKeys};
use keylatch_client::https::{HttpsClient, Trust, https_client};
use keylatch_core::idempotency::IdempotencyService;

/// The guards of the configuration, and how their upstreams are reached.
pub(super) struct Guards<'a> {
    guards: &'a [Guard],
    /// What no other route may stand for: the guards, and keylatch's own paths beside an app.
    named: Vec<Guard>,
    /// What lets through what none of them names.
    rest: Option<Guard>,
    client: HttpsClient<Body>,
    requests: &'a RequestLayer,
}

impl<'a> Guards<'a> {
    pub(super) fn new(
        guards: &'a [Guard],
        passes: &PassThrough,
        requests: &'a RequestLayer,
    ) -> io::Result<Self> {
        let rest = passes.guard(guards);
        // Who calls no upstream over TLS needs no certificates of the system.
        let is_tls = guards.iter().chain(&rest).any(Guard::calls_over_tls);
        let client = https_client(if is_tls { &Trust::System } else { &Trust::None }, None)?;
        let own = rest.as_ref().map(|_| Guard { path: OWN.to_owned(), ..Guard::default() });
        let named = guards.iter().cloned().chain(own).collect();
        Ok(Self { guards, named, rest, client, requests })
    }

    /// The guarded routes, each with the time that it may take.
    pub(super) fn routes(
        &self,
        records: &Arc<IdempotencyService>,
        issued_keys: Option<&IssuedKeys>,
    ) -> io::Result<Router> {
        self.guards.iter().try_fold(Router::new(), |all, guard| {
            let layer = guard.layer(Arc::clone(records), GATEWAY_HOOKS).map_err(invalid)?;
            let layer = layer.with_issued_keys(issued_keys.cloned());
            Ok(all.merge(layered_over(layer, self.upstream(guard)?, self.requests_of(guard)?)))
        })
    }

    /// Has the upstreams asked for what is unknown, where guards say how.
    pub(super) fn settle(
        &self,
        records: &Arc<IdempotencyService>,
        observer: &SettleObserver,
    ) -> io::Result<()> {
        let started = self.guards.iter().try_for_each(|guard| {
            let observer = Arc::clone(observer);
            guard.start_settling(self.guards, &self.client, records, GATEWAY_HOOKS, observer)
        });
        started.map_err(invalid)
    }

    /// The routes of the app behind, if there is one.
    pub(super) fn rest(&self) -> io::Result<Option<Router>> {
        let routes = |rest| Ok(layered(self.upstream(rest)?, self.requests_of(rest)?));
        self.rest.as_ref().map(routes).transpose()
    }

    fn upstream(&self, guard: &Guard) -> io::Result<Router> {
        guard.upstream(&self.client, GATEWAY_HOOKS).map_err(invalid)
    }

    fn requests_of(&self, guard: &Guard) -> io::Result<RequestLayer> {
        let requests = self.requests.with_deadline(guard.deadline());
        let admission = Admission::new(guard, &self.named)?;
        Ok(requests.over(guard.cross_origin.into()).with_admission(admission))
    }
}

fn invalid(error: InvalidSetting) -> io::Error {
    io::Error::other(error)
}
