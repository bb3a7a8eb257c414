//! Locks on an engine that is a server, next to what the engine does alone: two writes of a value
//! under its key for each cycle of a lock, on 64 connections or tasks, each with one under way.
//!
//! The engine is the caller's, so that its disk and its settings are what they are: `--store URL`.
//! A second instance would hear of each change of the first, so the store and a service over HTTP
//! are measured one after the other, each in turn with the engine alone. The last two parts are a
//! lock that is handed over between two instances, and 200 clients in the queue of one lock, on
//! three instances.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use keylatch::config::{Config, Flags};
use keylatch_core::lock::{AcquireCommand, Attempt, LockName, Token, Ttl};
use keylatch_core::store::Store;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::Result;
use crate::engine_alone::{EngineAlone, EtcdGateway};
use crate::load::{CONNECTIONS, Load, WAITING};
use crate::processes::{Machine, Process};
use crate::slice::{Cpu, Slice, Spread};
use crate::{handover, report};

/// How many clients are in the queue of one lock.
const QUEUE: usize = 200;
/// How many writes may meet one of another instance then, for each step of the store.
const CONFLICTS: f64 = 0.05;

/// What an engine is to reach.
struct Goals {
    /// Cycles at the store for each cycle of the engine alone, under names that are used again: the
    /// engine alone writes such rows, too. The design names none for Redis.
    used: Option<f64>,
    /// The same under names that were never used.
    new: Option<f64>,
    /// Hand-overs a second with [`QUEUE`] clients in the queue.
    hand_overs: f64,
    /// 99 of 100 hand-overs between two instances, in milliseconds.
    p99: f64,
}

impl Goals {
    fn of(alone: &EngineAlone) -> Self {
        match alone {
            EngineAlone::Postgres(_) => {
                Self { used: Some(2.0), new: None, hand_overs: 400.0, p99: 10.0 }
            }
            EngineAlone::Etcd(_) => {
                Self { used: Some(1.2), new: None, hand_overs: 250.0, p99: 25.0 }
            }
            EngineAlone::Zookeeper(_) => {
                Self { used: Some(0.75), new: Some(0.6), hand_overs: 250.0, p99: 25.0 }
            }
            EngineAlone::Redis(_) => Self { used: None, new: None, hand_overs: 250.0, p99: 25.0 },
        }
    }
}

/// Measures all subjects and prints the tables.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32, url: &str) -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let alone = Arc::new(runtime.block_on(EngineAlone::connect(url))?);
    let goals = Goals::of(&alone);
    let measure = |cycle: Cycle| measure(&runtime, load.window, &cycle);
    let measure_alone = || measure(Cycle::Alone(Arc::clone(&alone)));
    let flags = Flags { store: Some(url.to_owned()), ..Flags::default() };
    let config = Config::load(&flags, [])?;
    let store = runtime.block_on(keylatch_stores::open(url, config.stores()))?;
    let mut at_store = AtStore::default();
    for _ in 0..rounds {
        at_store.used_names.push(measure(Cycle::Lock(Arc::clone(&store), Names::Used))?);
        at_store.alone.push(measure_alone()?);
        at_store.new_names.push(measure(Cycle::Lock(Arc::clone(&store), Names::New))?);
    }
    drop(store);
    at_store.print(&goals);
    let gateway = match &*alone {
        EngineAlone::Etcd(_) => Some(Arc::new(runtime.block_on(EtcdGateway::connect(url))?)),
        _ => None,
    };
    let service = machine.keylatch(url)?;
    let mut over_http = OverHttp::default();
    for _ in 0..rounds {
        over_http.service.push(halved(load.measure(&service, None)?));
        over_http.alone.push(measure_alone()?);
        if let Some(gateway) = &gateway {
            over_http.gateway.push(measure(Cycle::Gateway(Arc::clone(gateway)))?);
        }
    }
    drop(service);
    over_http.print();
    hand_over(machine, load, rounds, url, &goals)
}

/// The rates of cycles, each of which is two requests.
fn halved(slice: Slice) -> Slice {
    Slice { rate: slice.rate / 2.0, ..slice }
}

/// The rounds of what makes cycles at the store, and of the engine alone.
#[derive(Debug, Default)]
struct AtStore {
    used_names: Vec<Slice>,
    new_names: Vec<Slice>,
    alone: Vec<Slice>,
}

impl AtStore {
    fn print(&self, goals: &Goals) {
        let Self { used_names, new_names, alone } = self;
        let rows =
            [("at the store", &used_names[..]), ("..., new names", new_names), ("alone", alone)];
        report::table(&["of alone"], &rows, |slices| vec![Some(Spread::of_rates(slices, alone))]);
        println!(
            "\nA request is here a cycle: an acquire and a release, or two writes. Times are of a \
             cycle. What the engine itself\ntakes of the machine is among the others.\n\nGoals:"
        );
        for (what, slices, goal) in
            [("used names", used_names, goals.used), ("new names", new_names, goals.new)]
        {
            let Some(goal) = goal else { continue };
            let what = format!("{what}, of the engine alone");
            report::at_least(&what, goal, Spread::of_rates(slices, alone));
        }
    }
}

/// The rounds of a service over HTTP, of the engine alone, and of etcd's own locks.
#[derive(Debug, Default)]
struct OverHttp {
    service: Vec<Slice>,
    alone: Vec<Slice>,
    gateway: Vec<Slice>,
}

impl OverHttp {
    fn print(&self) {
        let Self { service, alone, gateway } = self;
        let mut rows = vec![("over HTTP", &service[..]), ("alone", alone)];
        if !gateway.is_empty() {
            rows.push(("etcd's lock gateway", gateway));
        }
        report::table(&["of alone"], &rows, |slices| vec![Some(Spread::of_rates(slices, alone))]);
        println!("\nA request is here a cycle. Times are, over HTTP, of a request.");
        if !gateway.is_empty() {
            println!("\nGoals:");
            report::at_least("of etcd's lock gateway", 3.0, Spread::of_rates(service, gateway));
        }
    }
}

fn hand_over(machine: &Machine, load: &Load, rounds: u32, url: &str, goals: &Goals) -> Result<()> {
    let instances = (0..3).map(|_| machine.keylatch(url)).collect::<Result<Vec<_>>>()?;
    let (mut between_two, mut in_line, mut conflicts) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        between_two.push(handover::between(&instances[0], &instances[1], load.window)?);
        let before = Conflicts::of(&instances)?;
        let all: Vec<_> = instances.iter().collect();
        in_line.push(load.measure_turns(QUEUE, WAITING, &all)?);
        conflicts.push(Conflicts::of(&instances)?.per_step_since(&before));
    }
    let rows = [("between two", &between_two[..]), ("200 in the queue", &in_line)];
    report::table(&[], &rows, |_| Vec::new());
    println!(
        "\nA request is here a hand-over. Times are, between two, of the hand-over, and in the queue, of the \
         whole wait.\n\nGoals:"
    );
    let p99 = Spread::of(&between_two, |slice| slice.p99);
    let what = format!("p99 of a hand-over at most {} ms", goals.p99);
    report::goal(&what, p99.median <= goals.p99, p99);
    let rate = Spread::of(&in_line, |slice| slice.rate);
    let what = format!("200 in the queue, at least {} hand-overs a second", goals.hand_overs);
    report::goal(&what, rate.median >= goals.hand_overs, rate);
    let conflicts = Spread::new(conflicts);
    let what = format!("at most {CONFLICTS} conflicts for each step of the store there");
    report::goal(&what, conflicts.median <= CONFLICTS, conflicts);
    Ok(())
}

/// What instances have counted so far.
struct Conflicts {
    /// Writes that met one of another instance.
    conflicts: f64,
    /// Steps of the store.
    steps: f64,
}

impl Conflicts {
    fn of(instances: &[Process]) -> Result<Self> {
        let (mut conflicts, mut steps) = (0.0, 0.0);
        for instance in instances {
            let metrics = instance.metrics()?;
            conflicts += total(&metrics, "keylatch_store_conflicts_total");
            steps += total(&metrics, "keylatch_store_operation_duration_seconds_count");
        }
        Ok(Self { conflicts, steps })
    }

    fn per_step_since(&self, before: &Self) -> f64 {
        (self.conflicts - before.conflicts) / (self.steps - before.steps).max(1.0)
    }
}

/// The sum of a metric over its labels.
fn total(metrics: &str, name: &str) -> f64 {
    let lines = metrics.lines().filter(|line| line.starts_with(name));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Which names locks have.
#[derive(Debug, Clone, Copy)]
enum Names {
    /// One for each task.
    Used,
    /// One for each cycle.
    New,
}

/// What is done over and over.
#[derive(Clone)]
enum Cycle {
    /// Acquires and releases a lock.
    Lock(Arc<dyn Store>, Names),
    /// Writes twice.
    Alone(Arc<EngineAlone>),
    /// Locks and unlocks by etcd's own API.
    Gateway(Arc<EtcdGateway>),
}

impl Cycle {
    fn run(&self, task: usize) -> BoxFuture<'_, Result<()>> {
        match self {
            Self::Lock(store, names) => Box::pin(cycle_lock(&**store, *names, task)),
            Self::Alone(engine) => Box::pin(engine.write_twice(task)),
            Self::Gateway(gateway) => Box::pin(gateway.lock_and_unlock(task)),
        }
    }
}

async fn cycle_lock(store: &dyn Store, names: Names, task: usize) -> Result<()> {
    let token = Token::generate()?;
    let name = match names {
        Names::Used => format!("bench-{task}"),
        Names::New => format!("bench-{}", token.expose()),
    };
    let (name, token) = (LockName::parse(&name)?, token.hash());
    let command = AcquireCommand::new(token, Ttl::DEFAULT, Attempt::new(1));
    store.acquire(&name, command).await?;
    store.release(&name, &token).await?;
    Ok(())
}

/// Locks and unlocks by etcd's own API.
pub(crate) fn measure_gateway(
    runtime: &Runtime,
    window: Duration,
    gateway: &Arc<EtcdGateway>,
) -> Result<Slice> {
    measure(runtime, window, &Cycle::Gateway(Arc::clone(gateway)))
}

/// Runs a cycle in each of as many tasks as there are connections, for as long as the window.
fn measure(runtime: &Runtime, window: Duration, cycle: &Cycle) -> Result<Slice> {
    let started = Instant::now();
    let latencies: Result<Vec<u32>> = runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for task in 0..CONNECTIONS {
            let cycle = cycle.clone();
            tasks.spawn(async move {
                let mut latencies = Vec::new();
                while started.elapsed() < window {
                    let before = Instant::now();
                    cycle.run(task).await?;
                    latencies.push(crate::load::nanoseconds(before.elapsed()));
                }
                Result::Ok(latencies)
            });
        }
        let mut all = Vec::new();
        while let Some(done) = tasks.join_next().await {
            all.extend(done??);
        }
        Ok(all)
    });
    let idle = Cpu { generator: 0.0, service: 0.0, redis: 0.0, machine: 0.0 };
    Slice::new(latencies?, started.elapsed(), idle)
}
