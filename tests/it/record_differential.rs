//! Every store of records against the rules: the same random commands on both give the same outcomes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keylatch_core::idempotency::{
    self, Abandon, Abandonment, Answer, Begin, Begun, Complete, Completion, End, Extend, Extension,
    Find, Fingerprint, Kept, OnCrash, Phase, Reason, RecordKey, RecordState, RecordStore,
    Resolution, Resolve, Run, View,
};
use keylatch_core::lock::{FencingToken, Moment, Token, TokenHash};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::Builder;

use crate::conformance::Clock;
use crate::record_stores::{self, Subject};

/// How much older a record in a store may be than its model: the time that commands really take.
/// All times of the commands are multiples of 30 s.
const SLACK: Duration = Duration::from_secs(20);

#[test]
fn the_redis_scripts_follow_the_rules_of_records() {
    follows_the_rules(record_stores::redis());
}

#[test]
fn the_embedded_store_follows_the_rules_of_records() {
    follows_the_rules(record_stores::embedded());
}

#[test]
fn the_memory_store_follows_the_rules_of_records() {
    follows_the_rules(record_stores::memory());
}

/// Runs random sequences of commands on the store and on the rules alone.
fn follows_the_rules(subject: impl Future<Output = Subject>) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (store, clock) = runtime.block_on(subject);
    let cases =
        std::env::var("DIFFERENTIAL_CASES").map_or(200, |cases| cases.parse().expect("a number"));
    let mut runner =
        TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let sequence = Cell::new(0);
    let commands = prop::collection::vec(command(), 1..60);
    let ran = runner.run(&commands, |commands| {
        // Each sequence has records of its own.
        sequence.set(sequence.get() + 1);
        let mut model = Model { sequence: sequence.get(), ..Model::default() };
        runtime.block_on(async {
            for (step, command) in commands.iter().enumerate() {
                let found = on_store(store.as_ref(), clock.as_ref(), &model, command).await;
                let expected = model.apply(command);
                model.same(expected, found).map_err(|why| {
                    TestCaseError::fail(format!("step {step}, {command:?}: {why}"))
                })?;
            }
            Ok(())
        })
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
}

#[derive(Debug, Clone)]
struct Command {
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
    },
    Extend,
    Complete(End),
    Abandon,
    Resolve(Meant, Option<Kept>),
    Find,
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

fn command() -> impl Strategy<Value = Command> {
    // The same request far more often than another one under the same key.
    let begin = (
        select(vec!["an order", "an order", "an order", "another"]),
        select(vec![90_u64, 150, 270]),
        select(vec![330_u64, 630]),
        select(vec![OnCrash::Unknown, OnCrash::Rerun]),
    );
    let begin = begin.prop_map(|(fingerprint, lease, retention, on_crash)| What::Begin {
        fingerprint,
        lease,
        retention,
        on_crash,
    });
    let reason = select(vec![Reason::Interrupted, Reason::Failed]);
    let end = prop_oneof![3 => kept().prop_map(End::Done), 2 => reason.prop_map(End::Unknown)];
    let meant = select(vec![Meant::Any, Meant::Last, Meant::Last, Meant::Another]);
    let resolve = (meant, prop::option::of(kept()));
    // An unknown outcome is kept for 30 days.
    let long = select(vec![29_u64, 30]).prop_map(|days| days * 24 * 3600);
    let what = prop_oneof![
        6 => begin,
        3 => Just(What::Extend),
        5 => end.prop_map(What::Complete),
        1 => Just(What::Abandon),
        3 => resolve.prop_map(|(meant, end)| What::Resolve(meant, end)),
        2 => Just(What::Find),
        4 => (1..4_u64).prop_map(|minutes| What::Pass(minutes * 60)),
        1 => long.prop_map(What::Pass),
    ];
    let command = (0..2_u8, 0..3_u8, what);
    command.prop_map(|(record, runner, what)| Command { record, runner, what })
}

fn kept() -> impl Strategy<Value = Kept> {
    let answer = |body| {
        let headers = vec![("x-binary".to_owned(), Bytes::from_static(b"\r\n\0\xff"))];
        Kept::Answer(Arc::new(Answer { status: 201, headers, body: Bytes::from_static(body) }))
    };
    select(vec![answer(b"one"), answer(b"two"), Kept::Mark(201)])
}

/// What a command found, in either world.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Begun(Begun),
    Extended(Extension),
    Completed(Completion),
    Abandoned(Abandonment),
    Resolved(Resolution),
    Seen(Option<View>),
    Nothing,
}

/// The rules alone, with a clock of their own.
#[derive(Default)]
struct Model {
    sequence: u64,
    now: Duration,
    runs: u64,
    records: BTreeMap<u8, RecordState>,
    /// The fencing tokens that the store gave for the model's, in the order of the model's.
    fences: BTreeMap<FencingToken, FencingToken>,
}

impl Model {
    fn apply(&mut self, command: &Command) -> Found {
        let (record, token) = (command.record, token(command.runner));
        let key = key(self.sequence, record);
        match &command.what {
            What::Begin { .. } => {
                let begin = begin(key, command).expect("a begin");
                Found::Begun(self.step(record, &begin))
            }
            What::Extend => Found::Extended(self.step(record, &Extend { token })),
            What::Complete(end) => {
                let complete = Complete { key, token, end: end.clone() };
                Found::Completed(self.step(record, &complete))
            }
            What::Abandon => Found::Abandoned(self.step(record, &Abandon { token })),
            What::Resolve(meant, end) => {
                let fence = self.meant(record, *meant);
                let resolve = Resolve { key, fence, end: end.clone() };
                Found::Resolved(self.step(record, &resolve))
            }
            What::Find => Found::Seen(self.step(record, &Find)),
            What::Pass(seconds) => {
                self.now += Duration::from_secs(*seconds);
                Found::Nothing
            }
        }
    }

    fn step<C: idempotency::Command>(&mut self, record: u8, command: &C) -> C::Outcome {
        self.runs += 1;
        let last_fence = FencingToken::new(self.runs);
        let moment = Moment { now: self.now, unix_micros: 0, last_fence };
        let state = self.records.entry(record).or_default();
        let (after, outcome) = state.apply(command, &moment);
        *state = after;
        outcome
    }

    /// The fencing token of the run that is meant, in the model.
    fn meant(&self, record: u8, meant: Meant) -> Option<FencingToken> {
        match meant {
            Meant::Any => None,
            Meant::Last => self.records.get(&record).and_then(RecordState::fence),
            Meant::Another => Some(FencingToken::NONE),
        }
    }

    /// Whether both worlds found the same: all but wall clocks and the numbers of the fencing
    /// tokens, of which the order must be the same.
    fn same(&mut self, mut expected: Found, mut found: Found) -> Result<(), String> {
        let (left, found_left) = (strip(&mut expected), strip(&mut found));
        if expected != found {
            return Err(format!("{found:?} in the store, {expected:?} by the rules"));
        }
        for (left, found_left) in left.times.iter().zip(&found_left.times) {
            let near = found_left <= left && *found_left + SLACK >= *left;
            if !near || left.is_zero() != found_left.is_zero() {
                return Err(format!("{found_left:?} left in the store, {left:?} by the rules"));
            }
        }
        let (Some(fence), Some(found_fence)) = (left.fence, found_left.fence) else {
            return Ok(());
        };
        let known = self.fences.insert(fence, found_fence);
        if known.is_some_and(|known| known != found_fence)
            || !self.fences.values().is_sorted_by(|a, b| a < b)
        {
            return Err(format!("fencing tokens out of order: {:?}", self.fences));
        }
        Ok(())
    }
}

async fn on_store(
    store: &dyn RecordStore,
    clock: &dyn Clock,
    model: &Model,
    command: &Command,
) -> Found {
    let key = key(model.sequence, command.record);
    let token = token(command.runner);
    match &command.what {
        What::Begin { .. } => {
            let begin = begin(key, command).expect("a begin");
            Found::Begun(store.begin(&begin).await.unwrap())
        }
        What::Extend => Found::Extended(store.extend(&key, &token).await.unwrap()),
        What::Complete(end) => {
            let complete = Complete { key, token, end: end.clone() };
            Found::Completed(store.complete(&complete).await.unwrap())
        }
        What::Abandon => Found::Abandoned(store.abandon(&key, &token).await.unwrap()),
        What::Resolve(meant, end) => {
            let fence = model.meant(command.record, *meant);
            let fence = fence.map(|fence| model.fences.get(&fence).copied().unwrap_or_default());
            let resolve = Resolve { key, fence, end: end.clone() };
            Found::Resolved(store.resolve(&resolve).await.unwrap())
        }
        What::Find => Found::Seen(store.find(&key).await.unwrap()),
        What::Pass(seconds) => {
            clock.advance(Duration::from_secs(*seconds)).await;
            Found::Nothing
        }
    }
}

/// What differs between the worlds.
#[derive(Default)]
struct Stripped {
    fence: Option<FencingToken>,
    /// What is left of a lease and of a retention.
    times: Vec<Duration>,
}

/// Takes out what differs between the worlds.
fn strip(found: &mut Found) -> Stripped {
    if let Some(Run { fence, lease, .. }) = run_of(found) {
        let stripped = Stripped { fence: Some(*fence), times: vec![*lease] };
        (*fence, *lease) = Default::default();
        return stripped;
    }
    let Some(view) = view_of(found) else { return Stripped::default() };
    let mut stripped = Stripped { fence: Some(view.fence), times: vec![view.expires_in] };
    (view.fence, view.expires_in, view.begun_at_millis) = Default::default();
    match &mut view.phase {
        Phase::InFlight { lease } => stripped.times.push(std::mem::take(lease)),
        Phase::Done { at_millis: at, .. } | Phase::Unknown { since_millis: at, .. } => *at = 0,
    }
    stripped
}

fn run_of(found: &mut Found) -> Option<&mut Run> {
    match found {
        Found::Begun(Begun::Started(run) | Begun::Again(run)) => Some(run),
        _ => None,
    }
}

fn view_of(found: &mut Found) -> Option<&mut View> {
    match found {
        Found::Begun(Begun::Found(view) | Begun::Reused(view))
        | Found::Completed(Completion::Kept(view) | Completion::Refused(view))
        | Found::Abandoned(Abandonment::Refused(view))
        | Found::Resolved(Resolution::Completed(view) | Resolution::Refused(view))
        | Found::Seen(Some(view)) => Some(view),
        _ => None,
    }
}

fn begin(key: RecordKey, command: &Command) -> Option<Begin> {
    let What::Begin { fingerprint, lease, retention, on_crash } = command.what else { return None };
    Some(Begin {
        key,
        token: token(command.runner),
        fingerprint: Fingerprint::of_text(fingerprint),
        lease: Duration::from_secs(lease),
        retention: Duration::from_secs(retention),
        on_crash,
    })
}

fn key(sequence: u64, record: u8) -> RecordKey {
    let mut bytes = [record; 32];
    bytes[8..16].copy_from_slice(&sequence.to_be_bytes());
    RecordKey::from_bytes(bytes)
}

fn token(runner: u8) -> TokenHash {
    Token::parse(&format!("token-of-the-runner-{runner}")).unwrap().hash()
}
