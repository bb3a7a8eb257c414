//! What a thousand watchers of one lock cost that changes a thousand times a second, beside a bare
//! handler that sends the same events to as many readers.
//!
//! The watchers are on a thread of their own, each with its connection, and so are those who renew
//! the lock. Another client creates and deletes before the changes and among them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::interval;

use crate::background::Background;
use crate::events::{Events, Unread, seen};
use crate::load::{Connection, Load, STUCK, Work};
use crate::many;
use crate::processes::Process;
use crate::slice::{Slice, Spread};
use crate::{Bench, Result};

/// How many watch, at most.
const WATCHERS: usize = 1_000;
/// How many changes there are in a second, and by how many connections.
const CHANGES: u32 = 1_000;
const CHANGERS: u32 = 8;
/// How often is looked whether something has come.
const LOOK: Duration = Duration::from_millis(20);

/// A server with watchers, and what was measured of it.
struct Subject {
    server: Process,
    events: Arc<Events>,
    audience: Background<()>,
    token: String,
    rounds: Vec<Round>,
}

/// What was measured in one round.
struct Round {
    /// In a second, and for each second of the server's CPU time.
    events: f64,
    events_per_core: f64,
    /// Another client's requests, before the changes and among them.
    calm: Slice,
    busy: Slice,
}

/// Measures both servers in turn.
pub(crate) fn run(bench: &Bench) -> Result<()> {
    let Bench { machine, load, rounds, streams, .. } = bench;
    let watchers = (*streams).min(WATCHERS);
    let mut subjects = [
        Subject::new(machine.bare()?, watchers)?,
        Subject::new(many::service(machine, "")?, watchers)?,
    ];
    for _ in 0..*rounds {
        for subject in &mut subjects {
            subject.measure(load)?;
        }
    }
    println!("\n{watchers} watch one lock that is to change {CHANGES} times a second:");
    for (name, subject) in ["bare handler", "keylatch"].into_iter().zip(&subjects) {
        subject.print(name);
    }
    let [bare, keylatch] = subjects;
    let rounds = keylatch.rounds.iter().zip(&bare.rounds);
    let ratio = rounds.map(|(one, other)| one.events_per_core / other.events_per_core);
    println!("  events for a core's time, of the bare handler's: {}", Spread::new(ratio.collect()));
    bare.audience.end()?;
    keylatch.audience.end()
}

impl Subject {
    /// With so many watchers, each of which has read how the lock stands.
    fn new(server: Process, watchers: usize) -> Result<Self> {
        let created = server.post("/v1/locks/watched", r#"{"ttl_ms":86400000}"#)?;
        let token = created.lines().find_map(|line| line.strip_prefix("lock-token: "));
        let token = token.ok_or("a lease came without a token")?.to_owned();
        let (events, address) = (Arc::<Events>::default(), server.address);
        let heard = Arc::clone(&events);
        let audience = Background::start(move |stop| watch(address, watchers, heard, stop));
        let began = Instant::now();
        while seen(&events.snapshots) < watchers {
            if began.elapsed() > STUCK || audience.is_over() {
                return Err("not every watcher has a stream".into());
            }
            sleep(LOOK);
        }
        Ok(Self { server, events, audience, token, rounds: Vec::new() })
    }

    fn measure(&mut self, load: &Load) -> Result<()> {
        let calm = load.measure_on(1, &[&self.server], &Work::Lock)?;
        let changes = self.change();
        sleep(load.window / 10);
        let (cpu, began, before) = (self.server.cpu()?, Instant::now(), seen(&self.events.renewed));
        sleep(load.window);
        let (spent, elapsed) = (self.server.cpu()? - cpu, began.elapsed().as_secs_f64());
        let came = (seen(&self.events.renewed) - before) as f64;
        let busy = load.measure_on(1, &[&self.server], &Work::Lock)?;
        changes.end()?;
        let (events, events_per_core) = (came / elapsed, came / spent);
        self.rounds.push(Round { events, events_per_core, calm, busy });
        Ok(())
    }

    /// Clients that renew the lock.
    fn change(&self) -> Background<()> {
        let (address, body) = (self.server.address, r#"{"ttl_ms":86400000}"#);
        let request = format!(
            "PUT /v1/locks/watched HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/json\r\nLock-Token: {}\r\nContent-Length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        );
        Background::start(async move |stop: Arc<AtomicBool>| {
            let mut changers = JoinSet::new();
            for _ in 0..CHANGERS {
                changers.spawn(renew(address, request.clone(), Arc::clone(&stop)));
            }
            while let Some(ended) = changers.join_next().await {
                ended??;
            }
            Ok(())
        })
    }

    fn print(&self, name: &str) {
        let of = |value: fn(&Round) -> f64| Spread::of(&self.rounds, value);
        println!(
            "  {name}: {:.0} events/s, {:.0} for a core's second, `lagged` {} times; another \
             client's request takes {} times as long among them (p50)",
            of(|round| round.events).median,
            of(|round| round.events_per_core).median,
            seen(&self.events.lagged),
            of(|round| round.busy.p50 / round.calm.p50),
        );
    }
}

async fn renew(address: SocketAddr, request: String, stop: Arc<AtomicBool>) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    let mut due = interval(Duration::from_secs(1) * CHANGERS / CHANGES);
    while !stop.load(Ordering::Relaxed) {
        due.tick().await;
        connection.exchange(request.as_bytes(), 200).await?;
    }
    Ok(())
}

async fn watch(
    address: SocketAddr,
    count: usize,
    events: Arc<Events>,
    stop: Arc<AtomicBool>,
) -> Result<()> {
    let mut watchers = JoinSet::new();
    for _ in 0..count {
        watchers.spawn(watch_one(address, Arc::clone(&events)));
    }
    let mut looks = interval(LOOK);
    while !stop.load(Ordering::Relaxed) {
        tokio::select! {
            _ = looks.tick() => {}
            Some(ended) = watchers.join_next() => ended??,
        }
    }
    Ok(())
}

async fn watch_one(address: SocketAddr, events: Arc<Events>) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    let request = b"GET /v1/locks/watched/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request).await?;
    let mut unread = Unread(Vec::with_capacity(16 * 1024));
    while stream.read_buf(&mut unread.0).await? > 0 {
        events.count(&mut unread);
    }
    Err("the server closed the connection of a watcher".into())
}
