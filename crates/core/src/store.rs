//! The port between the services and the stores: commands as data, and what a store says of itself.
//!
//! A [`Command`] is a value, so that a decorator is a few lines, a log of commands is a test case,
//! and an engine is one `match`. The services call the typed helpers on `dyn Store`, such as
//! [`acquire`](#method.acquire), which build the command and unwrap its reply. The contract is on
//! [`Store`]; the conformance tests hold every store to it, and the differential tests hold every
//! store to the rules of [`LockState`] and [`RecordState`].

/// What a reply of the store says, or the error of a store that replied to another command, which
/// has a defect.
macro_rules! reply {
    ($step:expr, $reply:pat => $found:expr) => {
        match $step.await? {
            $reply => Ok($found),
            _ => Err(StoreError::mismatched_reply()),
        }
    };
}

mod backup;
mod locks;
mod records;

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::Stream;
use strum::IntoStaticStr;

use crate::entry::Entry as _;
use crate::idempotency::{
    RecordCommand, RecordFilter, RecordKey, RecordReply, RecordRoom, RecordState, RecordSummary,
};
use crate::lock::{
    Change, GrantEnd, Holding, LockCommand, LockName, LockReply, LockSet, LockState, TokenHash, Ttl,
};

pub use backup::Backup;

/// Where locks and records are kept.
///
/// # Contract
///
/// - [`execute`](Store::execute) runs one command on a record, or on one lock or several, as **one
///   atomic step**: every observer sees all that it changes before the step or after it. Only a
///   listing, which is no observer of one moment, may see one lock of a step before and another
///   after. A store that takes no step on several locks says
///   [`Unsupported`](StoreError::Unsupported) every time.
/// - Every command is **safe to repeat**: the same command again changes nothing that the first did
///   not change, and replies the same about the caller's own grant or run.
/// - **Held, expired and mismatched are values.** `Err` means that the store could not find out,
///   and [`StoreError::effect`] says whether the step may have been executed all the same.
/// - A lease, a queue entry or a record **expires by the store's clock**, judged at the moment of
///   the step. What crosses this port is a duration, so no two clocks are ever compared.
/// - **Fencing tokens rise**: a grant's token is larger than that of every earlier grant of the
///   same name that it cannot be held together with, over release, expiry and restart, and also
///   when the counter was lost, as long as the store's wall clock did not go back. The same holds
///   for the runs of a record.
/// - An unknown outcome is kept for 30 days, so that a person can resolve it.
/// - **A reply that shows a response has all of it**, as it was completed or resolved, wherever the
///   store keeps it; where it cannot be read, the store could not find out.
/// - A store **never waits for a lock** and keeps no deadline: the services do. A future that is
///   dropped may leave its step executed or not. A withdrawal that is sent after that takes effect
///   after the step, or the step has no effect.
/// - A store removes what has expired by itself, in its own task, which ends with the store.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Runs a command on an entry.
    ///
    /// # Errors
    ///
    /// The store could not find out, or keeps no entries of this kind.
    async fn execute(&self, command: Command) -> Result<Reply, StoreError>;

    /// A page of the held locks: what is on it, and where the next page begins. `None` when the
    /// cursor is not one that this store gave to a query of the same kind. Locks are in the order
    /// of the bytes of their names over all pages where the engine has such an order, and elsewhere
    /// in none.
    ///
    /// Over all pages, a lock that was held throughout is there at least once.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    async fn list_locks(&self, query: &ListLocks) -> Result<Option<Page<Holding>>, StoreError>;

    /// A page of the records, in no order, likewise: over all pages, a record that the filter
    /// admitted throughout is there at least once. A page of records that are in flight or unknown
    /// costs as many records as are either, however many are done.
    ///
    /// # Errors
    ///
    /// The store could not find out, or keeps no records.
    async fn list_records(
        &self,
        query: &ListRecords,
    ) -> Result<Option<Page<RecordSummary>>, StoreError>;

    /// A copy of all that the store keeps, while it serves. A store whose engine makes copies by
    /// itself does not give one.
    ///
    /// # Errors
    ///
    /// The store has no copy to give, or gives one already.
    async fn back_up(&self) -> Result<Backup, StoreError> {
        Err(StoreError::Unsupported)
    }

    /// Hints about an entry from now on. A hint may come too often and, where messages get lost,
    /// not at all; the services ask again after a while in any case. A store that hears of nothing
    /// gives a stream that never yields.
    fn subscribe(&self, topic: Topic) -> Hints;

    /// Asks whether the store can do its work, and what it is.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    async fn health(&self) -> Result<StoreHealth, StoreError>;

    /// What the store can do, which does not change.
    fn profile(&self) -> StoreProfile;

    /// What the part of the store that is in this process comes to now, without asking an engine.
    fn gauges(&self) -> StoreGauges;
}

/// One step on a lock or several, or on a record.
#[derive(Debug, Clone)]
pub enum Command {
    /// One step on the locks of these names.
    Lock(LockSet, LockCommand),
    /// A step on the record under this key.
    Record(RecordKey, RecordCommand),
}

impl Command {
    /// Whether the command undoes another, which may still be on its way to the store: then a store
    /// does not answer it from what it remembers, before that one.
    pub fn is_undo(&self) -> bool {
        match self {
            Self::Lock(_, command) => LockState::is_undo(command),
            Self::Record(_, command) => RecordState::is_undo(command),
        }
    }
}

/// What a [`Command`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The reply to a step on locks.
    Lock(LockReply),
    /// The reply to a step on a record.
    Record(RecordReply),
}

/// What a store can do.
#[derive(Debug, Clone, Copy)]
pub struct StoreProfile {
    /// The kind of store, as in its URL's scheme.
    pub kind: &'static str,
    /// The longest TTL that the store takes: what it needs to keep its promise.
    pub max_ttl: Ttl,
    /// Whether the store keeps records of idempotency keys.
    pub records: bool,
    /// How large an entry may be.
    pub limits: EntryLimits,
}

impl StoreProfile {
    /// A store that keeps records and takes every TTL.
    pub fn new(kind: &'static str, limits: EntryLimits) -> Self {
        Self { kind, max_ttl: Ttl::MAX, records: true, limits }
    }
}

/// What the part of a store that is in this process comes to.
#[derive(Debug, Clone)]
pub struct StoreGauges {
    /// Whether that part works. Where it does not, only a restart of the process helps, be the
    /// engine well or not.
    pub is_alive: bool,
    /// Where the store counts the records that it keeps in this process; `None` of an engine, which
    /// bounds by itself what it keeps.
    pub room: Option<Arc<RecordRoom>>,
    /// How many writes of this process met one of another process, and were decided again; none of
    /// a store that writes on no condition.
    pub conflicts: u64,
    /// How many entries the store has in this process; `None` of an engine, which counts by
    /// listing.
    pub entries: Option<EntryCounts>,
}

impl Default for StoreGauges {
    /// Those of a store that works and counts nothing in this process.
    fn default() -> Self {
        Self { is_alive: true, room: None, conflicts: 0, entries: None }
    }
}

/// How many entries a store has, those that expired since its last sweep included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryCounts {
    /// Locks that are held.
    pub held_locks: u64,
    /// Records whose outcome is kept.
    pub done_records: u64,
}

/// How large a store lets an entry be: a lock with its queue, or a record with its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryLimits {
    /// In bytes, as the store keeps it. A command that would make it larger is
    /// [`TooLarge`](StoreError::TooLarge).
    pub bytes: usize,
    /// How many may wait for one lock, so that their entries stay far below `bytes`.
    pub waiters: u64,
    /// How many bytes a response may have to be kept for repeats; the same holds.
    pub answer_bytes: usize,
}

impl EntryLimits {
    /// Those of a store that has none.
    pub const NONE: Self = Self { bytes: usize::MAX, waiters: u64::MAX, answer_bytes: usize::MAX };
}

/// What a [subscription](Store::subscribe) is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Topic {
    /// The turn of this waiter in the queue of this lock.
    Turn(LockName, TokenHash),
    /// Every change of this lock.
    Changes(LockName),
    /// The grants of all locks that ended otherwise than by a release, as a step or a sweep of this
    /// process was the first to write it down. No process hears of an end that another one wrote.
    Ends,
}

/// Hints to come: see [`Store::subscribe`].
pub type Hints = Pin<Box<dyn Stream<Item = Hint> + Send>>;

/// What a store says of an entry unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// The turn of the waiter may have come.
    Wakeup,
    /// The lock changed.
    Changed(Change),
    /// A grant of this lock ended, and was not released.
    Ended(LockName, GrantEnd),
    /// Some hints may have been lost.
    Missed,
}

/// The store could not find out. The causes are for the log, not for the client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The command did not reach the store.
    #[error("the store cannot be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store answered that it does not take the command.
    #[error("the store refused the command")]
    Refused(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store cannot run commands of this kind. It answers so every time.
    #[error("the store cannot run the command")]
    Unsupported,
    /// The entry would have more bytes than the store takes.
    #[error("the entry would have {bytes} bytes, and the store takes {limit}")]
    TooLarge {
        /// How many it would have.
        bytes: usize,
        /// How many it may have.
        limit: usize,
    },
    /// The command was sent, and its response was lost or makes no sense.
    #[error("the store's response was lost")]
    Lost(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store has no room left, and says so also where it carried the command out.
    #[error("the store is full")]
    Full(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No response came in time.
    #[error("the store gave no response within {0:?}")]
    Deadline(Duration),
}

/// An error and its causes on one line, for the log. One that repeats another is left out.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    let mut texts: Vec<_> = causes.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

impl StoreError {
    /// Why, in the words of the engine.
    pub fn cause(&self) -> String {
        let mut cause: &dyn std::error::Error = self;
        while let (true, Some(source)) = (cause.is::<Self>(), cause.source()) {
            cause = source;
        }
        chain(cause)
    }

    /// What the failed command did to the store.
    pub fn effect(&self) -> Effect {
        match self {
            Self::Unreachable(_) | Self::Refused(_) | Self::Unsupported | Self::TooLarge { .. } => {
                Effect::NotExecuted
            }
            Self::Lost(_) | Self::Full(_) | Self::Deadline(_) => Effect::Unknown,
        }
    }

    /// The reply is not one to the command that was sent.
    pub(crate) fn mismatched_reply() -> Self {
        Self::Lost("the reply belongs to another command".into())
    }
}

/// What a failed step did to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    NotExecuted,
    /// It may have been executed or not. The same request with the same token may be repeated.
    Unknown,
}

/// Which locks to list.
#[derive(Debug, Clone)]
pub struct ListLocks {
    /// Only names that begin so.
    pub prefix: String,
    /// At most this many.
    pub limit: usize,
    /// Continue where the page that gave this cursor ended.
    pub cursor: Option<Cursor>,
}

/// Which records to list.
#[derive(Debug, Clone)]
pub struct ListRecords {
    /// Only those that it admits.
    pub filter: RecordFilter,
    /// At most this many, and at least 1.
    pub limit: usize,
    /// Continue where the page that gave this cursor ended.
    pub cursor: Option<Cursor>,
}

/// Some of what a query names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The locks or the records. There may be fewer than the limit, or none, although more follow.
    pub entries: Vec<T>,
    /// Where the next page begins; `None` when this was the last.
    pub next: Option<Cursor>,
}

impl<T> Page<T> {
    /// The page with each of its entries as another.
    pub fn map<U>(self, of: impl FnMut(T) -> U) -> Page<U> {
        Page { entries: self.entries.into_iter().map(of).collect(), next: self.next }
    }
}

/// A position in a listing, meaningful to the store that gave it: 1 to 512 of
/// `A-Z a-z 0-9 _ - .`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(String);

impl Cursor {
    /// Checks that `text` can be a cursor.
    ///
    /// # Errors
    ///
    /// It has another length or other characters.
    pub fn parse(text: &str) -> Result<Self, InvalidCursor> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if (1..=512).contains(&text.len()) && text.bytes().all(plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidCursor)
        }
    }

    /// The cursor as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text that is no [`Cursor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is not a cursor that this service gave")]
pub struct InvalidCursor;

/// What a store says of itself when it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreHealth {
    /// Which store it is: two that began apart never have the same, and one keeps its own over a
    /// restart where it keeps anything. `None` where it does not say.
    pub id: Option<String>,
    /// What its grants are worth.
    pub tier: Tier,
    /// What it is, for people: version, role, persistence.
    pub facts: BTreeMap<&'static str, String>,
    /// What an operator should change, a sentence each.
    pub advice: Vec<String>,
    /// Whether it has no room for what it does not keep yet.
    pub is_full: bool,
}

/// What a grant is worth when the store crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
pub enum Tier {
    /// An answered grant survives a crash of the store: it is on disk before the response.
    Strict,
    /// Grants live and die with the process.
    Process,
    /// A crash of the store may forget the last grants.
    BestEffort,
    /// A failover may forget the last grants, and then two clients hold the lock: the fencing token
    /// decides.
    Fenced,
}

impl Tier {
    /// The tier's name, as the API writes it.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The tier in a sentence, for people.
    pub fn promise(self) -> &'static str {
        match self {
            Self::Strict => "A grant is on disk before its response: a crash forgets none.",
            Self::Process => "Grants are gone with the process; fencing tokens still rise.",
            Self::BestEffort => {
                "A crash of the store may forget the last grants; fencing tokens still rise."
            }
            Self::Fenced => {
                "A failover may forget the last grants, and grant them again under higher fencing \
                 tokens: the resource that refuses lower ones decides."
            }
        }
    }
}
