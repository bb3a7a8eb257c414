//! What a record is made of, and the commands on it as data.
//!
//! A command names no record: the store runs it under a [`RecordKey`]. Every command is safe to
//! repeat with the same token. What each one does is in `rules.rs`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use super::{Fingerprint, RecordKey, RecordScope};
use crate::lock::{FencingToken, TokenHash};

/// One step on one record.
#[derive(Debug, Clone)]
pub enum RecordCommand {
    /// Starts a run, or finds an earlier one.
    Begin(BeginCommand),
    /// Lets the lease of a run last its full time from now.
    Renew {
        /// The token that began.
        token: TokenHash,
    },
    /// Ends a run and keeps what it came to.
    Complete {
        /// The token that began.
        token: TokenHash,
        /// How it ended.
        end: RunEnd,
    },
    /// Frees a key under which nothing was done.
    Abandon {
        /// The token that began.
        token: TokenHash,
    },
    /// Settles an unknown outcome.
    Resolve(ResolveCommand),
    /// Removes what is kept of a response, but its status. The key stays used.
    Erase,
    /// Reads the record.
    Look,
}

/// What a [`RecordCommand`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordReply {
    /// To [`RecordCommand::Begin`].
    Begin(BeginReply),
    /// To [`RecordCommand::Renew`].
    Renew(RunRenewal),
    /// To [`RecordCommand::Complete`].
    Complete(CompleteReply),
    /// To [`RecordCommand::Abandon`].
    Abandon(AbandonReply),
    /// To [`RecordCommand::Resolve`].
    Resolve(ResolveReply),
    /// To [`RecordCommand::Erase`].
    Erase(EraseReply),
    /// To [`RecordCommand::Look`]: the record, if there is one.
    Look(Option<RecordView>),
}

impl RecordReply {
    /// Whether it shows a response that has only its stub: see [`StoredResponse::Stub`].
    pub fn has_stub(&self) -> bool {
        let phase = self.view().map(|view| &view.phase);
        matches!(phase, Some(RecordStatus::Done { kept: StoredResponse::Stub(_), .. }))
    }

    fn view(&self) -> Option<&RecordView> {
        match self {
            Self::Begin(BeginReply::Found(view) | BeginReply::Reused(view))
            | Self::Complete(EndReply::Done(view) | EndReply::Refused(view))
            | Self::Abandon(EndReply::Refused(view))
            | Self::Resolve(ResolveReply::Completed(view) | ResolveReply::Refused(view))
            | Self::Erase(EndReply::Done(view) | EndReply::Refused(view))
            | Self::Look(Some(view)) => Some(view),
            Self::Begin(BeginReply::Started(_) | BeginReply::Again(_) | BeginReply::NoRoom)
            | Self::Renew(_)
            | Self::Complete(EndReply::Absent)
            | Self::Abandon(EndReply::Done(()) | EndReply::Absent)
            | Self::Resolve(ResolveReply::Freed(_) | ResolveReply::Absent)
            | Self::Erase(EndReply::Absent)
            | Self::Look(None) => None,
        }
    }
}

/// What a caller wants when it begins.
#[derive(Debug, Clone)]
pub struct BeginCommand {
    /// The digest of idempotency key and scope.
    pub key: RecordKey,
    /// What it is about, for a person to recognise it.
    pub scope: RecordScope,
    /// The proof with which the caller will complete it.
    pub token: TokenHash,
    /// What is to be done: another fingerprint under the same key is another request.
    pub fingerprint: Fingerprint,
    /// How long the caller may go unheard before it counts as gone.
    pub lease: Duration,
    /// How long the record is kept once its end is known.
    pub retention: Duration,
    /// What a caller that is gone leaves behind.
    pub on_crash: OnCrash,
    /// Whether there is room for the response of a run that starts now. Where there is none, no run
    /// starts.
    pub has_room: bool,
}

/// What becomes of a record whose caller goes away during the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnCrash {
    /// The outcome is unknown, and the work is not done again before an operator resolves it.
    Unknown,
    /// The next caller that begins does the work again, under a higher fencing token.
    Rerun,
}

/// What became of a [`BeginCommand`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BeginReply {
    /// The caller is to do it now.
    Started(Run),
    /// The caller's token had started it already, and it is still to be done.
    Again(Run),
    /// It was begun before.
    Found(RecordView),
    /// The key was used for something else.
    Reused(RecordView),
    /// A run would have started, and there is no room for its response.
    NoRoom,
}

/// A run that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Larger than that of every earlier run under the key.
    pub fencing_token: FencingToken,
    /// Which run it is, from 1.
    pub attempts: u32,
    /// What is left of its lease, by the store's clock.
    pub lease: Duration,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEnd {
    /// The work was done, and this response is replayed from now on.
    Done(StoredResponse),
    /// The same, and the response is kept for so long, whatever was said at the beginning.
    DoneFor(StoredResponse, Duration),
    /// The outcome is unknown.
    Unknown(UnknownReason),
    /// The same, of a run that was sent on.
    SentOn(UnknownReason, Arc<SentOn>),
}

/// What an operator finds a run by that was sent on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentOn {
    /// The HTTP status that came back.
    pub status: Option<u16>,
    /// The id that its request had.
    pub request_id: Option<String>,
}

/// What is kept of a response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoredResponse {
    /// All of it.
    Answer(Arc<Answer>),
    /// Only that it was given, with this HTTP status: it was too large, or a stream.
    Mark(u16),
    /// All of it, encrypted. It is read only by who has the key.
    Sealed(Arc<SealedAnswer>),
    /// All of it, and a store has this in memory in its place. No store replies with it: a store
    /// reads the response first.
    #[serde(skip)]
    Stub(AnswerStub),
}

/// What a store has in memory of a response that it keeps elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerStub {
    /// The HTTP status of the response.
    pub status: u16,
    /// How many bytes of it are kept, headers and body.
    pub kept_bytes: u64,
}

impl StoredResponse {
    /// The status of the response.
    pub fn status(&self) -> u16 {
        match self {
            Self::Answer(answer) => answer.status,
            Self::Mark(status) => *status,
            Self::Sealed(sealed) => sealed.status,
            Self::Stub(stub) => stub.status,
        }
    }

    /// What stands for it where the answer is kept elsewhere.
    pub fn stub(&self) -> AnswerStub {
        AnswerStub { status: self.status(), kept_bytes: self.kept_bytes() }
    }

    /// How many bytes of the response are kept, headers and body.
    pub fn kept_bytes(&self) -> u64 {
        match self {
            Self::Answer(answer) => {
                let headers = answer.headers.iter().map(|(name, value)| name.len() + value.len());
                (headers.sum::<usize>() + answer.body.len()) as u64
            }
            Self::Mark(_) => 0,
            Self::Sealed(sealed) => (sealed.key_id.len() + sealed.bytes.len()) as u64,
            Self::Stub(stub) => stub.kept_bytes,
        }
    }
}

/// A response that every repeat is given.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// Header names, in lower case, and values, in their order.
    pub headers: Vec<(String, Bytes)>,
    /// The body.
    pub body: Bytes,
}

impl fmt::Debug for Answer {
    /// Shows the status alone: headers and body are the client's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({}, ..)", self.status)
    }
}

/// An [`Answer`] that is encrypted. Lists show its status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedAnswer {
    /// The HTTP status.
    pub status: u16,
    /// Which key it is encrypted with.
    pub key_id: String,
    /// The rest.
    pub bytes: Bytes,
}

/// Why the end of a run is unknown.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
pub enum UnknownReason {
    /// The run was not renewed for a whole lease.
    Interrupted,
    /// It answered with a server error.
    Failed,
    /// It panicked.
    Panicked,
    /// It was sent on, and no response came back.
    NoAnswer,
    /// Its caller says that it failed half way.
    Reported,
}

impl UnknownReason {
    /// The reason as the API writes it.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// What happened, as a sentence for the client that repeats the request.
    pub fn detail(self) -> &'static str {
        match self {
            Self::Interrupted => "It was begun, and the process that carried it out is gone.",
            Self::Failed => "It was begun, and failed with a server error.",
            Self::Panicked => "It was begun, and failed in the middle.",
            Self::NoAnswer => "It was sent on, and no response came back.",
            Self::Reported => "It was begun, and its caller says that it failed half way.",
        }
    }
}

/// What became of a command that ends a run, or removes what one left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndReply<T = RecordView> {
    /// It is done; the same again is the same.
    Done(T),
    /// The record is not such that it could be: the run is no longer the token's, or there is no
    /// response.
    Refused(RecordView),
    /// There is no such record.
    Absent,
}

/// What became of a [`RecordCommand::Complete`]: the end is kept, or the run is no longer the
/// token's, because its lease ended or it never was.
pub type CompleteReply = EndReply;

/// What became of an attempt to abandon a run: the key is as if it had never been used, or the run
/// is no longer the token's.
pub type AbandonReply = EndReply<()>;

/// What became of an erasure: nothing but the status is kept of the response, or there is none,
/// because it is in flight or its outcome is unknown.
pub type EraseReply = EndReply;

/// What became of a renewal of a run's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunRenewal {
    /// It lasts its full time from now.
    Extended,
    /// The run is no longer the token's.
    Lost,
}

/// Says what is known now of a run.
#[derive(Debug, Clone)]
pub struct ResolveCommand {
    /// The digest of idempotency key and scope.
    pub key: RecordKey,
    /// The run that is meant, if the caller wants to be sure that there was no later one.
    pub fencing_token: Option<FencingToken>,
    /// What is known.
    pub end: Settlement,
}

/// What is known now of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// Its outcome was unknown: it was done, and this is its response.
    Done(StoredResponse),
    /// The same, and the response is kept for so long.
    DoneFor(StoredResponse, Duration),
    /// Its outcome was unknown: nothing was done, and the key is free.
    NotExecuted,
    /// It was done, and what it did was taken back: the key is free. Only with the fencing token of
    /// the run, so that a repeated command frees no later one.
    Undone,
}

impl From<Option<StoredResponse>> for Settlement {
    /// Of an unknown outcome: its response, or that nothing was done.
    fn from(end: Option<StoredResponse>) -> Self {
        end.map_or(Self::NotExecuted, Self::Done)
    }
}

/// What became of a [`ResolveCommand`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResolveReply {
    /// Settled: every repeat is given the response.
    Completed(RecordView),
    /// Settled: the key is free. This was the fencing token of its run.
    Freed(FencingToken),
    /// It is not so: there is nothing to settle or to take back, or another run is the last one.
    Refused(RecordView),
    /// There is no such record.
    Absent,
}

/// A record as any client may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordView {
    /// The digest of the token that runs it, or ended it.
    pub token: TokenHash,
    /// The fencing token of its last run.
    pub fencing_token: FencingToken,
    /// How many runs there were.
    pub attempts: u32,
    /// When it was first begun by the store's wall clock, in milliseconds since 1970. For people
    /// to read; nothing compares it.
    pub begun_at_millis: u64,
    /// How long the key is remembered, at least, by the store's clock.
    pub expires_in: Duration,
    /// How far it is.
    pub phase: RecordStatus,
}

/// How far a record is, with what is kept of its response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordStatus {
    /// A caller does the work. A lease of zero means that this caller is gone and the next caller
    /// may do the work again.
    InFlight {
        /// What is left of its lease, by the store's clock.
        lease: Duration,
    },
    /// The work was done, and repeats read its response.
    Done {
        /// When, by the store's wall clock, in milliseconds since 1970.
        at_millis: u64,
        /// The response.
        kept: StoredResponse,
    },
    /// It is unknown whether it was done.
    Unknown {
        /// Since when, by the store's wall clock, in milliseconds since 1970.
        since_millis: u64,
        /// How the run ended without a known outcome.
        reason: UnknownReason,
        /// What it is found by, if it was sent on.
        sent: Option<Arc<SentOn>>,
    },
}
