//! Idempotency keys over HTTP: the guarded routes of the service before another service, and an API.
//! The layer that guards is `keylatch-axum`.

pub(super) mod api;
mod api_body;
mod document;
mod gateway;
mod guard;
pub(super) mod operation;

pub(super) use document::document;
pub use guard::Guard;
