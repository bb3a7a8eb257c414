//! Records as a list has them: which ones a query names, and what it shows of each.
//!
//! A list is for a person who looks for what needs a decision, so it shows what a record is about
//! and not its stored response. Which phase a record is in at a moment is [`RecordState::summary`],
//! a pure function: a run whose lease has ended is unknown without a write. So the stores keep one
//! index, of the [unfinished](RecordState::is_unfinished) records, and tell `in flight` from
//! `unknown` by the record. Invariant: a record that is not in the index is done, or there is none.
//! The conformance of every store holds it.

use std::collections::BTreeSet;
use std::time::Duration;

use strum::{EnumString, IntoStaticStr};

use super::scope::beginning;
use super::{
    Principal, RecordKey, RecordScope, RecordStage, RecordState, RecordStatus, StoredResponse,
};
use crate::entry::Entry as _;
use crate::lock::{FencingToken, Moment};

/// How far a record is, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumString, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum PhaseName {
    /// A caller does the work, or may do it again.
    InFlight,
    /// It is unknown whether it was done.
    Unknown,
    /// The work was done and its response is stored.
    Done,
}

impl PhaseName {
    /// The name as the API writes it.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl RecordStatus {
    /// Its name.
    pub fn name(&self) -> PhaseName {
        match self {
            Self::InFlight { .. } => PhaseName::InFlight,
            Self::Unknown { .. } => PhaseName::Unknown,
            Self::Done { .. } => PhaseName::Done,
        }
    }
}

/// What a list shows of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordSummary {
    /// The name under which stores keep the record.
    pub key: RecordKey,
    /// What it is about.
    pub scope: RecordScope,
    /// The fencing token of its last run.
    pub fencing_token: FencingToken,
    /// How many runs there were.
    pub attempts: u32,
    /// When it was first begun by the store's wall clock, in milliseconds since 1970.
    pub begun_at_millis: u64,
    /// How long ago the phase or its lease began, by the store's clock.
    pub age: Duration,
    /// How far it is. Of a response, a list has the status alone.
    pub phase: RecordStatus,
}

/// Which records somebody may read: those of keys that begin so, and of these principals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordReader {
    /// The beginnings of keys.
    pub keys: Vec<String>,
    /// The principals; `None` for all.
    pub principals: Option<BTreeSet<Principal>>,
}

impl RecordReader {
    /// Whether the record with this scope may be read.
    pub fn may_read(&self, scope: &RecordScope) -> bool {
        self.keys.iter().any(|beginning| scope.key().as_str().starts_with(beginning))
            && self.principals.as_ref().is_none_or(|all| all.contains(scope.principal()))
    }
}

/// Which records a list has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordFilter {
    /// Only those that are so far.
    pub phase: Option<PhaseName>,
    /// Only those with this path. Of a path that is longer than what is
    /// [kept](RecordScope::MAX_PATH_BYTES), the kept beginning counts.
    pub path: Option<String>,
    /// Only those whose path begins so, likewise.
    pub path_prefix: String,
    /// Only those whose keys, as the client sent them, begin so.
    pub key_prefix: String,
    /// Only those that this one may read. Pages then end where others' records have no say.
    pub reader: Option<RecordReader>,
}

impl RecordFilter {
    /// Whether the list has this record. No list has keylatch's own: there is nothing to settle.
    pub fn admits(&self, record: &RecordSummary) -> bool {
        let (path, key) = (record.scope.path(), record.scope.key().as_str());
        let kept = |path| beginning(path, RecordScope::MAX_PATH_BYTES);
        !record.scope.is_internal()
            && self.phase.is_none_or(|phase| phase == record.phase.name())
            && self.path.as_deref().is_none_or(|wanted| path == kept(wanted))
            && path.starts_with(kept(&self.path_prefix))
            && key.starts_with(&self.key_prefix)
            && self.reader.as_ref().is_none_or(|reader| reader.may_read(&record.scope))
    }

    /// Whether all of these records are in the index of the unfinished ones.
    pub fn is_of_unfinished(&self) -> bool {
        matches!(self.phase, Some(PhaseName::InFlight | PhaseName::Unknown))
    }
}

impl RecordState {
    /// Whether it has a record that is in flight or unknown, or was so before it expired. A store
    /// keeps an index of these: what time alone does makes no other record such a one.
    pub fn is_unfinished(&self) -> bool {
        self.record().is_some_and(|record| !matches!(record.stage, RecordStage::Done(..)))
    }

    /// What a list shows of it at `moment`; `None` where there is no record.
    pub fn summary(&self, key: &RecordKey, moment: &Moment) -> Option<RecordSummary> {
        let live = self.live(moment).map_kept(|kept| StoredResponse::Mark(kept.status()));
        let record = live.record()?;
        let view = record.view(moment.now);
        Some(RecordSummary {
            key: *key,
            scope: record.scope.clone(),
            fencing_token: view.fencing_token,
            attempts: view.attempts,
            begun_at_millis: view.begun_at_millis,
            age: moment.now.saturating_sub(record.since),
            phase: view.phase,
        })
    }
}
