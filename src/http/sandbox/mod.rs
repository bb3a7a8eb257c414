//! The toy shop that is built in: `/v1/orders`, `/v1/payments` and the page `/demo`, to see what an
//! idempotency key does before there is a service of one's own to guard.
//!
//! It is there where people try keylatch, and nowhere else: [`SandboxMode`]. Its routes are guarded by
//! the same layer as those of the configuration, under a lease that is short, so that a service that is
//! killed in the middle of an order shows within seconds what becomes of it. Tested in
//! `tests/api/sandbox_orders.rs`.

mod orders;
mod routes;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use serde::Deserialize;
use utoipa::openapi::{ComponentsBuilder, OpenApi, OpenApiBuilder, Paths, RefOr, Schema};
use utoipa::{PartialSchema as _, ToSchema as _};

use self::orders::OrderBook;
use self::routes::{NewOrder, Orders};
use keylatch_axum::{IdempotencyLayer, Policy};
use keylatch_core::idempotency::IdempotencyService;

/// Where orders are placed.
const PATHS: [&str; 2] = ["/v1/orders", "/v1/payments"];
/// How long a run may go unheard before it counts as interrupted.
const LEASE: Duration = Duration::from_secs(3);
/// What a request may take beside its waits: some steps of the store.
const SLACK: Duration = Duration::from_secs(10);

/// Where the toy shop is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxMode {
    /// Where the service listens on loopback alone and was given no configuration file.
    Auto,
    /// Everywhere.
    On,
    /// Nowhere.
    Off,
}

/// The paths of the shop, but for those that `taken` says are another's.
fn paths(taken: impl Fn(&str) -> bool) -> impl Iterator<Item = &'static str> {
    PATHS.into_iter().filter(move |path| !taken(path))
}

/// The routes of the shop, each guarded.
pub(super) fn routers(
    records: &Arc<IdempotencyService>,
    taken: impl Fn(&str) -> bool,
) -> impl Iterator<Item = Router> {
    paths(taken).map(|path| {
        let orders = OrderBook::new(Arc::clone(records), path.to_owned());
        routes::router(orders).layer(IdempotencyLayer::over(Arc::clone(records), policy()))
    })
}

/// How long a request to the shop may take altogether.
pub(super) fn deadline() -> Duration {
    let delay = Duration::from_millis(routes::MAX_DELAY_MS);
    policy().body_limits.time + policy().max_wait + delay + SLACK
}

/// What the OpenAPI document says of the shop.
pub(super) fn document(taken: impl Fn(&str) -> bool) -> OpenApi {
    let mut all = Paths::new();
    for path in paths(taken) {
        all.merge(routes::document(path));
    }
    let schemas = if all.paths.is_empty() { Vec::new() } else { schemas() };
    let components = ComponentsBuilder::new().schemas_from_iter(schemas).build();
    OpenApiBuilder::new().paths(all).components(Some(components)).build()
}

/// What the bodies of the shop are, by the names under which the operations refer to them.
fn schemas() -> Vec<(String, RefOr<Schema>)> {
    let mut schemas = vec![
        (NewOrder::name().into_owned(), NewOrder::schema()),
        (Orders::name().into_owned(), Orders::schema()),
    ];
    NewOrder::schemas(&mut schemas);
    Orders::schemas(&mut schemas);
    schemas
}

fn policy() -> Policy {
    Policy { lease: LEASE, body_limits: routes::LIMITS, ..Policy::default() }
}
