//! The load generator: 64 connections on one thread, each with one request under way.
//!
//! It writes requests as bytes and reads responses with a few comparisons (`wire.rs`), so that it
//! takes less of the machine than what it measures. A response that is not the expected one ends
//! the benchmark. `connection.rs` has the requests, `paced.rs` arrivals at a fixed rate.

mod connection;
mod paced;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Result;
use crate::processes::Process;
use crate::slice::{Meter, Slice, nanoseconds};
use crate::wire::{Names, Pair};

pub(crate) use connection::Connection;
pub(crate) use paced::{Arrival, Arrivals, Outcome, Pace, percentile};

/// How many connections there are.
pub(crate) const CONNECTIONS: usize = 64;
/// How long the last requests may take before the run is given up.
pub(crate) const STUCK: Duration = Duration::from_secs(60);
/// How long the first lock of a store that opens may take.
const OPENING: Duration = Duration::from_secs(300);
/// How many locks a request makes that fills a store.
const SET: usize = 16;
/// What a client creates a lock with that waits for it.
pub(crate) const WAITING: &str = r#"{"wait_ms":60000}"#;
/// A share of a lock that outlives the run.
const LONG_SHARE: &str = r#"{"ttl_ms":86400000,"mode":"shared"}"#;

/// What each connection does over and over.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    /// Creates a lock and deletes it.
    Lock,
    /// The same by a client that is known by a line in the head of each request.
    Known(String),
    /// Creates the one lock of all clients with this body, and releases it. A grant counts as one
    /// request.
    Turns(&'static str),
    /// Submits an order under a new key.
    FirstRun,
    /// Submits the same order.
    Replay,
    /// Sends `GET /`, to which 204 is the response.
    Nothing,
    /// Sets and deletes a lock by a webdis, whose Redis has this script.
    Webdis(String),
}

/// What a store is filled with, one a piece.
#[derive(Debug, Clone, Copy)]
enum Piece {
    /// Locks that stay.
    Set,
    Order,
}

/// Sends requests, and measures how long their responses take.
#[derive(Debug)]
pub(crate) struct Load {
    /// How long is measured.
    pub(crate) window: Duration,
    runtime: Runtime,
    names: Arc<Names>,
}

impl Load {
    pub(crate) fn new(window: Duration) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { window, runtime, names: Arc::default() })
    }

    /// Works on all connections for as long as the window, after a warm-up of a tenth of it.
    pub(crate) fn measure(&self, service: &Process, work: &Work) -> Result<Slice> {
        self.measure_on(CONNECTIONS, &[service], work)
    }

    /// The same on another number of connections, to several services in turn.
    pub(crate) fn measure_on(
        &self,
        count: usize,
        services: &[&Process],
        work: &Work,
    ) -> Result<Slice> {
        self.measure_by(count, None, services, work)
    }

    /// The same by TLS. The handshakes come before the window.
    pub(crate) fn measure_tls(
        &self,
        tls: &Arc<ClientConfig>,
        service: &Process,
        work: &Work,
    ) -> Result<Slice> {
        self.measure_by(CONNECTIONS, Some(tls), &[service], work)
    }

    fn measure_by(
        &self,
        count: usize,
        tls: Option<&Arc<ClientConfig>>,
        services: &[&Process],
        work: &Work,
    ) -> Result<Slice> {
        self.runtime.block_on(async {
            let phase = Arc::new(Phase::default());
            let mut connections = JoinSet::new();
            for service in services.iter().cycle().take(count) {
                let connection = match tls {
                    Some(tls) => Connection::open_tls(service.address, tls).await?,
                    None => Connection::open(service.address).await?,
                };
                let times = Times { phase: Arc::clone(&phase), taken: Vec::new() };
                connections.spawn(connection.work(work.clone(), Arc::clone(&self.names), times));
            }
            unless_ended(&mut connections, self.window / 10).await?;
            let meter = Meter::start(services)?;
            phase.measuring.store(true, Ordering::Relaxed);
            unless_ended(&mut connections, self.window).await?;
            phase.measuring.store(false, Ordering::Relaxed);
            let (elapsed, spent) = meter.read()?;
            phase.over.store(true, Ordering::Relaxed);
            let mut latencies = Vec::new();
            while let Some(ended) = timeout(STUCK, connections.join_next()).await? {
                latencies.append(&mut ended??);
            }
            Slice::new(latencies, elapsed, spent)
        })
    }

    /// Creates `count` locks at least, which stay for a day.
    pub(crate) fn fill(&self, service: &Process, count: usize) -> Result<()> {
        self.share_out(service, count.div_ceil(SET), Piece::Set)
    }

    /// Submits `count` guarded requests, each for the first time.
    pub(crate) fn order(&self, service: &Process, count: usize) -> Result<()> {
        self.share_out(service, count, Piece::Order)
    }

    /// Has all connections work together until `count` pieces are done.
    fn share_out(&self, service: &Process, count: usize, piece: Piece) -> Result<()> {
        self.runtime.block_on(async {
            let left = Arc::new(AtomicUsize::new(count));
            let mut connections = JoinSet::new();
            for _ in 0..CONNECTIONS {
                let connection = Connection::open(service.address).await?;
                let (names, left) = (Arc::clone(&self.names), Arc::clone(&left));
                connections.spawn(connection.fill(piece, names, left));
            }
            while let Some(ended) = connections.join_next().await {
                ended??;
            }
            Ok(())
        })
    }

    /// Creates `count` shares, which stay, of the lock that clients take turns with.
    pub(crate) fn share(&self, service: &Process, count: usize) -> Result<()> {
        self.runtime.block_on(async {
            let mut connection = Connection::open(service.address).await?;
            let pair = Pair::new("", LONG_SHARE);
            for _ in 0..count {
                connection.exchange(&pair.create, 201).await?;
            }
            Ok(())
        })
    }

    /// Creates one lock; a service whose store is still opening may take its time.
    pub(crate) fn create_one(&self, service: &Process) -> Result<()> {
        self.runtime.block_on(async {
            let mut connection = Connection::open(service.address).await?;
            let mut pair = Pair::new("", "");
            pair.rename(&self.names)?;
            timeout(OPENING, connection.exchange(&pair.create, 201)).await??;
            Ok(())
        })
    }
}

/// Which part of the load's time it is.
#[derive(Debug, Default)]
struct Phase {
    measuring: AtomicBool,
    over: AtomicBool,
}

/// How long a connection's requests took while measuring, in nanoseconds.
struct Times {
    phase: Arc<Phase>,
    taken: Vec<u32>,
}

impl Times {
    fn is_over(&self) -> bool {
        self.phase.over.load(Ordering::Relaxed)
    }

    /// Of a request that was sent at `started` and has its response now.
    fn note(&mut self, started: Instant) {
        if self.phase.measuring.load(Ordering::Relaxed) {
            self.taken.push(nanoseconds(started.elapsed()));
        }
    }
}

/// Waits for `time`, and fails when a connection ends meanwhile, which happens only in failure.
async fn unless_ended<T: 'static>(
    connections: &mut JoinSet<Result<T>>,
    time: Duration,
) -> Result<()> {
    tokio::select! {
        () = sleep(time) => Ok(()),
        Some(ended) = connections.join_next() => {
            ended??;
            Err("a connection ended too early".into())
        }
    }
}
