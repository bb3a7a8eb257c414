//! Problems of this service alone, the errors and refusals of locks and a panic; and the problems that
//! each operation may answer with, for the OpenAPI document.
//!
//! The problem itself is that of `keylatch-axum`, and the table of codes that of `keylatch-wire`. For the
//! document, each operation has a type that lists its codes; the document has one response for each
//! status, with an example for each code. `tests/api/openapi.rs` provokes the problems over HTTP and
//! looks for each in the document.

use std::any::Any;
use std::collections::BTreeMap;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use utoipa::IntoResponses;
use utoipa::openapi::{
    self, ContentBuilder, HeaderBuilder, ObjectBuilder, Ref, RefOr, ResponseBuilder,
    example::ExampleBuilder, schema::Type,
};

use super::body::{break_note, public_holders};
use crate::access::{QuotaKind, QuotaRefusal, RefusedCredential};
use keylatch_core::lock::{
    Break, Contention, Holding, LockError, LockLoss, LostLock, SetContention,
};
use keylatch_core::store::Effect;

pub use keylatch_axum::{Code, Problem};

/// Another client holds the lock, or is before this one in the queue.
pub(super) fn held(contention: &Contention, waited: Option<Duration>) -> Problem {
    let detail = match &contention.holding {
        Some(holding) if holding.first.limit.is_shared() => "Other clients hold the lock.",
        Some(_) => "Another client holds the lock.",
        None => "The lock is about to be given to another client.",
    };
    of_contention(detail, contention)
        .with(|problem| problem.waited_ms = waited.map(keylatch_wire::millis))
}

/// The client holds the lock already, and is not alone. Without `waited_ms`, also where it asked to wait: by
/// that the Rust client knows that no repeat helps.
pub(super) fn not_alone(contention: &Contention) -> Problem {
    let detail = "You hold the lock together with others, or others wait for it, or your lease is broken. For \
                  fewer beside you, release it and ask for it again.";
    of_contention(detail, contention)
}

fn of_contention(detail: &'static str, contention: &Contention) -> Problem {
    let holding = contention.holding.as_ref();
    let free_in = holding.map_or(Duration::ZERO, |holding| holding.first.expires_in);
    let problem = Problem::new(Code::LockHeld, detail).with_retry_after(free_in);
    with_holding(problem, holding, contention.ahead)
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

/// One of several locks is not to be had.
pub(super) fn set_held(held: &SetContention, waited: Option<Duration>) -> Problem {
    self::held(&held.contention, waited)
        .with(|problem| problem.name = Some(held.name.as_str().to_owned()))
}

/// The client holds one of several locks already, and would hold it while it waits for another.
pub(super) fn set_not_alone(held: &SetContention) -> Problem {
    let detail = "You hold one of the locks already, and another is not to be had. Release what you hold, and \
                  ask for all of them together.";
    of_contention(detail, &held.contention)
        .with(|problem| problem.name = Some(held.name.as_str().to_owned()))
}

/// Some of several locks are lost; the problem is that of the first. `done` says what became of the others.
pub(super) fn set_lost(lost: &[LostLock], done: &str) -> Problem {
    let code_of = |loss: &LockLoss| match loss {
        LockLoss::Broken(_) => Code::LockBroken,
        LockLoss::Mismatch => Code::TokenMismatch,
        LockLoss::NotHeld => Code::LockNotHeld,
    };
    let first = lost.first().map_or(&LockLoss::NotHeld, |lost| &lost.loss);
    let detail =
        format!("You do not hold all of the locks; `locks` says which you lost, and how. {done}");
    let locks = lost.iter().map(|LostLock { name, loss }| keylatch_wire::LostLock {
        name: name.as_str().to_owned(),
        code: code_of(loss).slug().to_owned(),
    });
    Problem::new(code_of(first), detail).with(|problem| {
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

/// The lease of the client was broken.
pub(super) fn lock_broken(why: &Break) -> Problem {
    let detail = format!("Your lease was broken: {}.", why.reason.as_str().trim_end_matches('.'));
    Problem::new(Code::LockBroken, detail).with(|problem| problem.broken = Some(break_note(why)))
}

/// The grant that was to be broken is over, and another holds the lock.
pub(super) fn fence_mismatch(holding: &Holding) -> Problem {
    let detail = "The lock is held, and not with this fencing token. Nothing was broken.";
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
    Problem::new(Code::LockNotHeld, "No client holds the lock: it was released or has expired.")
}

pub(super) fn token_mismatch() -> Problem {
    Problem::new(Code::TokenMismatch, "The lock is held, and not with this token.")
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
        QuotaKind::Bytes => "have {} bytes of answers kept",
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
            let detail = "Nothing was left of the lease when the store answered.";
            Problem::new(Code::StoreTooSlow, detail)
                .with_outcome(Effect::Unknown)
                .with_retry_after(Duration::from_secs(1))
                .caused_by(error)
        }
        LockError::TooManyWaiters => {
            not_now(Code::TooManyWaiters, "As many wait as may. Nothing was done.")
        }
        LockError::Leaving => overloaded("The service is shutting down. Nothing was done."),
        LockError::Random(_) => {
            Problem::new(Code::Internal, "No token could be made. Nothing was done.")
                .with_outcome(Effect::NotExecuted)
                .caused_by(error)
        }
    }
}

/// The answer to a request whose handler panicked. The panic itself is logged by the hook.
pub(super) fn of_panic(_: Box<dyn Any + Send>) -> Response {
    let detail = "The service failed. It is unknown whether the request was carried out.";
    let problem = Problem::new(Code::Internal, detail).with_outcome(Effect::Unknown);
    problem.with_retry().into_response()
}

/// The token with which the examples work one after the other: create, renew, release.
pub(super) const TOKEN_EXAMPLE: &str = "swagger-example-token-0001";

/// What a client sends to an operation. It says which problems the operation has beside its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sends {
    /// A request that changes nothing.
    Read,
    /// A request that changes something, without a body.
    Change,
    /// A request that changes something, with a body.
    Body,
    /// Another: all of its problems are its own.
    Other,
}

impl Sends {
    /// All problems, in the order in which the document has those of one status.
    fn problems(self, own: &[Code]) -> Vec<Code> {
        use Code as C;
        let before = [
            C::InvalidHost,
            C::Unauthenticated,
            C::Forbidden,
            C::QuotaExceeded,
            C::StoreUnavailable,
        ];
        let body = [C::InvalidBody, C::RequestTimeout, C::PayloadTooLarge, C::UnsupportedMediaType];
        let after =
            [C::InvalidQuery, C::Internal, C::Overloaded, C::Timeout, C::MisdirectedRequest];
        match self {
            Self::Read => [&before, own, &after].concat(),
            Self::Change => [&before, own, &[C::StoreFull, C::CrossOrigin], &after].concat(),
            Self::Body => [&before, own, &[C::StoreFull, C::CrossOrigin], &body, &after].concat(),
            Self::Other => own.to_vec(),
        }
    }
}

/// Defines the problems of an operation: a type that documents these codes, and those that its kind of request has.
macro_rules! problems {
    ($($operation:ident: $sends:ident [$($code:ident),*];)+) => {$(
        pub(super) struct $operation;

        impl IntoResponses for $operation {
            fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
                by_status(&Sends::$sends.problems(&[$(Code::$code),*]))
            }
        }
    )+};
}

problems! {
    CreateProblems: Body [
        InvalidName, InvalidToken, LockHeld, TooManyWaiters, TooManyHolders, NotSupported, StoreTooSlow
    ];
    RenewProblems: Body [
        InvalidName, InvalidToken, LockNotHeld, LockBroken, TokenMismatch, TokenRequired, StoreTooSlow
    ];
    ReleaseProblems: Change [
        InvalidName, InvalidToken, LockNotHeld, TokenMismatch, TokenRequired, NotSupported
    ];
    CreateSetProblems: Body [
        InvalidToken, LockHeld, TooManyWaiters, TooManyHolders, NotSupported, StoreTooSlow
    ];
    RenewSetProblems: Body [
        InvalidToken, LockNotHeld, LockBroken, TokenMismatch, TokenRequired, NotSupported, StoreTooSlow
    ];
    ReleaseSetProblems: Change [InvalidToken, LockNotHeld, TokenMismatch, TokenRequired, NotSupported];
    BreakProblems: Body [InvalidName, BreakDisabled, LockNotHeld, FenceMismatch, NotSupported];
    BackupProblems: Read [BackupDisabled, CopyUnderWay, CrossOrigin, NotSupported];
    HistoryProblems: Read [InvalidName, NotSupported];
    GetProblems: Read [InvalidName, LockNotHeld];
    WatchProblems: Read [InvalidName, CrossOrigin];
    ListProblems: Read [];
    BeginProblems: Body [
        InvalidKey, InvalidToken, RequestInProgress, OutcomeUnknown, IdempotencyKeyReused, NotSupported
    ];
    CompleteProblems: Body [
        InvalidKey, InvalidToken, NoRecord, OutcomeUnknown, TokenMismatch, TokenRequired, NotSupported
    ];
    ExtendProblems: Change [InvalidKey, InvalidToken, TokenMismatch, TokenRequired, NotSupported];
    AbandonProblems: Change [
        InvalidKey, InvalidToken, NoRecord, OutcomeUnknown, TokenMismatch, TokenRequired, NotSupported
    ];
    FindProblems: Read [InvalidKey, NoRecord, NotSupported];
    EraseProblems: Change [InvalidKey, NoRecord, RequestInProgress, OutcomeUnknown, NotSupported];
    ResolveProblems: Body [InvalidKey, NoRecord, NothingToResolve, NotSupported];
    RecordListProblems: Other [
        InvalidHost, Unauthenticated, QuotaExceeded, InvalidQuery, Internal, NotSupported, StoreUnavailable,
        Overloaded, Timeout, MisdirectedRequest
    ];
    GuardedProblems: Other [
        InvalidHost, InvalidKey, KeyRequired, InvalidBody, RequestTimeout, RequestInProgress,
        OutcomeUnknown, AnswerNotKept, PayloadTooLarge, IdempotencyKeyReused, Internal, StoreUnavailable,
        StoreFull, Overloaded, Timeout, MisdirectedRequest, CrossOrigin, UnsupportedMediaType
    ];
    SandboxProblems: Other [IdempotencyKeyReused, ValidationFailed];
    IdentityGuardProblems: Other [Unauthenticated, QuotaExceeded];
    PrincipalGuardProblems: Other [
        InvalidHost, InvalidKey, KeyRequired, InvalidBody, InvalidPrincipal, PrincipalRequired
    ];
    GatewayProblems: Other [UpgradeRefused, UpstreamUnreachable, UpstreamSilent];
    PageProblems: Other [InvalidHost, NotFound, Internal, Overloaded, Timeout, MisdirectedRequest];
    OwnProblems: Other [
        InvalidHost, Unauthenticated, QuotaExceeded, Internal, Overloaded, Timeout, MisdirectedRequest
    ];
    MetricsProblems: Other [
        InvalidHost, Unauthenticated, Forbidden, QuotaExceeded, Internal, Overloaded, Timeout, MisdirectedRequest
    ];
    HealthProblems: Other [
        InvalidHost, Internal, StoreUnavailable, StoreFull, Overloaded, Timeout, MisdirectedRequest
    ];
}

/// The responses for `codes`: one for each status, with an example for each code.
fn by_status(codes: &[Code]) -> BTreeMap<String, RefOr<openapi::Response>> {
    let mut statuses: BTreeMap<String, Vec<Code>> = BTreeMap::new();
    for &code in codes {
        statuses.entry(code.status().to_string()).or_default().push(code);
    }
    statuses.into_iter().map(|(status, codes)| (status, RefOr::T(response(&codes)))).collect()
}

fn response(codes: &[Code]) -> openapi::Response {
    let titles: Vec<_> =
        codes.iter().map(|code| format!("`{}`: {}", code.slug(), code.title())).collect();
    let examples = codes.iter().map(|&code| {
        let example = ExampleBuilder::new().value(Some(example(code)));
        (code.slug(), RefOr::T(example.build()))
    });
    let content = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name("Problem")))
        .examples_from_iter(examples)
        .build();
    let mut response = ResponseBuilder::new()
        .description(titles.join("; "))
        .content("application/problem+json", content);
    if codes.iter().any(|code| matches!(code.status(), 409 | 429 | 503)) {
        let seconds = HeaderBuilder::new()
            .schema(Some(ObjectBuilder::new().schema_type(Type::Integer)))
            .description(Some("When it is worth trying again, in seconds"));
        response = response.header("Retry-After", seconds.build());
    }
    if codes.contains(&Code::Unauthenticated) {
        let challenges = HeaderBuilder::new()
            .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
            .description(Some("`Basic` and `Bearer`, a header line each"));
        response = response.header("WWW-Authenticate", challenges.build());
    }
    response.build()
}

fn example(code: Code) -> serde_json::Value {
    let mut example = serde_json::json!({
        "type": code.page(),
        "title": code.title(),
        "status": code.status(),
        "detail": code.advice(),
        "code": code.slug(),
    });
    match code {
        Code::LockHeld => {
            example["holder"] = serde_json::json!({
                "owner": "ci runner 7", "fencing_token": 1_779_900_000_000_000_u64,
                "expires_in_ms": 12345,
            });
            example["ahead"] = 0.into();
            example["retry_after_ms"] = 12345.into();
        }
        Code::LockBroken => {
            example["broken"] = serde_json::json!({
                "reason": "runner 7 is gone", "by": "alice", "at": "2026-05-27T16:40:00Z",
            });
        }
        Code::QuotaExceeded => {
            example["quota"] = "locks".into();
            example["outcome"] = "not-executed".into();
            example["retry_after_ms"] = 1000.into();
        }
        Code::StoreUnavailable | Code::StoreFull | Code::StoreTooSlow | Code::Timeout => {
            example["outcome"] = "unknown".into();
            example["retry_after_ms"] = 1000.into();
        }
        _ => {}
    }
    example
}
