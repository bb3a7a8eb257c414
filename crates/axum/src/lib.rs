//! The idempotency layer for routes of one's own.

mod body;
mod fingerprint;
mod layer;
mod policy;
mod problem;
mod response;
mod retention;
mod stream;
mod submission;

pub use body::{BodyLimits, read_body};
pub use keylatch_wire::Code;
pub use layer::{Guarded, IDEMPOTENCY_FENCE, IDEMPOTENCY_KEY, IdempotencyLayer};
pub use policy::{OnFailure, Policy, PrincipalOf};
pub use problem::{Cause, Problem, status_code};
pub use response::{By, CHOSEN, kept_headers, of_view};
pub use retention::Keep;
pub use submission::normal_path;
