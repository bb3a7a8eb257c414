//! What a service says of a step whose answer was lost, and how it undoes the step, over an engine
//! that tells no time.
//!
//! Method: the fake engine keeps one batch back, as the leader of a majority that is gone does, and
//! no later call arrives. It carries the batch out when it is back, which is after every lease that
//! was asked for. tokio's clock is stopped and jumps from timer to timer.

use std::sync::Arc;
use std::time::Duration;

use keylatch_core::idempotency::{BeginCommand, IdempotencyService};
use keylatch_core::lock::{
    AcquireRequest, Acquisition, LockError, LockName, LockService, LockSet, Token, Ttl,
    WaiterLimits,
};
use keylatch_core::store::{Effect, Store, StoreError};
use keylatch_testkit::FakeEngine;

use crate::conditional::{grant, pass, two_on};
use crate::record_conformance::ask;

const DEADLINE: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(15);

fn name(name: &str) -> LockName {
    LockName::parse(name).unwrap()
}

fn ttl() -> Ttl {
    Ttl::from_millis(5000).unwrap()
}

fn request(wait: Duration) -> AcquireRequest {
    AcquireRequest { wait, ..AcquireRequest::new(name("a"), ttl()) }
}

fn service(store: &Arc<dyn Store>) -> LockService {
    let limits = WaiterLimits { each: 100, all: 100 };
    LockService::start(Arc::clone(store), DEADLINE, limits).unwrap()
}

/// The engine keeps the next batch back, and no later call arrives.
async fn fail(engine: &FakeEngine) {
    engine.hold_next_batch();
    pass(Duration::from_secs(1)).await;
    engine.cut_off(true);
}

/// The engine carries out what it kept back, and serves again.
async fn recover(engine: &FakeEngine) {
    engine.release_batch();
    pass(Duration::from_millis(1)).await;
    engine.cut_off(false);
}

fn assert_unknown<T>(answer: Result<T, LockError>) {
    match answer {
        Err(LockError::Store(error)) => assert_eq!(error.effect(), Effect::Unknown, "{error}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the engine was away"),
    }
}

/// The first round is carried out long after the wait, and its lease begins then. No later round
/// reached the engine.
async fn first_round_is_withdrawn(names: LockSet) {
    let (engine, [store, other]) = two_on(FakeEngine::without_clock);
    let request = AcquireRequest { wait: WAIT, ..AcquireRequest::new(names, ttl()) };
    let locks = service(&store);
    let (answer, ()) = tokio::join!(locks.acquire(request), fail(&engine));
    assert_unknown(answer);
    pass(Duration::from_secs(100)).await;
    recover(&engine).await;
    assert!(other.look(&name("a")).await.unwrap().is_some(), "the batch was not carried out");
    let soon = self::request(Duration::from_secs(4));
    let next = service(&other).acquire(soon).await.unwrap();
    assert!(matches!(next, Acquisition::New(_)), "nobody withdrew the grant: {next:?}");
}

#[tokio::test(start_paused = true)]
async fn wait_whose_first_round_may_still_be_carried_out_ends_unknown_and_is_withdrawn() {
    first_round_is_withdrawn(LockSet::from(name("a"))).await;
}

#[tokio::test(start_paused = true)]
async fn wait_for_a_set_whose_first_round_may_still_be_carried_out_ends_unknown_and_is_withdrawn() {
    first_round_is_withdrawn(LockSet::new(vec![name("a"), name("b")]).unwrap()).await;
}

/// A later round has written the row, so the lost one is never carried out, and "held" is the
/// truth.
#[tokio::test(start_paused = true)]
async fn wait_whose_lost_round_was_overtaken_reads_that_another_holds_the_lock() {
    let (engine, [store, other]) = two_on(FakeEngine::without_clock);
    let locks = service(&store);
    engine.hold_next_batch();
    let taken = async {
        pass(Duration::from_secs(1)).await;
        grant(&*other, &name("a"), Ttl::DEFAULT).await
    };
    let (answer, (token, _)) = tokio::join!(locks.acquire(request(WAIT)), taken);
    assert!(matches!(answer, Ok(Acquisition::Held { .. })), "{answer:?}");
    recover(&engine).await;
    other.release(&name("a"), &token).await.unwrap();
    assert_eq!(other.look(&name("a")).await.unwrap(), None, "the lost round was carried out");
}

/// A client that pressed a button twice has both its answers, and the next in line does not wait
/// for it.
#[tokio::test(start_paused = true)]
async fn waits_of_one_token_that_timed_out_leave_no_place() {
    let (_, [store, other]) = two_on(FakeEngine::without_clock);
    grant(&*other, &name("a"), Ttl::DEFAULT).await;
    let [locks, elsewhere] = [&store, &other].map(service);
    let token = || Some(Token::parse("the-token-of-a-double-click").unwrap());
    let wait = async |locks: &LockService, pause: u64| {
        pass(Duration::from_millis(pause)).await;
        let request = AcquireRequest { token: token(), ..request(Duration::from_secs(6)) };
        let answer = locks.acquire(request).await;
        assert!(matches!(answer, Ok(Acquisition::Held { .. })), "{answer:?}");
    };
    tokio::join!(wait(&locks, 0), wait(&locks, 300), wait(&elsewhere, 600));
    pass(Duration::from_millis(1500)).await;
    assert_eq!(other.look_at_queue(&name("a")).await.unwrap(), []);
}

/// A run that began when its caller had long read that it may have begun: nobody does its work.
#[tokio::test(start_paused = true)]
async fn beginning_that_is_carried_out_late_is_abandoned() {
    let (engine, [store, other]) = two_on(FakeEngine::without_clock);
    let records = IdempotencyService::start(store, DEADLINE);
    let begin = BeginCommand { lease: Duration::from_secs(5), ..ask(1, "one") };
    let (answer, ()) = tokio::join!(records.begin(begin.clone(), false), fail(&engine));
    assert_eq!(answer.map_err(|error: StoreError| error.effect()), Err(Effect::Unknown));
    pass(Duration::from_secs(100)).await;
    recover(&engine).await;
    assert!(other.find(&begin.key).await.unwrap().is_some(), "the batch was not carried out");
    pass(Duration::from_secs(4)).await;
    assert_eq!(other.find(&begin.key).await.unwrap(), None, "nobody abandoned the run");
}
