//! Idempotency keys over HTTP: the guarded routes of the service before another service, and an API.
//! The layer that guards is `keylatch-axum`.

mod admission;
pub(super) mod api;
mod document;
pub(super) mod erase;
mod forwarding;
mod gateway;
mod guard;
mod headers;
pub(super) mod list;
mod path_reading;
mod principal;

pub(super) use document::{add_headers, document, name_operation};
pub use guard::{Guard, GuardAccess};
