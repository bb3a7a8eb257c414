//! Problems of this service alone: the errors and refusals of locks, and a panic.
//!
//! The problem itself is that of `keylatch-axum`, and the table of codes that of `keylatch-wire`.

use std::any::Any;
use std::time::Duration;

use axum::http::Response;
use axum::response::IntoResponse;

use super::body::holder_body;
use keylatch_core::lock::{Contention, LockError};
use keylatch_core::store::Effect;

pub use keylatch_axum::{Code, Problem};

/// Another client holds the lock, or is before this one in line.
pub(super) fn held(contention: &Contention, waited: Option<Duration>) -> Problem {
    let detail = match &contention.holder {
        Some(_) => "Another client holds the lock.",
        None => "The lock is about to be given to another client.",
    };
    let free_in = contention.holder.as_ref().map_or(Duration::ZERO, |holder| holder.expires_in);
    Problem::new(Code::LockHeld, detail)
        .with_retry_after(free_in)
        .with_holder(contention.holder.as_ref().map(holder_body), contention.ahead)
        .with_waited(waited)
}

pub(super) fn lock_not_held() -> Problem {
    Problem::new(Code::LockNotHeld, "No client holds the lock: it was released or has expired.")
}

pub(super) fn token_mismatch() -> Problem {
    Problem::new(Code::TokenMismatch, "The lock is held, and not with this token.")
}

/// What the service of locks could not do.
pub(super) fn of_lock_error(error: LockError) -> Problem {
    match error {
        LockError::Store(error) => error.into(),
        LockError::TooLate => {
            let detail = "Nothing was left of the lease when the store answered.";
            Problem::new(Code::StoreTooSlow, detail)
                .with_outcome(Effect::Unknown)
                .with_retry_after(Duration::from_secs(1))
                .caused_by(error)
        }
        LockError::TooManyWaiters => {
            Problem::new(Code::TooManyWaiters, "As many wait as may. Nothing was done.")
                .with_outcome(Effect::NotExecuted)
                .with_retry_after(Duration::from_secs(1))
        }
        LockError::Random(_) => {
            Problem::new(Code::Internal, "No token could be made. Nothing was done.")
                .with_outcome(Effect::NotExecuted)
                .caused_by(error)
        }
        _ => Problem::new(Code::Internal, "The service has no answer.")
            .with_outcome(Effect::Unknown)
            .caused_by(error),
    }
}

/// The answer to a request whose handler panicked. The panic itself is logged by the hook.
pub(super) fn of_panic(_: Box<dyn Any + Send>) -> Response<axum::body::Body> {
    let detail = "The service failed. It is unknown whether the request was carried out.";
    let problem = Problem::new(Code::Internal, detail).with_outcome(Effect::Unknown);
    problem.with_retry().into_response()
}
