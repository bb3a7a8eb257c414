//! Doing a thing once: idempotency keys, the records under them, and the service that runs what is
//! new and finds what is not.
//!
//! This module knows no HTTP server and no store engine. [`RecordState`] holds the rules as a pure
//! function, [`RecordCommand`] and [`RecordReply`] are the steps as data, and
//! [`IdempotencyService`] is what a layer or a handler calls.

mod fingerprint;
mod key;
mod list;
mod record;
mod room;
mod rules;
mod run;
mod scope;
mod service;

pub use fingerprint::{Fingerprint, FingerprintHasher};
pub use key::{IdempotencyKey, InvalidKey, Principal, RecordKey, Scope};
pub use list::{PhaseName, RecordFilter, RecordReader, RecordSummary};
pub use record::{
    AbandonReply, Answer, AnswerStub, BeginCommand, BeginReply, CompleteReply, EndReply,
    EraseReply, OnCrash, RecordCommand, RecordReply, RecordStatus, RecordView, ResolveCommand,
    ResolveReply, Run, RunEnd, RunRenewal, SealedAnswer, SentOn, Settlement, StoredResponse,
    UnknownReason,
};
pub use room::{NoRoom, RecordRoom, Share, TakenRoom, Use};
pub use rules::{Record, RecordStage, RecordState, UNKNOWN_RETENTION};
pub use run::{IdempotencyError, LateWork, OnceRun, RunRequest, RunResult};
pub use scope::RecordScope;
pub use service::{IdempotencyService, RecordLimits};
