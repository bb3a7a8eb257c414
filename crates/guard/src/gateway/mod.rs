//! The gateway of the service: guarded routes in front of another service.
//!
//! [`Admission`] takes from a request what its client may not say, the layer runs it once, and the proxy sends it on. What
//! only the server around them knows they ask [`ServerHooks`]. Tested over HTTP in `tests/api`.

mod admission;
mod forwarding;
mod headers;
mod path_reading;
mod principal;
mod proxy;
mod tunnel;

pub use admission::Admission;
pub use forwarding::ClientConnection;
pub(crate) use principal::{Principal, PrincipalHeader};
pub use principal::TrustedProxy;
pub(crate) use proxy::Gateway;
pub use proxy::{EndCall, ServerHooks};
pub use tunnel::Tunnel;
