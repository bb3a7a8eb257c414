//! The adapter over conditional writes on bad days: several processes on one engine that conflicts,
//! delays, loses answers, carries batches out late, and has a clock that is set.
//!
//! Method: clients of three stores over one fake engine take turns on a few locks, and a checker on the
//! clock of the test follows what each client may rely on. tokio's clock is stopped and jumps from timer
//! to timer, so a run of hours takes seconds, and a seed decides all of it but the tokens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylatch_core::lock::{
    AcquireCommand, AcquireReply, Attempt, FencingToken, LockName, ReleaseReply, Token, TokenHash,
    Ttl,
};
use keylatch_core::store::Store;
use keylatch_testkit::{Dice, FakeEngine, Faults, scaled, seed};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const LOCKS: u64 = 3;
const PROCESSES: u64 = 3;
const CLIENTS: u64 = 8;
const ROUNDS: u64 = 150;

/// All that a contract allows.
const BAD_DAYS: Faults = Faults {
    delay_millis: 40,
    conflict: 50,
    lost_answer: 30,
    lost_batch: 30,
    late: 30,
    failed_read: 30,
    lost_notice: 100,
    repeated_notice: 100,
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
    until: Instant,
}

impl Ledger {
    /// A client was told that it holds the lock, by the answer to what it sent at `sent`.
    fn claim(&self, name: &LockName, claim: Claim, is_exclusive: bool) {
        self.grants.fetch_add(1, Ordering::Relaxed);
        let (now, mut claims) = (Instant::now(), self.claims.lock().unwrap());
        let claims = claims.entry(name.clone()).or_default();
        for other in claims.iter().filter(|other| other.token != claim.token) {
            assert!(
                !is_exclusive || other.until <= now || claim.until <= now,
                "{name}: two clients hold it: {other:?}, {claim:?}"
            );
            // An answer may come so late that its lease is over, and a later grant was answered before.
            assert!(
                claim.until <= now || other.fencing_token < claim.fencing_token,
                "{name}: the fencing token did not rise: {other:?}, {claim:?}"
            );
        }
        claims.retain(|other| other.token != claim.token);
        claims.push(claim);
    }

    /// A client gives the lock up before it asks the store to release it.
    fn give_up(&self, name: &LockName, token: TokenHash) {
        let mut claims = self.claims.lock().unwrap();
        let mine = claims.get_mut(name).into_iter().flatten().filter(|claim| claim.token == token);
        mine.for_each(|claim| claim.until = Instant::now());
    }
}

/// One client, which takes locks, keeps them for a while, and gives them up or forgets them.
async fn client(stores: Arc<[Arc<dyn Store>]>, ledger: Arc<Ledger>, seed: u64, is_exclusive: bool) {
    let mut dice = Dice(seed);
    for round in 0..ROUNDS {
        let store = &stores[dice.below(PROCESSES) as usize];
        let name = LockName::parse(&format!("lock-{}", dice.below(LOCKS))).unwrap();
        let ttl = Ttl::from_millis(200 + dice.below(3000)).unwrap();
        let token = Token::generate().unwrap().hash();
        let queue = (dice.below(2) == 0).then_some(Duration::from_secs(2));
        let attempt = Attempt::new(seed << 32 | round);
        let command = AcquireCommand { queue, ..AcquireCommand::new(token, ttl, attempt) };
        // Until it has the lock, or has no more patience; each time with the same token.
        for _ in 0..1 + dice.below(20) {
            let sent = Instant::now();
            let asked = timeout(Duration::from_millis(500), store.acquire(&name, command.clone()));
            if let Ok(Ok(AcquireReply::Granted(lease) | AcquireReply::Repeated(lease))) =
                asked.await
            {
                assert!(lease.expires_in <= lease.ttl, "{lease:?} lasts longer than its TTL");
                let (fencing_token, until) = (lease.fencing_token, sent + lease.expires_in);
                ledger.claim(&name, Claim { token, fencing_token, until }, is_exclusive);
                hold(store, &ledger, &name, token, ttl, &mut dice).await;
                break;
            }
            sleep(Duration::from_millis(dice.below(400))).await;
        }
        // Long enough now and then for rows to be swept.
        let idle = if dice.below(10) == 0 { 90_000 } else { 300 };
        sleep(Duration::from_millis(dice.below(idle))).await;
    }
}

/// Keeps a lock for a while, perhaps renews it, and perhaps releases it.
async fn hold(
    store: &Arc<dyn Store>,
    ledger: &Ledger,
    name: &LockName,
    token: TokenHash,
    ttl: Ttl,
    dice: &mut Dice,
) {
    sleep(Duration::from_millis(dice.below(ttl.as_millis()))).await;
    if dice.below(4) == 0 {
        return;
    }
    ledger.give_up(name, token);
    for _ in 0..5 {
        let released = timeout(Duration::from_millis(500), store.release(name, &token)).await;
        if matches!(released, Ok(Ok(ReleaseReply::Released | ReleaseReply::NotHeld))) {
            return;
        }
    }
}

/// Lets a clock do what it does until the clients are through.
async fn disturb(engine: FakeEngine, fault: ClockFault, seed: u64) {
    let mut dice = Dice(seed);
    loop {
        sleep(Duration::from_millis(dice.below(20_000))).await;
        match fault {
            ClockFault::None => {}
            ClockFault::SetBack => engine.set_back(Duration::from_millis(dice.below(5000))),
            ClockFault::SetForward => {
                engine.advance(Duration::from_millis(dice.below(3_600_000)));
            }
            ClockFault::Stopped => {
                engine.stop_clock(true);
                sleep(Duration::from_millis(dice.below(5000))).await;
                engine.stop_clock(false);
            }
        }
    }
}

async fn run(fault: ClockFault, seed: u64) {
    let engine = FakeEngine::new(BAD_DAYS, seed);
    let stores = (0..PROCESSES).map(|_| keylatch_stores::optimistic(engine.clone()));
    let stores: Arc<[_]> = stores.collect();
    let ledger = Arc::new(Ledger::default());
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (stores, ledger) = (Arc::clone(&stores), Arc::clone(&ledger));
        let seed = seed * 1000 + number;
        clients.spawn(client(stores, ledger, seed, fault != ClockFault::SetForward));
    }
    let disturbing = tokio::spawn(disturb(engine.clone(), fault, seed));
    while let Some(ended) = clients.join_next().await {
        ended.expect("no client saw a promise broken");
    }
    disturbing.abort();
    let grants = ledger.grants.load(Ordering::Relaxed);
    assert!(grants > CLIENTS * ROUNDS / 10, "only {grants} grants: the clients proved little");
}

/// Runs with some seeds, each on a stopped clock of its own.
fn run_seeds(fault: ClockFault) {
    for number in 0..scaled(4) {
        let seed = seed() * 10_000 + number;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(run(fault, seed));
    }
}

#[test]
fn conditional_store_grants_to_one_client_under_all_faults() {
    run_seeds(ClockFault::None);
}

#[test]
fn conditional_store_grants_to_one_client_when_the_clock_is_set_back() {
    run_seeds(ClockFault::SetBack);
}

#[test]
fn conditional_store_grants_to_one_client_when_the_clock_stops() {
    run_seeds(ClockFault::Stopped);
}

#[test]
fn conditional_store_raises_fencing_tokens_when_the_clock_is_set_forward() {
    run_seeds(ClockFault::SetForward);
}
