//! Locks that are held in great number, made by requests for 16 of them each, and how long a few
//! clients wait beside them.
//!
//! What is waited for is watched on a thread of its own, so that the look is no part of a wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Connection, Load, Phase, takes_one};
use crate::Result;
use crate::processes::Process;
use crate::wire::{Names, Pair, lock_set};

/// How many locks a request makes.
const SET: usize = 16;
/// How long locks are held whose end does not matter.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the first lock of a store that opens may take.
const OPENING: Duration = Duration::from_secs(300);

/// How long requests took, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waits {
    pub(crate) p99: f64,
    pub(crate) longest: f64,
}

impl Load {
    /// Creates `count` locks at least, which stay for a day or expire together at `end`.
    pub(crate) fn fill_by_sets(
        &self,
        service: &Process,
        count: usize,
        end: Option<Instant>,
    ) -> Result<()> {
        self.share_out(service, count.div_ceil(SET), |connection, names, left| {
            connection.create_sets(names, left, end)
        })
    }

    /// Has `count` clients create and delete until `watch` returns, which runs on another thread;
    /// how long they waited.
    pub(crate) fn wait_while(
        &self,
        count: usize,
        service: &Process,
        watch: impl FnOnce() -> Result<()> + Send,
    ) -> Result<Waits> {
        let phase = Arc::new(Phase { measuring: AtomicBool::new(true), ..Phase::default() });
        thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let watched = watch();
                phase.over.store(true, Ordering::Relaxed);
                watched
            });
            let latencies =
                self.runtime.block_on(self.latencies_until_over(count, service, &phase));
            watching.join().map_err(|_| "the watch panicked")??;
            Waits::of(latencies?)
        })
    }

    async fn latencies_until_over(
        &self,
        count: usize,
        service: &Process,
        phase: &Arc<Phase>,
    ) -> Result<Vec<u32>> {
        let (mut connections, mut latencies) = (JoinSet::new(), Vec::new());
        for _ in 0..count {
            let connection = Connection::<TcpStream>::open(service.address).await?;
            let (names, phase) = (Arc::clone(&self.names), Arc::clone(phase));
            connections.spawn(connection.create_and_delete(String::new(), names, phase));
        }
        while let Some(ended) = connections.join_next().await {
            latencies.append(&mut ended??);
        }
        Ok(latencies)
    }

    /// Creates one lock; a service whose store is still opening may take its time.
    pub(crate) fn create_one(&self, service: &Process) -> Result<()> {
        self.runtime.block_on(async {
            let mut connection = Connection::open(service.address).await?;
            let mut pair = Pair::new("");
            pair.rename(&self.names)?;
            timeout(OPENING, connection.exchange(&pair.create, 201)).await??;
            Ok(())
        })
    }
}

impl Connection {
    async fn create_sets(
        mut self,
        names: Arc<Names>,
        left: Arc<AtomicUsize>,
        end: Option<Instant>,
    ) -> Result<()> {
        while takes_one(&left) {
            let ttl = end.map_or(DAY, |end| end.saturating_duration_since(Instant::now()));
            if ttl.is_zero() {
                return Err("the locks were not made before they were to expire".into());
            }
            self.fill_in(&lock_set(&names, SET, ttl)?).await?;
        }
        Ok(())
    }
}

impl Waits {
    fn of(mut latencies: Vec<u32>) -> Result<Self> {
        latencies.sort_unstable();
        let rank = (latencies.len() * 99).div_ceil(100).saturating_sub(1);
        let milliseconds = |nanoseconds: &u32| f64::from(*nanoseconds) / 1e6;
        let p99 = latencies.get(rank).map(milliseconds);
        let longest = latencies.last().map(milliseconds);
        let (p99, longest) = p99.zip(longest).ok_or("not one request was answered")?;
        Ok(Self { p99, longest })
    }
}
