//! What open consoles cost the service: its throughput with none, one and three of them, in turn.
//!
//! A console is a client that reads what the page reads: the stream of the held locks, and a glance
//! every three seconds. The locks that the load creates and deletes are changes beside 10,000 that
//! stay.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, interval, interval_at};

use crate::background::Background;
use crate::load::{STUCK, Work};
use crate::processes::{Process, Store};
use crate::slice::Slice;
use crate::table::Table;
use crate::{Bench, Result};

/// How many locks stay held.
const HELD: usize = 10_000;
/// How often a console asks for a glance.
const PERIOD: Duration = Duration::from_secs(3);
/// How soon it does so first, so that each window has one.
const FIRST: Duration = Duration::from_millis(500);
/// How often is looked whether something has happened.
const LOOK: Duration = Duration::from_millis(20);

pub(crate) fn run(bench: &Bench) -> Result<()> {
    let Bench { machine, load, rounds, .. } = bench;
    let service = machine.keylatch(Store::Memory)?;
    load.fill(&service, HELD)?;
    let mut table = Table::default();
    for (name, count) in [("no console", 0), ("1 console", 1), ("3 consoles", 3)] {
        let service = &service;
        let measure = move || beside(count, service, || load.measure(service, &Work::Lock));
        table = table.row(name, measure);
    }
    table.of("no console").run(&format!("{HELD} locks stay held."), *rounds)
}

/// Measures while so many consoles are open.
fn beside(
    count: usize,
    service: &Process,
    measure: impl FnOnce() -> Result<Slice>,
) -> Result<Slice> {
    let (open, address) = (Arc::<AtomicUsize>::default(), service.address);
    let consoles: Vec<_> = (0..count)
        .map(|_| {
            let open = Arc::clone(&open);
            Background::start(move |stop| console(address, open, stop))
        })
        .collect();
    let began = Instant::now();
    while open.load(Ordering::Relaxed) < count {
        if began.elapsed() > STUCK || consoles.iter().any(Background::is_over) {
            return Err("not every console has all locks".into());
        }
        sleep(LOOK);
    }
    let measured = measure();
    consoles.into_iter().try_for_each(Background::end)?;
    measured
}

/// Reads what a console reads, until it is closed; says once that it has all locks.
async fn console(
    address: SocketAddr,
    open: Arc<AtomicUsize>,
    closed: Arc<AtomicBool>,
) -> Result<()> {
    let mut stream = send(address, "/console/locks", "1.1").await?;
    let (mut buffer, mut is_open) = (vec![0; 1 << 16], false);
    let mut glances = interval_at(Instant::now() + FIRST, PERIOD);
    let mut looks = interval(LOOK);
    while !closed.load(Ordering::Relaxed) {
        tokio::select! {
            _ = looks.tick() => {}
            _ = glances.tick() => {
                let mut glance = Vec::new();
                let mut asked = send(address, "/console/glance", "1.0").await?;
                asked.read_to_end(&mut glance).await?;
                if !glance.starts_with(b"HTTP/1.0 200") {
                    return Err("a console got no glance".into());
                }
            }
            read = stream.read(&mut buffer) => {
                let read = &buffer[..read?];
                if read.is_empty() {
                    return Err("the service closed the stream of a console".into());
                }
                // The end of the first event, and of the chunk that it is in.
                if !is_open && read.ends_with(b"\n\n\r\n") {
                    is_open = true;
                    open.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
    Ok(())
}

/// A connection on which the path was asked for.
async fn send(address: SocketAddr, path: &str, version: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/{version}\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}
