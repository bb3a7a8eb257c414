//! Locks on PostgreSQL, next to what the server does alone: two updates of a row by its key for each cycle
//! of a lock, a statement and a commit each, on 64 connections.
//!
//! The server is the caller's, so that its disk and its settings are what they are: `--postgres URL`.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keylatch_core::lock::{AcquireCommand, Attempt, LockName, Token, Ttl};
use keylatch_core::store::Store;
use keylatch_stores::{PostgresSettings, postgres};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

use crate::Result;
use crate::load::{CONNECTIONS, Load};
use crate::processes::Machine;
use crate::report;
use crate::slice::{Cpu, Slice, Spread};

/// How many cycles the store makes at least for each cycle of the server alone.
const GOAL: f64 = 2.0;
const TABLE: &str = "DROP TABLE IF EXISTS keylatch_bench;
    CREATE TABLE keylatch_bench (key int PRIMARY KEY, value bigint NOT NULL);
    INSERT INTO keylatch_bench SELECT key, 0 FROM generate_series(0, 63) AS key";
const UPDATE: &str = "UPDATE keylatch_bench SET value = value + 1 WHERE key = $1";

/// Measures all subjects and prints the table.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32, url: &str) -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let alone = runtime.block_on(connect(url))?;
    let settings = PostgresSettings { schema: "keylatch_bench".into(), connect_timeout_ms: 1000 };
    let store = runtime.block_on(postgres(url, &settings))?;
    let service = machine.keylatch(url)?;
    let (mut at_store, mut over_http, mut by_itself) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let cycles = (0..CONNECTIONS).map(|number| cycle_lock(Arc::clone(&store), number));
        at_store.push(measure(&runtime, load.window, cycles)?);
        over_http.push(load.measure(&service, None)?);
        let cycles =
            alone.iter().enumerate().map(|(key, client)| cycle_row(Arc::clone(client), key));
        by_itself.push(measure(&runtime, load.window, cycles)?);
    }
    let rows = [
        ("at the store, cycles", &at_store[..]),
        ("over HTTP, requests", &over_http),
        ("alone, cycles", &by_itself),
    ];
    let rates = |slice: &Slice, other: &Slice| slice.rate / other.rate;
    report::table(&["of alone"], &rows, |slices| {
        vec![Some(Spread::of_ratios(slices, &by_itself, rates))]
    });
    println!(
        "\nA cycle is an acquire and a release, or two updates. Over HTTP, two requests are a cycle."
    );
    let ratio = Spread::of_ratios(&at_store, &by_itself, rates);
    report::goal(&format!("at least {GOAL} times the server alone"), ratio.median >= GOAL, ratio);
    Ok(())
}

/// A connection each, to a table of their own.
async fn connect(url: &str) -> Result<Vec<Arc<Client>>> {
    let mut clients = Vec::new();
    for number in 0..CONNECTIONS {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        if number == 0 {
            client.batch_execute(TABLE).await?;
        }
        clients.push(Arc::new(client));
    }
    Ok(clients)
}

/// Runs cycles, each over and over, for as long as the window.
fn measure<F>(
    runtime: &Runtime,
    window: Duration,
    cycles: impl Iterator<Item = impl Fn() -> F + Send + 'static>,
) -> Result<Slice>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let started = Instant::now();
    let latencies: Result<Vec<u32>> = runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for cycle in cycles {
            tasks.spawn(async move {
                let mut latencies = Vec::new();
                while started.elapsed() < window {
                    let before = Instant::now();
                    cycle().await?;
                    latencies.push(u32::try_from(before.elapsed().as_nanos()).unwrap_or(u32::MAX));
                }
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(latencies)
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

/// Acquires and releases a lock.
fn cycle_lock(
    store: Arc<dyn Store>,
    number: usize,
) -> impl Fn() -> futures_util::future::BoxFuture<'static, Result<()>> + Send + 'static {
    move || {
        let store = Arc::clone(&store);
        Box::pin(async move {
            let name = LockName::parse(&format!("bench-{number}"))?;
            let token = Token::generate()?.hash();
            let command = AcquireCommand::new(token, Ttl::DEFAULT, Attempt::new(1));
            store.acquire(&name, command).await?;
            store.release(&name, &token).await?;
            Ok(())
        })
    }
}

/// Updates a row twice.
fn cycle_row(
    client: Arc<Client>,
    key: usize,
) -> impl Fn() -> futures_util::future::BoxFuture<'static, Result<()>> + Send + 'static {
    let statement = Arc::new(tokio::sync::OnceCell::new());
    move || {
        let (client, statement) = (Arc::clone(&client), Arc::clone(&statement));
        Box::pin(async move {
            let statement = statement.get_or_try_init(|| client.prepare(UPDATE)).await?;
            let key = i32::try_from(key)?;
            for _ in 0..2 {
                client.execute(statement, &[&key]).await?;
            }
            Ok(())
        })
    }
}
