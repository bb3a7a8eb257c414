//! The idempotency layer over HTTP, in its four forms: a layer for routes of one's own, the guarded
//! routes of the service before its sandbox or another service, and an API.

mod answer;
pub(super) mod api;
mod api_body;
pub(super) mod document;
mod gateway;
mod guard;
mod incoming;
mod keep;
mod layer;
mod policy;
mod sandbox;
mod stream;

use axum::http::HeaderName;

pub(super) use gateway::Client;
pub use guard::Guard;
pub use keep::Keep;
pub use layer::{Guarded, IdempotencyLayer};
pub use policy::{OnFailure, Policy, PrincipalOf};

/// The client's name for its intent (draft-ietf-httpapi-idempotency-key-header-07).
const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The fencing token of a run, for the handler to hand to what it changes.
const FENCE: HeaderName = HeaderName::from_static("idempotency-fence");
