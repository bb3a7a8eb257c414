//! Every store against the rules: the same random commands on both give the same outcomes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use keylatch_core::lock::{
    Acquire, Acquisition, Attempt, Busy, FencingToken, Holder, Lease, LockName, LockState,
    LockStore, Moment, Owner, Peek, Renew, Renewal, Return, Token, TokenHash, Ttl, Withdraw,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::Builder;

use crate::conformance::Clock;
use crate::stores::{self, Subject};

/// How much older a lock in a store may be than its model: the time that commands really take.
const SLACK: Duration = Duration::from_secs(20);

#[test]
fn the_redis_scripts_follow_the_rules() {
    follows_the_rules(stores::redis());
}

#[test]
fn the_embedded_store_follows_the_rules() {
    follows_the_rules(stores::embedded());
}

#[test]
fn the_memory_store_follows_the_rules() {
    follows_the_rules(stores::memory());
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
        // Each sequence has locks of its own.
        sequence.set(sequence.get() + 1);
        let mut model = Model { sequence: sequence.get(), ..Model::default() };
        runtime.block_on(async {
            for (step, command) in commands.iter().enumerate() {
                let found = on_store(store.as_ref(), clock.as_ref(), model.sequence, command).await;
                let expected = model.apply(command);
                same(&expected, &found, &mut model).map_err(|why| {
                    TestCaseError::fail(format!("step {step}, {command:?}: {why}"))
                })?;
            }
            Ok(())
        })
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
}

#[derive(Debug, Clone)]
enum Command {
    Acquire {
        lock: u8,
        holder: u8,
        ttl: u64,
        owner: Option<u8>,
        attempt: u64,
        /// For how many seconds to keep a place.
        place: Option<u64>,
    },
    Withdraw {
        lock: u8,
        holder: u8,
        attempt: u64,
    },
    Renew {
        lock: u8,
        holder: u8,
        ttl: u64,
    },
    Release {
        lock: u8,
        holder: u8,
    },
    Get {
        lock: u8,
    },
    /// Time passes, in steps far above what commands take.
    Pass {
        minutes: u64,
    },
}

fn command() -> impl Strategy<Value = Command> {
    let (lock, holder, attempt) = (0..2_u8, 0..5_u8, 0..3_u64);
    let ttl = prop::sample::select(vec![90_u64, 150, 270]).prop_map(|seconds| seconds * 1000);
    let owner = prop::option::of(0..2_u8);
    let place = prop::option::of(prop::sample::select(vec![90_u64, 150, 270]));
    prop_oneof![
        6 => (lock.clone(), holder.clone(), ttl.clone(), owner, attempt.clone(), place).prop_map(
            |(lock, holder, ttl, owner, attempt, place)| {
                Command::Acquire { lock, holder, ttl, owner, attempt, place }
            }
        ),
        2 => (lock.clone(), holder.clone(), attempt)
            .prop_map(|(lock, holder, attempt)| Command::Withdraw { lock, holder, attempt }),
        2 => (lock.clone(), holder.clone(), ttl)
            .prop_map(|(lock, holder, ttl)| Command::Renew { lock, holder, ttl }),
        2 => (lock.clone(), holder).prop_map(|(lock, holder)| Command::Release { lock, holder }),
        1 => lock.prop_map(|lock| Command::Get { lock }),
        2 => (1..4_u64).prop_map(|minutes| Command::Pass { minutes }),
    ]
}

/// What a command found, in either world.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Acquired(Acquisition),
    Renewed(Renewal),
    Released(keylatch_core::lock::Release),
    Seen(Option<Holder>),
    Nothing,
}

/// The rules alone, with a clock of their own.
#[derive(Default)]
struct Model {
    sequence: u64,
    now: Duration,
    grants: u64,
    locks: BTreeMap<u8, LockState>,
    /// The fencing tokens that the store gave for the model's, in the order of the model's.
    fences: BTreeMap<FencingToken, FencingToken>,
}

impl Model {
    fn apply(&mut self, command: &Command) -> Found {
        match *command {
            Command::Acquire { lock, .. } => Found::Acquired(
                self.step(lock, &acquire(self.sequence, command).expect("an acquire")),
            ),
            Command::Withdraw { lock, holder, attempt } => {
                let withdraw = Withdraw { token: token(holder), attempt: Attempt::new(attempt) };
                self.step(lock, &withdraw);
                Found::Nothing
            }
            Command::Renew { lock, holder, ttl } => {
                let renew = Renew { token: token(holder), ttl: Ttl::from_millis(ttl).unwrap() };
                Found::Renewed(self.step(lock, &renew))
            }
            Command::Release { lock, holder } => {
                Found::Released(self.step(lock, &Return { token: token(holder) }))
            }
            Command::Get { lock } => {
                Found::Seen(self.step(lock, &Peek { name: name(self.sequence, lock) }))
            }
            Command::Pass { minutes } => {
                self.now += Duration::from_secs(minutes * 60);
                Found::Nothing
            }
        }
    }

    fn step<C: keylatch_core::lock::Command>(&mut self, lock: u8, command: &C) -> C::Outcome {
        self.grants += 1;
        let last_fence = FencingToken::new(self.grants);
        let moment = Moment { now: self.now, unix_micros: 0, last_fence };
        let state = self.locks.entry(lock).or_default();
        let (after, outcome) = state.apply(command, &moment);
        *state = after;
        outcome
    }
}

async fn on_store(
    store: &dyn LockStore,
    clock: &dyn Clock,
    sequence: u64,
    command: &Command,
) -> Found {
    let name = |lock| name(sequence, lock);
    match *command {
        Command::Acquire { .. } => {
            let ask = acquire(sequence, command).expect("an acquire");
            Found::Acquired(store.acquire(&ask).await.unwrap())
        }
        Command::Withdraw { lock, holder, attempt } => {
            store.withdraw(&name(lock), &token(holder), Attempt::new(attempt)).await.unwrap();
            Found::Nothing
        }
        Command::Renew { lock, holder, ttl } => {
            let ttl = Ttl::from_millis(ttl).unwrap();
            Found::Renewed(store.renew(&name(lock), &token(holder), ttl).await.unwrap())
        }
        Command::Release { lock, holder } => {
            Found::Released(store.release(&name(lock), &token(holder)).await.unwrap())
        }
        Command::Get { lock } => Found::Seen(store.get(&name(lock)).await.unwrap()),
        Command::Pass { minutes } => {
            clock.advance(Duration::from_secs(minutes * 60)).await;
            Found::Nothing
        }
    }
}

/// Whether both worlds found the same: all but the clock and the numbers of the fencing tokens, of
/// which the order must be the same.
fn same(expected: &Found, found: &Found, model: &mut Model) -> Result<(), String> {
    if let (Some((left, fence)), Some((found_left, found_fence))) = (clock(expected), clock(found))
    {
        if found_left > left || found_left + SLACK < left {
            return Err(format!("{found_left:?} left in the store, {left:?} by the rules"));
        }
        let known = model.fences.insert(fence, found_fence);
        if known.is_some_and(|known| known != found_fence)
            || !model.fences.values().is_sorted_by(|a, b| a < b)
        {
            return Err(format!("fencing tokens out of order: {:?}", model.fences));
        }
    }
    let (expected, found) = (timeless(expected.clone()), timeless(found.clone()));
    if expected == found {
        Ok(())
    } else {
        Err(format!("{found:?} in the store, {expected:?} by the rules"))
    }
}

fn clock(found: &Found) -> Option<(Duration, FencingToken)> {
    match found {
        Found::Acquired(Acquisition::Granted(lease) | Acquisition::Repeated(lease))
        | Found::Renewed(Renewal::Renewed(lease)) => Some((lease.expires_in, lease.fence)),
        Found::Acquired(Acquisition::Held(Busy { holder: Some(holder), .. }))
        | Found::Seen(Some(holder)) => Some((holder.expires_in, holder.fence)),
        _ => None,
    }
}

fn timeless(found: Found) -> Found {
    let lease =
        |lease: Lease| Lease { fence: FencingToken::NONE, expires_in: Duration::ZERO, ..lease };
    let holder = |holder: Holder| Holder {
        fence: FencingToken::NONE,
        expires_in: Duration::ZERO,
        acquired_at_millis: 0,
        ..holder
    };
    match found {
        Found::Acquired(Acquisition::Granted(granted)) => {
            Found::Acquired(Acquisition::Granted(lease(granted)))
        }
        Found::Acquired(Acquisition::Repeated(again)) => {
            Found::Acquired(Acquisition::Repeated(lease(again)))
        }
        Found::Acquired(Acquisition::Held(busy)) => {
            let holder = busy.holder.map(holder);
            Found::Acquired(Acquisition::Held(Busy { holder, ..busy }))
        }
        Found::Renewed(Renewal::Renewed(renewed)) => {
            Found::Renewed(Renewal::Renewed(lease(renewed)))
        }
        Found::Seen(Some(seen)) => Found::Seen(Some(holder(seen))),
        other => other,
    }
}

fn acquire(sequence: u64, command: &Command) -> Option<Acquire> {
    let Command::Acquire { lock, holder, ttl, owner, attempt, place } = *command else {
        return None;
    };
    Some(Acquire {
        name: name(sequence, lock),
        token: token(holder),
        ttl: Ttl::from_millis(ttl).unwrap(),
        owner: owner.and_then(|owner| Owner::parse(&format!("owner {owner}")).unwrap()),
        attempt: Attempt::new(attempt),
        place: place.map(Duration::from_secs),
    })
}

fn name(sequence: u64, lock: u8) -> LockName {
    LockName::parse(&format!("lock {lock} of {sequence}")).unwrap()
}

fn token(holder: u8) -> TokenHash {
    Token::parse(&format!("token-of-the-holder-{holder}")).unwrap().hash()
}
