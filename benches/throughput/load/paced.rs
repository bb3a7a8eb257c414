//! Arrivals at a fixed rate, however soon they are answered: an open loop.
//!
//! A closed loop sends nothing while it waits, so that a pause of the service delays few requests.
//! Here each arrival has its time, and its latency counts from that time, also where no connection
//! was free: what a client sees that does not know how busy the service is. While nothing is due
//! the generator asks again and again, because a timer is late by more than a request takes; so it
//! keeps a core busy at any rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;

use super::{CONNECTIONS, Connection, Load, STUCK};
use crate::Result;
use crate::processes::Process;
use crate::wire::{Names, Pair};

/// When requests are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// Each when the one before it on its connection was answered.
    Closed,
    /// So many a second.
    Rate(f64),
}

/// A request that came at its time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    /// When it was to be sent, since the start.
    pub(crate) due: Duration,
    /// From then until its answer.
    pub(crate) took: Duration,
    pub(crate) outcome: Outcome,
}

/// What the answer to a create or a delete says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was done.
    Served,
    /// 503, and it was not executed.
    NotExecuted,
    /// 503, and it may have been executed.
    Unknown,
    /// 404: the store has forgotten the lock.
    Forgotten,
}

impl Outcome {
    fn of(status: u16, answer: &[u8]) -> Self {
        const NOT_EXECUTED: &[u8] = b"\"not-executed\"";
        match status {
            404 => Self::Forgotten,
            503 if answer.windows(NOT_EXECUTED.len()).any(|part| part == NOT_EXECUTED) => {
                Self::NotExecuted
            }
            503 => Self::Unknown,
            _ => Self::Served,
        }
    }
}

impl Arrival {
    pub(crate) fn is_served(&self) -> bool {
        self.outcome == Outcome::Served
    }
}

/// So many of 1000 requests took at most so long, in milliseconds.
pub(crate) fn percentile(arrivals: &[Arrival], of_thousand: usize) -> f64 {
    let mut times: Vec<_> = arrivals.iter().map(|arrival| arrival.took).collect();
    let rank = (times.len() * of_thousand).div_ceil(1000).saturating_sub(1);
    if rank >= times.len() {
        return f64::NAN;
    }
    let (_, time, _) = times.select_nth_unstable(rank);
    time.as_secs_f64() * 1000.0
}

/// Requests that came at a pace.
#[derive(Debug)]
pub(crate) struct Arrivals {
    pub(crate) started: Instant,
    /// In no order.
    pub(crate) all: Vec<Arrival>,
}

/// When the next request is due.
#[derive(Debug)]
struct Schedule {
    pace: Pace,
    started: Instant,
    end: Instant,
    /// Requests that are due and that no connection has taken.
    due: Semaphore,
    taken: AtomicU64,
}

impl Load {
    /// Creates and deletes for `time` at a pace, after a warm-up of a tenth of it whose requests
    /// are left out.
    pub(crate) fn send_at(
        &self,
        pace: Pace,
        time: Duration,
        service: &Process,
    ) -> Result<Arrivals> {
        self.runtime.block_on(async {
            self.send_for(pace, time / 10, service).await?;
            self.send_for(pace, time, service).await
        })
    }

    async fn send_for(&self, pace: Pace, time: Duration, service: &Process) -> Result<Arrivals> {
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS {
            open.push(Connection::open(service.address).await?);
        }
        let schedule = Arc::new(Schedule::new(pace, time));
        let mut connections = JoinSet::new();
        for connection in open {
            let (names, schedule) = (Arc::clone(&self.names), Arc::clone(&schedule));
            connections.spawn(connection.send_when_due(names, schedule));
        }
        schedule.run().await;
        let mut all = Vec::new();
        while let Some(ended) = timeout(STUCK, connections.join_next()).await? {
            all.append(&mut ended??);
        }
        Ok(Arrivals { started: schedule.started, all })
    }
}

impl Schedule {
    fn new(pace: Pace, time: Duration) -> Self {
        let started = Instant::now();
        let (due, taken) = (Semaphore::new(0), AtomicU64::new(0));
        Self { pace, started, end: started + time, due, taken }
    }

    /// Announces what is due until the end, and waits until all of it was taken.
    async fn run(&self) {
        let Pace::Rate(rate) = self.pace else { return };
        let (mut announced, most) = (0, ((self.end - self.started).as_secs_f64() * rate) as u64);
        while announced < most {
            let due = (self.started.elapsed().as_secs_f64() * rate) as u64;
            let more = due.min(most).saturating_sub(announced);
            self.due.add_permits(usize::try_from(more).unwrap_or_default());
            announced += more;
            yield_now().await;
            // What else wants this core is not to wait for a loop.
            std::thread::yield_now();
        }
        let began = Instant::now();
        while self.taken.load(Ordering::Relaxed) < most && began.elapsed() < STUCK {
            yield_now().await;
        }
        self.due.close();
    }

    /// When the next request is due, once it is; `None` after the last.
    async fn next(&self) -> Option<Instant> {
        let Pace::Rate(rate) = self.pace else {
            let now = Instant::now();
            return (now < self.end).then_some(now);
        };
        self.due.acquire().await.ok()?.forget();
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        Some(self.started + Duration::from_secs_f64(number as f64 / rate))
    }
}

impl Connection {
    /// Sends a request whenever one is due that no other connection takes: a create, and then its
    /// delete. The store may be away.
    async fn send_when_due(
        mut self,
        names: Arc<Names>,
        schedule: Arc<Schedule>,
    ) -> Result<Vec<Arrival>> {
        let (mut arrivals, mut pair, mut is_held) = (Vec::new(), Pair::new("", ""), false);
        while let Some(due) = schedule.next().await {
            let response = if is_held {
                self.send(&pair.delete).await?;
                self.answer(&[204, 404, 503]).await?
            } else {
                pair.rename(&names)?;
                self.send(&pair.create).await?;
                self.answer(&[201, 503]).await?
            };
            let outcome = Outcome::of(response.status, &self.buffer[..response.bytes]);
            arrivals.push(Arrival { due: due - schedule.started, took: due.elapsed(), outcome });
            is_held = response.status == 201;
            if let Some(token) = response.token {
                pair.set_token(&self.buffer[token]);
            }
        }
        if is_held {
            self.send(&pair.delete).await?;
            self.answer(&[204, 404, 503]).await?;
        }
        Ok(arrivals)
    }
}
