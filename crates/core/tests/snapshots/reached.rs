//! Goal: `decode(encode(state))` is the state: for a lock and a record in which every field has a
//! value, and for every record that the rules reach.
//!
//! Method: proptest makes random commands for records, and the snapshot is compared after every
//! step. `tests/modes` does so with locks.

use std::sync::Arc;
use std::time::Duration;

use keylatch_core::entry::Entry as _;
use keylatch_core::idempotency::{
    BeginCommand, Fingerprint, OnCrash, RecordCommand, RecordKey, RecordState, ResolveCommand,
    RunEnd, SentOn, StoredResponse, UnknownReason,
};
use keylatch_core::lock::{FencingToken, LockState, Moment, TokenHash};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::states::{answer, lock, record, scope, sealed};

/// The most commands on one record.
const STEPS: usize = 40;

fn token() -> impl Strategy<Value = TokenHash> {
    (0_u8..4).prop_map(|number| TokenHash::from_bytes([number; 32]))
}

/// How much time passes before a command: often none, and often more than a lease.
fn pause() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(0), 1_u64..5_000_000_000].prop_map(Duration::from_nanos)
}

fn kept() -> impl Strategy<Value = StoredResponse> {
    prop_oneof![Just(answer()), Just(sealed()), (200_u16..600).prop_map(StoredResponse::Mark)]
}

fn end() -> impl Strategy<Value = RunEnd> {
    let reason = prop_oneof![
        Just(UnknownReason::Interrupted),
        Just(UnknownReason::Failed),
        Just(UnknownReason::Panicked),
        Just(UnknownReason::NoAnswer),
        Just(UnknownReason::Reported),
    ];
    let sent = SentOn { status: Some(502), request_id: Some("abc-1".to_owned()) };
    let sent = RunEnd::SentOn(UnknownReason::Failed, Arc::new(sent));
    prop_oneof![kept().prop_map(RunEnd::Done), reason.prop_map(RunEnd::Unknown), Just(sent)]
}

fn record_command() -> impl Strategy<Value = RecordCommand> {
    let key = RecordKey::from_bytes([7; 32]);
    let on_crash = prop_oneof![Just(OnCrash::Unknown), Just(OnCrash::Rerun)];
    let times = (1_u64..3000, 1_u64..10_000);
    let begin = (token(), 0_u8..2, times, on_crash).prop_map(
        move |(token, fingerprint, (lease, retention), on_crash)| {
            RecordCommand::Begin(BeginCommand {
                key,
                scope: scope(),
                token,
                fingerprint: Fingerprint::of_text(&fingerprint.to_string()),
                lease: Duration::from_millis(lease),
                retention: Duration::from_millis(retention),
                on_crash,
                has_room: true,
            })
        },
    );
    let resolve = prop::option::of(kept()).prop_map(move |end| {
        RecordCommand::Resolve(ResolveCommand { key, fencing_token: None, end: end.into() })
    });
    prop_oneof![
        4 => begin,
        1 => token().prop_map(|token| RecordCommand::Renew { token }),
        2 => (token(), end()).prop_map(|(token, end)| RecordCommand::Complete { token, end }),
        1 => token().prop_map(|token| RecordCommand::Abandon { token }),
        1 => resolve,
        1 => Just(RecordCommand::Look),
    ]
}

/// The moment after a pause, at which the last fencing token is known.
fn advance(moment: &mut Moment, pause: Duration, given: Option<FencingToken>) {
    moment.now += pause;
    moment.unix_micros += u64::try_from(pause.as_micros()).expect("a short pause");
    moment.least_micros = moment.unix_micros;
    moment.last_fencing_token = moment.last_fencing_token.max(given.unwrap_or_default());
}

fn start() -> Moment {
    Moment {
        now: Duration::from_secs(63_244_800),
        unix_micros: 1_795_332_773_831_023,
        least_micros: 1_795_332_773_831_023,
        ..Moment::default()
    }
}

#[test]
fn every_field_of_a_lock_and_of_a_record_is_in_its_snapshot() {
    let (lock, record) = (lock(), record());
    assert_eq!(LockState::decode(&lock.encode().expect("a snapshot")), Ok(lock));
    assert_eq!(RecordState::decode(&record.encode().expect("a snapshot")), Ok(record));
}

proptest! {
    #[test]
    fn every_record_that_commands_reach_is_its_snapshot(
        steps in vec((pause(), record_command()), 1..STEPS),
    ) {
        let (mut state, mut moment) = (RecordState::default(), start());
        let key = RecordKey::from_bytes([0; 32]);
        for (pause, command) in steps {
            advance(&mut moment, pause, state.fencing_token());
            state = state.apply(&key, &command, &moment).0;
            let bytes = state.encode().expect("a state of the rules can be written");
            let read = RecordState::decode(&bytes);
            prop_assert!(read.as_ref() == Ok(&state), "{state:?} is {read:?} after {command:?}");
        }
    }
}
