//! Locks on an engine that is a server, next to what the engine does alone: two writes of a value
//! under its key for each cycle of a lock, on 64 connections or tasks, each with one under way.
//!
//! The engine is the caller's, so that its disk and its settings are what they are: `--store URL`.
//! A second instance would hear of each change of the first, so the store and a service over HTTP
//! are measured one after the other, each in turn with the engine alone. The last part is a lock
//! that is handed over between two instances, and 200 clients in the queue of one lock, on three
//! instances. What the engine takes of the machine is among the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use keylatch::config::{Config, Flags};
use keylatch_core::lock::{AcquireCommand, Attempt, LockName, Token, Ttl};
use keylatch_core::store::Store;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::engine_alone::{EngineAlone, EtcdGateway};
use crate::handover;
use crate::load::{CONNECTIONS, WAITING, Work};
use crate::processes;
use crate::slice::{Cpu, Slice, nanoseconds};
use crate::table::Table;
use crate::{Bench, Result};

/// How many clients are in the queue of one lock.
const QUEUE: usize = 200;

pub(crate) fn run(bench: &Bench, url: &str) -> Result<()> {
    let Bench { machine, load, rounds, .. } = bench;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let alone = Cycle::Alone(Arc::new(runtime.block_on(EngineAlone::connect(url))?));
    let flags = Flags { store: Some(url.to_owned()), ..Flags::default() };
    let config = Config::load(&flags, [])?;
    let store = Cycle::Lock(runtime.block_on(keylatch_stores::open(url, config.stores()))?);
    Table::default()
        .row("at the store", || measure(&runtime, load.window, &store))
        .row("alone", || measure(&runtime, load.window, &alone))
        .of("alone")
        .run("A request is here a cycle: an acquire and a release, or two writes.", *rounds)?;
    drop(store);
    let service = machine.keylatch(processes::Store::Url(url))?;
    let mut over_http = Table::default()
        .row("over HTTP", || Ok(load.measure(&service, &Work::Lock)?.by(2.0)))
        .row("alone", || measure(&runtime, load.window, &alone))
        .of("alone");
    if url.starts_with("etcd") {
        let gateway = runtime.block_on(EtcdGateway::connect(url))?;
        let gateway = Cycle::Gateway(Arc::new(gateway));
        let window = load.window;
        let runtime = &runtime;
        over_http = over_http
            .row("etcd's lock gateway", move || measure(runtime, window, &gateway))
            .of("etcd's lock gateway");
    }
    over_http.run("A request is here a cycle. Times are, over HTTP, of a request.", *rounds)?;
    drop(service);
    hand_over(bench, url)
}

fn hand_over(Bench { machine, load, rounds, .. }: &Bench, url: &str) -> Result<()> {
    let start = || machine.keylatch(processes::Store::Url(url));
    let (one, other, third) = (start()?, start()?, start()?);
    let all = [&one, &other, &third];
    Table::default()
        .row("between two", || handover::between([&one, &other], load.window))
        .row("200 in the queue", || load.measure_on(QUEUE, &all, &Work::Turns(WAITING)))
        .run("A request is here a hand-over. Times in the queue are of the whole wait.", *rounds)
}

/// What is done over and over.
#[derive(Clone)]
pub(crate) enum Cycle {
    /// Acquires and releases a lock of a task's own.
    Lock(Arc<dyn Store>),
    /// Writes twice.
    Alone(Arc<EngineAlone>),
    /// Locks and unlocks by etcd's own API.
    Gateway(Arc<EtcdGateway>),
}

impl Cycle {
    fn run(&self, task: usize) -> BoxFuture<'_, Result<()>> {
        match self {
            Self::Lock(store) => Box::pin(cycle_lock(&**store, task)),
            Self::Alone(engine) => Box::pin(engine.write_twice(task)),
            Self::Gateway(gateway) => Box::pin(gateway.lock_and_unlock(task)),
        }
    }
}

async fn cycle_lock(store: &dyn Store, task: usize) -> Result<()> {
    let (name, token) = (LockName::parse(&format!("bench-{task}"))?, Token::generate()?.hash());
    let command = AcquireCommand::new(token, Ttl::DEFAULT, Attempt::new(1));
    store.acquire(&name, command).await?;
    store.release(&name, &token).await?;
    Ok(())
}

/// Runs a cycle in each of as many tasks as there are connections, for as long as the window.
pub(crate) fn measure(runtime: &Runtime, window: Duration, cycle: &Cycle) -> Result<Slice> {
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
                    latencies.push(nanoseconds(before.elapsed()));
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
    Slice::new(latencies?, started.elapsed(), Cpu::default())
}
