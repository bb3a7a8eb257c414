//! Goal: `decode(encode(state))` is the state, for every state that the rules reach.
//!
//! Method: proptest makes random commands for locks and records, and the snapshot is compared after
//! every step.

use std::sync::Arc;
use std::time::Duration;

use keylatch_core::entry::Entry as _;
use keylatch_core::idempotency::{
    BeginCommand, Fingerprint, OnCrash, RecordCommand, RecordKey, RecordState, ResolveCommand,
    RunEnd, SentOn, StoredResponse, UnknownReason,
};
use keylatch_core::lock::{
    AcquireCommand, Attempt, BreakCommand, EntryName, FencingToken, Limit, LockCommand, LockName,
    LockState, Moment, Owner, Reason, Slots, TokenHash, Ttl,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::states::{answer, scope, sealed};

/// The most commands on one entry.
const STEPS: usize = 40;

fn token() -> impl Strategy<Value = TokenHash> {
    (0_u8..4).prop_map(|number| TokenHash::from_bytes([number; 32]))
}

fn attempt() -> impl Strategy<Value = Attempt> {
    prop_oneof![0_u64..4, Just(u64::MAX - 1)].prop_map(Attempt::new)
}

fn ttl() -> impl Strategy<Value = Ttl> {
    let millis = prop_oneof![Just(Ttl::MIN_MILLIS), 100_u64..3000, Just(Ttl::MAX_MILLIS)];
    millis.prop_map(|millis| Ttl::from_millis(millis).expect("in range"))
}

fn owner() -> impl Strategy<Value = Option<Owner>> {
    prop_oneof![Just(""), Just("alice"), Just("Zoë, line 7")]
        .prop_map(|owner| Owner::parse(owner).expect("a label"))
}

/// How much time passes before a command: often none, and often more than a lease.
fn pause() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(0), 1_u64..5_000_000_000].prop_map(Duration::from_nanos)
}

fn lock_command() -> impl Strategy<Value = LockCommand> {
    let queue = prop::option::of((1_u64..4000).prop_map(Duration::from_millis));
    let acquire = (token(), ttl(), owner(), attempt(), queue, limit(), entry()).prop_map(
        |(token, ttl, owner, attempt, queue, limit, entry)| {
            let command = AcquireCommand::new(token, ttl, attempt);
            LockCommand::Acquire(AcquireCommand { owner, queue, limit, entry, ..command })
        },
    );
    let grace = prop::option::of((0_u64..3000).prop_map(Duration::from_millis));
    let broken = (owner(), grace).prop_map(|(by, grace)| BreakLast { by, grace });
    prop_oneof![
        4 => acquire,
        1 => (token(), attempt()).prop_map(|(token, attempt)| LockCommand::Withdraw { token, attempt }),
        1 => (token(), ttl()).prop_map(|(token, ttl)| LockCommand::Renew { token, ttl: Some(ttl) }),
        1 => (token(), entry()).prop_map(|(token, entry)| LockCommand::Release { token, entry }),
        1 => broken.prop_map(BreakLast::command),
        1 => Just(LockCommand::Look),
        1 => Just(LockCommand::LookAtQueue),
        1 => Just(LockCommand::Recall),
    ]
}

/// A break of the grant with the fencing token [`LAST`], which the test replaces by the last one.
#[derive(Debug)]
struct BreakLast {
    by: Option<Owner>,
    grace: Option<Duration>,
}

const LAST: FencingToken = FencingToken::NONE;

impl BreakLast {
    fn command(self) -> LockCommand {
        let Self { by, grace } = self;
        let reason = Reason::parse("it stands still").expect("a reason");
        LockCommand::Break(BreakCommand {
            is_of_wait: false,
            fencing_token: LAST,
            slot: None,
            reason,
            by,
            grace,
        })
    }
}

/// The command with the fencing token of a grant that there is.
fn of_last(command: LockCommand, last: FencingToken) -> LockCommand {
    match command {
        LockCommand::Break(command) => {
            LockCommand::Break(BreakCommand { fencing_token: last, ..command })
        }
        other => other,
    }
}

fn limit() -> impl Strategy<Value = Limit> {
    let counted = (1_u64..4).prop_map(|slots| Limit::Counted(Slots::new(slots).expect("some")));
    prop_oneof![2 => Just(Limit::Exclusive), 2 => Just(Limit::Shared), 2 => counted]
}

fn entry() -> impl Strategy<Value = Option<EntryName>> {
    prop_oneof![4 => Just(""), 1 => Just("step-1"), 1 => Just("Zoë")]
        .prop_map(|name| EntryName::parse(name).ok())
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

proptest! {
    #[test]
    fn every_lock_that_commands_reach_is_its_snapshot(
        steps in vec((pause(), lock_command()), 1..STEPS),
    ) {
        let name = LockName::parse("lock").expect("a name");
        let (mut state, mut moment) = (LockState::default(), start());
        for (pause, command) in steps {
            advance(&mut moment, pause, state.fencing_token());
            let command = of_last(command, state.fencing_token().unwrap_or_default());
            state = state.apply(&name, &command, &moment).0;
            let bytes = state.encode().expect("a state of the rules can be written");
            let read = LockState::decode(&bytes);
            prop_assert!(read.as_ref() == Ok(&state), "{state:?} is {read:?} after {command:?}");
        }
    }

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
