//! Goal: every store with a queue executes the rules of `LockState`.
//! Method: random sequences of commands run on the store and on the rules alone, and have the same
//! replies but for clocks and the numbers of fencing tokens, whose order is the same.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use keylatch_core::lock::{
    AcquireCommand, AcquireReply, Attempt, Contention, FencingToken, Holder, Lease, LockCommand,
    LockName, LockReply, LockState, Moment, Owner, RenewReply, Token, TokenHash, Ttl,
};
use keylatch_core::store::{Command, Reply};
use keylatch_testkit::{FromStore as _, Locks, TestStore, scaled, store_test};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::Builder;

/// How much older a lock in a store may be than its model: the time that commands really take.
const SLACK: Duration = Duration::from_secs(20);
/// How much younger it may be: a store that estimates the clock of its engine may be ahead of it.
const AHEAD: Duration = Duration::from_secs(1);

/// Runs random sequences of commands on the store and on the rules alone.
#[store_test(queue)]
fn store_follows_the_lock_rules(start: impl Future<Output = TestStore>) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let store = runtime.block_on(async { Locks::from_store(&start.await).await });
    let cases = u32::try_from(scaled(200)).expect("a number of cases");
    let mut runner =
        TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let sequence = Cell::new(0);
    let steps = prop::collection::vec(step(), 1..60);
    let ran = runner.run(&steps, |steps| {
        // Each sequence has its own locks.
        sequence.set(sequence.get() + 1);
        let mut model = Model { sequence: sequence.get(), ..Model::default() };
        runtime.block_on(async {
            for (number, step) in steps.iter().enumerate() {
                model.check(&store, step).await.map_err(|why| {
                    TestCaseError::fail(format!("step {number}, {step:?}: {why}"))
                })?;
            }
            Ok(())
        })
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
}

#[derive(Debug, Clone)]
enum Step {
    Run {
        lock: u8,
        command: LockCommand,
    },
    /// Time passes, in steps far above what commands take.
    Pass {
        minutes: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (lock, holder, attempt) = (0..2_u8, (0..5_u8).prop_map(token), 0..3_u64);
    let attempt = attempt.prop_map(Attempt::new);
    let ttl = select(vec![90_u64, 150, 270]).prop_map(|seconds| Ttl::from_millis(seconds * 1000));
    let ttl = ttl.prop_map(|ttl| ttl.expect("a valid TTL"));
    let owner = prop::option::of(0..2_u8).prop_map(|owner| {
        owner.and_then(|owner| Owner::parse(&format!("owner {owner}")).expect("a valid owner"))
    });
    let queue = prop::option::of(select(vec![90_u64, 150, 270]).prop_map(Duration::from_secs));
    let acquire = (holder.clone(), ttl.clone(), owner, attempt.clone(), queue).prop_map(
        |(token, ttl, owner, attempt, queue)| {
            let command = AcquireCommand::new(token, ttl, attempt);
            LockCommand::Acquire(AcquireCommand { owner, queue, ..command })
        },
    );
    let command = prop_oneof![
        6 => acquire,
        2 => (holder.clone(), attempt)
            .prop_map(|(token, attempt)| LockCommand::Withdraw { token, attempt }),
        2 => (holder.clone(), ttl).prop_map(|(token, ttl)| LockCommand::Renew { token, ttl }),
        2 => holder.prop_map(|token| LockCommand::Release { token }),
        1 => Just(LockCommand::Look),
    ];
    prop_oneof![
        13 => (lock, command).prop_map(|(lock, command)| Step::Run { lock, command }),
        2 => (1..4_u64).prop_map(|minutes| Step::Pass { minutes }),
    ]
}

/// The rules alone, with their own clock.
#[derive(Default)]
struct Model {
    sequence: u64,
    now: Duration,
    steps: u64,
    locks: BTreeMap<u8, LockState>,
    /// The fencing tokens that the store gave for the model's, by lock, in the order of the model's.
    fences: BTreeMap<u8, BTreeMap<FencingToken, FencingToken>>,
}

impl Model {
    /// Runs a step in both worlds and compares their replies.
    async fn check(&mut self, store: &Locks, step: &Step) -> Result<(), String> {
        match step {
            Step::Pass { minutes } => {
                let time = Duration::from_secs(minutes * 60);
                store.advance(time).await;
                self.now += time;
                Ok(())
            }
            Step::Run { lock, command } => {
                let name = LockName::parse(&format!("lock {lock} of {}", self.sequence)).unwrap();
                let found = store.execute(Command::Lock(name.clone(), command.clone())).await;
                let Ok(Reply::Lock(found)) = found else { panic!("a reply, not {found:?}") };
                let expected = self.apply(*lock, &name, command);
                self.compare(*lock, &expected, &found)
            }
        }
    }

    fn apply(&mut self, lock: u8, name: &LockName, command: &LockCommand) -> LockReply {
        self.steps += 1;
        let last_fencing_token = FencingToken::new(self.steps);
        let moment = Moment { now: self.now, unix_micros: 0, last_fencing_token };
        let state = self.locks.entry(lock).or_default();
        let (after, reply) = state.apply(name, command, &moment);
        *state = after;
        reply
    }

    /// Whether both worlds found the same: all but the clock and the numbers of the fencing tokens,
    /// of which the order must be the same.
    fn compare(&mut self, lock: u8, expected: &LockReply, found: &LockReply) -> Result<(), String> {
        if let (Some((left, fencing_token)), Some((found_left, found_fence))) =
            (clock(expected), clock(found))
        {
            if found_left > left + AHEAD || found_left + SLACK < left {
                return Err(format!("{found_left:?} left in the store, {left:?} by the rules"));
            }
            let fences = self.fences.entry(lock).or_default();
            let known = fences.insert(fencing_token, found_fence);
            if known.is_some_and(|known| known != found_fence)
                || !fences.values().is_sorted_by(|a, b| a < b)
            {
                return Err(format!("fencing tokens out of order: {fences:?}"));
            }
        }
        let (expected, found) = (timeless(expected.clone()), timeless(found.clone()));
        if expected == found {
            Ok(())
        } else {
            Err(format!("{found:?} in the store, {expected:?} by the rules"))
        }
    }
}

/// What is left of a lease, and its fencing token.
fn clock(reply: &LockReply) -> Option<(Duration, FencingToken)> {
    match reply {
        LockReply::Acquire(AcquireReply::Granted(lease) | AcquireReply::Repeated(lease))
        | LockReply::Renew(RenewReply::Renewed(lease)) => {
            Some((lease.expires_in, lease.fencing_token))
        }
        LockReply::Acquire(AcquireReply::Busy(Contention { holder: Some(holder), .. }))
        | LockReply::Look(Some(holder)) => Some((holder.expires_in, holder.fencing_token)),
        _ => None,
    }
}

/// A reply without clocks and numbers.
fn timeless(reply: LockReply) -> LockReply {
    let lease = |lease: Lease| Lease {
        fencing_token: FencingToken::NONE,
        expires_in: Duration::ZERO,
        ..lease
    };
    let holder = |holder: Holder| Holder {
        fencing_token: FencingToken::NONE,
        expires_in: Duration::ZERO,
        acquired_at_millis: 0,
        ..holder
    };
    match reply {
        LockReply::Acquire(AcquireReply::Granted(granted)) => {
            LockReply::Acquire(AcquireReply::Granted(lease(granted)))
        }
        LockReply::Acquire(AcquireReply::Repeated(again)) => {
            LockReply::Acquire(AcquireReply::Repeated(lease(again)))
        }
        LockReply::Acquire(AcquireReply::Busy(contention)) => {
            let holder = contention.holder.map(holder);
            LockReply::Acquire(AcquireReply::Busy(Contention { holder, ..contention }))
        }
        LockReply::Renew(RenewReply::Renewed(renewed)) => {
            LockReply::Renew(RenewReply::Renewed(lease(renewed)))
        }
        LockReply::Look(Some(seen)) => LockReply::Look(Some(holder(seen))),
        other => other,
    }
}

fn token(holder: u8) -> TokenHash {
    Token::parse(&format!("token-of-the-holder-{holder}")).unwrap().hash()
}
