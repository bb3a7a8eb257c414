//! Goal: every store with records executes the rules of `RecordState`.
//!
//! Method: as in `lock_rules.rs`. Random commands run on a store and on the pure rules, and both
//! must have the same replies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keylatch_core::entry::Entry as _;
use keylatch_core::idempotency::{
    AbandonReply, Answer, BeginCommand, BeginReply, CompleteReply, EraseReply, Fingerprint,
    IdempotencyKey, OnCrash, PhaseName, Principal, RecordCommand, RecordFilter, RecordKey,
    RecordReply, RecordScope, RecordState, RecordStatus, RecordView, ResolveCommand, ResolveReply,
    Run, RunEnd, Scope, StoredResponse, UnknownReason,
};
use keylatch_core::lock::{FencingToken, Moment, Token, TokenHash};
use keylatch_core::store::{Command, ListRecords, Reply};
use keylatch_testkit::{Records, TestStore, store_test};
use proptest::prelude::*;
use proptest::sample::select;

use crate::lock_rules::follows_rules;

/// How much older a record in a store may be than its model: the time that commands really take.
/// All times of the commands are multiples of 30 s.
const SLACK: Duration = Duration::from_secs(20);
/// How much younger it may be: a store that estimates the clock of its engine may be ahead of it.
const AHEAD: Duration = Duration::from_secs(1);

/// Runs random sequences of commands on the store and on the rules alone.
#[store_test(records)]
fn store_follows_the_record_rules(start: impl Future<Output = TestStore>) {
    follows_rules::<Records, _, _>(start, step(), &async |model: &mut Model, store, step| {
        model.check(store, step).await
    });
}

#[derive(Debug, Clone)]
struct Step {
    record: u8,
    runner: u8,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Begin {
        fingerprint: &'static str,
        lease: u64,
        retention: u64,
        on_crash: OnCrash,
        has_room: bool,
    },
    Renew,
    Complete(RunEnd),
    Abandon,
    Erase,
    Resolve(Meant, Option<StoredResponse>),
    Look,
    /// The records of this sequence that are so far are listed.
    List(PhaseName),
    /// Time passes, in seconds, and in steps far above what commands take.
    Pass(u64),
}

/// The run that is meant to be resolved.
#[derive(Debug, Clone, Copy)]
enum Meant {
    Any,
    Last,
    Another,
}

fn step() -> impl Strategy<Value = Step> {
    // The same request far more often than another one under the same key.
    let begin = (
        select(vec!["an order", "an order", "an order", "another"]),
        select(vec![90_u64, 150, 270]),
        select(vec![330_u64, 630]),
        select(vec![OnCrash::Unknown, OnCrash::Rerun]),
        select(vec![true, true, true, false]),
    );
    let begin = begin.prop_map(|(fingerprint, lease, retention, on_crash, has_room)| What::Begin {
        fingerprint,
        lease,
        retention,
        on_crash,
        has_room,
    });
    let reason = select(vec![UnknownReason::Interrupted, UnknownReason::Failed]);
    let lasts = select(vec![210_u64, 930]).prop_map(Duration::from_secs);
    let end = prop_oneof![
        3 => kept().prop_map(RunEnd::Done),
        1 => (kept(), lasts).prop_map(|(kept, lasts)| RunEnd::DoneFor(kept, lasts)),
        2 => reason.prop_map(RunEnd::Unknown),
    ];
    let meant = select(vec![Meant::Any, Meant::Last, Meant::Last, Meant::Another]);
    let resolve = (meant, prop::option::of(kept()));
    let phase = select(vec![PhaseName::InFlight, PhaseName::Unknown, PhaseName::Done]);
    // An unknown outcome is kept for 30 days.
    let long = select(vec![29_u64, 30]).prop_map(|days| days * 24 * 3600);
    let what = prop_oneof![
        6 => begin,
        3 => Just(What::Renew),
        5 => end.prop_map(What::Complete),
        1 => Just(What::Abandon),
        1 => Just(What::Erase),
        3 => resolve.prop_map(|(meant, end)| What::Resolve(meant, end)),
        2 => Just(What::Look),
        2 => phase.prop_map(What::List),
        4 => (1..4_u64).prop_map(|minutes| What::Pass(minutes * 60)),
        1 => long.prop_map(What::Pass),
    ];
    let step = (0..2_u8, 0..3_u8, what);
    step.prop_map(|(record, runner, what)| Step { record, runner, what })
}

fn kept() -> impl Strategy<Value = StoredResponse> {
    let answer = |body| {
        let headers = vec![("x-binary".to_owned(), Bytes::from_static(b"\r\n\0\xff"))];
        StoredResponse::Answer(Arc::new(Answer {
            status: 201,
            headers,
            body: Bytes::from_static(body),
        }))
    };
    select(vec![answer(b"one"), answer(b"two"), StoredResponse::Mark(201)])
}

/// The rules alone, with their own clock.
#[derive(Default)]
struct Model {
    sequence: u64,
    now: Duration,
    steps: u64,
    records: BTreeMap<u8, RecordState>,
    /// The fencing tokens that the store gave for the model's, by record, in the order of the
    /// model's.
    fences: BTreeMap<u8, BTreeMap<FencingToken, FencingToken>>,
}

/// Each sequence has its own records.
impl From<u64> for Model {
    fn from(sequence: u64) -> Self {
        Self { sequence, ..Self::default() }
    }
}

impl Model {
    /// Runs a step in both worlds and compares their replies.
    async fn check(&mut self, store: &Records, step: &Step) -> Result<(), String> {
        if let What::Pass(seconds) = step.what {
            let time = Duration::from_secs(seconds);
            store.advance(time).await;
            self.now += time;
            return Ok(());
        }
        if let What::List(phase) = step.what {
            return self.check_list(store, phase).await;
        }
        let named = (key(self.sequence, step.record), scope(self.sequence, step.record));
        // The store gave another fencing token to the run that is meant.
        let meant = match step.what {
            What::Resolve(meant, _) => self.meant(step.record, meant),
            _ => None,
        };
        let given =
            meant.map(|fencing_token| self.given(step.record, fencing_token).unwrap_or_default());
        let found = store.execute(Command::Record(named.0, command(&named, step, given))).await;
        let Ok(Reply::Record(found)) = found else { panic!("a reply, not {found:?}") };
        let expected = self.apply(step.record, &named.0, &command(&named, step, meant));
        self.compare(step.record, expected, found)
    }

    /// Whether a list has the records of this sequence that are so far by the rules, and no other.
    async fn check_list(&self, store: &Records, phase: PhaseName) -> Result<(), String> {
        let path = Some(path(self.sequence));
        let filter = RecordFilter { phase: Some(phase), path, ..RecordFilter::default() };
        let mut query = ListRecords { filter, limit: 100, cursor: None };
        let mut found = BTreeMap::new();
        loop {
            let page = store.list_records(&query).await.unwrap();
            let page = page.expect("the store knows its own cursor");
            let records = page.entries.into_iter();
            found
                .extend(records.map(|record| (record.key, (record.phase.name(), record.attempts))));
            query.cursor = page.next;
            if query.cursor.is_none() {
                break;
            }
        }
        let moment = Moment { now: self.now, unix_micros: 0, least_micros: 0, ..Moment::default() };
        let expected = self.records.iter().filter_map(|(record, state)| {
            let record = state.summary(&key(self.sequence, *record), &moment)?;
            let is_listed = record.phase.name() == phase;
            is_listed.then_some((record.key, (phase, record.attempts)))
        });
        let expected: BTreeMap<_, _> = expected.collect();
        if found == expected {
            return Ok(());
        }
        Err(format!("{found:?} are listed as {phase:?}, and by the rules {expected:?} are"))
    }

    fn apply(&mut self, record: u8, key: &RecordKey, command: &RecordCommand) -> RecordReply {
        self.steps += 1;
        let last_fencing_token = FencingToken::new(self.steps);
        let moment =
            Moment { now: self.now, unix_micros: 0, last_fencing_token, ..Moment::default() };
        let state = self.records.entry(record).or_default();
        let (after, reply) = state.apply(key, command, &moment);
        *state = after;
        reply
    }

    /// The fencing token that the store gave for one of the model's.
    fn given(&self, record: u8, fencing_token: FencingToken) -> Option<FencingToken> {
        self.fences.get(&record)?.get(&fencing_token).copied()
    }

    /// The fencing token of the run that is meant, in the model.
    fn meant(&self, record: u8, meant: Meant) -> Option<FencingToken> {
        match meant {
            Meant::Any => None,
            Meant::Last => self.records.get(&record).and_then(RecordState::fencing_token),
            Meant::Another => Some(FencingToken::NONE),
        }
    }

    /// Whether both worlds found the same: all but wall clocks and the numbers of the fencing
    /// tokens, of which the order must be the same.
    fn compare(
        &mut self,
        record: u8,
        mut expected: RecordReply,
        mut found: RecordReply,
    ) -> Result<(), String> {
        let (left, found_left) = (strip(&mut expected), strip(&mut found));
        if expected != found {
            return Err(format!("{found:?} in the store, {expected:?} by the rules"));
        }
        for (left, found_left) in left.times.iter().zip(&found_left.times) {
            let near = *found_left <= *left + AHEAD && *found_left + SLACK >= *left;
            if !near || left.is_zero() != found_left.is_zero() {
                return Err(format!("{found_left:?} left in the store, {left:?} by the rules"));
            }
        }
        let (Some(fencing_token), Some(found_fence)) =
            (left.fencing_token, found_left.fencing_token)
        else {
            return Ok(());
        };
        let fences = self.fences.entry(record).or_default();
        let known = fences.insert(fencing_token, found_fence);
        if known.is_some_and(|known| known != found_fence)
            || !fences.values().is_sorted_by(|a, b| a < b)
        {
            return Err(format!("fencing tokens out of order: {fences:?}"));
        }
        Ok(())
    }
}

/// The command of a step, which means the run with this fencing token where it means one.
fn command(
    (key, scope): &(RecordKey, RecordScope),
    step: &Step,
    meant: Option<FencingToken>,
) -> RecordCommand {
    let key = *key;
    let token = token(step.runner);
    match &step.what {
        What::Begin { fingerprint, lease, retention, on_crash, has_room } => {
            RecordCommand::Begin(BeginCommand {
                key,
                scope: scope.clone(),
                token,
                fingerprint: Fingerprint::of_text(fingerprint),
                lease: Duration::from_secs(*lease),
                retention: Duration::from_secs(*retention),
                on_crash: *on_crash,
                has_room: *has_room,
            })
        }
        What::Renew => RecordCommand::Renew { token },
        What::Complete(end) => RecordCommand::Complete { token, end: end.clone() },
        What::Abandon => RecordCommand::Abandon { token },
        What::Resolve(_, end) => RecordCommand::Resolve(ResolveCommand {
            key,
            fencing_token: meant,
            end: end.clone().into(),
        }),
        What::Erase => RecordCommand::Erase,
        What::Look | What::List(_) | What::Pass(_) => RecordCommand::Look,
    }
}

/// What differs between the worlds.
#[derive(Default)]
struct Differences {
    fencing_token: Option<FencingToken>,
    /// What is left of a lease and of a retention.
    times: Vec<Duration>,
}

/// Takes out what differs between the worlds.
fn strip(found: &mut RecordReply) -> Differences {
    if let Some(Run { fencing_token, lease, .. }) = run_of(found) {
        let stripped = Differences { fencing_token: Some(*fencing_token), times: vec![*lease] };
        (*fencing_token, *lease) = Default::default();
        return stripped;
    }
    if let RecordReply::Resolve(ResolveReply::Freed(run)) = found {
        return Differences { fencing_token: Some(std::mem::take(run)), times: Vec::new() };
    }
    let Some(view) = view_of(found) else { return Differences::default() };
    let mut stripped =
        Differences { fencing_token: Some(view.fencing_token), times: vec![view.expires_in] };
    (view.fencing_token, view.expires_in, view.begun_at_millis) = Default::default();
    match &mut view.phase {
        RecordStatus::InFlight { lease } => stripped.times.push(std::mem::take(lease)),
        RecordStatus::Done { at_millis: at, .. }
        | RecordStatus::Unknown { since_millis: at, .. } => *at = 0,
    }
    stripped
}

fn run_of(found: &mut RecordReply) -> Option<&mut Run> {
    match found {
        RecordReply::Begin(BeginReply::Started(run) | BeginReply::Again(run)) => Some(run),
        _ => None,
    }
}

fn view_of(found: &mut RecordReply) -> Option<&mut RecordView> {
    match found {
        RecordReply::Begin(BeginReply::Found(view) | BeginReply::Reused(view))
        | RecordReply::Complete(CompleteReply::Done(view) | CompleteReply::Refused(view))
        | RecordReply::Abandon(AbandonReply::Refused(view))
        | RecordReply::Resolve(ResolveReply::Completed(view) | ResolveReply::Refused(view))
        | RecordReply::Erase(EraseReply::Done(view) | EraseReply::Refused(view))
        | RecordReply::Look(Some(view)) => Some(view),
        _ => None,
    }
}

fn key(sequence: u64, record: u8) -> RecordKey {
    let mut bytes = [record; 32];
    bytes[8..16].copy_from_slice(&sequence.to_be_bytes());
    RecordKey::from_bytes(bytes)
}

fn scope(sequence: u64, record: u8) -> RecordScope {
    let scope =
        Scope { principal: &Principal::None, method: "POST", path: &path(sequence), source: "" };
    RecordScope::new(&scope, &IdempotencyKey::from(u32::from(record)))
}

/// The path of all records of a sequence.
fn path(sequence: u64) -> String {
    format!("/sequences/{sequence}")
}

fn token(runner: u8) -> TokenHash {
    Token::parse(&format!("token-of-the-runner-{runner}")).unwrap().hash()
}
