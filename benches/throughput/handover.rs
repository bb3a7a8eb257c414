//! How soon a waiter gets a lock after its release.
//!
//! Two clients pass one lock back and forth, each at a service of its own. A request is here a
//! hand-over with all that it takes; its time is from sending the release on one connection to
//! reading the 201 on the other.

use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

use crate::load::{Connection, STUCK, WAITING};
use crate::processes::{Process, Store};
use crate::slice::{Meter, Slice, nanoseconds};
use crate::table::Table;
use crate::wire::Pair;
use crate::{Bench, Result};

/// How long a holder keeps a lock before it hands it over.
const HOLD: Duration = Duration::from_millis(1);
const LOOK: &[u8] = b"GET /v1/locks/------------------------ HTTP/1.1\r\nHost: localhost\r\n\r\n";

pub(crate) fn run(Bench { machine, load, rounds, .. }: &Bench) -> Result<()> {
    let (memory, redis) = (machine.keylatch(Store::Memory)?, machine.redis()?);
    let on_redis = || machine.keylatch(Store::Redis(&redis));
    let (one, other) = (on_redis()?, on_redis()?);
    Table::default()
        .row("memory", || between([&memory, &memory], load.window))
        .row("Redis, 2 instances", || between([&one, &other], load.window))
        .run("Hand-overs of one lock between two clients.", *rounds)
}

/// Hands a lock over for as long as the window, after a warm-up of a tenth of it.
pub(crate) fn between(services: [&Process; 2], window: Duration) -> Result<Slice> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let [one, other] = services.map(Client::open);
        let mut clients = [one.await?, other.await?];
        clients[0].connection.create(&mut clients[0].pair).await?;
        hand_over(&mut clients, window / 10).await?;
        let meter = Meter::start(&services)?;
        let latencies = hand_over(&mut clients, window).await?;
        let (elapsed, spent) = meter.read()?;
        clients[0].give_back().await?;
        Slice::new(latencies, elapsed, spent)
    })
}

/// Hands the lock of the first over to the second, and back, and so on; the time of each, in
/// nanoseconds. In the end the first has it.
async fn hand_over(clients: &mut [Client; 2], window: Duration) -> Result<Vec<u32>> {
    let (started, mut latencies) = (Instant::now(), Vec::new());
    while started.elapsed() < window {
        let [holder, next] = clients;
        latencies.push(nanoseconds(timeout(STUCK, holder.hand_to(next)).await??));
        clients.swap(0, 1);
    }
    Ok(latencies)
}

struct Client {
    connection: Connection,
    pair: Pair,
}

impl Client {
    async fn open(service: &Process) -> Result<Self> {
        let connection = Connection::open(service.address).await?;
        Ok(Self { connection, pair: Pair::new("", WAITING) })
    }

    async fn give_back(&mut self) -> Result<()> {
        self.connection.exchange(&self.pair.delete, 204).await?;
        Ok(())
    }

    async fn hand_to(&mut self, next: &mut Self) -> Result<Duration> {
        next.connection.send(&next.pair.create).await?;
        while !self.sees_who_waits().await? {}
        sleep(HOLD).await;
        let released = Instant::now();
        let taking = async {
            next.connection.receive(&mut next.pair).await?;
            Result::Ok(released.elapsed())
        };
        let (took, given) = tokio::join!(taking, self.give_back());
        given?;
        took
    }

    async fn sees_who_waits(&mut self) -> Result<bool> {
        let seen = self.connection.exchange(LOOK, 200).await?;
        let body = &self.connection.buffer[..seen.bytes];
        Ok(body.windows(11).any(|part| part == br#""waiting":1"#))
    }
}
