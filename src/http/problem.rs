//! Problems of this service alone: the errors and refusals of locks, and a panic.
//!
//! The problem itself is that of `keylatch-axum`, and the table of codes that of `keylatch-wire`.
//! Which operation answers with which of them is in `openapi/problems.rs`. Tested with the
//! operations, in `tests/api`.

use std::any::Any;
use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;

use super::api::body::{break_note, public_holders};
use crate::access::{QuotaKind, QuotaRefusal, RefusedCredential};
use keylatch_axum::ProblemCode;
use keylatch_core::lock::{Break, Contention, Holding, LockError, LockLoss, LostLock, Waiter};
use keylatch_core::store::Effect;

pub use keylatch_axum::{Code, Problem};
use keylatch_wire::FirstWaiter;

/// Another client holds the lock, or is before this one in the queue.
pub(super) fn held(contention: &Contention, waited: Option<Duration>) -> Problem {
    let detail = match &contention.holding {
        Some(holding) if holding.first.limit.is_shared() => "Other clients hold the lock.",
        Some(_) => "Another client holds the lock.",
        None if contention.first.is_some() => "The lock is free, and others wait before you.",
        None => "The lock is about to be given to another client.",
    };
    of_contention(detail, contention)
        .with(|problem| problem.waited_ms = waited.map(keylatch_wire::millis))
}

/// More wait than the client would wait behind. Without `waited_ms`, as it did not wait.
pub(super) fn crowded(contention: &Contention) -> Problem {
    let detail = "More clients wait for the lock than `max_ahead` says. You do not wait.";
    of_contention(detail, contention)
}

/// The client holds the lock already, and is not alone; or it holds one of several, and would hold
/// it while it waits for another. Without `waited_ms`, also where it asked to wait: by that the Rust
/// client knows that no retry helps.
pub(super) fn not_alone(contention: &Contention, is_set: bool) -> Problem {
    let detail = if is_set {
        "You hold one of the locks already, and another is not to be had. Release what you hold, and \
         ask for all of them together."
    } else {
        "You hold the lock together with others, or others wait for it, or your lease is broken. For \
         fewer beside you, release it and ask for it again."
    };
    of_contention(detail, contention)
}

fn of_contention(detail: &'static str, contention: &Contention) -> Problem {
    let holding = contention.holding.as_ref();
    let free_in = holding.map_or(Duration::ZERO, |holding| holding.first.expires_in);
    let problem = Problem::new(Code::LockHeld, detail).with_retry_after(free_in);
    let first = contention.first.as_ref();
    with_holding(problem, holding, contention.ahead)
        .with(|problem| problem.waiter = first.map(first_waiter))
}

/// No client holds the lock that is looked at, and these wait before it.
pub(super) fn free(waiters: &[Waiter]) -> Problem {
    lock_not_held().with(|problem| {
        problem.ahead = waiters.first().map(|_| waiters.len() as u64);
        problem.waiter = waiters.first().map(first_waiter);
    })
}

fn first_waiter(waiter: &Waiter) -> FirstWaiter {
    FirstWaiter {
        owner: waiter.owner.as_ref().map(|owner| owner.as_str().to_owned()),
        number: waiter.number,
        waited_ms: keylatch_wire::millis(waiter.waited),
    }
}

/// Says who holds the lock: the one holder, or those that share it.
fn with_holding(problem: Problem, holding: Option<&Holding>, ahead: u64) -> Problem {
    problem.with(|problem| {
        problem.ahead = Some(ahead);
        match holding {
            Some(holding) if holding.first.limit.is_shared() => {
                problem.holders = public_holders(holding);
                problem.holding = Some(holding.count as u64);
            }
            _ => problem.holder = holding.map(|holding| holder_body(&holding.first)),
        }
    })
}

/// Some of several locks are lost; the problem is that of the first. `done` says what became of the
/// others.
pub(super) fn set_lost(lost: &[LostLock], done: &str) -> Problem {
    let first = lost.first().map_or(&LockLoss::NotHeld, |lost| &lost.loss);
    let detail =
        format!("You do not hold all of the locks; `locks` says which you lost, and how. {done}");
    let locks = lost.iter().map(|LostLock { name, loss }| keylatch_wire::LostLock {
        name: name.as_str().to_owned(),
        code: self::lost(loss).code().slug().to_owned(),
    });
    Problem::new(self::lost(first).code(), detail).with(|problem| {
        problem.locks = locks.collect();
        if let LockLoss::Broken(why) = first {
            problem.broken = Some(break_note(why));
        }
    })
}

/// As many hold the lock as may.
pub(super) fn too_many_holders() -> Problem {
    let detail =
        "As many hold the lock as may, or you entered it as often as you may. Nothing was done.";
    not_now(Code::TooManyHolders, detail)
}

/// The client does not hold the lock.
pub(super) fn lost(loss: &LockLoss) -> Problem {
    match loss {
        LockLoss::Broken(why) => broken(Code::LockBroken, "Your lease was broken", why),
        LockLoss::NotHeld => {
            let detail = "No client holds the lock: your lease was released or has expired.";
            Problem::new(Code::LockNotHeld, detail)
        }
        LockLoss::Mismatch => {
            Problem::new(Code::TokenMismatch, "The lock is held, and not with this token.")
        }
    }
}

fn broken(code: Code, what: &str, why: &Break) -> Problem {
    let detail = format!("{what}: {}.", why.reason.as_str().trim_end_matches('.'));
    Problem::new(code, detail).with(|problem| problem.broken = Some(break_note(why)))
}

/// The grant or the wait that was to be broken is over, and another holds the lock.
pub(super) fn fence_mismatch(holding: &Holding) -> Problem {
    let detail = "The lock is held, and not with this fencing token; or none waits for it with this number. Nothing was broken.";
    let waiting = holding.first.waiting;
    with_holding(Problem::new(Code::FenceMismatch, detail), Some(holding), waiting)
}

/// Who holds a lock that was not acquired.
fn holder_body(holder: &keylatch_core::lock::Holder) -> keylatch_wire::Holder {
    keylatch_wire::Holder {
        owner: holder.owner.as_ref().map(|owner| owner.as_str().to_owned()),
        fencing_token: holder.fencing_token.get(),
        expires_in_ms: keylatch_wire::millis(holder.expires_in),
    }
}

/// The service cannot take the request, and did nothing.
pub(super) fn overloaded(detail: &'static str) -> Problem {
    not_now(Code::Overloaded, detail)
}

/// Nothing was done, and in a second it may be.
fn not_now(code: Code, detail: &'static str) -> Problem {
    Problem::new(code, detail)
        .with_outcome(Effect::NotExecuted)
        .with_retry_after(Duration::from_secs(1))
}

pub(super) fn lock_not_held() -> Problem {
    Problem::new(Code::LockNotHeld, "No client holds the lock.")
}

/// The request has no identity, and what it asks for needs one, in the header of this name.
pub(super) fn unauthenticated(why: RefusedCredential, header: &'static str) -> Problem {
    Problem::new(Code::Unauthenticated, format!("{why}. Nothing was done.")).with_field(header)
}

/// The identity may not do what the request asks for.
pub(super) fn forbidden(detail: impl std::fmt::Display) -> Problem {
    Problem::new(Code::Forbidden, format!("{detail} Nothing was done."))
}

/// The identity has as much as it may.
pub(super) fn quota_exceeded(refusal: QuotaRefusal) -> Problem {
    let QuotaRefusal { kind, limit, retry_after } = refusal;
    let what = match kind {
        QuotaKind::Locks => "hold and ask for {} locks",
        QuotaKind::Waiters => "wait in {} requests",
        QuotaKind::Streams => "read {} streams of events",
        QuotaKind::Records => "use {} idempotency keys",
        QuotaKind::Bytes => "keep {} bytes of responses",
        QuotaKind::Requests => "send {} requests a second",
    };
    let what = what.replace("{}", &limit.to_string());
    let detail = format!("Your identity may {what}, and no more. Nothing was done.");
    Problem::new(Code::QuotaExceeded, detail)
        .with(|problem| problem.quota = Some(<&str>::from(kind).into()))
        .with_outcome(Effect::NotExecuted)
        .with_retry_after(retry_after)
}

/// What the service of locks could not do.
pub(super) fn of_lock_error(error: LockError) -> Problem {
    match error {
        LockError::Store(error) => error.into(),
        LockError::TooLate => {
            let detail = "Nothing was left of the lease when the store's response came.";
            Problem::new(Code::StoreTooSlow, detail)
                .with_outcome(Effect::Unknown)
                .with_retry_after(Duration::from_secs(1))
                .caused_by(error)
        }
        LockError::TooManyWaiters => {
            not_now(Code::TooManyWaiters, "As many wait as may. Nothing was done.")
        }
        LockError::WaitEnded(why) => broken(Code::WaitEnded, "Your wait was ended", &why),
        LockError::Leaving => overloaded("The service is shutting down. Nothing was done."),
        LockError::Random(_) => {
            Problem::new(Code::Internal, "No token could be made. Nothing was done.")
                .with_outcome(Effect::NotExecuted)
                .caused_by(error)
        }
    }
}

/// The response to a request whose handler panicked. The panic itself is logged by the hook.
pub(super) fn of_panic(_: Box<dyn Any + Send>) -> Response {
    let detail = "The service failed. It is unknown whether the request was carried out.";
    let problem = Problem::new(Code::Internal, detail).with_outcome(Effect::Unknown);
    problem.with_retry().into_response()
}

/// The response; where it is a problem, its `type` and its `Link` lead to the page below this path.
pub(super) fn lead_below(path: &str, mut response: Response) -> Response {
    let page = match response.extensions().get() {
        Some(ProblemCode(code, _)) => code.page(),
        None => return response,
    };
    let below = format!("{path}{page}");
    let link = response.headers().get(header::LINK).and_then(|link| link.to_str().ok());
    if let Some(Ok(link)) = link.map(|link| HeaderValue::try_from(link.replacen(page, &below, 1))) {
        response.headers_mut().insert(header::LINK, link);
    }
    response.headers_mut().remove(header::CONTENT_LENGTH);
    response.map(|body| {
        // A problem is in memory, all of it. Its `type` comes first.
        let text = body.collect().now_or_never().and_then(Result::ok).unwrap_or_default();
        String::from_utf8_lossy(&text.to_bytes()).replacen(page, &below, 1).into()
    })
}
