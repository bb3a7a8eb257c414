//! A guard that only observes: each request passes as it came, and is counted by what enforcing
//! would have made of it.
//!
//! The key and the fingerprint are read from a copy, and the run is that of the core, on a record
//! of its own kind that has hashes alone. Invariant: the upstream gets each request once, as it
//! came, and the client the response, whatever the store or the reading of the key comes to. Tested
//! in `tests/api/observed_guards.rs` on every store.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::response::Response;
use futures_util::stream::{self, StreamExt as _};
use http_body::Frame;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use strum::IntoStaticStr;
use tokio::time::{Instant, timeout_at};

use crate::key_source::KeyKind;
use crate::response::retention_of;
use crate::{BodyLimits, Code, Guard, KeepFor, Problem, RetentionPolicy};
use keylatch_core::idempotency::{
    IdempotencyError, OnCrash, OnceRun, RecordScope, RecordStatus, RunEnd, RunRequest, RunResult,
    StoredResponse,
};

/// How long a step of the store may delay a request.
const STEP_LIMIT: Duration = Duration::from_millis(250);

/// What is kept of a run whose outcome would be unknown.
const UNKNOWN: StoredResponse = StoredResponse::Mark(0);

/// What enforcing would have made of a request. In metrics it is named in snake case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Observed {
    /// It would have run: it is the first with its key.
    First,
    /// It would have got the response of the first one.
    Replayed,
    /// It would have waited for the first one, or been refused with 409.
    InProgress,
    /// Its key was used for another request: 422.
    Mismatched,
    /// It has no key: 400.
    KeyRequired,
    /// Another refusal, before the store is asked.
    Unreadable,
    /// The outcome of the first one is unknown: 409.
    Unknown,
    /// Another request has done what is done once: 409.
    AlreadyDone,
    /// The store did not say.
    Unobserved,
}

impl Observed {
    pub(crate) fn of_refusal(problem: &Problem) -> Self {
        if problem.code() == Code::KeyRequired { Self::KeyRequired } else { Self::Unreadable }
    }

    pub(crate) fn of_run(run: Result<OnceRun<()>, IdempotencyError>, kind: KeyKind) -> Self {
        let (view, is_other) = match run {
            Ok(OnceRun::Ran { .. } | OnceRun::Interrupted) => return Self::First,
            Ok(OnceRun::Reused(_)) if kind != KeyKind::OncePer => return Self::Mismatched,
            Ok(OnceRun::Found(view)) => (view, false),
            Ok(OnceRun::Reused(view)) => (view, true),
            Err(_) => return Self::Unobserved,
        };
        match view.phase {
            RecordStatus::Done { kept: UNKNOWN, .. } => Self::Unknown,
            RecordStatus::Done { .. } if is_other => Self::AlreadyDone,
            RecordStatus::Done { .. } => Self::Replayed,
            RecordStatus::InFlight { .. } => Self::InProgress,
            RecordStatus::Unknown { .. } => Self::Unknown,
        }
    }
}

/// In the extensions of a request: an enforcing guard would have refused it before its key is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WouldRefuse;

/// The whole body; or the body as it came, where it is too large or too slow, or breaks off.
pub(crate) async fn read_ahead(mut body: Body, limits: BodyLimits) -> Result<Bytes, Body> {
    if body.size_hint().lower() > limits.bytes as u64 {
        return Err(body);
    }
    let (mut frames, mut read, end) = (Vec::new(), Vec::new(), Instant::now() + limits.time);
    while let Ok(frame) = timeout_at(end, body.frame()).await {
        let Some(frame) = frame else { return Ok(read.into()) };
        if let Ok(Some(data)) = frame.as_ref().map(Frame::data_ref) {
            read.extend_from_slice(data);
        }
        let is_broken = frame.is_err();
        frames.push(frame);
        if is_broken || read.len() > limits.bytes {
            break;
        }
    }
    Err(Body::new(StreamBody::new(stream::iter(frames).chain(BodyStream::new(body)))))
}

/// Has the run use a record that no enforcing guard finds, keep nothing of its response and wait
/// for no other run.
pub(crate) fn make_observed(ask: &mut RunRequest) {
    let (key, scope) = RecordScope::observed(&ask.key);
    (ask.key, ask.scope) = (key, scope.in_share(ask.scope.share()));
    (ask.wait, ask.step_limit) = (Duration::ZERO, Some(STEP_LIMIT));
    (ask.on_crash, ask.answer_bytes) = (OnCrash::Unknown, 0);
}

/// How enforcing would have ended the run, without the response. An unknown outcome is a status
/// too: nobody settles it.
pub(crate) fn observed_result(response: &Response, guard: &Guard) -> RunResult<()> {
    let end = match (retention_of(response, guard), response.extensions().get()) {
        (RetentionPolicy::Release, _) => None,
        (RetentionPolicy::Unknown, _) => Some(RunEnd::Done(UNKNOWN)),
        (_, Some(KeepFor(lasts))) => Some(RunEnd::DoneFor(StoredResponse::Mark(200), *lasts)),
        (_, None) => Some(RunEnd::Done(StoredResponse::Mark(200))),
    };
    RunResult { answer: (), end, late: None }
}
