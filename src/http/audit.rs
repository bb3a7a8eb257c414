//! What the audit log has of a request.
//!
//! An act on the work of others is written before the store is asked, so that none is done without
//! a line, and again with what came of it; the request's id joins the two. What a client does to
//! locks of its own is written once, when it is done. Tested in `tests/api/audit.rs`.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Uri};
use percent_encoding::percent_decode_str;
use serde::Serialize;

use super::api::Api;
use super::origin::ConnectionInfo;
use super::problem::{Code, Problem};
use crate::access::Identity;
use crate::audit::AuditLog;
use keylatch_core::idempotency::RecordScope;
use keylatch_core::lock::{
    EndCause, FencingToken, GrantEnd, HoldObserver, Lease, LockName, LossReason, Reason,
};
use keylatch_wire::millis;

/// The longest name of a lock or a key that a refused request has in its line.
const SUBJECT_MAX_CHARS: usize = 255;

/// The id of the request, in its extensions where there is an audit log.
#[derive(Debug, Clone)]
pub(super) struct RequestId(pub(super) HeaderValue);

/// What a client did.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "act", rename_all = "lowercase")]
pub(super) enum Act {
    /// It was granted a lock.
    Grant { lock: String, fencing_token: u64, owner: Option<String> },
    /// It released a lock.
    Release { lock: String, fencing_token: Option<u64>, held_ms: Option<u64> },
    /// Its connection held a lock and lost it.
    Lost { lock: String, fencing_token: u64, reason: &'static str },
    /// It broke the lease of a lock, or ended a wait for it.
    Break {
        lock: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        fencing_token: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        waiter: Option<u64>,
        by: Option<String>,
        reason: String,
    },
    /// It settled the unknown outcome of a key.
    Resolve {
        key: String,
        method: String,
        path: String,
        fencing_token: Option<u64>,
        outcome: &'static str,
        by: Option<String>,
        reason: Option<String>,
    },
    /// It failed half way in its run under a key.
    Fail { key: String, method: String, path: String, fencing_token: u64, reason: Option<String> },
    /// It erased the response of a key.
    Erase { key: String, method: String, path: String },
    /// It copied the store.
    Backup,
    /// It was refused.
    Refused {
        method: &'static str,
        route: String,
        status: u16,
        code: &'static str,
        #[serde(flatten)]
        subject: Option<Subject>,
        /// The service knows its clients, and not this one.
        #[serde(skip)]
        is_stranger: bool,
    },
}

impl Act {
    /// Says which run it settled.
    pub(super) fn name_run(&mut self, run: FencingToken) {
        if let Self::Resolve { fencing_token, .. } = self {
            *fencing_token = Some(run.get());
        }
    }

    fn granted(lock: &LockName, lease: &Lease) -> Self {
        Self::Grant {
            lock: lock.as_str().to_owned(),
            fencing_token: lease.fencing_token.get(),
            owner: lease.owner.as_ref().map(|owner| owner.as_str().to_owned()),
        }
    }

    fn released(lock: &LockName, end: Option<&GrantEnd>) -> Self {
        let unbroken = end.filter(|end| end.cause == EndCause::Release);
        Self::Release {
            lock: lock.as_str().to_owned(),
            fencing_token: end.map(|end| end.fencing_token.get()),
            held_ms: unbroken.map(|end| millis(end.held_for())),
        }
    }
}

/// What the path of a request is about.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Subject {
    Lock(String),
    Key(String),
}

impl Subject {
    /// The lock or the key of a request at a route of the API, if its path names one.
    pub(super) fn of(route: &str, uri: &Uri) -> Option<Self> {
        let subject = if route.starts_with("/v1/locks/{name}") {
            Self::Lock
        } else if route.starts_with("/v1/idempotency/{key}") {
            Self::Key
        } else {
            return None;
        };
        let name = percent_decode_str(uri.path().split('/').nth(3)?).decode_utf8_lossy();
        Some(subject(name.chars().take(SUBJECT_MAX_CHARS).collect()))
    }
}

/// How far an act is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Progress {
    /// The store is asked.
    Asked,
    /// It is done.
    Done,
    /// It is not done.
    Refused,
    /// It may be done.
    Unknown,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    identity: Option<&'a str>,
    #[serde(flatten)]
    act: &'a Act,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Progress>,
}

/// Writes what a request does to the audit log, if there is one.
#[derive(Debug, Clone)]
pub(super) struct Auditor(Option<Author>);

/// The log, and whose lines these are.
#[derive(Debug, Clone)]
struct Author {
    log: Arc<AuditLog>,
    id: RequestId,
    identity: Option<Arc<Identity>>,
}

impl FromRequestParts<Arc<Api>> for Auditor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        let Some(log) = &api.audit else { return Ok(Self(None)) };
        let id = parts.extensions.get::<RequestId>().cloned();
        let identity = ConnectionInfo::identity(&parts.extensions).cloned();
        Ok(Self(id.map(|id| Author { log: Arc::clone(log), id, identity })))
    }
}

impl Auditor {
    /// Does what asks the store, between a line that says so and one that says what came of it.
    /// `found` adds to the second what the store knew.
    pub(super) async fn follow<T>(
        &self,
        mut act: Act,
        done: impl Future<Output = Result<T, Problem>>,
        found: impl FnOnce(&mut Act, &T),
    ) -> Result<T, Problem> {
        let Some(author) = &self.0 else { return done.await };
        author.write(&act, Some(Progress::Asked));
        let result = done.await;
        let progress = match &result {
            Ok(value) => {
                found(&mut act, value);
                Progress::Done
            }
            Err(problem) => match problem.document().outcome {
                Some(keylatch_wire::Effect::Unknown) => Progress::Unknown,
                _ => Progress::Refused,
            },
        };
        author.write(&act, Some(progress));
        result
    }

    pub(super) fn granted<'a>(&self, leases: impl IntoIterator<Item = (&'a LockName, &'a Lease)>) {
        for (name, lease) in leases {
            self.write(|| Act::granted(name, lease));
        }
    }

    pub(super) fn released(&self, name: &LockName, end: Option<&GrantEnd>) {
        self.write(|| Act::released(name, end));
    }

    fn write(&self, act: impl FnOnce() -> Act) {
        if let Some(author) = &self.0 {
            author.write(&act(), None);
        }
    }

    /// Writes that a run failed half way, as its client says.
    pub(super) fn failed(&self, scope: &RecordScope, run: FencingToken, reason: Option<&Reason>) {
        self.write(|| Act::Fail {
            key: scope.key().as_str().to_owned(),
            method: scope.method().to_owned(),
            path: scope.path().to_owned(),
            fencing_token: run.get(),
            reason: reason.map(|reason| reason.as_str().to_owned()),
        });
    }

    /// What writes how a connection holds a lock, if there is a log.
    pub(super) fn hold_observer(&self, name: &LockName) -> Option<Arc<dyn HoldObserver>> {
        let (author, name) = (self.0.clone()?, name.clone());
        Some(Arc::new(HoldAuditor { author, name }))
    }
}

/// Why a lock is lost, as the label `reason` and the audit log name it.
pub(super) fn loss_label(lost: &LossReason) -> &'static str {
    match lost {
        LossReason::MaxHold => "max_hold",
        LossReason::Shutdown => "shutdown",
        LossReason::Revoked => "revoked",
        LossReason::NotHeld => "not_held",
        LossReason::TakenOver => "taken_over",
        LossReason::Broken(_) => "broken",
        LossReason::Unrenewed => "unrenewed",
    }
}

/// Writes how a connection holds a lock.
#[derive(Debug)]
struct HoldAuditor {
    author: Author,
    name: LockName,
}

impl HoldObserver for HoldAuditor {
    fn granted(&self, lease: &Lease) {
        self.author.write(&Act::granted(&self.name, lease), None);
    }

    fn lost(&self, fencing_token: FencingToken, reason: &LossReason) {
        let (lock, fencing_token) = (self.name.as_str().to_owned(), fencing_token.get());
        let reason = loss_label(reason);
        self.author.write(&Act::Lost { lock, fencing_token, reason }, None);
    }

    fn released(&self, end: Option<&GrantEnd>) {
        self.author.write(&Act::released(&self.name, end), None);
    }
}

impl Author {
    fn write(&self, act: &Act, result: Option<Progress>) {
        write(&self.log, Some(&self.id.0), self.identity.as_deref(), act, result);
    }
}

/// Whether a request is refused that is answered with this problem. One that only reads, and finds
/// nothing, is not.
pub(super) fn is_refusal(method: &str, code: Code) -> bool {
    let finds_nothing =
        code.status() == 404 && [Method::GET, Method::HEAD].iter().any(|it| it == method);
    (400..500).contains(&code.status()) && !finds_nothing
}

/// Writes an act of a request, or of the service itself where there is no `id`; `result` is how far
/// one is that the store is asked for.
pub(super) fn write(
    log: &AuditLog,
    id: Option<&HeaderValue>,
    identity: Option<&Identity>,
    act: &Act,
    result: Option<Progress>,
) {
    let identity = identity.map(|identity| identity.name.as_str());
    let request_id = id.map(|id| id.to_str().unwrap_or_default());
    let is_of_stranger = matches!(act, Act::Refused { is_stranger: true, .. });
    log.write(&Line { request_id, identity, act, result }, is_of_stranger);
}
