//! The adapter over conditional writes, one step at a time: what it reads before it answers, what
//! it leaves unknown, when a lease is over, and what a sweep removes.
//!
//! Method: two stores over one fake engine, which does one thing that the contract allows. tokio's
//! clock is stopped and jumps from timer to timer. The runs on bad days (`conditional.rs`) meet the
//! same steps by chance alone; each test here fails on a version of the adapter that is wrong in
//! one place (`make mutants`).

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use keylatch_core::lock::{
    AcquireCommand, AcquireReply, Attempt, LockLoss, LockName, LockSet, ReleaseReply, RenewReply,
    Token, TokenHash, Ttl,
};
use keylatch_core::store::{Effect, Topic};
use keylatch_stores::optimistic;
use keylatch_testkit::{FakeEngine, Faults, seed};
use tokio::time::{Instant, timeout};

use crate::conditional::{grant, pass, stopped};
use crate::set_conformance::losses;

/// It says nothing of what other processes write.
const DEAF: Faults = Faults { lost_notice: 1000, conflict: 0, ..Faults::HARMLESS };
/// Long enough for the store to take another reading of the engine's clock.
const LEASE: Duration = Duration::from_secs(6);
/// How long a call takes on its way, and as long back, at most.
const TRAVEL_MILLIS: u64 = 200;

fn name(name: &str) -> LockName {
    LockName::parse(name).unwrap()
}

fn set(names: [&str; 2]) -> LockSet {
    LockSet::new(names.map(name).to_vec()).unwrap()
}

fn new_token() -> TokenHash {
    Token::generate().expect("a token").hash()
}

fn command(token: TokenHash, ttl: Ttl) -> AcquireCommand {
    AcquireCommand::new(token, ttl, Attempt::new(1))
}

/// Another process releases the lock, and this one hears nothing of it. The nearest part of the
/// engine is behind.
#[tokio::test(start_paused = true)]
async fn refusal_is_from_a_row_that_was_read_after_the_command_came() {
    for make in [FakeEngine::new, FakeEngine::without_clock, FakeEngine::forgetful] {
        let behind = Faults { stale_peek: 1000, ..DEAF };
        let engine = make(behind, seed());
        let [one, other] = [(); 2].map(|()| optimistic(engine.clone()));
        let (token, _) = grant(&*other, &name("a"), Ttl::DEFAULT).await;
        let refused = one.acquire(&name("a"), command(new_token(), Ttl::DEFAULT)).await;
        assert!(matches!(refused.unwrap(), AcquireReply::Busy(_)));
        other.release(&name("a"), &token).await.unwrap();
        grant(&*one, &name("a"), Ttl::DEFAULT).await;
    }
}

/// A read is under way for another command when the lock is released.
#[test]
fn refusal_is_not_from_a_row_that_was_read_before_the_command_came() {
    let ask = async |engine: FakeEngine| {
        let [one, other] = [(); 2].map(|()| optimistic(engine.clone()));
        let name = name("a");
        let (token, _) = grant(&*other, &name, Ttl::DEFAULT).await;
        let before = one.acquire(&name, command(new_token(), Ttl::DEFAULT));
        let after = async {
            other.release(&name, &token).await.unwrap();
            one.acquire(&name, command(new_token(), Ttl::DEFAULT)).await.unwrap()
        };
        let (before, after) = tokio::join!(before, after);
        let was_held = matches!(before.unwrap(), AcquireReply::Busy(_));
        assert!(!was_held || matches!(after, AcquireReply::Granted(_)), "{after:?}");
    };
    for number in 0..100 {
        let faults = Faults { lost_notice: 1000, ..slow() };
        stopped().block_on(async { ask(FakeEngine::new(faults, seed() + number)).await });
    }
}

/// What was carried out, and what was not, look the same to a process whose answers are lost.
#[test]
fn command_whose_answer_was_lost_is_unknown() {
    let lost = |faults| {
        for make in [FakeEngine::new, FakeEngine::without_clock, FakeEngine::forgetful] {
            stopped().block_on(async {
                let store = optimistic(make(faults, seed()));
                let asked = command(new_token(), Ttl::DEFAULT);
                let single = store.acquire(&name("a"), asked.clone()).await;
                assert_eq!(single.map_err(|error| error.effect()), Err(Effect::Unknown));
                let several = store.acquire(&set(["b", "c"]), asked).await;
                assert_eq!(several.map_err(|error| error.effect()), Err(Effect::Unknown));
            });
        }
    };
    lost(Faults { lost_answer: 1000, ..Faults::default() });
    lost(Faults { lost_batch: 1000, ..Faults::default() });
}

/// The engine's clock stands still just before the end of a lease. By the estimate the lease is
/// over.
#[test]
fn lease_is_not_lost_before_its_ttl() {
    let release = async |engine: FakeEngine| {
        let store = optimistic(engine.clone());
        let asked = Instant::now();
        let (token, _) = grant(&*store, &name("a"), lease()).await;
        stop_before_the_end(&engine, asked).await;
        let released = timeout(Duration::from_secs(1), store.release(&name("a"), &token)).await;
        // A store that still reads the row when the time is over has lost nothing.
        let is_lost = released.is_ok_and(|released| released.unwrap() != ReleaseReply::Released);
        assert!(!is_lost, "the engine's clock does not show the end of the lease yet");
    };
    for number in 0..30 {
        stopped().block_on(async { release(FakeEngine::new(slow(), seed() + number)).await });
    }
}

#[test]
fn leases_of_a_set_are_not_lost_before_their_ttl() {
    let release = async |engine: FakeEngine| {
        let (store, set, token) = (optimistic(engine.clone()), set(["a", "b"]), new_token());
        let asked = Instant::now();
        let granted = store.acquire(&set, command(token, lease())).await.unwrap();
        assert!(matches!(granted, AcquireReply::Granted(_)), "{granted:?}");
        stop_before_the_end(&engine, asked).await;
        let released = timeout(Duration::from_secs(1), store.leave(&set, &token, None)).await;
        let lost = released.map(|released| losses(&released.unwrap())).unwrap_or_default();
        assert!(lost.is_empty(), "{lost:?}: the clock does not show the end of the leases yet");
    };
    for number in 0..30 {
        stopped().block_on(async { release(FakeEngine::new(slow(), seed() + number)).await });
    }
}

/// Stops the engine's clock before it shows the end of a lease that was asked for then. The
/// estimate goes past it.
async fn stop_before_the_end(engine: &FakeEngine, asked: Instant) {
    pass((LEASE - Duration::from_millis(1)).saturating_sub(asked.elapsed())).await;
    engine.stop_clock(true);
    pass(Duration::from_secs(1)).await;
}

fn lease() -> Ttl {
    Ttl::from_millis(6000).expect("a TTL")
}

fn slow() -> Faults {
    Faults { delay_millis: TRAVEL_MILLIS, ..Faults::default() }
}

/// A write is on its way for so long that a lease ends by the clock, which its decision took as
/// lasting: it is of the holder, which asks for another lease.
#[tokio::test(start_paused = true)]
async fn write_that_comes_after_the_end_of_a_lease_is_not_carried_out() {
    let engine = FakeEngine::new(DEAF, seed());
    let [one, other] = [(); 2].map(|()| optimistic(engine.clone()));
    let name = name("a");
    let (token, _) = grant(&*one, &name, lease()).await;
    engine.hold_next_batch();
    let renewal = one.renew(&name, &token, Ttl::DEFAULT);
    let later = async {
        pass(Duration::from_secs(1)).await;
        engine.advance(LEASE);
        engine.release_batch();
    };
    let (renewed, ()) = tokio::join!(renewal, later);
    assert_eq!(renewed.unwrap(), RenewReply::lost(&name, LockLoss::NotHeld));
    grant(&*other, &name, Ttl::DEFAULT).await;
}

/// A command is on its way while another process withdraws it.
#[tokio::test(start_paused = true)]
async fn withdrawn_command_is_not_carried_out_later() {
    for make in [FakeEngine::new, FakeEngine::without_clock] {
        let engine = make(DEAF, seed());
        let [one, other] = [(); 2].map(|()| optimistic(engine.clone()));
        let asked = command(new_token(), Ttl::DEFAULT);
        engine.hold_next_batch();
        let (name, token, attempt) = (name("a"), asked.token, asked.attempt);
        let withdrawal = async {
            pass(Duration::from_millis(100)).await;
            other.withdraw(&name, &token, attempt).await.unwrap();
            engine.release_batch();
            pass(Duration::from_millis(100)).await;
        };
        // Its caller has gone by then.
        let patience = Duration::from_millis(50);
        let (gone, ()) = tokio::join!(timeout(patience, one.acquire(&name, asked)), withdrawal);
        gone.expect_err("the engine does not answer");
        grant(&*other, &name, Ttl::DEFAULT).await;
    }
}

/// A process that starts gives a lease its time again, and says so to the holder.
#[tokio::test(start_paused = true)]
async fn clockless_lease_lasts_everywhere_as_long_as_its_holder_was_told() {
    let engine = FakeEngine::without_clock(Faults::default(), seed());
    let [one, other] = [(); 2].map(|()| optimistic(engine.clone()));
    let (token, _) = grant(&*one, &name("a"), Ttl::DEFAULT).await;
    pass(Ttl::DEFAULT.get() / 2).await;
    let started = optimistic(engine.clone());
    let asked = command(token, Ttl::DEFAULT);
    let AcquireReply::Repeated(leases) = started.acquire(&name("a"), asked).await.unwrap() else {
        panic!("it holds the lock")
    };
    pass(leases[0].expires_in - Duration::from_secs(1)).await;
    let refused = other.acquire(&name("a"), command(new_token(), Ttl::DEFAULT)).await;
    assert!(matches!(refused.unwrap(), AcquireReply::Busy(_)));
}

/// One process has read the floor of a bucket, another one raises it and removes the row that it is
/// for.
#[test]
fn grant_on_a_removed_row_is_above_the_floor_that_another_process_read() {
    let creation = |after: Duration| async move {
        let engine = FakeEngine::new(Faults::default(), seed());
        let [one, other] = [(); 2].map(|()| optimistic(engine.clone()));
        let (token, first) = grant(&*one, &name("deploy"), Ttl::DEFAULT).await;
        // Time is no floor for the fencing tokens any more.
        engine.set_back(Duration::from_secs(3600));
        one.release(&name("deploy"), &token).await.unwrap();
        pass(after).await;
        grant(&*other, &of_bucket_of("deploy"), Ttl::DEFAULT).await;
        pass(Duration::from_millis(5800)).await;
        let (_, second) = grant(&*other, &name("deploy"), Ttl::DEFAULT).await;
        assert!(second > first, "{second:?} after {first:?}, created {after:?} after the release");
    };
    // The sweeps of 35 s or of 40 s find the row dead.
    for half_seconds in 56..96 {
        stopped().block_on(creation(Duration::from_millis(500 * half_seconds)));
    }
}

/// The name of another lock in the bucket of this one.
fn of_bucket_of(lock: &str) -> LockName {
    let bucket = name(lock).bucket();
    let mut others = (0..).map(|number| name(&format!("lock-{number}")));
    others.find(|other| other.bucket() == bucket).expect("a name of the bucket")
}

#[tokio::test(start_paused = true)]
async fn row_is_not_removed_while_a_lease_in_it_lasts() {
    for make in [FakeEngine::new, FakeEngine::without_clock] {
        let engine = make(Faults::default(), seed());
        let [one, other] = [(); 2].map(|()| optimistic(engine.clone()));
        let (token, _) = grant(&*one, &name("a"), Ttl::MAX).await;
        pass(Duration::from_secs(300)).await;
        let refused = other.acquire(&name("a"), command(new_token(), Ttl::DEFAULT)).await;
        assert!(matches!(refused.unwrap(), AcquireReply::Busy(_)));
        assert_eq!(one.release(&name("a"), &token).await.unwrap(), ReleaseReply::Released);
    }
}

/// A process that hears of nothing may write a removed row as if it were there.
#[tokio::test(start_paused = true)]
async fn row_is_forgotten_before_a_sweep_removes_it() {
    let engine = FakeEngine::new(DEAF, seed());
    let [one, other] = [(); 2].map(|()| optimistic(engine.clone()));
    let (token, _) = grant(&*one, &name("a"), Ttl::MAX).await;
    other.release(&name("a"), &token).await.unwrap();
    pass(Duration::from_secs(120)).await;
    assert_eq!(engine.rows(), 1, "the floor of the bucket alone is left");
    let renewed = one.renew(&name("a"), &token, Ttl::MAX).await.unwrap();
    let lost = RenewReply::lost(&name("a"), LockLoss::NotHeld);
    assert_eq!(renewed, lost, "a released lease came back");
}

/// The waiter and the set are of one process, to which the engine says nothing of its own writes.
#[tokio::test(start_paused = true)]
async fn waiter_hears_that_a_set_of_its_process_was_released() {
    let store = optimistic(FakeEngine::new(DEAF, seed()));
    let (token, waiter, set) = (new_token(), new_token(), set(["a", "b"]));
    store.acquire(&set, command(token, Ttl::DEFAULT)).await.unwrap();
    let mut turn = store.subscribe(Topic::Turn(name("a"), waiter));
    let queue = Some(Ttl::DEFAULT.get());
    let waits = AcquireCommand { queue, ..command(waiter, Ttl::DEFAULT) };
    store.acquire(&name("a"), waits).await.unwrap();
    store.leave(&set, &token, None).await.unwrap();
    timeout(Duration::from_secs(1), turn.next()).await.expect("it hears of its turn");
}

/// All commands on one lock that come while a write of it is under way go with the next one.
#[tokio::test(start_paused = true)]
async fn key_has_one_write_under_way() {
    let engine = FakeEngine::without_clock(slow(), seed());
    let store = optimistic(engine.clone());
    let (token, _) = grant(&*store, &name("a"), Ttl::DEFAULT).await;
    let renewals = (0..50).map(async |number| {
        pass(Duration::from_millis(number)).await;
        store.renew(&name("a"), &token, Ttl::DEFAULT).await.unwrap()
    });
    join_all(renewals).await;
    assert_eq!(store.gauges().conflicts, 0, "its own writes meet");
}

/// What one process remembers of a lock that another released is no lease that expired, and a lease
/// that did expire is seen as such by a process that never knew it.
#[tokio::test(start_paused = true)]
async fn grant_that_another_process_released_has_not_expired() {
    for make in [FakeEngine::new, FakeEngine::without_clock, FakeEngine::forgetful] {
        let engine = make(DEAF, seed());
        let [one, other] = [(); 2].map(|()| optimistic(engine.clone()));
        let mut ends = one.subscribe(Topic::Ends);
        let (name, set) = (name("a"), set(["b", "c"]));
        let (token, _) = grant(&*one, &name, lease()).await;
        let of_set = new_token();
        one.acquire(&set, command(of_set, lease())).await.unwrap();
        assert_eq!(other.release(&name, &token).await.unwrap(), ReleaseReply::Released);
        let released = other.leave(&set, &of_set, None).await.unwrap();
        assert_eq!(losses(&released), []);
        pass(LEASE + Duration::from_secs(1)).await;
        for name in [&name, &set.names()[0], &set.names()[1]] {
            grant(&*one, name, Ttl::DEFAULT).await;
            assert_eq!(one.recall(name).await.unwrap(), [], "{name}");
        }
        let ended = timeout(Duration::from_secs(1), ends.next()).await;
        assert!(ended.is_err(), "a released lease expired: {ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lease_that_expired_is_seen_to_have_by_the_next_process() {
    for make in [FakeEngine::new, FakeEngine::without_clock, FakeEngine::forgetful] {
        let engine = make(DEAF, seed());
        let [one, other] = [(); 2].map(|()| optimistic(engine.clone()));
        let mut ends = other.subscribe(Topic::Ends);
        let (_, fencing_token) = grant(&*one, &name("a"), lease()).await;
        // A process that has no clock of the engine counts from when it saw the lease.
        drop(other.acquire(&name("a"), command(new_token(), lease())).await);
        pass(LEASE + Duration::from_secs(9)).await;
        grant(&*other, &name("a"), Ttl::DEFAULT).await;
        let history = other.recall(&name("a")).await.unwrap();
        assert_eq!(
            history.iter().map(|end| end.fencing_token).collect::<Vec<_>>(),
            [fencing_token]
        );
        timeout(Duration::from_secs(1), ends.next()).await.expect("the expiry is reported");
    }
}
