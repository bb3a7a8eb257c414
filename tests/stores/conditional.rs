//! The adapter over conditional writes on bad days: several processes on one engine that conflicts,
//! delays, loses answers, carries batches out late, and has a clock that is set.
//!
//! Method: clients of three stores over one fake engine take turns on a few locks, and a checker on
//! the clock of the test follows what each client may rely on. tokio's clock is stopped and jumps
//! from timer to timer, so a run of hours takes seconds, and a seed decides all of it but the
//! tokens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use keylatch_core::entry::Few;
use keylatch_core::idempotency::{BeginCommand, BeginReply, RunEnd, StoredResponse};
use keylatch_core::lock::{
    AcquireCommand, AcquireReply, AcquireRequest, Attempt, BreakCommand, FencingToken, Lease,
    LockLoss, LockName, LockService, LockSet, Reason, ReleaseReply, RenewReply, Token, TokenHash,
    Ttl, WaiterLimits,
};
use keylatch_core::store::{Effect, Store, StoreError};
use keylatch_stores::conditional::ConditionalStore as _;
use keylatch_stores::optimistic;
use keylatch_testkit::{Dice, FakeEngine, Faults, scaled, seed};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::record_conformance::ask;

const LOCKS: u64 = 3;
const PROCESSES: u64 = 3;
const CLIENTS: u64 = 8;
const ROUNDS: u64 = 100;
/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// How much earlier than its TTL a lease may look over: what a store's estimate of the clock is
/// ahead.
const SLACK: Duration = Duration::from_millis(150);

/// All that a contract allows.
pub(crate) const BAD_DAYS: Faults = Faults {
    delay_millis: 40,
    conflict: 50,
    lost_answer: 30,
    lost_batch: 30,
    late: 30,
    failed_read: 30,
    stale_peek: 250,
    lost_notice: 100,
    unreplicated: 30,
    behind_seconds: 7200,
    ..Faults::HARMLESS
};

/// What a clock does to an engine while clients work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClockFault {
    None,
    /// It is set back now and then: leases last longer.
    SetBack,
    /// It is stopped now and then: leases last longer.
    Stopped,
    /// It is set forward now and then: leases end early, and only the fencing tokens hold.
    SetForward,
}

/// What the clients of one run know.
#[derive(Debug, Default)]
struct Ledger {
    /// Who may rely on a lock, and until when.
    claims: Mutex<HashMap<LockName, Vec<Claim>>>,
    grants: AtomicU64,
}

#[derive(Debug, Clone)]
struct Claim {
    token: TokenHash,
    fencing_token: FencingToken,
    /// Until when its lease lasts at least.
    ends: Instant,
    /// Until when the client relies on it.
    until: Instant,
}

impl Ledger {
    /// A client read that it holds the lock, in the answer to what it sent at `sent`.
    fn claim(&self, name: &LockName, claim: Claim, is_exclusive: bool) {
        self.grants.fetch_add(1, Ordering::Relaxed);
        let (now, mut claims) = (Instant::now(), self.claims.lock().unwrap());
        let claims = claims.entry(name.clone()).or_default();
        for other in claims.iter().filter(|other| other.token != claim.token) {
            assert!(
                !is_exclusive || other.until <= now || claim.until <= now,
                "{name}: two clients hold it: {other:?}, {claim:?}"
            );
            // An answer may come so late that its lease is over, and a later grant was answered
            // before.
            assert!(
                claim.until <= now || other.fencing_token < claim.fencing_token,
                "{name}: the fencing token did not rise: {other:?}, {claim:?}"
            );
        }
        claims.retain(|other| other.token != claim.token);
        claims.push(claim);
    }

    /// Whether the lease of a client may be over.
    fn is_over(&self, name: &LockName, token: TokenHash) -> bool {
        let claims = self.claims.lock().unwrap();
        let claim = claims[name].iter().find(|claim| claim.token == token);
        claim.is_none_or(|claim| claim.ends <= Instant::now() + SLACK)
    }

    /// A client gives the lock up before it asks the store to release it.
    fn give_up(&self, name: &LockName, token: TokenHash) {
        let mut claims = self.claims.lock().unwrap();
        let mine = claims.get_mut(name).into_iter().flatten().filter(|claim| claim.token == token);
        mine.for_each(|claim| claim.until = Instant::now());
    }
}

/// One client, which takes locks, keeps them for a while, and gives them up or forgets them.
struct Client {
    stores: Arc<[Arc<dyn Store>]>,
    ledger: Arc<Ledger>,
    seed: u64,
    dice: Dice,
    is_exclusive: bool,
    /// Whether the engine keeps no row that has nothing in it.
    forgets: bool,
}

/// What a client asks for in one round, always with the same token: one lock, or two at once.
struct Wish {
    store: Arc<dyn Store>,
    names: LockSet,
    token: TokenHash,
    ttl: Ttl,
    attempt: Attempt,
}

impl Wish {
    /// The leases in the order of the names, if they were granted.
    async fn acquire(&self, command: AcquireCommand) -> Result<Option<Few<Lease>>, StoreError> {
        Ok(match self.store.acquire(&self.names, command).await? {
            AcquireReply::Granted(leases) | AcquireReply::Repeated(leases) => Some(leases),
            _ => None,
        })
    }

    async fn withdraw(&self) -> Result<(), StoreError> {
        self.store.withdraw(&self.names, &self.token, self.attempt).await
    }

    /// The locks that it held.
    async fn release(&self) -> Result<Vec<LockName>, StoreError> {
        let released = self.store.leave(&self.names, &self.token, None).await?;
        let held = self.names().iter().zip(released);
        let held = held.filter(|(_, (reply, _))| *reply == ReleaseReply::Released);
        Ok(held.map(|(name, _)| name.clone()).collect())
    }

    fn names(&self) -> &[LockName] {
        self.names.names()
    }
}

impl Client {
    async fn work(mut self) {
        for round in 0..ROUNDS {
            let wish = self.wish(round);
            self.pursue(wish).await;
            // Long enough now and then for rows to be swept.
            let idle = if self.dice.below(10) == 0 { 90_000 } else { 300 };
            self.rest(idle).await;
        }
    }

    fn wish(&mut self, round: u64) -> Wish {
        let store = Arc::clone(&self.stores[self.dice.below(PROCESSES) as usize]);
        let first = self.dice.below(LOCKS);
        let count = if self.dice.below(3) == 0 { 2 } else { 1 };
        let names = (first..first + count).map(|lock| format!("lock-{}", lock % LOCKS));
        let names: Vec<_> = names.map(|name| LockName::parse(&name).unwrap()).collect();
        let alone = LockSet::from(names[0].clone());
        let names = LockSet::new(names).unwrap_or(alone);
        let ttl = Ttl::from_millis(200 + self.dice.below(3000)).unwrap();
        let token = Token::generate().unwrap().hash();
        Wish { store, names, token, ttl, attempt: Attempt::new(self.seed << 32 | round) }
    }

    /// Asks until it has the lock, or has no more patience; now and then by another process.
    async fn pursue(&mut self, mut wish: Wish) {
        let queue = (self.dice.below(2) == 0).then_some(Duration::from_secs(2));
        let new = AcquireCommand::new(wish.token, wish.ttl, wish.attempt);
        let command = AcquireCommand { queue, ..new };
        let mut is_in_doubt = false;
        for _ in 0..1 + self.dice.below(20) {
            let sent = Instant::now();
            match timeout(PATIENCE, wish.acquire(command.clone())).await {
                Ok(Ok(Some(leases))) => {
                    for (name, lease) in wish.names().iter().zip(&leases) {
                        assert!(lease.expires_in <= lease.ttl, "{lease:?} lasts too long");
                        let (fencing_token, until) = (lease.fencing_token, sent + lease.expires_in);
                        let claim = Claim { token: wish.token, fencing_token, ends: until, until };
                        self.ledger.claim(name, claim, self.is_exclusive);
                    }
                    return self.hold(&wish, &leases).await;
                }
                Ok(Ok(None)) => {}
                Ok(Err(error)) => is_in_doubt |= error.effect() == Effect::Unknown,
                Err(_) => is_in_doubt = true,
            }
            self.rest(400).await;
            if self.dice.below(4) == 0 {
                wish.store = Arc::clone(&self.stores[self.dice.below(PROCESSES) as usize]);
            }
        }
        self.leave(&wish, is_in_doubt || queue.is_some()).await;
    }

    /// Gives up a wish that was not granted: the token never holds the lock after that.
    async fn leave(&mut self, wish: &Wish, is_in_doubt: bool) {
        if is_in_doubt {
            // What was lost on its way may still arrive, and finds nothing to do. An engine that
            // forgets keeps no trace of the withdrawal of what was not there, so it is withdrawn
            // again, as the service does.
            let pauses: &[u64] = if self.forgets { &[0, 1000, 5000] } else { &[0] };
            for pause in pauses {
                pass(Duration::from_millis(*pause)).await;
                if !matches!(timeout(PATIENCE, wish.withdraw()).await, Ok(Ok(()))) {
                    return;
                }
            }
            self.rest(6000).await;
        }
        let released = timeout(PATIENCE, wish.release()).await;
        let held = released.ok().and_then(Result::ok).unwrap_or_default();
        assert!(held.is_empty(), "{held:?}: {:?} was granted to no client", wish.token);
    }

    /// Keeps locks for a while, and perhaps releases them.
    async fn hold(&mut self, wish: &Wish, leases: &[Lease]) {
        self.rest(wish.ttl.as_millis()).await;
        if self.dice.below(4) == 0 {
            return;
        }
        wish.names().iter().for_each(|name| self.ledger.give_up(name, wish.token));
        let mut is_first = true;
        for _ in 0..5 {
            let Ok(Ok(held)) = timeout(PATIENCE, wish.release()).await else {
                is_first = false;
                continue;
            };
            for (name, lease) in wish.names().iter().zip(leases) {
                if held.contains(name) {
                    self.check_released(name, lease.fencing_token).await;
                } else {
                    let is_over = self.ledger.is_over(name, wish.token);
                    assert!(!is_first || is_over || !self.is_exclusive, "{name} was lost");
                }
            }
            return;
        }
    }

    /// After the answer every process sees that the lock was released.
    async fn check_released(&mut self, name: &LockName, fencing_token: FencingToken) {
        let store = &self.stores[self.dice.below(PROCESSES) as usize];
        if let Ok(Ok(found)) = timeout(PATIENCE, store.look(name)).await {
            let is_back = found.is_some_and(|found| found.first.fencing_token == fencing_token);
            assert!(!is_back, "{name}: a released lease was seen again");
        }
    }

    async fn rest(&mut self, millis: u64) {
        pass(Duration::from_millis(self.dice.below(millis))).await;
    }
}

/// Lets a clock do what it does until the clients are through.
async fn disturb(engine: FakeEngine, fault: ClockFault, seed: u64) {
    let mut dice = Dice(seed);
    loop {
        pass(Duration::from_millis(dice.below(20_000))).await;
        match fault {
            ClockFault::None => {}
            ClockFault::SetBack => {
                // Now and then by more than a row that is not used lasts.
                let most = if dice.below(24) == 0 { 100_000 } else { 5000 };
                engine.set_back(Duration::from_millis(dice.below(most)));
            }
            ClockFault::SetForward => {
                engine.advance(Duration::from_millis(dice.below(3_600_000)));
            }
            ClockFault::Stopped => {
                engine.stop_clock(true);
                pass(Duration::from_millis(dice.below(5000))).await;
                engine.stop_clock(false);
            }
        }
    }
}

/// Makes an engine of some nature, with these faults and this seed.
type MakeEngine = fn(Faults, u64) -> FakeEngine;

async fn run(make: MakeEngine, fault: ClockFault, seed: u64) {
    let engine = make(BAD_DAYS, seed);
    let stores = (0..PROCESSES).map(|_| optimistic(engine.clone()));
    let stores: Arc<[_]> = stores.collect();
    let ledger = Arc::new(Ledger::default());
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (stores, ledger) = (Arc::clone(&stores), Arc::clone(&ledger));
        let (seed, is_exclusive) = (seed * 1000 + number, fault != ClockFault::SetForward);
        let (dice, forgets) = (Dice(seed), engine.forgets());
        let client = Client { stores, ledger, seed, dice, is_exclusive, forgets };
        clients.spawn(client.work());
    }
    let disturbing = tokio::spawn(disturb(engine.clone(), fault, seed));
    while let Some(ended) = clients.join_next().await {
        ended.expect("no client saw a promise broken");
    }
    disturbing.abort();
    let grants = ledger.grants.load(Ordering::Relaxed);
    assert!(grants > CLIENTS * ROUNDS / 40, "only {grants} grants: the clients proved little");
}

/// Runs with some seeds, each on a stopped clock of its own.
fn run_seeds(make: MakeEngine, fault: ClockFault) {
    for number in 0..scaled(2) {
        let seed = seed() * 10_000 + number;
        stopped().block_on(run(make, fault, seed));
    }
}

#[test]
fn conditional_store_grants_to_one_client_under_all_faults() {
    run_seeds(FakeEngine::new, ClockFault::None);
}

#[test]
fn conditional_store_grants_to_one_client_when_the_clock_is_set_back() {
    run_seeds(FakeEngine::new, ClockFault::SetBack);
}

#[test]
fn conditional_store_grants_to_one_client_when_the_clock_stops() {
    run_seeds(FakeEngine::new, ClockFault::Stopped);
}

#[test]
fn clockless_store_grants_to_one_client_under_all_faults() {
    run_seeds(FakeEngine::without_clock, ClockFault::None);
}

#[test]
fn conditional_store_raises_fencing_tokens_when_the_clock_is_set_forward() {
    run_seeds(FakeEngine::new, ClockFault::SetForward);
}

#[test]
fn forgetful_store_grants_to_one_client_under_all_faults() {
    run_seeds(FakeEngine::forgetful, ClockFault::None);
}

#[test]
fn forgetful_store_grants_to_one_client_when_the_clock_stops() {
    run_seeds(FakeEngine::forgetful, ClockFault::Stopped);
}

#[test]
fn forgetful_store_raises_fencing_tokens_when_the_clock_is_set_forward() {
    run_seeds(FakeEngine::forgetful, ClockFault::SetForward);
}

#[tokio::test(start_paused = true)]
async fn forgetful_store_writes_a_repeated_grant_again() {
    let engine = FakeEngine::forgetful(Faults::default(), seed());
    let (store, name) = (optimistic(engine.clone()), LockName::parse("a").unwrap());
    let (ttl, token) = (Ttl::DEFAULT, Token::generate().expect("a token").hash());
    for attempt in 1..4 {
        // Other machines have each before it is answered.
        let command = AcquireCommand::new(token, ttl, Attempt::new(attempt));
        store.acquire(&name, command).await.unwrap();
        assert_eq!(engine.batches(), attempt);
    }
}

/// Another process changes the row of a held lock when a waiter joins the line there.
#[tokio::test(start_paused = true)]
async fn release_that_finds_another_row_is_decided_from_it_without_a_read() {
    let faults = Faults { lost_notice: 1000, ..Faults::default() };
    let engine = FakeEngine::forgetful(faults, seed());
    let [one, other] = [(); 2].map(|()| optimistic(engine.clone()));
    let name = LockName::parse("a").unwrap();
    let (token, _) = grant(&*one, &name, Ttl::DEFAULT).await;
    let waiter = Token::generate().expect("a token").hash();
    let command = AcquireCommand::new(waiter, Ttl::DEFAULT, Attempt::new(1));
    let queue = Some(Ttl::DEFAULT.get());
    let joined = other.acquire(&name, AcquireCommand { queue, ..command }).await.unwrap();
    assert!(matches!(joined, AcquireReply::Busy(_)), "{joined:?}");
    let (batches, looks) = (engine.batches(), engine.looks());
    assert_eq!(one.release(&name, &token).await.unwrap(), ReleaseReply::Released);
    assert_eq!((engine.batches(), engine.looks()), (batches + 2, looks));
}

#[tokio::test(start_paused = true)]
async fn forgetful_store_keeps_a_break_longer_than_the_lease() {
    let engine = FakeEngine::forgetful(Faults::default(), seed());
    let (store, name) = (optimistic(engine.clone()), LockName::parse("a").unwrap());
    let (token, fencing_token) = grant(&*store, &name, Ttl::DEFAULT).await;
    let reason = Reason::parse("it stands still").unwrap();
    let (slot, by, grace) = (None, None, Some(Ttl::DEFAULT.get()));
    let command = BreakCommand { is_of_wait: false, fencing_token, slot, reason, by, grace };
    store.break_lease(&name, command).await.unwrap();
    engine.advance(Ttl::DEFAULT.get() + Duration::from_secs(3600));
    let renewed = store.renew(&name, &token, Ttl::DEFAULT).await.unwrap();
    let RenewReply::Lost(lost) = renewed else { panic!("lost, not {renewed:?}") };
    assert!(matches!(lost[0].loss, LockLoss::Broken(_)), "{lost:?}");
    engine.advance(Duration::from_secs(24 * 3600));
    assert_eq!(store.recall(&name).await.unwrap(), []);
    assert_eq!(engine.rows(), 0);
}

#[expect(clippy::disallowed_methods, reason = "the clock is stopped, and jumps")]
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// A runtime whose clock is stopped and jumps from timer to timer.
pub(crate) fn stopped() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().expect("a runtime")
}

/// An engine without faults, and two processes on it.
pub(crate) fn two_on(make: MakeEngine) -> (FakeEngine, [Arc<dyn Store>; 2]) {
    let engine = make(Faults::default(), seed());
    let stores = [(); 2].map(|()| optimistic(engine.clone()));
    (engine, stores)
}

/// Time for a sweep to see a row that nothing uses, and for a later one to remove it.
const SWEEPS: Duration = Duration::from_secs(120);

#[tokio::test(start_paused = true)]
async fn conditional_store_raises_fencing_tokens_over_a_removed_row() {
    let (engine, [one, other]) = two_on(FakeEngine::new);
    let name = LockName::parse("deploy").unwrap();
    let first = grant(&*one, &name, Ttl::DEFAULT).await;
    one.release(&name, &first.0).await.unwrap();
    assert_eq!(engine.rows(), 1);
    pass(SWEEPS).await;
    // The floor of the bucket is left, and the clock does not help any more.
    assert_eq!(engine.rows(), 1);
    engine.set_back(Duration::from_secs(3600));
    let second = grant(&*other, &name, Ttl::DEFAULT).await;
    assert!(second.1 > first.1, "{:?} after {:?}", second.1, first.1);
    other.release(&name, &second.0).await.unwrap();
    pass(SWEEPS).await;
    let third = grant(&*one, &name, Ttl::DEFAULT).await;
    assert!(third.1 > second.1, "{:?} after {:?}", third.1, second.1);
}

#[tokio::test(start_paused = true)]
async fn conditional_store_removes_a_thousand_rows_a_second() {
    const LOCKS: u64 = 16_000;
    // After these, a row is dead; a second later it is below the floor, and ten more later it may
    // go.
    const DEAD: Duration = Duration::from_secs(30 + 5 + 1 + 10);
    let engine = FakeEngine::new(Faults { delay_millis: 10, ..Faults::default() }, seed());
    let store = optimistic(engine.clone());
    let locks = (0..LOCKS).map(async |lock| {
        let name = LockName::parse(&format!("job-{lock}")).unwrap();
        let (token, _) = grant(&*store, &name, Ttl::DEFAULT).await;
        store.release(&name, &token).await.unwrap();
    });
    join_all(locks).await;
    pass(DEAD + Duration::from_millis(LOCKS)).await;
    let (rows, floors) = (engine.rows(), 256);
    assert!(rows <= floors, "{rows} rows are left");
}

#[tokio::test(start_paused = true)]
async fn clockless_store_ends_a_lease_a_ttl_after_another_process_heard_of_it() {
    let (engine, [one, other]) = two_on(FakeEngine::without_clock);
    let name = LockName::parse("deploy").unwrap();
    let ttl = Ttl::DEFAULT;
    grant(&*one, &name, ttl).await;
    // The other process hears of it, and reads nothing.
    pass(ttl.get() - Duration::from_millis(100)).await;
    let started = optimistic(engine.clone());
    assert_eq!(asks(&*other, &name).await, Duration::from_millis(100));
    pass(Duration::from_millis(101)).await;
    // A process that starts cannot tell how old the lease is.
    let left = asks(&*started, &name).await;
    assert!(left > ttl.get() - Duration::from_secs(1), "{left:?} left of a lease of unknown age");
    grant(&*other, &name, ttl).await;
}

/// How long the lease of the holder still lasts by what the store has observed.
async fn asks(store: &dyn Store, name: &LockName) -> Duration {
    let command =
        AcquireCommand::new(TokenHash::from_bytes([7; 32]), Ttl::DEFAULT, Attempt::new(1));
    match store.acquire(name, command).await.unwrap() {
        AcquireReply::Busy(contention) => contention.holding.expect("a holder").first.expires_in,
        reply => panic!("busy, not {reply:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn clockless_store_refuses_a_creation_whose_floor_was_raised_meanwhile() {
    let engine = FakeEngine::without_clock(Faults::default(), seed());
    let behind = optimistic(engine.process_behind(Duration::from_secs(3600)));
    let ahead = optimistic(engine.clone());
    let name = LockName::parse("deploy").unwrap();
    engine.hold_next_batch();
    let command = |token| AcquireCommand::new(token, Ttl::DEFAULT, Attempt::new(1));
    let late = command(TokenHash::from_bytes([7; 32]));
    behind.acquire(&name, late).await.expect_err("the engine does not answer");
    let first = grant(&*ahead, &name, Ttl::DEFAULT).await;
    ahead.release(&name, &first.0).await.unwrap();
    pass(SWEEPS).await;
    engine.release_batch();
    pass(Ttl::DEFAULT.get() * 2).await;
    let second = grant(&*behind, &name, Ttl::DEFAULT).await;
    assert!(second.1 > first.1, "{:?} after {:?}", second.1, first.1);
}

#[tokio::test(start_paused = true)]
async fn clockless_store_keeps_the_fencing_token_of_a_grant_that_one_write_ends() {
    let engine = FakeEngine::without_clock(Faults::default(), seed());
    let ahead = optimistic(engine.clone());
    let behind = optimistic(engine.process_behind(Duration::from_secs(3600)));
    let name = LockName::parse("deploy").unwrap();
    // The row is there, and both commands wait for the same write of it.
    let before = grant(&*ahead, &name, Ttl::DEFAULT).await;
    ahead.release(&name, &before.0).await.unwrap();
    let token = Token::generate().unwrap().hash();
    let command = AcquireCommand::new(token, Ttl::DEFAULT, Attempt::new(1));
    let (acquired, released) =
        tokio::join!(ahead.acquire(&name, command), ahead.release(&name, &token));
    let (AcquireReply::Granted(leases), ReleaseReply::Released) =
        (acquired.unwrap(), released.unwrap())
    else {
        panic!("it is granted and released")
    };
    let after = grant(&*behind, &name, Ttl::DEFAULT).await;
    let given = leases[0].fencing_token;
    assert!(after.1 > given, "{:?} after {given:?}", after.1);
}

#[tokio::test(start_paused = true)]
async fn clockless_store_creates_at_once_after_a_floor_was_raised() {
    let (_, [one, other]) = two_on(FakeEngine::without_clock);
    let of_one_bucket = |number| LockName::parse(&format!("lock-{number}")).unwrap();
    let bucket = of_one_bucket(0).bucket();
    let mut names = (0..).map(of_one_bucket).filter(|name| name.bucket() == bucket);
    for _ in 0..90 {
        let (name, new) = (names.next().unwrap(), names.next().unwrap());
        // It is swept later, and the floor that the other process has read is raised.
        let (token, _) = grant(&*one, &name, Ttl::DEFAULT).await;
        one.release(&name, &token).await.unwrap();
        pass(Duration::from_secs(1)).await;
        let asked = Instant::now();
        grant(&*other, &new, Ttl::DEFAULT).await;
        assert!(asked.elapsed() < Duration::from_secs(1), "it took {:?}", asked.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn clockless_store_keeps_the_age_of_a_lease_while_others_write_its_row() {
    let slow = Faults { delay_millis: 40, ..Faults::default() };
    let engine = FakeEngine::without_clock(slow, seed());
    let (one, other) = (optimistic(engine.clone()), optimistic(engine.clone()));
    let (name, ttl) = (LockName::parse("deploy").unwrap(), Ttl::from_millis(20_000).unwrap());
    let granted = Instant::now();
    grant(&*one, &name, ttl).await;
    while granted.elapsed() < Duration::from_secs(15) {
        for store in [&one, &other] {
            let token = Token::generate().unwrap().hash();
            let new = AcquireCommand::new(token, ttl, Attempt::new(1));
            let queue = Some(Duration::from_millis(500));
            store.acquire(&name, AcquireCommand { queue, ..new }).await.unwrap();
        }
    }
    let left = asks(&*other, &name).await;
    let late = left.saturating_sub(ttl.get() - granted.elapsed());
    assert!(late < Duration::from_millis(500), "the lease became {late:?} younger");
}

#[tokio::test]
async fn begin_without_room_writes_nothing() {
    let engine = FakeEngine::new(Faults::HARMLESS, seed());
    let begin = BeginCommand { has_room: false, ..ask(1, "one") };
    let reply = optimistic(engine.clone()).begin(&begin).await.unwrap();
    assert_eq!((reply, engine.batches()), (BeginReply::NoRoom, 0));
}

#[tokio::test(start_paused = true)]
async fn clockless_store_forgets_a_record_although_processes_start_again() {
    let engine = FakeEngine::without_clock(Faults::default(), seed());
    let hour = Duration::from_secs(3600);
    let mut store = optimistic(engine.clone());
    let begin = BeginCommand { retention: 24 * hour, ..ask(1, "one") };
    store.begin(&begin).await.unwrap();
    let end = RunEnd::Done(StoredResponse::Mark(201));
    store.complete(&begin.key, &begin.token, end).await.unwrap();
    for _ in 0..4 {
        pass(7 * hour).await;
        store = optimistic(engine.clone());
    }
    pass(2 * hour).await;
    assert!(store.find(&begin.key).await.unwrap().is_none(), "kept for {:?}", 30 * hour);
}

#[tokio::test(start_paused = true)]
async fn conditional_store_keeps_all_waiters_of_a_lock_with_one_write() {
    let engine = FakeEngine::new(Faults::default(), seed());
    let limits = WaiterLimits { each: 1000, all: 1000 };
    let service = LockService::start(optimistic(engine.clone()), Duration::from_secs(5), limits);
    let service = Arc::new(service.unwrap());
    let request = |wait| AcquireRequest {
        wait,
        ..AcquireRequest::new(LockName::parse("deploy").unwrap(), Ttl::MAX)
    };
    service.acquire(request(Duration::ZERO)).await.unwrap();
    let mut waiters = JoinSet::new();
    for _ in 0..50 {
        let (service, request) = (Arc::clone(&service), request(Duration::from_secs(600)));
        waiters.spawn(async move { service.acquire(request).await });
        pass(Duration::from_millis(37)).await;
    }
    pass(Duration::from_secs(5)).await;
    let before = engine.batches();
    pass(Duration::from_secs(13)).await;
    let batches = engine.batches() - before;
    assert!(batches <= 10, "{batches} writes in ten ticks");
}

pub(crate) async fn grant(
    store: &dyn Store,
    name: &LockName,
    ttl: Ttl,
) -> (TokenHash, FencingToken) {
    let token = Token::generate().unwrap().hash();
    let reply = store.acquire(name, AcquireCommand::new(token, ttl, Attempt::new(1))).await;
    match reply.unwrap() {
        AcquireReply::Granted(leases) => (token, leases[0].fencing_token),
        reply => panic!("granted, not {reply:?}"),
    }
}
