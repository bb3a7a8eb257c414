//! The routes in front of other services: those of the guards, and what passes through beside them.
//!
//! Around each is the one middleware, with the time, the pages and the admission of its guard; the
//! layer that runs a request once is within. Tested in `tests/api/idempotency_gateway.rs` and
//! `pass_through.rs`.

mod document;
mod hooks;
mod pass_through;
pub(super) mod settled;

use std::future::ready;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;

use self::hooks::GATEWAY_HOOKS;
use super::{RequestLayer, layered};
use crate::kept_lock::KeptLock;
use crate::metrics::Metrics;
use keylatch_axum::gateway::{Admission, SettleObserver, SettleTurn};
use keylatch_axum::{Guard, InvalidSetting, IssuedKeys};
use keylatch_client::https::{HttpsClient, Trust, https_client};
use keylatch_core::idempotency::IdempotencyService;
use keylatch_core::lock::{LockService, Ttl};

pub(super) use self::document::{add_headers, document, name_operation};
pub(crate) use self::hooks::is_in_the_way;
pub use self::pass_through::PassThrough;
pub(super) use self::pass_through::{OWN, by_listener};

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
        let client = https_client(if is_tls { &Trust::System } else { &Trust::None })?;
        let own = rest.as_ref().map(|_| Guard { path: OWN.to_owned(), ..Guard::default() });
        let named = guards.iter().cloned().chain(own).collect();
        Ok(Self { guards, named, rest, client, requests })
    }

    /// The guarded routes, each with the time that it may take.
    pub(super) fn routes(
        &self,
        records: &Arc<IdempotencyService>,
        issued_keys: Option<&IssuedKeys>,
        metrics: &Arc<Metrics>,
    ) -> io::Result<Router> {
        self.guards.iter().try_fold(Router::new(), |all, guard| {
            let layer = guard.layer(Arc::clone(records), GATEWAY_HOOKS).map_err(invalid)?;
            let mut layer = layer.with_issued_keys(issued_keys.cloned());
            if guard.observes() {
                metrics.observed_guards.add(&guard.path);
                let (metrics, path) = (Arc::clone(metrics), guard.path.clone());
                layer = layer.with_observer(move |observed| metrics.observed(&path, observed));
            }
            let upstream = self.upstream(guard)?.layer(layer);
            Ok(all.merge(layered(upstream, self.requests_of(guard)?)))
        })
    }

    /// Has the upstreams asked for what is unknown, where guards say how.
    pub(super) fn settle(
        &self,
        records: &Arc<IdempotencyService>,
        locks: &Arc<LockService>,
        observer: &SettleObserver,
    ) -> io::Result<()> {
        self.guards.iter().filter(|guard| guard.settle.is_some()).try_for_each(|guard| {
            let (turn, observer) = (settle_turn(guard, locks)?, Arc::clone(observer));
            guard
                .start_settling(self.guards, &self.client, records, GATEWAY_HOOKS, turn, observer)
                .map_err(invalid)
        })
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
        Ok(RequestLayer {
            deadline: guard.deadline(),
            class: guard.cross_origin.into(),
            admission: Some(Arc::new(Admission::new(guard, &self.named)?)),
            ..self.requests.clone()
        })
    }
}

/// Whoever has the guard's lock asks its upstream. A store within the process has one instance, and
/// no such lock.
fn settle_turn(guard: &Guard, locks: &Arc<LockService>) -> io::Result<SettleTurn> {
    if locks.counts().held.is_some() {
        return Ok(Arc::new(|| Box::pin(ready(true))));
    }
    let lock = KeptLock::of_guard("settle", &guard.path).map_err(io::Error::other)?;
    let every_ms = guard.settle.as_ref().map_or(0, |settle| settle.every_ms);
    // Others ask where this instance has missed some rounds.
    let ttl = Ttl::from_millis(3 * every_ms + 10_000).map_err(io::Error::other)?;
    let locks = Arc::clone(locks);
    Ok(Arc::new(move || {
        let (locks, lock) = (Arc::clone(&locks), lock.clone());
        Box::pin(async move {
            lock.keep(&locks, ttl, |new| new).await.unwrap_or_else(|error| {
                tracing::debug!(%error, "it is not known which instance asks the upstream");
                false
            })
        })
    }))
}

fn invalid(error: InvalidSetting) -> io::Error {
    io::Error::other(error)
}
