//! The clock of an engine is set, and leases last their TTL all the same.
//!
//! Method: two stores over one fake engine. A store that knows the clock of before grants a lease
//! after the clock was set back; the other has the lock a TTL later. tokio's clock is stopped and
//! jumps from timer to timer.

use std::time::Duration;

use keylatch_core::lock::{AcquireCommand, AcquireReply, Attempt, LockName, LockSet, Token, Ttl};
use keylatch_core::store::Store;
use keylatch_stores::optimistic;
use keylatch_testkit::{FakeEngine, Faults, seed};
use tokio::time::timeout;

use crate::conditional::{pass, stopped};

/// How long after the end of a lease the test asks for the lock: the store's estimate may be ahead
/// by a round trip.
const MOMENT: Duration = Duration::from_millis(20);
/// By how much the clock is set back: by less than a second, and by more.
const STEPS: [u64; 4] = [100, 900, 2000, 3_600_000];

#[test]
fn lease_that_begins_after_the_clock_was_set_back_ends_after_its_ttl() {
    ends_after_its_ttl(&acquire);
}

#[test]
fn set_that_begins_after_the_clock_was_set_back_ends_after_its_ttl() {
    ends_after_its_ttl(&acquire_set);
}

fn ends_after_its_ttl(take: &impl AsyncFn(&dyn Store, &str) -> bool) {
    for make in [FakeEngine::new, FakeEngine::forgetful] {
        for step in STEPS {
            stopped().block_on(async {
                let engine = make(Faults::default(), seed());
                let [one, other] = [(); 2].map(|()| optimistic(engine.clone()));
                assert!(take(&*one, "of-the-clock-before").await);
                engine.set_back(Duration::from_millis(step));
                assert!(take(&*one, "a").await);
                assert!(!take(&*other, "a").await);
                pass(Ttl::DEFAULT.get() + MOMENT).await;
                assert!(take(&*other, "a").await, "held a TTL later; set back by {step} ms");
            });
        }
    }
}

/// A write of another lock is on its way for as long as the engine stands still. Its answer is all
/// that the store knows of the engine's clock then, and the clock is behind what the store takes it
/// for.
#[tokio::test(start_paused = true)]
async fn lease_is_not_taken_for_over_after_the_engine_stood_still() {
    for make in [FakeEngine::new, FakeEngine::forgetful] {
        let engine = make(Faults { delay_millis: 2, ..Faults::default() }, seed());
        let [one, other] = [(); 2].map(|()| optimistic(engine.clone()));
        assert!(acquire(&*one, "of-before").await);
        pass(Duration::from_secs(1)).await;
        engine.hold_next_batch();
        let still = async {
            pass(Duration::from_millis(4700)).await;
            engine.release_batch();
        };
        let (taken, ()) = tokio::join!(acquire(&*one, "of-the-stall"), still);
        assert!(taken);
        let name = LockName::parse("a").unwrap();
        let lease = AcquireCommand { ttl: Ttl::from_millis(4000).unwrap(), ..command() };
        other.acquire(&name, lease).await.unwrap();
        let refused = timeout(Duration::from_millis(100), acquire(&*one, "a")).await;
        assert_eq!(refused.ok(), Some(false), "the lease lasts, and the store can say so");
    }
}

async fn acquire(store: &dyn Store, name: &str) -> bool {
    let name = LockName::parse(name).unwrap();
    let reply = store.acquire(&name, command()).await.unwrap();
    matches!(reply, AcquireReply::Granted(_))
}

async fn acquire_set(store: &dyn Store, name: &str) -> bool {
    let names = [name.to_owned(), format!("{name}-2")];
    let set = LockSet::new(names.iter().map(|name| LockName::parse(name).unwrap()).collect());
    let reply = store.acquire(&set.unwrap(), command()).await.unwrap();
    matches!(reply, AcquireReply::Granted(_))
}

fn command() -> AcquireCommand {
    let token = Token::generate().expect("a token").hash();
    AcquireCommand::new(token, Ttl::DEFAULT, Attempt::new(1))
}
