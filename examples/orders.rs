//! Routes of one's own behind the idempotency layer.
//!
//! Run it, and send the same order twice:
//!
//! ```text
//! cargo run --example orders      # or another address: -- 127.0.0.1:3001
//! curl -i -X POST localhost:3000/orders -H 'Idempotency-Key: k-1' -d '2 coffees'
//! curl -i -X POST localhost:3000/orders -H 'Idempotency-Key: k-1' -d '2 coffees'
//! ```
//!
//! The second answer is the first one again, with `Idempotent-Replayed: true`.

use axum::extract::Extension;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Router, serve};
use keylatch_axum::IdempotencyLayer;
use keylatch_core::lock::FencingToken;
use tokio::net::TcpListener;

/// Runs once for each key. The fencing token is for whatever the order changes: a database that
/// remembers the largest one it saw refuses a run that was overtaken.
async fn order(
    Extension(fencing_token): Extension<FencingToken>,
    what: String,
) -> (StatusCode, String) {
    (StatusCode::CREATED, format!("ordered {what} under fencing token {fencing_token}\n"))
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    // Several processes that share the work share a store: `keylatch_stores::open("redis://…")`, or
    // `embedded` for one process that must not forget.
    let store = keylatch_stores::memory();
    // Who asks, so that one customer's key is not another's.
    let layer = IdempotencyLayer::new(store)
        .with_principal(|parts| Some(parts.headers.get("x-user")?.to_str().ok()?.to_owned()));
    let orders = Router::new().route("/orders", post(order).route_layer(layer));
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    serve(TcpListener::bind(address).await?, orders).await
}
