//! Goal: every store with a queue executes the rules of `LockState`; those that keep locks as a
//! whole do so for locks of every kind. Method: random sequences of commands run on the store and
//! on the rules alone, and have the same replies but for clocks and the numbers of fencing tokens,
//! whose order is the same.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use keylatch_core::entry::{Entry as _, Few};
use keylatch_core::lock::{
    AcquireCommand, AcquireReply, Attempt, Break, BreakCommand, BreakReply, Contention, EndCause,
    EntryName, FencingToken, GrantEnd, Holder, Holding, Lease, Limit, LockCommand, LockLoss,
    LockName, LockReply, LockState, LostLock, Moment, Owner, Reason, RenewReply, Slots, Token,
    TokenHash, Ttl, Waiter,
};
use keylatch_core::store::{Command, Reply};
use keylatch_testkit::{FromStore, Locks, TestStore, scaled, store_test};
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
    compare_with_rules(start, step().boxed());
}

/// The same with locks that several hold, with entries and with breaks.
#[store_test(modes)]
fn store_follows_the_rules_of_every_kind_of_lock(start: impl Future<Output = TestStore>) {
    compare_with_rules(start, step_of_modes().boxed());
}

fn compare_with_rules(start: impl Future<Output = TestStore>, step: BoxedStrategy<Step>) {
    follows_rules::<Locks, _, _>(start, step, &async |model: &mut Model, store, step| {
        model.check(store, step).await
    });
}

/// Runs random sequences of steps on a store and on a model, which says where both differ. A
/// sequence has a model of its own, which knows its number.
pub(crate) fn follows_rules<S: FromStore, T: Debug + Clone + 'static, M: From<u64>>(
    start: impl Future<Output = TestStore>,
    step: impl Strategy<Value = T>,
    check: &impl AsyncFn(&mut M, &S, &T) -> Result<(), String>,
) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let store = runtime.block_on(async { S::from_store(&start.await).await });
    let cases = u32::try_from(scaled(100)).expect("a number of cases");
    let mut runner =
        TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let sequence = Cell::new(0);
    let steps = prop::collection::vec(step, 1..60);
    let ran = runner.run(&steps, |steps| {
        sequence.set(sequence.get() + 1);
        let mut model = M::from(sequence.get());
        runtime.block_on(async {
            for (number, step) in steps.iter().enumerate() {
                check(&mut model, &store, step).await.map_err(|why| {
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
    /// The grant with the last fencing token but so many is broken.
    Break {
        lock: u8,
        before_last: usize,
        grace: Option<Duration>,
    },
    /// Time passes, in steps far above what commands take.
    Pass {
        minutes: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    step_with(Just(Limit::Exclusive), Just(None))
}

fn step_of_modes() -> impl Strategy<Value = Step> {
    let counted = (1..4_u64).prop_map(|slots| Limit::Counted(Slots::new(slots).expect("some")));
    let limit = prop_oneof![2 => Just(Limit::Exclusive), 3 => Just(Limit::Shared), 3 => counted];
    let entry = select(vec!["", "", "", "one", "two"]).prop_map(|name| EntryName::parse(name).ok());
    let grace = prop::option::of(select(vec![0, 30, 90_u64]).prop_map(Duration::from_secs));
    let broken = (0..2_u8, 0..3_usize, grace);
    let recall = (0..2_u8).prop_map(|lock| Step::Run { lock, command: LockCommand::Recall });
    prop_oneof![
        14 => step_with(limit, entry),
        1 => broken.prop_map(|(lock, before_last, grace)| Step::Break { lock, before_last, grace }),
        1 => recall,
    ]
}

fn step_with(
    limit: impl Strategy<Value = Limit> + Clone,
    entry: impl Strategy<Value = Option<EntryName>> + Clone,
) -> impl Strategy<Value = Step> {
    let (lock, holder, attempt) = (0..2_u8, (0..5_u8).prop_map(token), 0..3_u64);
    let attempt = attempt.prop_map(Attempt::new);
    let ttl = select(vec![90_u64, 150, 270]).prop_map(|seconds| Ttl::from_millis(seconds * 1000));
    let ttl = ttl.prop_map(|ttl| ttl.expect("a valid TTL"));
    let owner = prop::option::of(0..2_u8).prop_map(|owner| {
        owner.and_then(|owner| Owner::parse(&format!("owner {owner}")).expect("a valid owner"))
    });
    let queue = prop::option::of(select(vec![90_u64, 150, 270]).prop_map(Duration::from_secs));
    let wait = (queue, prop::option::weighted(0.2, 0..2_u64));
    let kind = (limit, entry.clone());
    let acquire = (holder.clone(), ttl.clone(), owner, attempt.clone(), wait, kind).prop_map(
        |(token, ttl, owner, attempt, (queue, max_ahead), (limit, entry))| {
            let command = AcquireCommand::new(token, ttl, attempt);
            let command = AcquireCommand { owner, queue, max_ahead, limit, entry, ..command };
            LockCommand::Acquire(command)
        },
    );
    let command = prop_oneof![
        6 => acquire,
        2 => (holder.clone(), attempt)
            .prop_map(|(token, attempt)| LockCommand::Withdraw { token, attempt }),
        2 => (holder.clone(), prop::option::of(ttl))
            .prop_map(|(token, ttl)| LockCommand::Renew { token, ttl }),
        2 => (holder, entry)
            .prop_map(|(token, entry)| LockCommand::Release { token, entry }),
        1 => Just(LockCommand::Look),
        1 => Just(LockCommand::LookAtQueue),
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
    /// The fencing tokens that the store gave for the model's, by lock, in the order of the
    /// model's.
    fences: BTreeMap<u8, BTreeMap<FencingToken, FencingToken>>,
}

/// Each sequence has its own locks.
impl From<u64> for Model {
    fn from(sequence: u64) -> Self {
        Self { sequence, ..Self::default() }
    }
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
            Step::Run { lock, command } => self.run(store, *lock, command, command).await,
            Step::Break { lock, before_last, grace } => {
                // Each world has its own fencing token of the grant.
                let fences = self.fences.entry(*lock).or_default();
                let Some((here, there)) = fences.iter().rev().nth(*before_last) else {
                    return Ok(());
                };
                let of = |fencing_token| {
                    let reason = Reason::parse("it stands still").expect("a reason");
                    let (slot, by, grace) = (None, None, *grace);
                    LockCommand::Break(BreakCommand {
                        is_of_wait: false,
                        fencing_token,
                        slot,
                        reason,
                        by,
                        grace,
                    })
                };
                let (here, there) = (of(*here), of(*there));
                self.run(store, *lock, &here, &there).await
            }
        }
    }

    /// Runs a command by the rules and its like on the store.
    async fn run(
        &mut self,
        store: &Locks,
        lock: u8,
        here: &LockCommand,
        there: &LockCommand,
    ) -> Result<(), String> {
        let name = LockName::parse(&format!("lock {lock} of {}", self.sequence)).unwrap();
        let found = store.execute(Command::Lock(name.clone().into(), there.clone())).await;
        let Ok(Reply::Lock(found)) = found else { panic!("a reply, not {found:?}") };
        let expected = self.apply(lock, &name, here);
        self.compare(lock, &expected, &found)
    }

    fn apply(&mut self, lock: u8, name: &LockName, command: &LockCommand) -> LockReply {
        self.steps += 1;
        let last_fencing_token = FencingToken::new(self.steps);
        let moment = Moment { now: self.now, last_fencing_token, ..Moment::default() };
        let state = self.locks.entry(lock).or_default();
        let (after, reply) = state.apply(name, command, &moment);
        *state = after;
        reply
    }

    /// Whether both worlds found the same: all but the clock and the numbers of the fencing tokens,
    /// of which the order must be the same.
    fn compare(&mut self, lock: u8, expected: &LockReply, found: &LockReply) -> Result<(), String> {
        let (clocks, found_clocks) = (clocks(expected), clocks(found));
        let fences = self.fences.entry(lock).or_default();
        for (clock, in_store) in clocks.into_iter().zip(found_clocks) {
            let (left, found_left) = (clock.left, in_store.left);
            if found_left > left + AHEAD || found_left + SLACK < left {
                return Err(format!("{found_left:?} left in the store, {left:?} by the rules"));
            }
            let known = fences.insert(clock.fencing_token, in_store.fencing_token);
            if known.is_some_and(|known| known != in_store.fencing_token)
                || !fences.values().is_sorted_by(|a, b| a < b)
            {
                return Err(format!("fencing tokens out of order: {fences:?}"));
            }
        }
        for (waited, in_store) in waits(expected).into_iter().zip(waits(found)) {
            if in_store + AHEAD < waited || in_store > waited + SLACK {
                return Err(format!("{in_store:?} waited in the store, {waited:?} by the rules"));
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
struct LeaseClock {
    left: Duration,
    fencing_token: FencingToken,
}

/// Those of each lease in a reply, by slot.
fn clocks(reply: &LockReply) -> Vec<LeaseClock> {
    let of_lease =
        |lease: &Lease| LeaseClock { left: lease.expires_in, fencing_token: lease.fencing_token };
    match reply {
        LockReply::Acquire(AcquireReply::Granted(leases) | AcquireReply::Repeated(leases))
        | LockReply::Renew(RenewReply::Renewed(leases)) => leases.iter().map(of_lease).collect(),
        LockReply::Acquire(
            AcquireReply::Busy(why) | AcquireReply::Crowded(why) | AcquireReply::NotAlone(why),
        ) => why.holding.as_ref().map(of_holding).unwrap_or_default(),
        LockReply::Look(Some(holding)) | LockReply::Break(BreakReply::Mismatch(holding)) => {
            of_holding(holding)
        }
        LockReply::Release(replies) => {
            let ended =
                replies.iter().filter_map(|(_, end)| end.as_ref()).map(|end| end.fencing_token);
            ended.map(|fencing_token| LeaseClock { left: Duration::ZERO, fencing_token }).collect()
        }
        _ => Vec::new(),
    }
}

/// For how long each waiter in a reply has waited.
fn waits(reply: &LockReply) -> Vec<Duration> {
    let LockReply::LookAtQueue(waiters) = reply else { return Vec::new() };
    waiters.iter().map(|waiter| waiter.waited).collect()
}

fn of_holding(holding: &Holding) -> Vec<LeaseClock> {
    let mut holders: Vec<_> = holding.holders().collect();
    holders.sort_unstable_by_key(|holder| holder.slot);
    let clock = |holder: &&Holder| LeaseClock {
        left: holder.expires_in,
        fencing_token: holder.fencing_token,
    };
    holders.iter().map(clock).collect()
}

/// A reply without clocks and numbers.
fn timeless(reply: LockReply) -> LockReply {
    match reply {
        LockReply::Acquire(reply) => LockReply::Acquire(timeless_acquire(reply)),
        LockReply::Renew(RenewReply::Renewed(leases)) => {
            LockReply::Renew(RenewReply::Renewed(timeless_leases(leases)))
        }
        LockReply::Renew(RenewReply::Lost(lost)) => {
            LockReply::Renew(RenewReply::Lost(lost.into_iter().map(timeless_loss).collect()))
        }
        LockReply::Look(Some(holding)) => LockReply::Look(Some(timeless_holding(holding))),
        LockReply::Release(replies) => {
            let replies = replies.into_iter();
            let timeless = replies.map(|(reply, end)| (reply, end.map(timeless_end)));
            LockReply::Release(timeless.collect())
        }
        LockReply::LookAtQueue(waiters) => {
            LockReply::LookAtQueue(waiters.into_iter().map(timeless_waiter).collect())
        }
        // An end is that of the lease at the latest, of which the clocks of both differ.
        LockReply::Break(BreakReply::Broken { .. }) => {
            LockReply::Break(BreakReply::Broken { ends_in: Duration::ZERO })
        }
        LockReply::Break(BreakReply::Mismatch(holding)) => {
            LockReply::Break(BreakReply::Mismatch(timeless_holding(holding)))
        }
        // Expiries are kept for as long as anything else is, which a sweep decides; and which of
        // several leases that end in one step of the model ended first is a matter of clocks.
        LockReply::Recall(ends) => {
            let broken = ends.into_iter().filter(|end| end.broken().is_some());
            let mut broken: Vec<_> = broken.map(timeless_end).collect();
            broken.sort_unstable_by_key(|end| *end.token.as_bytes());
            LockReply::Recall(broken)
        }
        other => other,
    }
}

fn timeless_acquire(reply: AcquireReply) -> AcquireReply {
    let of_contention = |why: Contention| Contention {
        holding: why.holding.map(timeless_holding),
        first: why.first.map(timeless_waiter),
        ..why
    };
    match reply {
        AcquireReply::Granted(leases) => AcquireReply::Granted(timeless_leases(leases)),
        AcquireReply::Repeated(leases) => AcquireReply::Repeated(timeless_leases(leases)),
        AcquireReply::Busy(why) => AcquireReply::Busy(of_contention(why)),
        AcquireReply::Crowded(why) => AcquireReply::Crowded(of_contention(why)),
        AcquireReply::NotAlone(why) => AcquireReply::NotAlone(of_contention(why)),
        other @ (AcquireReply::WaitEnded(_) | AcquireReply::Full) => other,
    }
}

fn timeless_waiter(waiter: Waiter) -> Waiter {
    Waiter { waited: Duration::ZERO, ..waiter }
}

fn timeless_leases(leases: Few<Lease>) -> Few<Lease> {
    let (fencing_token, expires_in) = (FencingToken::NONE, Duration::ZERO);
    leases.into_iter().map(|lease| Lease { fencing_token, expires_in, ..lease }).collect()
}

fn timeless_loss(lost: LostLock) -> LostLock {
    match lost.loss {
        LockLoss::Broken(why) => LostLock { loss: LockLoss::Broken(timeless_break(&why)), ..lost },
        _ => lost,
    }
}

/// The holders by slot: which lease ends first is a matter of clocks.
fn timeless_holding(holding: Holding) -> Holding {
    let count = holding.count;
    let timeless = |holder: Holder| Holder {
        fencing_token: FencingToken::NONE,
        expires_in: Duration::ZERO,
        acquired_at_millis: 0,
        broken: holder.broken.as_ref().map(timeless_break),
        ..holder
    };
    let mut holders: Vec<_> = holding.into_holders().map(timeless).collect();
    holders.sort_unstable_by_key(|holder| holder.slot);
    Holding { first: Box::new(holders.remove(0)), others: holders, count }
}

fn timeless_break(why: &Arc<Break>) -> Arc<Break> {
    Arc::new(Break { at_millis: 0, ..(**why).clone() })
}

fn timeless_end(end: GrantEnd) -> GrantEnd {
    let cause = match end.cause {
        EndCause::Break { why, .. } => {
            EndCause::Break { why: timeless_break(&why), since: Duration::ZERO }
        }
        other => other,
    };
    GrantEnd {
        fencing_token: FencingToken::NONE,
        acquired_at_millis: 0,
        ended_at_millis: 0,
        cause,
        ..end
    }
}

fn token(holder: u8) -> TokenHash {
    Token::parse(&format!("token-of-the-holder-{holder}")).unwrap().hash()
}
