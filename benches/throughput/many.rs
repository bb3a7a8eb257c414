//! What very many clients cost that only hold or wait: memory for each, the service's time, and a
//! hand-over among them.
//!
//! First each client holds a lock by a stream on a connection of its own, up to the limit of open
//! files. Then a thousand streams share each connection of HTTP/2, behind TLS. Then clients
//! wait on streams of HTTP/2, ten for each lock, and the locks are handed over, one after another.
//! Memory is what the service's resident set grows by. The watchers of one lock are in
//! `fan_out.rs`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use keylatch_testkit::Authority;
use rustls::ClientConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::events::{Events, Unread, seen};
use crate::http2::{Http2, STREAMS, connections};
use crate::load::STUCK;
use crate::processes::{Machine, Process, Store};
use crate::slice::{Meter, Slice, nanoseconds};
use crate::{Bench, Result};

/// How many wait for each lock.
const WAITERS_EACH: usize = 10;
/// How long holds are looked at: each is renewed twice.
const LOOK: Duration = Duration::from_secs(20);
/// The service renews at a third of it.
const HOLD: &str = r#"{"ttl_ms":30000}"#;
const STAY: &str = r#"{"ttl_ms":86400000}"#;
const WAIT: &str = r#"{"ttl_ms":86400000,"wait_ms":300000}"#;
/// How many streams are opened at once.
const OPENING: usize = 64;
/// How many files this process, and the service, have open beside their connections.
const FILES: u64 = 1_000;

/// Measures with so many streams that hold, and twice as many that wait.
pub(crate) fn run(Bench { machine, load, rounds, streams, .. }: &Bench) -> Result<()> {
    let files = rlimit::increase_nofile_limit(u64::MAX)?.saturating_sub(FILES);
    let on_connections = (*streams).min(usize::try_from(files)?);
    println!("\nHolding locks by streams, for {LOOK:?} each:");
    let tls = Tls::new();
    holds("a connection each", &service(machine, "")?, None, on_connections)?;
    holds("HTTP/2", &service(machine, &tls.settings)?, Some(&tls.client), *streams)?;
    let locks = (streams * 2).div_ceil(WAITERS_EACH);
    let service = service(machine, &tls.settings)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let window = load.window * *rounds;
    runtime.block_on(handovers(&service, &tls.client, locks, window))
}

/// A service whose limits are far from what is measured, with more settings.
pub(crate) fn service(machine: &Machine, more: &str) -> Result<Process> {
    let settings = format!(
        "[server]\nmax_connections = 1000000\nmax_requests = 1000000\nmax_concurrent_streams = {STREAMS}\n\
         [wait]\nmax_waiters = 400000\n[stream]\nmax_streams = 400000\n{more}"
    );
    machine.keylatch_with(Store::Memory, &settings)
}

/// What is needed to speak HTTP/2 with a service.
struct Tls {
    settings: String,
    client: Arc<ClientConfig>,
    _authority: Authority,
}

impl Tls {
    fn new() -> Self {
        let authority = Authority::default();
        let files = authority.serve();
        let settings = format!("[tls]\ncert = {:?}\nkey = {:?}\n", files.cert, files.key);
        Self { settings, client: authority.client(&["h2"], None), _authority: authority }
    }
}

fn holds(
    way: &str,
    service: &Process,
    tls: Option<&Arc<ClientConfig>>,
    count: usize,
) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (events, mut streams) = (Arc::new(Events::default()), JoinSet::new());
        let empty = service.resident()?;
        open_holds(service.address, tls, count, &events, &mut streams).await?;
        wait_for(async || Ok(seen(&events.acquired) >= count)).await?;
        let (before, began, cpu) = (seen(&events.renewed), Instant::now(), service.cpu()?);
        sleep(LOOK).await;
        let cores = (service.cpu()? - cpu) / began.elapsed().as_secs_f64();
        let kib = (service.resident()? - empty) / count as f64 / 1024.0;
        if seen(&events.ends) > 0 || streams.try_join_next().is_some() {
            return Err("a lock was lost that a stream held".into());
        }
        let renewals = seen(&events.renewed) - before;
        println!(
            "  {way}: {count} locks, {kib:.1} KiB each, {renewals} renewals by {cores:.2} cores"
        );
        Ok(())
    })
}

/// Opens streams that hold a lock each.
async fn open_holds(
    address: SocketAddr,
    tls: Option<&Arc<ClientConfig>>,
    count: usize,
    events: &Arc<Events>,
    streams: &mut JoinSet<Result<()>>,
) -> Result<()> {
    let opening = Arc::new(Semaphore::new(OPENING));
    let shared = match tls {
        None => Vec::new(),
        Some(tls) => connections(address, tls, count).await?,
    };
    for number in 0..count {
        if let Some(ended) = streams.try_join_next() {
            ended??;
            return Err("a stream that holds a lock ended".into());
        }
        let turn = timeout(STUCK, Arc::clone(&opening).acquire_owned()).await??;
        let events = Arc::clone(events);
        match shared.get(number / STREAMS) {
            Some(connection) => {
                streams.spawn(hold_on_stream(connection.clone(), number, turn, events))
            }
            None => streams.spawn(hold_on_connection(address, number, turn, events)),
        };
    }
    Ok(())
}

async fn hold_on_connection(
    address: SocketAddr,
    number: usize,
    turn: OwnedSemaphorePermit,
    events: Arc<Events>,
) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!("POST /v1/locks/hold-{number}/hold HTTP/1.1\r\nHost: localhost");
    let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{HOLD}", HOLD.len());
    stream.write_all(request.as_bytes()).await?;
    let (mut unread, mut turn) = (Unread(Vec::with_capacity(1024)), Some(turn));
    while stream.read_buf(&mut unread.0).await? > 0 {
        events.count(&mut unread);
        turn = None;
    }
    drop(turn);
    Err("the service closed a connection that holds a lock".into())
}

async fn hold_on_stream(
    connection: Http2,
    number: usize,
    turn: OwnedSemaphorePermit,
    events: Arc<Events>,
) -> Result<()> {
    let path = format!("/v1/locks/hold-{number}/hold");
    let mut body = connection.send("POST", &path, &[], HOLD).await?.into_body();
    drop(turn);
    let mut unread = Unread(Vec::new());
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            unread.0.extend_from_slice(&data);
            events.count(&mut unread);
        }
    }
    Err("the service ended a stream that holds a lock".into())
}

/// A lock that a waiter has got.
struct Grant {
    lock: usize,
    token: String,
    at: Instant,
}

/// Hands locks over that many wait for.
async fn handovers(
    service: &Process,
    tls: &Arc<ClientConfig>,
    locks: usize,
    window: Duration,
) -> Result<()> {
    let waiters = locks * WAITERS_EACH;
    let shared = connections(service.address, tls, waiters).await?;
    let other = Http2::open(service.address, tls).await?;
    let mut tokens = Vec::new();
    for lock in 0..locks {
        tokens.push(shared[lock % shared.len()].create(&format!("turn-{lock}"), STAY).await?);
    }
    waiting_at(&other).await?;
    let (sender, mut grants) = unbounded_channel();
    let mut waiting = JoinSet::new();
    let empty = service.resident()?;
    for number in 0..waiters {
        let connection = shared[number / STREAMS].clone();
        waiting.spawn(wait(connection, number % locks, sender.clone()));
    }
    wait_for(async || Ok(waiting_at(&other).await? >= waiters)).await?;
    let kib = (service.resident()? - empty) / waiters as f64 / 1024.0;
    let services = [service];
    let meter = Meter::start(&services)?;
    let latencies = hand_over(&other, &mut tokens, &mut grants, window).await?;
    let (elapsed, spent) = meter.read()?;
    let Slice { rate, p50, p99, cores } = Slice::new(latencies, elapsed, spent)?;
    println!(
        "\n{waiters} clients wait for {locks} locks on HTTP/2, {kib:.1} KiB each:\n  {rate:.0} \
         hand-overs/s, p50 {p50:.3} ms, p99 {p99:.3} ms; {:.2} cores of the service, others {:.2}",
        cores.service,
        cores.others()
    );
    Ok(())
}

async fn wait(connection: Http2, lock: usize, grants: UnboundedSender<Grant>) -> Result<()> {
    let token = connection.create(&format!("turn-{lock}"), WAIT).await?;
    Ok(grants.send(Grant { lock, token, at: Instant::now() })?)
}

/// Releases one lock after another, and waits for its next grant; the time of each, in nanoseconds.
async fn hand_over(
    releasing: &Http2,
    tokens: &mut [String],
    grants: &mut UnboundedReceiver<Grant>,
    window: Duration,
) -> Result<Vec<u32>> {
    let (began, mut latencies) = (Instant::now(), Vec::new());
    let locks = tokens.len();
    for turn in 0..locks * WAITERS_EACH {
        if began.elapsed() > window {
            break;
        }
        let (lock, released) = (turn % locks, Instant::now());
        let (path, token) = (format!("/v1/locks/turn-{lock}"), [("lock-token", &*tokens[lock])]);
        let release = releasing.send("DELETE", &path, &token, "");
        let (answered, grant) = tokio::join!(release, timeout(STUCK, grants.recv()));
        answered?;
        let grant = grant?.ok_or("all waiters have gone")?;
        if grant.lock != lock {
            return Err("a lock was granted that was not released".into());
        }
        latencies.push(nanoseconds(grant.at - released));
        tokens[lock] = grant.token;
    }
    Ok(latencies)
}

/// How many wait at the service.
async fn waiting_at(service: &Http2) -> Result<usize> {
    let metrics = service.text("/metrics").await?;
    let waiting = metrics.lines().find_map(|line| line.strip_prefix("keylatch_waiters "));
    Ok(waiting.ok_or("no count of those who wait")?.parse()?)
}

/// Looks every tenth of a second, and lets the streams be served meanwhile.
async fn wait_for(is_so: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !is_so().await? {
        if began.elapsed() > STUCK {
            return Err("the streams are not all open".into());
        }
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
