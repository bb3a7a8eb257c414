//! Idempotency keys over HTTP: the guarded routes of the service before another service, and an API.
//!
//! The layer that guards is `keylatch-axum`, which programs use for their own routes too; here are the gateway behind it
//! and the routes of records. Tested in the `idempotency_*.rs` files of `tests/api`.

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

pub(super) use admission::Admission;
pub(super) use document::{add_headers, document, name_operation};
pub use guard::{Guard, GuardAccess};
