//! The yardstick: an axum handler that answers what keylatch answers and does nothing for it.

use std::net::SocketAddr;

use axum::extract::Path;
use axum::http::{HeaderName, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use serde::Serialize;
use tokio::net::TcpListener;

use crate::Result;

const TOKEN: &str = "aPbOQ2c1kG0x3nN7mYw5RzT4vL8sJdEf";

/// The members of keylatch's lease.
#[derive(Debug, Serialize)]
struct Lease {
    name: String,
    token: &'static str,
    fencing_token: u64,
    owner: Option<&'static str>,
    ttl_ms: u64,
    valid_for_ms: u64,
    expires_at: &'static str,
}

/// Serves until the process is killed.
pub(crate) fn serve(listen: SocketAddr) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let locks = post(create).delete(async || StatusCode::NO_CONTENT);
        let router = Router::new().route("/v1/locks/{name}", locks);
        axum::serve(TcpListener::bind(listen).await?, router).await?;
        Ok(())
    })
}

/// The client needs the header for its next request. `Location` and `X-Request-Id` it does not, so
/// they are not here.
async fn create(
    Path(name): Path<String>,
) -> (StatusCode, [(HeaderName, &'static str); 1], Json<Lease>) {
    let lease = Lease {
        name,
        token: TOKEN,
        fencing_token: 1_779_900_000_000_000,
        owner: None,
        ttl_ms: 30_000,
        valid_for_ms: 29_697,
        expires_at: "2026-05-27T16:40:30.000Z",
    };
    (StatusCode::CREATED, [(HeaderName::from_static("lock-token"), TOKEN)], Json(lease))
}
