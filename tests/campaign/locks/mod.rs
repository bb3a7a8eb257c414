//! Goal: on each store, under every fault that it has to stand, locks keep the promises of
//! `internals/testing.md`.
//!
//! Method: 20 clients on few locks while processes, stores, networks and clocks fail by a seed. A
//! checker judges all that they sent and read. Mutants and guilty histories judge the checker.

mod answers;
mod client;
mod clock;
mod endings;
mod exclusion;
mod faults;
mod guilt;
mod guilt_of_modes;
mod history;
mod masters;
mod members;
mod mode;
mod mutants;
mod nodes;
mod place;
mod report;
mod resource;
mod topology;
mod verdict;
mod worker;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures_util::future::join_all;
use keylatch_testkit::{Dice, scaled, seed, soon};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::lateness::Lateness;
use client::{Client, Request};
pub(super) use clock::pass;
use clock::{micros, now};
use faults::{FaultEffect, Kind, OUTSIDE_OF_PROMISES};
use history::{Ask, Event, Fault, History, LivenessBound, LockAnswer, Micros};
use masters::Masters;
use place::{Build, Deployment, Store};
use report::report;
use resource::Resource;
use verdict::{Invariant, Violation, judge};
use worker::{TTLS, Worker};

/// How many clients take locks, and how many others only ask.
const CLIENTS: u64 = 20;
const STRANGERS: u64 = 3;
/// How long a place in the queue outlives the instance that kept it.
const PLACE: Duration = Duration::from_secs(4);
/// How much longer it is there where an instance counts it from its own start, or from that of its
/// session: who waits behind it looks so often.
const LOOK: Duration = Duration::from_millis(1300);
/// How long a client asks for a lock that it should get.
const PATIENCE: Duration = Duration::from_secs(20);
/// What I6 gives every lock beyond its TTL.
const GRACE: Duration = Duration::from_secs(3);
/// The lock that a client holds after healing for longer than others wait for the refusal of it,
/// and how long both take.
const HELD: usize = TTLS.len();
const HELD_FOR: Duration = Duration::from_secs(3);
const REFUSAL: Duration = Duration::from_secs(2);
/// How long a node of Redlock is given, of the shortest TTL: if the machine is later than that, any
/// step may fail.
const NODE_TIME: Duration = Duration::from_millis(20);

/// For how long clients work.
fn time() -> Duration {
    Duration::from_secs(scaled(8))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_keeps_its_promises() {
    holds(Store::Memory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_keeps_its_promises() {
    holds(Store::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_without_persistence_keeps_its_promises() {
    holds(Store::ForgetfulRedis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_with_appendfsync_always_keeps_its_promises() {
    holds(Store::DurableRedis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_keeps_its_promises() {
    holds(Store::Sentinel).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_keeps_its_promises() {
    holds(Store::Cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_with_min_replicas_keeps_its_promises() {
    holds(Store::CarefulSentinel).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_sentinels_do_not_break_exclusion() {
    let faults = [Kind::KillSentinel, Kind::StopSentinel, Kind::CutNode, Kind::KillInstance];
    holds_and_excludes(Store::Sentinel, &faults).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_slots_do_not_break_exclusion() {
    let faults = [Kind::MoveSlots, Kind::MoveSlots, Kind::CutNode, Kind::StopInstanceLong];
    holds_and_excludes(Store::Cluster, &faults).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_with_snapshots_keeps_its_promises() {
    holds(Store::SnapshotRedis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redlock_keeps_its_promises() {
    holds(Store::Redlock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redlock_without_persistence_keeps_its_promises() {
    holds(Store::ForgetfulRedlock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_keeps_its_promises() {
    holds(Store::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_with_an_asynchronous_standby_keeps_its_promises() {
    holds(Store::AsyncPostgres).await;
}

/// Setting the clock of the server that judges leases ends them early, and breaks nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_whose_clock_is_set_breaks_nothing_but_exclusion() {
    let faults =
        [Kind::ClockThereAndBack, Kind::ClockThereAndBack, Kind::KillLeader, Kind::CutStore];
    let plan = Plan { faults: faults.to_vec(), ..Plan::of(Store::Postgres) };
    passes(plan, |_| false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_keeps_its_promises() {
    holds(Store::Etcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper_keeps_its_promises() {
    holds(Store::Zookeeper).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checker_sees_flushed_redlock_break_exclusion() {
    breaks_exclusion(Store::Redlock, &[Kind::FlushAll]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checker_sees_lossy_failover_break_exclusion() {
    breaks_exclusion(Store::Sentinel, &[Kind::FailoverCutOff]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checker_sees_lossy_promotion_of_postgres_break_exclusion() {
    breaks_exclusion(Store::AsyncPostgres, &[Kind::PromoteBehind]).await;
}

/// A store that forgets its grants promises no exclusion. The checker sees it break exclusion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checker_sees_restarted_redis_break_exclusion() {
    breaks_exclusion(Store::ForgetfulRedis, &[Kind::KillStore]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checker_sees_flushed_redis_break_exclusion() {
    breaks_exclusion(Store::ForgetfulRedis, &[Kind::FlushAll]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checker_sees_redis_clock_jump_break_exclusion() {
    breaks_exclusion(Store::DurableRedis, &[Kind::ClockThereAndBack]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checker_sees_killed_memory_break_exclusion() {
    breaks_exclusion(Store::Memory, &[Kind::KillInstance]).await;
}

/// A campaign on a store breaks none of its promises.
async fn holds(store: Store) {
    passes(Plan::of(store), |_| false).await;
}

/// Under faults by which no master forgets anything, two holders are certain at once only if
/// another node replaced a master that was taken for dead.
async fn holds_and_excludes(store: Store, faults: &[Kind]) {
    let plan = Plan { faults: faults.to_vec(), ..Plan::of(store) };
    passes(plan, |one| one.invariant == Invariant::Exclusive && !one.by_forgetting).await;
}

async fn passes(plan: Plan, is_wrong_here: impl Fn(&Violation) -> bool) {
    let store = plan.store;
    let mut campaign = Campaign::open(plan, &Build::default(), seed()).await;
    let tier = campaign.place.tier().await;
    assert!(tier == "strict" || !store.is_strict(), "{store:?} is {tier}");
    let until = now() + micros(time());
    while now() < until {
        campaign.segment().await;
    }
    let history = campaign.history().await;
    let violations = judge(&history);
    report(store, &tier, seed(), &history, &violations);
    let is_wrong = |one: &&Violation| is_broken_promise(one, store, &tier) || is_wrong_here(one);
    let broken: Vec<_> = violations.iter().filter(is_wrong).collect();
    let Some(first) = broken.first() else { return };
    let (around, faults) = (history.around(first.about[0].lock, first.at), &history.faults);
    panic!("{} on {store:?}: {broken:#?} {around} {faults:#?}", broken.len());
}

/// These faults make two holders certain at once, and nothing worse.
async fn breaks_exclusion(store: Store, faults: &[Kind]) {
    let plan = Plan { store, faults: faults.to_vec(), segment: Duration::from_secs(2) };
    let mut campaign = Campaign::open(plan, &Build::default(), seed()).await;
    let tier = campaign.place.tier().await;
    let broken = async {
        loop {
            campaign.segment().await;
            let history = campaign.history().await;
            let violations = judge(&history);
            let (exclusion, others): (Vec<_>, Vec<_>) =
                violations.iter().partition(|one| one.invariant == Invariant::Exclusive);
            let worse: Vec<_> =
                others.into_iter().filter(|one| is_broken_promise(one, store, &tier)).collect();
            if let Some(first) = worse.first() {
                let around = history.around(first.about[0].lock, first.at);
                panic!("{worse:#?} {around} {:#?}", history.faults);
            }
            if !exclusion.is_empty() {
                return;
            }
        }
    };
    timeout(Duration::from_secs(600), broken).await.expect("two are certain at once");
}

/// Whether a store of this tier promised what was violated.
fn is_broken_promise(violation: &Violation, store: Store, tier: &str) -> bool {
    let outside =
        |fault: &String| OUTSIDE_OF_PROMISES.iter().any(|kind| format!("{kind:?}") == *fault);
    // A lease that a node forgets has ended before the node votes, unless a fault sets its clock.
    let excludes = tier == "strict" || store == Store::ForgetfulRedlock;
    match violation.invariant {
        Invariant::Exclusive => excludes && !violation.faults.iter().any(outside),
        _ if violation.by_forgetting => !store.goes_back(),
        _ => true,
    }
}

/// What is done to what.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    store: Store,
    faults: Vec<Kind>,
    /// How long clients work and things fail before everything is healed for once.
    segment: Duration,
}

impl Plan {
    fn of(store: Store) -> Self {
        Self { store, faults: store.faults(), segment: Duration::from_secs(7) }
    }
}

/// Acquires a lock until an answer names its holder, and releases it.
async fn probe(
    client: Client,
    lock: usize,
    [ttl, wait]: [u64; 2],
    mut dice: Dice,
    lateness: &Lateness,
) -> Vec<Event> {
    let (token, until) = (client.number(), now() + micros(PATIENCE));
    let request = Request::acquire(&[lock], token, ttl, wait).patient();
    let mut events = Vec::new();
    loop {
        let answered = client.ask(&request, &mut dice).await;
        let told = &answered[0].told;
        let said = !(told.is_ambiguous() || *told == LockAnswer::NotExecuted);
        events.extend(answered);
        if said || now() > until + micros(lateness.of_request()) {
            break;
        }
        pass(Duration::from_millis(dice.below(100))).await;
    }
    events.extend(client.ask(&Request::new(&[lock], token, Ask::Release), &mut dice).await);
    events
}

/// A deployment, the clients that use it, and what they have written down so far.
#[derive(Debug)]
struct Campaign {
    plan: Plan,
    place: Deployment,
    masters: Masters,
    resource: Resource,
    numbers: Arc<AtomicU64>,
    dice: Dice,
    history: History,
    lateness: Lateness,
    /// When the last fault was over that may have left places in lines.
    places_left: Micros,
}

impl Campaign {
    async fn open(plan: Plan, build: &Build, seed: u64) -> Self {
        let place = Deployment::open(plan.store, build).await;
        let masters = Masters::among(&place.nodes);
        let (resource, numbers) = (Resource::start().await, Arc::new(AtomicU64::new(1)));
        let (dice, history, places_left) = (Dice(seed), History::default(), 0);
        let lateness = Lateness::watch();
        Self { plan, place, masters, resource, numbers, dice, history, lateness, places_left }
    }

    /// Lets clients work while things fail; then heals everything, has all clients vanish, and asks
    /// for every lock.
    async fn segment(&mut self) {
        let ending = CancellationToken::new();
        let mut workers = Vec::new();
        for number in 0..CLIENTS + STRANGERS {
            let is_stranger = number >= CLIENTS;
            let worker = Worker { is_stranger, ..self.worker(&ending).await };
            workers.push(tokio::spawn(worker.work()));
        }
        let begun = now();
        while now() < begun + micros(self.plan.segment) {
            pass(Duration::from_millis(self.dice.below(300))).await;
            let beside = self.any_fault(|kind| kind.lasts()).filter(|_| self.dice.below(3) == 0);
            let (from, beside) = (now(), beside.map(|kind| self.place.begin(kind, &mut self.dice)));
            if let Some(kind) = self.any_fault(|_| true) {
                let seen = self.place.strike(kind, &mut self.dice).await;
                self.note(kind, from, seen);
            }
            if let Some(beside) = beside {
                let seen = self.place.end(&beside);
                self.note(beside.kind, from, seen);
            }
        }
        self.place.is_well().await;
        if self.plan.store.counts_by_news() && self.places_left > begun {
            self.places_left = now() + micros(LOOK);
        }
        ending.cancel();
        for worker in workers {
            let worker = soon("the end of a client", worker).await.expect("an end");
            self.history.events.extend(worker.events);
            self.history.writes.extend(worker.writes);
        }
        self.heal().await;
    }

    /// One of the faults of the plan that are `of` a kind, if there is one.
    fn any_fault(&mut self, of: impl Fn(&Kind) -> bool) -> Option<Kind> {
        let faults: Vec<_> = self.plan.faults.iter().copied().filter(of).collect();
        let place = self.dice.below(faults.len().max(1) as u64) as usize;
        faults.get(place).copied()
    }

    /// Writes down a fault that is over.
    fn note(&mut self, kind: Kind, from: Micros, seen: FaultEffect) {
        let to = now();
        self.history.faults.push(Fault { kind, from, to, seen });
        if kind.leaves_places() {
            self.places_left = to;
        }
    }

    /// Asks for every lock, which has to be had in time.
    async fn heal(&mut self) {
        let at = now();
        let lateness = Lateness::watch();
        let client = Client::new(&self.place.addresses(), &self.numbers);
        let mut seeds = Dice(self.dice.below(u64::MAX));
        let refused = self.probe_refusals(Dice(seeds.below(u64::MAX)), &lateness);
        let probes = TTLS.iter().enumerate().map(|(lock, ttl)| {
            let (client, dice) = (client.clone(), Dice(seeds.below(u64::MAX)));
            probe(client, lock, [*ttl, 20_000], dice, &lateness)
        });
        let probes: Vec<_> = probes.collect();
        let ((held_at, refused), probed) = tokio::join!(refused, join_all(probes));
        if let Some(at) = held_at {
            let within = micros(REFUSAL + lateness.of_request());
            let tokens = refused.iter().filter(|event| event.sent >= at && event.ask.is_acquire());
            let tokens: BTreeSet<_> = tokens.map(|event| event.token).collect();
            let bound = |token| LivenessBound { lock: HELD, refused: Some(token), at, within };
            self.history.healings.extend(tokens.into_iter().map(bound));
        }
        self.history.events.extend(probed.into_iter().flatten().chain(refused));
        for lock in (0..=HELD).filter(|_| self.plan.store.abilities().modes) {
            let recalled = client.ask(&Request::new(&[lock], 0, Ask::Recall), &mut self.dice).await;
            self.history.events.extend(recalled);
        }
        for (lock, ttl) in TTLS.iter().enumerate() {
            let mut places = (self.places_left + micros(PLACE)).saturating_sub(at);
            if self.history.has_shared_place(lock, at.saturating_sub(micros(PLACE))) {
                places = places.max(micros(PLACE + LOOK));
            }
            if self.plan.store.is_redlock() && lateness.most() >= NODE_TIME {
                continue;
            }
            let within = (ttl * 1000).max(places) + micros(GRACE + lateness.of_request());
            self.history.healings.push(LivenessBound { lock, refused: None, at, within });
        }
    }

    /// Holds a lock that no other client takes, and asks each instance for it under another token.
    /// Another instance than the one that granted it releases it. Gives since when it was held.
    async fn probe_refusals(
        &self,
        mut dice: Dice,
        lateness: &Lateness,
    ) -> (Option<Micros>, Vec<Event>) {
        // A node of Redlock that came up lately has no vote yet.
        if self.plan.store.is_redlock() {
            return (None, Vec::new());
        }
        let addresses = self.place.addresses();
        let at = |place: usize| Client::new(&[addresses[place]], &self.numbers);
        let (here, there) = (at(0), at(addresses.len() - 1));
        let token = here.number();
        let long = Request::acquire(&[HELD], token, micros(HELD_FOR) / 1000, 0);
        let mut events = here.ask(&long, &mut dice).await;
        let held_at = events[0].told.acquired().map(|_| events[0].read);
        let others = (0..addresses.len()).map(|place| {
            probe(at(place), HELD, [TTLS[0], 0], Dice(dice.below(u64::MAX)), lateness)
        });
        events.extend(join_all(others.collect::<Vec<_>>()).await.into_iter().flatten());
        events.extend(there.ask(&Request::new(&[HELD], token, Ask::Release), &mut dice).await);
        for token in [here.number(), here.number()] {
            let short = Request::acquire(&[HELD], token, TTLS[0], 0);
            events.extend(here.ask(&short, &mut dice).await);
            events.extend(there.ask(&Request::new(&[HELD], token, Ask::Release), &mut dice).await);
            pass(Duration::from_millis(TTLS[0])).await;
        }
        (held_at, events)
    }

    /// All that was written down so far.
    async fn history(&self) -> History {
        let mut promotions = self.masters.promotions();
        promotions.extend(self.history.promotions_by_faults());
        let (taken, counts_by_news) =
            (self.resource.taken().await, self.plan.store.counts_by_news());
        let late = micros(self.lateness.of_request());
        let has_one_judge = !self.plan.store.is_shared();
        let known = self.history.clone();
        History { taken, promotions, counts_by_news, has_one_judge, late, ..known }
    }

    async fn worker(&mut self, ending: &CancellationToken) -> Worker {
        Worker {
            client: Client::new(&self.place.addresses(), &self.numbers),
            resource: self.resource.access().await,
            abilities: self.plan.store.abilities(),
            dice: Dice(self.dice.below(u64::MAX)),
            is_stranger: false,
            ending: ending.clone(),
            events: Vec::new(),
            writes: Vec::new(),
        }
    }
}
