//! Many clients in the queue of one lock, over several processes: what a hand-over costs the
//! engine.
//!
//! Goal: a hand-over within a process is one write, queue entries behind others go with other
//! writes, and the writes of several processes seldom meet.
//!
//! Method: each of 200 clients waits for the lock, releases it and waits again, on one of the
//! services over one fake engine whose calls take 2 ms in the mean. tokio's clock is stopped, so
//! that the counts do not depend on the machine. A client asks again in the same instant, which is
//! the worst case. The figures of real engines are in docs/stores/index.md.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use keylatch_core::lock::{
    AcquireCommand, AcquireReply, AcquireRequest, Acquisition, Attempt, Limit, LockName,
    LockService, LockSet, ReleaseReply, Token, Ttl, WaiterLimits,
};
use keylatch_core::store::{Store, StoreError};
use keylatch_stores::optimistic;
use keylatch_testkit::{FakeEngine, Faults, seed};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::conditional::{pass, stopped};

const CLIENTS: usize = 200;
const TIME: Duration = Duration::from_secs(2);

/// What hand-overs of one lock cost the engine, each.
#[derive(Debug)]
struct Cost {
    writes: f64,
    looks: f64,
    /// Of its three commands: one that joins the queue, one that takes the lock, one that releases
    /// it.
    conflicts_a_command: f64,
}

/// Waits for the lock and releases it, over and over. How often.
async fn take_turns(service: Arc<LockService>, until: Instant) -> u32 {
    let mut turns = 0;
    let name = LockName::parse("deploy").unwrap();
    loop {
        let wait = Duration::from_secs(60);
        let request = AcquireRequest { wait, ..AcquireRequest::new(name.clone(), Ttl::DEFAULT) };
        match timeout_at(until, service.acquire(request)).await {
            Ok(Ok(Acquisition::New(grant))) => {
                service.leave(&name, &grant.token, None).await.unwrap();
                turns += 1;
            }
            Ok(reply) => panic!("granted, not {reply:?}"),
            Err(_) => return turns,
        }
    }
}

async fn cost(engine: FakeEngine, processes: usize) -> Cost {
    let limits = WaiterLimits { each: 1000, all: 1000 };
    let stores: Vec<Arc<dyn Store>> = (0..processes).map(|_| optimistic(engine.clone())).collect();
    let services = stores.iter().map(|store| {
        let service = LockService::start(Arc::clone(store), Duration::from_secs(5), limits);
        Arc::new(service.unwrap())
    });
    let services: Vec<_> = services.collect();
    let until = Instant::now() + TIME;
    let mut clients = JoinSet::new();
    for service in services.iter().cycle().take(CLIENTS) {
        clients.spawn(take_turns(Arc::clone(service), until));
    }
    let turns = f64::from(clients.join_all().await.iter().sum::<u32>());
    let conflicts = stores.iter().map(|store| store.gauges().conflicts).sum::<u64>();
    Cost {
        writes: engine.batches() as f64 / turns,
        looks: engine.looks() as f64 / turns,
        conflicts_a_command: conflicts as f64 / (3.0 * turns),
    }
}

/// Calls of a few milliseconds.
fn slow() -> Faults {
    Faults { delay_millis: 2, ..Faults::default() }
}

#[test]
fn hand_overs_of_a_long_queue_over_three_processes_hardly_conflict() {
    for make in [FakeEngine::new, FakeEngine::without_clock, FakeEngine::forgetful] {
        let cost = stopped().block_on(async { cost(make(slow(), seed()), 3).await });
        assert!(cost.conflicts_a_command <= 0.1, "{cost:?}");
        assert!(cost.writes <= 1.7, "a hand-over within a process is not one write: {cost:?}");
    }
}

#[test]
fn hand_over_within_a_process_is_one_write_and_no_read() {
    for make in [FakeEngine::new, FakeEngine::without_clock, FakeEngine::forgetful] {
        let cost = stopped().block_on(async { cost(make(slow(), seed()), 1).await });
        assert!(cost.writes <= 1.1 && cost.looks <= 0.1, "{cost:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_that_join_behind_others_share_a_write() {
    let engine = FakeEngine::new(Faults::default(), seed());
    let (store, name) = (optimistic(engine.clone()), LockName::parse("deploy").unwrap());
    let join = async || {
        let token = Token::generate().unwrap().hash();
        let new = AcquireCommand::new(token, Ttl::DEFAULT, Attempt::new(1));
        let queue = Some(Duration::from_secs(4));
        store.acquire(&name, AcquireCommand { queue, ..new }).await.unwrap()
    };
    let (granted, first) = (join().await, join().await);
    assert!(matches!(granted, AcquireReply::Granted(_)), "{granted:?}");
    assert!(matches!(first, AcquireReply::Busy(_)), "{first:?}");
    let (batches, asked) = (engine.batches(), Instant::now());
    let places = join_all((0..10).map(async |late| {
        pass(Duration::from_millis(late)).await;
        join().await
    }));
    let places = places.await;
    assert_eq!(engine.batches(), batches + 1);
    assert!(asked.elapsed() <= Duration::from_millis(25), "{:?}", asked.elapsed());
    let ahead = places.iter().map(|place| match place {
        AcquireReply::Busy(contention) => contention.ahead,
        reply => panic!("busy, not {reply:?}"),
    });
    assert_eq!(ahead.collect::<Vec<_>>(), (1..11).collect::<Vec<_>>());
}

/// The others of a queue are in another process, which says nothing to this one.
#[tokio::test(start_paused = true)]
async fn waiters_that_rest_are_written_with_a_release() {
    let deaf = Faults { lost_notice: 1000, ..Faults::default() };
    let engine = FakeEngine::new(deaf, seed());
    let (store, name) = (optimistic(engine.clone()), LockName::parse("deploy").unwrap());
    let command = |token, queue| AcquireCommand {
        queue,
        ..AcquireCommand::new(token, Ttl::DEFAULT, Attempt::new(1))
    };
    let [holder, first, second] = [(); 3].map(|()| Token::generate().unwrap().hash());
    let queue = Some(Duration::from_secs(4));
    store.acquire(&name, command(holder, None)).await.unwrap();
    store.acquire(&name, command(first, queue)).await.unwrap();
    let (batches, asked) = (engine.batches(), Instant::now());
    let joined = store.acquire(&name, command(second, queue));
    let released = async {
        pass(Duration::from_millis(5)).await;
        store.release(&name, &holder).await
    };
    let (joined, released) = tokio::join!(joined, released);
    assert_eq!(released.unwrap(), ReleaseReply::Released);
    assert!(matches!(joined.unwrap(), AcquireReply::Busy(_)));
    assert_eq!((engine.batches(), asked.elapsed()), (batches + 1, Duration::from_millis(5)));
}

/// One lock is free for all, and another is held. A process hears of its own writes as late as of
/// those of others.
#[test]
fn sets_that_wait_keep_their_entries_and_do_not_wake_each_other() {
    for make in [FakeEngine::new, FakeEngine::without_clock] {
        let batches = stopped().block_on(async {
            let engine = make(Faults { names_turns: true, ..slow() }, seed());
            let limits = WaiterLimits { each: 1000, all: 1000 };
            let service =
                LockService::start(optimistic(engine.clone()), Duration::from_secs(5), limits);
            let service = service.unwrap();
            let [free, held] = ["a", "b"].map(|name| LockName::parse(name).unwrap());
            service.acquire(AcquireRequest::new(held.clone(), Ttl::DEFAULT)).await.unwrap();
            let waits = (0..4).map(async |number: u64| {
                pass(Duration::from_millis(number)).await;
                let set = LockSet::new(vec![free.clone(), held.clone()]).unwrap();
                let request = AcquireRequest {
                    wait: Duration::from_secs(3),
                    limit: Limit::Shared,
                    ..AcquireRequest::new(set, Ttl::DEFAULT)
                };
                let reply = service.acquire(request).await.unwrap();
                assert!(matches!(reply, Acquisition::Held { .. }), "{reply:?}");
            });
            join_all(waits).await;
            engine.batches()
        });
        // Each joins, keeps its entries every 1.3 s, and withdraws them.
        assert!(batches <= 40, "{batches} batches");
    }
}

/// As many clients as a busy service has take and release the single locks of a set, over and over.
#[tokio::test(start_paused = true)]
async fn steps_on_a_set_get_through_beside_64_clients_of_its_locks() {
    for make in [FakeEngine::new, FakeEngine::without_clock, FakeEngine::forgetful] {
        let store = optimistic(make(Faults { delay_millis: 10, ..slow() }, seed()));
        let mut clients = JoinSet::new();
        for name in ["a", "b", "c"].iter().cycle().take(64) {
            clients.spawn(come_and_go(Arc::clone(&store), LockName::parse(name).unwrap()));
        }
        pass(Duration::from_millis(100)).await;
        let names = ["a", "b", "c"].map(|name| LockName::parse(name).unwrap());
        let set = LockSet::new(names.to_vec()).unwrap();
        let mut granted = 0;
        for _ in 0..20 {
            let token = Token::generate().unwrap().hash();
            let command = AcquireCommand::new(token, Ttl::DEFAULT, Attempt::new(1));
            let queue = Some(Duration::from_secs(4));
            let acquire = store.acquire(&set, AcquireCommand { queue, ..command });
            let reply = in_time(acquire).await;
            granted += u32::from(matches!(reply, AcquireReply::Granted(_)));
            in_time(store.leave(&set, &token, None)).await;
            in_time(store.withdraw(&set, &token, Attempt::new(1))).await;
        }
        assert!(granted > 0, "it never had the locks");
    }
}

/// Takes a lock and releases it, over and over.
async fn come_and_go(store: Arc<dyn Store>, name: LockName) {
    loop {
        let token = Token::generate().unwrap().hash();
        let command = AcquireCommand::new(token, Ttl::DEFAULT, Attempt::new(1));
        if let AcquireReply::Granted(_) = store.acquire(&name, command).await.unwrap() {
            store.release(&name, &token).await.unwrap();
        }
    }
}

/// The reply to a step that comes before its request is over.
async fn in_time<T>(step: impl Future<Output = Result<T, StoreError>>) -> T {
    let until = Instant::now() + Duration::from_secs(2);
    timeout_at(until, step).await.expect("a step on a set within 2 s").unwrap()
}
