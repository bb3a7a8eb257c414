//! Idempotency keys over HTTP: the guarded routes of the service before its sandbox or another
//! service, and an API. The layer that guards is `keylatch-axum`.

pub(super) mod api;
mod api_body;
pub(super) mod document;
mod gateway;
mod guard;
mod sandbox;

pub use guard::Guard;
