//! What a thousand watchers of one lock cost that changes a thousand times a second, beside a bare
//! handler that sends the same events to as many readers.
//!
//! The watchers are on a thread of their own, each with its connection, and so are those who renew
//! the lock. Another client creates and deletes before the changes and among them. An event is
//! missed that a watcher did not get by the time at which no more came.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::interval;

use crate::Result;
use crate::events::{Events, Unread, seen};
use crate::load::{Connection, Load};
use crate::many;
use crate::processes::{Machine, Process};
use crate::report;
use crate::slice::{Slice, Spread};

/// How many watch, at most.
const WATCHERS: usize = 1_000;
/// How many changes there are in a second, and by how many connections.
const CHANGES: u32 = 1_000;
const CHANGERS: u32 = 8;
/// The part of the bare handler's events for each second of a core that is to be left.
const GOAL_EVENTS: f64 = 0.7;
/// How many times as long another request may take meanwhile.
const GOAL_SLOWER: f64 = 2.0;
/// How often is looked whether something has come, and how long none comes that will.
const LOOK: Duration = Duration::from_millis(20);
const QUIET: Duration = Duration::from_millis(500);
const STUCK: Duration = Duration::from_secs(60);

/// A server with watchers, and what was measured of it.
struct Subject {
    name: &'static str,
    server: Process,
    audience: Audience,
    token: String,
    rounds: Vec<Round>,
}

/// What was measured in one round.
#[derive(Debug, Clone, Copy)]
struct Round {
    changes: f64,
    /// Events in a second, and for each second of the server's CPU time.
    events: f64,
    events_per_core: f64,
    /// Of all that were to come.
    missed: f64,
    lagged: usize,
    /// Another client's requests, before the changes and among them.
    calm: Slice,
    busy: Slice,
}

/// Measures both servers in turn and prints the table.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32, streams: usize) -> Result<()> {
    let watchers = streams.min(WATCHERS);
    let mut subjects = [
        Subject::new("bare handler", machine.bare()?, watchers)?,
        Subject::new("keylatch", many::service(machine, "")?, watchers)?,
    ];
    for _ in 0..rounds {
        for subject in &mut subjects {
            subject.measure(load, watchers)?;
        }
    }
    print(&subjects, watchers);
    subjects.into_iter().try_for_each(|subject| subject.audience.close())
}

impl Subject {
    fn new(name: &'static str, server: Process, watchers: usize) -> Result<Self> {
        let answer = server.post("/v1/locks/watched", r#"{"ttl_ms":86400000}"#)?;
        let token = answer.lines().find_map(|line| line.strip_prefix("lock-token: "));
        let token = token.ok_or("a lease came without a token")?.to_owned();
        let audience = Audience::open(server.address, watchers)?;
        Ok(Self { name, server, audience, token, rounds: Vec::new() })
    }

    fn measure(&mut self, load: &Load, watchers: usize) -> Result<()> {
        let events = &self.audience.events;
        let calm = load.measure_on(1, &self.server, None)?;
        let (all_before, lagged) = (seen(&events.renewed), seen(&events.lagged));
        let changes = Changes::start(self.server.address, &self.token);
        sleep(load.window / 10);
        let (cpu, began) = (self.server.cpu()?, Instant::now());
        let before = (seen(&events.renewed), seen(&changes.count));
        sleep(load.window);
        let (spent, elapsed) = (self.server.cpu()? - cpu, began.elapsed().as_secs_f64());
        let came = (seen(&events.renewed) - before.0) as f64;
        let changed = (seen(&changes.count) - before.1) as f64;
        let busy = load.measure_on(1, &self.server, None)?;
        let expected = changes.end()? * watchers;
        self.audience.wait_until_quiet();
        let missing = expected.saturating_sub(seen(&events.renewed) - all_before);
        self.rounds.push(Round {
            changes: changed / elapsed,
            events: came / elapsed,
            events_per_core: came / spent,
            missed: missing as f64 / expected.max(1) as f64,
            lagged: seen(&events.lagged) - lagged,
            calm,
            busy,
        });
        Ok(())
    }

    fn of(&self, value: impl Fn(&Round) -> f64) -> Spread {
        Spread::new(self.rounds.iter().map(value).collect())
    }

    fn slower(&self, value: fn(&Slice) -> f64) -> Spread {
        self.of(|round| value(&round.busy) / value(&round.calm))
    }
}

fn print(subjects: &[Subject; 2], watchers: usize) {
    println!("\n{watchers} watch one lock that is to change {CHANGES} times a second:");
    println!(
        "{:<16}{:>12}{:>12}{:>26}{:>10}{:>9}{:>26}{:>26}",
        "subject",
        "changes/s",
        "events/s",
        "events for a core's s",
        "missed",
        "lagged",
        "p50 ×",
        "p99 ×"
    );
    for subject in subjects {
        let [changes, events] =
            [subject.of(|round| round.changes).median, subject.of(|round| round.events).median];
        let per_core = subject.of(|round| round.events_per_core);
        let missed = subject.of(|round| round.missed * 100.0).median;
        let lagged: usize = subject.rounds.iter().map(|round| round.lagged).sum();
        let [p50, p99] = [|slice: &Slice| slice.p50, |slice: &Slice| slice.p99]
            .map(|value| subject.slower(value).to_string());
        println!(
            "{:<16}{changes:>12.0}{events:>12.0}{:>26.0}{missed:>8.2} %{lagged:>9}{p50:>26}{p99:>26}",
            subject.name, per_core.median
        );
    }
    println!(
        "p50 ×, p99 ×: how many times as long another client's create or delete takes among the changes."
    );
    println!("\nGoals:");
    let [bare, keylatch] = subjects;
    let rounds = keylatch.rounds.iter().zip(&bare.rounds);
    let ratio = Spread::new(
        rounds.map(|(one, other)| one.events_per_core / other.events_per_core).collect(),
    );
    report::at_least("events for a core's time, of the bare handler's", GOAL_EVENTS, ratio);
    let slower = keylatch.slower(|slice| slice.p50);
    let what = format!("another request takes at most {GOAL_SLOWER} times as long (p50)");
    report::goal(&what, slower.median <= GOAL_SLOWER, slower);
}

/// Clients that watch, on a thread of their own.
struct Audience {
    events: Arc<Events>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Audience {
    /// So many watchers, each of which has read how the lock stands.
    fn open(address: SocketAddr, count: usize) -> Result<Self> {
        let (events, stop) = (Arc::<Events>::default(), Arc::<AtomicBool>::default());
        let (heard, stopped) = (Arc::clone(&events), Arc::clone(&stop));
        let thread = spawn(move || on_own_thread(watch(address, count, heard, stopped)));
        let audience = Self { events, stop, thread };
        let began = Instant::now();
        while seen(&audience.events.snapshots) < count {
            if began.elapsed() > STUCK || audience.thread.is_finished() {
                return Err("not every watcher has a stream".into());
            }
            sleep(LOOK);
        }
        Ok(audience)
    }

    fn wait_until_quiet(&self) {
        let (mut count, mut since) = (seen(&self.events.renewed), Instant::now());
        while since.elapsed() < QUIET {
            sleep(LOOK);
            let now = seen(&self.events.renewed);
            if now != count {
                (count, since) = (now, Instant::now());
            }
        }
    }

    fn close(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the watchers panicked")?
    }
}

fn on_own_thread(work: impl Future<Output = Result<()>>) -> Result<()> {
    Builder::new_current_thread().enable_all().build()?.block_on(work)
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

/// Clients that renew the lock, on a thread of their own, until this is ended.
struct Changes {
    count: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Changes {
    fn start(address: SocketAddr, token: &str) -> Self {
        let (count, stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (counter, stopped) = (Arc::clone(&count), Arc::clone(&stop));
        let body = r#"{"ttl_ms":86400000}"#;
        let head =
            "PUT /v1/locks/watched HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
        let request = format!(
            "{head}\r\nLock-Token: {token}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let thread = spawn(move || on_own_thread(change(address, request, counter, stopped)));
        Self { count, stop, thread }
    }

    /// How many changes there were.
    fn end(self) -> Result<usize> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the clients that renew panicked")??;
        Ok(seen(&self.count))
    }
}

async fn change(
    address: SocketAddr,
    request: String,
    count: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
) -> Result<()> {
    let request: Arc<str> = request.into();
    let mut changers = JoinSet::new();
    for _ in 0..CHANGERS {
        let (request, count, stop) = (Arc::clone(&request), Arc::clone(&count), Arc::clone(&stop));
        changers.spawn(async move {
            let mut connection = Connection::open(address).await?;
            let mut due = interval(Duration::from_secs(1) * CHANGERS / CHANGES);
            while !stop.load(Ordering::Relaxed) {
                due.tick().await;
                connection.exchange(request.as_bytes(), 200).await?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Result::Ok(())
        });
    }
    while let Some(ended) = changers.join_next().await {
        ended??;
    }
    Ok(())
}
