//! The rules of a record: what a command does to it, as one pure function.
//!
//! [`RecordState::step`] reads the state, a command and the moment, and nothing else, as the rules
//! of a lock do, and for the same reasons. Every timed thing is `since` plus a span. Invariants:
//! only the token of a run whose lease lasts ends it; a later run has a larger fencing token; an
//! unknown outcome stays until it is resolved or its retention ends. The differential tests hold
//! every store to these rules.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::room::{Share, Use};
use super::{
    AbandonReply, BeginCommand, BeginReply, CompleteReply, EraseReply, Fingerprint, OnCrash,
    RecordCommand, RecordKey, RecordReply, RecordScope, RecordStatus, RecordView, ResolveCommand,
    ResolveReply, Run, RunEnd, RunRenewal, SentOn, Settlement, StoredResponse, UnknownReason,
};
use crate::entry::{Entry, Found};
use crate::lock::{FencingToken, Moment, TokenHash};
use crate::snapshot::{self, SnapshotError, deserialize_time};

/// How long a store keeps an unknown outcome for an operator to resolve.
pub const UNKNOWN_RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// What a record takes beside its scope and its response, about.
const RECORD_BYTES: u64 = 1024;

/// What a store remembers under one key, and the rules by which it changes.
///
/// The rules are a pure function of the state, a command and the moment, as those of
/// [`LockState`](crate::lock::LockState) are, and for the same reasons.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordState {
    record: Option<Record>,
}

impl Entry for RecordState {
    type Key = RecordKey;
    type Command = RecordCommand;
    type Reply = RecordReply;

    fn bucket(key: &RecordKey) -> u8 {
        key.bucket()
    }

    fn is_undo(command: &RecordCommand) -> bool {
        matches!(command, RecordCommand::Abandon { .. })
    }

    /// A step is on one record, and finds nothing where it is on none.
    fn step(found: &mut [Found<'_, Self>], command: &RecordCommand) -> RecordReply {
        match found {
            [Found { state, moment, .. }, ..] => state.change(command, moment),
            [] => Self::default().change(command, &Moment::default()),
        }
    }

    /// A run whose lease is over has an unknown outcome, and what was kept for long enough is
    /// forgotten.
    fn settle(&mut self, moment: &Moment) {
        self.record.take_if(|record| record.expires() <= moment.now);
        if let Some(record) = &mut self.record {
            record.settle(moment);
        }
    }

    fn is_stale(&self, moment: &Moment) -> bool {
        let now = moment.now;
        self.record.as_ref().is_some_and(|record| {
            record.expires() <= now || (record.is_interrupted(now) && !record.may_run_again(now))
        })
    }

    fn has_lapsed(&self, moment: &Moment) -> bool {
        self.is_stale(moment) || self.is_interrupted(moment)
    }

    fn ends(&self) -> impl Iterator<Item = Duration> {
        let record = self.record.iter();
        record.flat_map(|record| [record.since + record.lease, record.expires()])
    }

    fn map_times(&self, mut on_other: impl FnMut(Duration) -> Duration) -> Self {
        let record = self.record.clone();
        Self { record: record.map(|record| Record { since: on_other(record.since), ..record }) }
    }

    fn fencing_token(&self) -> Option<FencingToken> {
        self.record.as_ref().map(|record| record.fencing_token)
    }

    /// A response of which only a stub is here cannot be written: what is read later would be
    /// another response.
    fn encode(&self) -> Result<Vec<u8>, SnapshotError> {
        snapshot::encode(self)
    }

    fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        snapshot::decode(bytes)
    }

    fn is_empty(&self) -> bool {
        self.record.is_none()
    }
}

impl RecordState {
    fn change(&mut self, command: &RecordCommand, moment: &Moment) -> RecordReply {
        self.settle(moment);
        let (record, now) = (&mut self.record, moment.now);
        match command {
            RecordCommand::Begin(begin) => RecordReply::Begin(begin.apply(record, moment)),
            RecordCommand::Renew { token } => RecordReply::Renew(renew(record, token, now)),
            RecordCommand::Complete { token, end } => {
                RecordReply::Complete(complete(record, token, end, moment))
            }
            RecordCommand::Abandon { token } => RecordReply::Abandon(abandon(record, token, now)),
            RecordCommand::Resolve(resolve) => RecordReply::Resolve(resolve.apply(record, moment)),
            RecordCommand::Erase => RecordReply::Erase(erase(record, now)),
            RecordCommand::Look => {
                RecordReply::Look(record.as_ref().map(|record| record.view(now)))
            }
        }
    }

    /// Whether a run is under way whose lease is over, whatever that leaves behind.
    pub fn is_interrupted(&self, moment: &Moment) -> bool {
        self.record.as_ref().is_some_and(|record| record.is_interrupted(moment.now))
    }

    /// What it uses of the room for records, with its scope and what is kept of its response, and
    /// in which share.
    pub fn room_use(&self) -> (Share, Use) {
        let Some(record) = &self.record else { return Default::default() };
        let bytes = RECORD_BYTES + record.scope.bytes() + self.kept_bytes();
        (record.scope.share(), Use { bytes, unfinished: self.is_unfinished().into() })
    }

    /// How many bytes of its response are kept, headers and body.
    pub fn kept_bytes(&self) -> u64 {
        self.kept().map_or(0, StoredResponse::kept_bytes)
    }

    /// What is kept of its response, if it has one.
    pub fn kept(&self) -> Option<&StoredResponse> {
        match self.record.as_ref().map(|record| &record.stage) {
            Some(RecordStage::Done(_, kept)) => Some(kept),
            _ => None,
        }
    }

    /// The same state, with its response in another form.
    #[must_use]
    pub fn map_kept(mut self, form: impl FnOnce(StoredResponse) -> StoredResponse) -> Self {
        if let Some(Record { stage: RecordStage::Done(_, kept), .. }) = &mut self.record {
            *kept = form(std::mem::replace(kept, StoredResponse::Mark(0)));
        }
        self
    }

    /// How long the outcome is kept from [`Record::since`] on; `None` while a run is under way.
    pub fn retention(&self) -> Option<Duration> {
        let settled = |record: &&Record| record.stage != RecordStage::InFlight;
        self.record.as_ref().filter(settled).map(Record::lasts)
    }

    /// The record, if there is one.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// A state of this record, as a snapshot has it.
    pub fn new(record: Option<Record>) -> Self {
        Self { record }
    }
}

/// A record as a store keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The token that runs it, or ended it.
    pub token: TokenHash,
    /// What is to be done.
    pub fingerprint: Fingerprint,
    /// What it is about.
    pub scope: RecordScope,
    /// The fencing token of the last run.
    pub fencing_token: FencingToken,
    /// How many runs there were.
    pub attempts: u32,
    /// When it was first begun, in milliseconds since 1970.
    pub begun_at_millis: u64,
    /// How long a run may go unheard.
    #[serde(deserialize_with = "deserialize_time")]
    pub lease: Duration,
    /// How long a known end is kept.
    #[serde(deserialize_with = "deserialize_time")]
    pub retention: Duration,
    /// What a run that was interrupted leaves behind.
    pub on_crash: OnCrash,
    /// How far it is.
    pub stage: RecordStage,
    /// When the stage or its lease began, on the store's monotonic clock. This alone does not
    /// outlive the process.
    #[serde(deserialize_with = "deserialize_time")]
    pub since: Duration,
}

/// How far a [`Record`] is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordStage {
    /// It is being done.
    InFlight,
    /// It was done at this time, in milliseconds since 1970.
    Done(u64, StoredResponse),
    /// The outcome is unknown since this time, in milliseconds since 1970. A run that was sent on
    /// has what it is found by.
    Unknown(u64, UnknownReason, Option<Arc<SentOn>>),
}

impl Record {
    fn expires(&self) -> Duration {
        self.since + self.lasts()
    }

    /// How long the record is kept from `since` on.
    fn lasts(&self) -> Duration {
        match (&self.stage, self.on_crash) {
            (RecordStage::InFlight, OnCrash::Rerun) => self.lease + self.retention,
            (RecordStage::InFlight, OnCrash::Unknown) => {
                self.lease + self.retention.max(UNKNOWN_RETENTION)
            }
            (RecordStage::Done(..), _) => self.retention,
            (RecordStage::Unknown(..), _) => self.retention.max(UNKNOWN_RETENTION),
        }
    }

    /// Never more than the lease, although `now` may be before `since`: see the rules of a lock.
    fn lease_left(&self, now: Duration) -> Duration {
        (self.since + self.lease).saturating_sub(now).min(self.lease)
    }

    /// Whether it is in flight and its lease is over.
    fn is_interrupted(&self, now: Duration) -> bool {
        self.stage == RecordStage::InFlight && self.lease_left(now).is_zero()
    }

    fn may_run_again(&self, now: Duration) -> bool {
        self.is_interrupted(now) && self.on_crash == OnCrash::Rerun
    }

    /// The lease may have ended since the record was written.
    fn settle(&mut self, moment: &Moment) {
        if self.is_interrupted(moment.now) && !self.may_run_again(moment.now) {
            let since = self.since + self.lease;
            let reason = UnknownReason::Interrupted;
            self.end(RecordStage::Unknown(moment.date_of(since), reason, None), since);
        }
    }

    pub(super) fn view(&self, now: Duration) -> RecordView {
        let phase = match &self.stage {
            RecordStage::InFlight => RecordStatus::InFlight { lease: self.lease_left(now) },
            RecordStage::Done(at, kept) => {
                RecordStatus::Done { at_millis: *at, kept: kept.clone() }
            }
            RecordStage::Unknown(since, reason, sent) => {
                RecordStatus::Unknown { since_millis: *since, reason: *reason, sent: sent.clone() }
            }
        };
        RecordView {
            token: self.token,
            fencing_token: self.fencing_token,
            attempts: self.attempts,
            begun_at_millis: self.begun_at_millis,
            expires_in: match self.stage {
                // If it were done now, it would be kept for so long.
                RecordStage::InFlight if !self.is_interrupted(now) => self.retention,
                _ => self.expires().saturating_sub(now).min(self.lasts()),
            },
            phase,
        }
    }

    fn run(&self, now: Duration) -> Run {
        Run {
            fencing_token: self.fencing_token,
            attempts: self.attempts,
            lease: self.lease_left(now),
        }
    }

    /// Whether `token` is running it at `now`.
    fn is_run_by(&self, token: &TokenHash, now: Duration) -> bool {
        self.stage == RecordStage::InFlight && self.token == *token && !self.is_interrupted(now)
    }

    fn end(&mut self, stage: RecordStage, since: Duration) {
        (self.stage, self.since) = (stage, since);
    }
}

impl BeginCommand {
    fn apply(&self, record: &mut Option<Record>, moment: &Moment) -> BeginReply {
        let (before, now) = (record.as_ref(), moment.now);
        if let Some(before) = before {
            if before.fingerprint != self.fingerprint {
                return BeginReply::Reused(before.view(now));
            }
            if before.is_run_by(&self.token, now) {
                return BeginReply::Again(before.run(now));
            }
            if !before.may_run_again(now) {
                return BeginReply::Found(before.view(now));
            }
        }
        if !self.has_room {
            return BeginReply::NoRoom;
        }
        let begun = before.map_or(moment.unix_micros / 1000, |before| before.begun_at_millis);
        let started = Record {
            token: self.token,
            fingerprint: self.fingerprint,
            scope: self.scope.clone(),
            fencing_token: moment.last_fencing_token.next(moment.least_micros),
            attempts: before.map_or(0, |before| before.attempts).saturating_add(1),
            begun_at_millis: begun,
            lease: self.lease,
            retention: self.retention,
            on_crash: self.on_crash,
            stage: RecordStage::InFlight,
            since: now,
        };
        BeginReply::Started(record.insert(started).run(now))
    }
}

/// Lets the lease of a run last its full time from now.
fn renew(record: &mut Option<Record>, token: &TokenHash, now: Duration) -> RunRenewal {
    match record {
        Some(record) if record.is_run_by(token, now) => {
            record.since = now;
            RunRenewal::Extended
        }
        _ => RunRenewal::Lost,
    }
}

/// Ends a run and keeps what it came to.
fn complete(
    record: &mut Option<Record>,
    token: &TokenHash,
    end: &RunEnd,
    moment: &Moment,
) -> CompleteReply {
    let Some(record) = record else { return CompleteReply::Absent };
    let now = moment.now;
    if record.is_run_by(token, now) {
        let at_millis = moment.unix_micros / 1000;
        let stage = match end {
            RunEnd::Done(kept) | RunEnd::DoneFor(kept, _) => {
                RecordStage::Done(at_millis, kept.clone())
            }
            RunEnd::Unknown(reason) => RecordStage::Unknown(at_millis, *reason, None),
            RunEnd::SentOn(reason, sent) => {
                RecordStage::Unknown(at_millis, *reason, Some(Arc::clone(sent)))
            }
        };
        record.end(stage, now);
        if let RunEnd::DoneFor(_, retention) = end {
            record.retention = *retention;
        }
        return CompleteReply::Done(record.view(now));
    }
    let same_end = match (&record.stage, end) {
        (RecordStage::Done(_, kept), RunEnd::Done(end) | RunEnd::DoneFor(end, _)) => kept == end,
        (RecordStage::Unknown(_, reason, None), RunEnd::Unknown(end)) => reason == end,
        (RecordStage::Unknown(_, reason, Some(sent)), RunEnd::SentOn(end, of_end)) => {
            reason == end && sent == of_end
        }
        _ => false,
    };
    let view = record.view(now);
    let repeated = same_end && record.token == *token;
    if repeated { CompleteReply::Done(view) } else { CompleteReply::Refused(view) }
}

/// Frees a key under which nothing was done.
fn abandon(record: &mut Option<Record>, token: &TokenHash, now: Duration) -> AbandonReply {
    let Some(run) = record else { return AbandonReply::Absent };
    if !run.is_run_by(token, now) {
        return AbandonReply::Refused(run.view(now));
    }
    *record = None;
    AbandonReply::Done(())
}

/// The retention stays as it was: what is erased is no new outcome.
fn erase(record: &mut Option<Record>, now: Duration) -> EraseReply {
    let Some(record) = record else { return EraseReply::Absent };
    let RecordStage::Done(_, kept) = &mut record.stage else {
        return EraseReply::Refused(record.view(now));
    };
    *kept = StoredResponse::Mark(kept.status());
    EraseReply::Done(record.view(now))
}

impl ResolveCommand {
    fn apply(&self, found: &mut Option<Record>, moment: &Moment) -> ResolveReply {
        let Some(record) = found else { return ResolveReply::Absent };
        let (now, fencing_token) = (moment.now, record.fencing_token);
        let meant = self.fencing_token.is_none_or(|meant| meant == fencing_token);
        let named = self.fencing_token.is_some();
        match (&record.stage, &self.end) {
            (RecordStage::Unknown(..), Settlement::NotExecuted) if meant => {
                *found = None;
                ResolveReply::Freed(fencing_token)
            }
            (RecordStage::Done(..), Settlement::Undone) if meant && named => {
                *found = None;
                ResolveReply::Freed(fencing_token)
            }
            (
                RecordStage::Unknown(..),
                end @ (Settlement::Done(kept) | Settlement::DoneFor(kept, _)),
            ) if meant => {
                record.end(RecordStage::Done(moment.unix_micros / 1000, kept.clone()), now);
                if let Settlement::DoneFor(_, retention) = end {
                    record.retention = *retention;
                }
                ResolveReply::Completed(record.view(now))
            }
            (RecordStage::Done(_, kept), Settlement::Done(end) | Settlement::DoneFor(end, _))
                if meant && kept == end =>
            {
                ResolveReply::Completed(record.view(now))
            }
            _ => ResolveReply::Refused(record.view(now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idempotency::{IdempotencyKey, Principal, Scope};

    const SCOPE: Scope<'static> =
        Scope { principal: &Principal::None, method: "", path: "", source: "" };

    /// Begun at 2 s, without a lease.
    fn record() -> Record {
        Record {
            token: TokenHash::from_bytes([1; 32]),
            fingerprint: Fingerprint::of_text("an order"),
            scope: RecordScope::new(&SCOPE, &IdempotencyKey::from(1)),
            fencing_token: FencingToken::new(1),
            attempts: 1,
            begun_at_millis: 0,
            lease: Duration::ZERO,
            retention: Duration::ZERO,
            on_crash: OnCrash::Unknown,
            stage: RecordStage::InFlight,
            since: Duration::from_secs(2),
        }
    }

    fn moment(seconds: u64) -> Moment {
        let now = Duration::from_secs(seconds);
        Moment { now, unix_micros: 0, least_micros: 0, ..Moment::default() }
    }

    /// What a begin without room for a response makes of the record 3 s after it began.
    fn begin_without_room(record: Option<Record>) -> (RecordState, BeginReply) {
        let key = SCOPE.record(&IdempotencyKey::from(1));
        let begin = BeginCommand {
            key,
            scope: RecordScope::new(&SCOPE, &IdempotencyKey::from(1)),
            token: TokenHash::from_bytes([2; 32]),
            fingerprint: Fingerprint::of_text("an order"),
            lease: Duration::from_secs(1),
            retention: Duration::from_secs(1),
            on_crash: OnCrash::Unknown,
            has_room: false,
        };
        let (after, reply) =
            RecordState::new(record).apply(&key, &RecordCommand::Begin(begin), &moment(5));
        let RecordReply::Begin(reply) = reply else { panic!("the reply to a begin: {reply:?}") };
        (after, reply)
    }

    #[test]
    fn run_without_room_for_its_answer_starts_in_no_state() {
        let rerun =
            Record { retention: Duration::from_secs(60), on_crash: OnCrash::Rerun, ..record() };
        let running = Record { lease: Duration::from_secs(60), ..rerun.clone() };
        let done =
            Record { stage: RecordStage::Done(0, StoredResponse::Mark(201)), ..rerun.clone() };
        let expired = Record { retention: Duration::from_secs(3), ..done.clone() };
        for record in [None, Some(rerun)] {
            let (after, reply) = begin_without_room(record.clone());
            assert_eq!((after.record, reply), (record, BeginReply::NoRoom));
        }
        let (after, reply) = begin_without_room(Some(expired));
        assert_eq!((after.record, reply), (None, BeginReply::NoRoom));
        for record in [running, done] {
            let (after, reply) = begin_without_room(Some(record.clone()));
            assert_eq!(reply, BeginReply::Found(record.view(moment(5).now)));
            assert_eq!(after.record, Some(record));
        }
    }

    /// A key that is good for a year would run again after the 30 days of an unknown outcome.
    #[test]
    fn unknown_outcome_lives_as_long_as_the_retention() {
        let year = Duration::from_secs(365 * 24 * 60 * 60);
        let unknown = RecordStage::Unknown(0, UnknownReason::Interrupted, None);
        for stage in [RecordStage::InFlight, unknown] {
            let long = Record { retention: year, stage: stage.clone(), ..record() };
            assert_eq!(long.lasts(), year);
            assert_eq!(Record { retention: Duration::ZERO, ..long }.lasts(), UNKNOWN_RETENTION);
        }
    }

    #[test]
    fn run_without_a_lease_ends_even_before_it_began() {
        // The clock by which it began was ahead.
        let record = RecordState::new(Some(record())).live(&moment(1)).record.expect("it is kept");
        assert!(matches!(record.stage, RecordStage::Unknown(0, UnknownReason::Interrupted, None)));
    }
}
