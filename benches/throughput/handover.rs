//! How soon a waiter gets a lock after its release, next to a client that polls.
//!
//! Two clients pass one lock back and forth, each at a service of its own. The one that polls asks
//! at a fixed pause, as a client without a queue has to. Each measured hand-over is a grant that
//! followed a release.

use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

use crate::Result;
use crate::load::{Connection, nanoseconds};
use crate::processes::{Machine, Process, machine_cpu, own_cpu};
use crate::report;
use crate::slice::{Cpu, Slice, Spread};
use crate::wire::{Pair, Response};

/// The goals for 99 of 100 hand-overs, in milliseconds.
const GOAL_MEMORY: f64 = 1.0;
const GOAL_REDIS: f64 = 2.0;
/// How often a client asks that does not wait in the queue.
const POLL: Duration = Duration::from_millis(50);
/// How long a holder keeps a lock before it hands it over.
const HOLD: Duration = Duration::from_millis(1);
/// How long a hand-over may take before the run is given up.
const STUCK: Duration = Duration::from_secs(30);
const LOOK: &[u8] = b"GET /v1/locks/------------------------ HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Two clients that take turns with one lock, each at its own service.
struct Subject<'a> {
    services: [&'a Process; 2],
    redis: Option<&'a Process>,
    way: Way,
}

/// How the lock is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    InLine,
    Polling,
}

/// Measures all subjects and prints the table.
pub(crate) fn run(machine: &Machine, window: Duration, rounds: u32) -> Result<()> {
    let memory = machine.keylatch("memory:")?;
    let redis = machine.redis()?;
    let on_redis = || machine.keylatch(&format!("redis://{}", redis.address));
    let (one, other) = (on_redis()?, on_redis()?);
    let subject = |services, redis, way| Subject { services, redis, way };
    let subjects = [
        subject([&memory, &memory], None, Way::InLine),
        subject([&one, &other], Some(&redis), Way::InLine),
        subject([&memory, &memory], None, Way::Polling),
    ];
    let mut slices = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        for (subject, slices) in subjects.iter().zip(&mut slices) {
            slices.push(subject.measure(window)?);
        }
    }
    print(&slices);
    Ok(())
}

/// Measures hand-overs between two services that share a store.
pub(crate) fn between(one: &Process, other: &Process, window: Duration) -> Result<Slice> {
    Subject { services: [one, other], redis: None, way: Way::InLine }.measure(window)
}

fn print([memory, redis, polling]: &[Vec<Slice>; 3]) {
    let rows =
        [("memory", &memory[..]), ("Redis, 2 instances", redis), ("polling every 50 ms", polling)];
    report::table(&[], &rows, |_| Vec::new());
    let latencies = "A request is here a hand-over of a lock, with all that it takes.\np50, p99: \
                     from sending the release on one connection to reading the 201 on the other.\n";
    report::legend(latencies, &rows);
    println!("\nGoals:");
    let p99 = |slices: &[Slice]| Spread::of(slices, |slice| slice.p99);
    for (where_, slices, goal) in
        [("memory", memory, GOAL_MEMORY), ("Redis, across two instances", redis, GOAL_REDIS)]
    {
        let found = p99(slices);
        let what = format!("on {where_}, p99 of a hand-over below {goal} ms");
        report::goal(&what, found.median < goal, found);
    }
}

impl Subject<'_> {
    /// Hands a lock over for as long as the window, after a warm-up of a tenth of it.
    fn measure(&self, window: Duration) -> Result<Slice> {
        Builder::new_current_thread().enable_all().build()?.block_on(async {
            let [one, other] = self.services.map(|service| Client::open(service, self.way));
            let mut clients = [one.await?, other.await?];
            clients[0].take().await?;
            hand_over(&mut clients, window / 10).await?;
            let (cpu_before, started) = (self.cpu()?, Instant::now());
            let latencies = hand_over(&mut clients, window).await?;
            let (spent, elapsed) = (self.cpu()?.since(cpu_before), started.elapsed());
            clients[0].give_back().await?;
            Slice::new(latencies, elapsed, spent)
        })
    }

    fn cpu(&self) -> Result<Cpu> {
        let [one, other] = self.services;
        let second = if one.address == other.address { 0.0 } else { other.cpu()? };
        let redis = self.redis.map_or(Ok(0.0), Process::cpu)?;
        Ok(Cpu {
            generator: own_cpu()?,
            service: one.cpu()? + second,
            redis,
            machine: machine_cpu()?,
        })
    }
}

/// Hands the lock of the first over to the second, and back, and so on; the time of each, in
/// nanoseconds. In the end the first has it.
async fn hand_over(clients: &mut [Client; 2], window: Duration) -> Result<Vec<u32>> {
    let (started, mut latencies) = (Instant::now(), Vec::new());
    while started.elapsed() < window {
        let [holder, next] = clients;
        let hold = match next.way {
            Way::InLine => HOLD,
            // At a moment that has nothing to do with when the other asks.
            Way::Polling => POLL.mul_f64((latencies.len() as f64 * 0.618).fract()),
        };
        let took = match next.way {
            Way::InLine => timeout(STUCK, holder.hand_to_who_waits(next, hold)).await??,
            Way::Polling => timeout(STUCK, holder.hand_to_who_polls(next, hold)).await??,
        };
        latencies.push(nanoseconds(took));
        clients.swap(0, 1);
    }
    Ok(latencies)
}

struct Client {
    connection: Connection,
    pair: Pair,
    way: Way,
}

impl Client {
    async fn open(service: &Process, way: Way) -> Result<Self> {
        let body = match way {
            Way::InLine => r#"{"wait_ms":60000}"#,
            Way::Polling => "",
        };
        let connection = Connection::open(service.address).await?;
        Ok(Self { connection, pair: Pair::new(body), way })
    }

    async fn take(&mut self) -> Result<()> {
        let lease = self.connection.exchange(&self.pair.create, 201).await?;
        self.has(lease)
    }

    async fn give_back(&mut self) -> Result<()> {
        self.connection.exchange(&self.pair.delete, 204).await?;
        Ok(())
    }

    async fn hand_to_who_waits(&mut self, next: &mut Self, hold: Duration) -> Result<Duration> {
        next.connection.send(&next.pair.create).await?;
        while !self.sees_who_waits().await? {}
        sleep(hold).await;
        let released = Instant::now();
        let taking = async {
            let lease = next.connection.answer(&[201]).await?;
            Result::Ok((lease, released.elapsed()))
        };
        let (taken, released) = tokio::join!(taking, self.give_back());
        released?;
        let (lease, took) = taken?;
        next.has(lease)?;
        Ok(took)
    }

    async fn hand_to_who_polls(&mut self, next: &mut Self, hold: Duration) -> Result<Duration> {
        let polling = async {
            loop {
                next.connection.send(&next.pair.create).await?;
                let found = next.connection.answer(&[201, 409]).await?;
                if found.status == 201 {
                    return Result::Ok((found, Instant::now()));
                }
                sleep(POLL).await;
            }
        };
        let releasing = async {
            sleep(hold).await;
            let released = Instant::now();
            self.give_back().await.map(|()| released)
        };
        let (taken, released) = tokio::join!(polling, releasing);
        let (lease, taken) = taken?;
        next.has(lease)?;
        Ok(taken.saturating_duration_since(released?))
    }

    async fn sees_who_waits(&mut self) -> Result<bool> {
        let seen = self.connection.exchange(LOOK, 200).await?;
        let body = &self.connection.buffer[..seen.bytes];
        Ok(body.windows(11).any(|part| part == br#""waiting":1"#))
    }

    fn has(&mut self, lease: Response) -> Result<()> {
        let token = lease.token.ok_or("a lease came without a Lock-Token")?;
        self.pair.set_token(&self.connection.buffer[token]);
        Ok(())
    }
}
