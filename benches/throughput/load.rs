//! The load generator: 64 connections on one thread, each with one request under way.
//!
//! It writes requests as bytes and reads answers with a few comparisons (`wire.rs`), so that it
//! takes less of the machine than what it measures. An answer that is not the expected one ends the
//! benchmark. `load/` has what is held in great number, and arrivals at a fixed rate.

mod held;
mod paced;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use keylatch_testkit::handshake;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::client::TlsStream;

use crate::Result;
use crate::bare::LARGE;
use crate::processes::{Process, machine_cpu, own_cpu};
use crate::slice::{Cpu, Slice};
use crate::wire::{LARGE_ORDERS, Names, ORDERS, Order, Pair, Response, response, webdis_lock};

pub(crate) use held::Waits;
pub(crate) use paced::{Arrival, Arrivals, Outcome, Pace, percentile};

/// How many connections there are.
pub(crate) const CONNECTIONS: usize = 64;
/// How long the last requests may take before the run is given up.
const STUCK: Duration = Duration::from_secs(30);
/// The pause before a request is sent again that the store did not take.
const RETRY: Duration = Duration::from_secs(1);
/// What a client creates a lock with that waits for it.
pub(crate) const WAITING: &str = r#"{"wait_ms":60000}"#;
/// A lock that outlives the run: 24 h.
const LONG: &str = r#"{"ttl_ms":86400000}"#;
/// A share of a lock that outlives the run.
const LONG_SHARE: &str = r#"{"ttl_ms":86400000,"mode":"shared"}"#;

/// Sends requests, and measures how they are answered.
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

    /// Creates and deletes for as long as the window, after a warm-up of a tenth of it.
    ///
    /// `redis` is the server behind the service, whose CPU time is counted too.
    pub(crate) fn measure(&self, service: &Process, redis: Option<&Process>) -> Result<Slice> {
        self.measure_on(CONNECTIONS, service, redis)
    }

    /// The same on another number of connections.
    pub(crate) fn measure_on(
        &self,
        count: usize,
        service: &Process,
        redis: Option<&Process>,
    ) -> Result<Slice> {
        let work = |connection: Connection, names, phase| {
            connection.create_and_delete(String::new(), names, phase)
        };
        self.measure_work(count, Connection::open, work, &[service], redis)
    }

    /// The same by clients that are known by a line in the head of each request, such as an API
    /// key, and that speak TLS if there is a configuration for it. The handshakes come before the
    /// window.
    pub(crate) fn measure_known(
        &self,
        count: usize,
        header: &str,
        tls: Option<&Arc<ClientConfig>>,
        service: &Process,
    ) -> Result<Slice> {
        let services = [service];
        match tls {
            None => {
                let work = |connection: Connection, names, phase| {
                    connection.create_and_delete(header.to_owned(), names, phase)
                };
                self.measure_work(count, Connection::open, work, &services, None)
            }
            Some(tls) => {
                let open = async |address| Connection::open_tls(address, tls).await;
                let work = |connection: Connection<TlsStream<TcpStream>>, names, phase| {
                    connection.create_and_delete(header.to_owned(), names, phase)
                };
                self.measure_work(count, open, work, &services, None)
            }
        }
    }

    /// Has `count` clients of several services create one lock with `body` and release it, over and
    /// over, for as long as the window. Each grant counts as one request.
    pub(crate) fn measure_turns(
        &self,
        count: usize,
        body: &'static str,
        services: &[&Process],
    ) -> Result<Slice> {
        let work = |connection: Connection, _, phase| connection.take_turns(body, phase);
        self.measure_work(count, Connection::open, work, services, None)
    }

    /// Submits guarded requests for as long as the window, after a warm-up of a tenth of it.
    pub(crate) fn measure_orders(
        &self,
        orders: Orders,
        service: &Process,
        redis: Option<&Process>,
    ) -> Result<Slice> {
        let work = move |connection: Connection, names, phase| {
            connection.submit(ORDERS, orders == Orders::Repeated, names, phase)
        };
        self.measure_work(CONNECTIONS, Connection::open, work, &[service], redis)
    }

    /// Submits orders whose answers are large, on so many connections, each of which repeats one.
    pub(crate) fn measure_large(
        &self,
        count: usize,
        orders: Orders,
        service: &Process,
        redis: Option<&Process>,
    ) -> Result<Slice> {
        let open = async |address| Connection::with_room(address, 2 * LARGE).await;
        let work = move |connection: Connection, names, phase| {
            connection.submit(LARGE_ORDERS, orders == Orders::Repeated, names, phase)
        };
        self.measure_work(count, open, work, &[service], redis)
    }

    /// Sends the same request over and over, which is answered with `status`.
    pub(crate) fn measure_repeated(&self, service: &Process, status: u16) -> Result<Slice> {
        let work =
            move |connection: Connection<TcpStream>, _, phase| connection.repeat(status, phase);
        self.measure_work(CONNECTIONS, Connection::open, work, &[service], None)
    }

    /// Sets and deletes locks by a webdis, whose Redis has a script that compares and deletes.
    pub(crate) fn measure_webdis(
        &self,
        webdis: &Process,
        redis: &Process,
        script: &str,
    ) -> Result<Slice> {
        let script: Arc<str> = script.into();
        let work = |connection: Connection<TcpStream>, names, phase| {
            connection.set_and_delete(Arc::clone(&script), names, phase)
        };
        self.measure_work(CONNECTIONS, Connection::open, work, &[webdis], Some(redis))
    }

    fn measure_work<S, F>(
        &self,
        count: usize,
        open: impl AsyncFn(SocketAddr) -> Result<Connection<S>>,
        work: impl Fn(Connection<S>, Arc<Names>, Arc<Phase>) -> F,
        services: &[&Process],
        redis: Option<&Process>,
    ) -> Result<Slice>
    where
        F: Future<Output = Result<Vec<u32>>> + Send + 'static,
    {
        self.runtime.block_on(async {
            let phase = Arc::new(Phase::default());
            let mut connections = JoinSet::new();
            for service in services.iter().cycle().take(count) {
                let connection = open(service.address).await?;
                connections.spawn(work(connection, Arc::clone(&self.names), Arc::clone(&phase)));
            }
            unless_ended(&mut connections, self.window / 10).await?;
            let (cpu_before, started) = (cpu(services, redis)?, Instant::now());
            phase.measuring.store(true, Ordering::Relaxed);
            unless_ended(&mut connections, self.window).await?;
            phase.measuring.store(false, Ordering::Relaxed);
            let (spent, elapsed) = (cpu(services, redis)?.since(cpu_before), started.elapsed());
            phase.over.store(true, Ordering::Relaxed);
            let mut latencies = Vec::new();
            while let Some(ended) = timeout(STUCK, connections.join_next()).await? {
                latencies.append(&mut ended??);
            }
            Slice::new(latencies, elapsed, spent)
        })
    }

    /// Whether a service that has just been started answers; it is asked until it does.
    pub(crate) fn wait_until_ready(&self, address: SocketAddr) -> Result<()> {
        self.runtime.block_on(async {
            let mut connection = Connection::open(address).await?;
            let request = b"GET /v1/locks/ready HTTP/1.1\r\nHost: localhost\r\n\r\n";
            timeout(STUCK, connection.exchange(request, 404)).await??;
            Ok(())
        })
    }

    /// Creates and deletes `count` locks, each connection one after another.
    pub(crate) fn come_and_go(&self, service: &Process, count: usize) -> Result<()> {
        self.share_out(service, count, Connection::pass)
    }

    /// Submits `count` guarded requests, each for the first time.
    pub(crate) fn order(&self, service: &Process, count: usize) -> Result<()> {
        self.share_out(service, count, Connection::order)
    }

    /// Has all connections work together until `count` pieces are done.
    fn share_out<F>(
        &self,
        service: &Process,
        count: usize,
        work: impl Fn(Connection, Arc<Names>, Arc<AtomicUsize>) -> F,
    ) -> Result<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        self.runtime.block_on(async {
            let left = Arc::new(AtomicUsize::new(count));
            let mut connections = JoinSet::new();
            for _ in 0..CONNECTIONS {
                let connection = Connection::open(service.address).await?;
                connections.spawn(work(connection, Arc::clone(&self.names), Arc::clone(&left)));
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
            let pair = Pair::new(LONG_SHARE);
            for _ in 0..count {
                connection.exchange(&pair.create, 201).await?;
            }
            Ok(())
        })
    }

    /// Creates `count` locks that stay.
    pub(crate) fn fill(&self, service: &Process, count: usize) -> Result<()> {
        self.share_out(service, count, Connection::create)
    }
}

/// Which orders are submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Orders {
    /// Each under a new key.
    New,
    /// On each connection the same one, over and over.
    Repeated,
}

/// Which part of the load's time it is.
#[derive(Debug, Default)]
struct Phase {
    measuring: AtomicBool,
    over: AtomicBool,
}

/// A connection to a service.
pub(crate) struct Connection<S = TcpStream> {
    stream: S,
    /// The last response, at its beginning.
    pub(crate) buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self> {
        Self::with_room(address, 8192).await
    }

    /// A connection for answers of up to so many bytes.
    async fn with_room(address: SocketAddr, bytes: usize) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; bytes] })
    }

    /// Creates a lock with a further line in the head, over and over, until `stop` is set. It takes
    /// a grant and both refusals for answers, and returns how many requests were above a quota.
    async fn press(mut self, header: &str, stop: &AtomicBool) -> Result<usize> {
        let pair = Pair::with_header(header, "");
        let mut refused = 0;
        while !stop.load(Ordering::Relaxed) {
            self.send(&pair.create).await?;
            // The lock has one name, so it is held after the first.
            refused += usize::from(self.answer(&[201, 409, 429]).await?.status == 429);
        }
        Ok(refused)
    }

    /// The time of each request while measuring, in nanoseconds.
    async fn repeat(mut self, status: u16, phase: Arc<Phase>) -> Result<Vec<u32>> {
        let mut latencies = Vec::new();
        while !phase.over.load(Ordering::Relaxed) {
            let started = Instant::now();
            self.exchange(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", status).await?;
            if phase.measuring.load(Ordering::Relaxed) {
                latencies.push(nanoseconds(started.elapsed()));
            }
        }
        Ok(latencies)
    }

    /// The time of each request while measuring, in nanoseconds.
    async fn set_and_delete(
        mut self,
        script: Arc<str>,
        names: Arc<Names>,
        phase: Arc<Phase>,
    ) -> Result<Vec<u32>> {
        let mut latencies = Vec::new();
        while !phase.over.load(Ordering::Relaxed) {
            for request in webdis_lock(&names, &script)? {
                let started = Instant::now();
                self.exchange(&request, 200).await?;
                if phase.measuring.load(Ordering::Relaxed) {
                    latencies.push(nanoseconds(started.elapsed()));
                }
            }
        }
        Ok(latencies)
    }

    /// How long each grant of the lock took while measuring, in nanoseconds.
    async fn take_turns(mut self, body: &str, phase: Arc<Phase>) -> Result<Vec<u32>> {
        let mut latencies = Vec::new();
        let mut pair = Pair::new(body);
        while !phase.over.load(Ordering::Relaxed) {
            let started = Instant::now();
            let token = self.exchange(&pair.create, 201).await?.token;
            if phase.measuring.load(Ordering::Relaxed) {
                latencies.push(nanoseconds(started.elapsed()));
            }
            pair.set_token(&self.buffer[token.ok_or("a lease came without a Lock-Token")?]);
            self.exchange(&pair.delete, 204).await?;
        }
        Ok(latencies)
    }

    /// The time of each order while measuring, in nanoseconds.
    async fn submit(
        mut self,
        path: &str,
        repeated: bool,
        names: Arc<Names>,
        phase: Arc<Phase>,
    ) -> Result<Vec<u32>> {
        let mut latencies = Vec::new();
        let mut order = Order::new(&names, path)?;
        if repeated {
            self.fill_in(&order.request).await?;
        }
        while !phase.over.load(Ordering::Relaxed) {
            let started = Instant::now();
            if self.exchange(&order.request, 201).await?.replayed != repeated {
                return Err("a first run was replayed, or a repeat was not".into());
            }
            if phase.measuring.load(Ordering::Relaxed) {
                latencies.push(nanoseconds(started.elapsed()));
            }
            if !repeated {
                order.rename(&names)?;
            }
        }
        Ok(latencies)
    }

    async fn create(mut self, names: Arc<Names>, left: Arc<AtomicUsize>) -> Result<()> {
        let mut pair = Pair::new(LONG);
        while takes_one(&left) {
            pair.rename(&names)?;
            self.exchange(&pair.create, 201).await?;
        }
        Ok(())
    }

    async fn order(mut self, names: Arc<Names>, left: Arc<AtomicUsize>) -> Result<()> {
        let mut order = Order::new(&names, ORDERS)?;
        while takes_one(&left) {
            self.fill_in(&order.request).await?;
            order.rename(&names)?;
        }
        Ok(())
    }

    /// Sends a request until it is carried out. A store that is filled is not measured, and may be
    /// late.
    async fn fill_in(&mut self, request: &[u8]) -> Result<()> {
        let began = Instant::now();
        self.send(request).await?;
        while self.answer(&[201, 503]).await?.status != 201 {
            if began.elapsed() > STUCK {
                return Err("the store did not take a record".into());
            }
            sleep(RETRY).await;
            self.send(request).await?;
        }
        Ok(())
    }

    async fn pass(mut self, names: Arc<Names>, left: Arc<AtomicUsize>) -> Result<()> {
        let mut pair = Pair::new(LONG);
        while takes_one(&left) {
            pair.rename(&names)?;
            let token = self.exchange(&pair.create, 201).await?.token;
            pair.set_token(&self.buffer[token.ok_or("a lease came without a Lock-Token")?]);
            self.exchange(&pair.delete, 204).await?;
        }
        Ok(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// The time of each request while measuring, in nanoseconds.
    async fn create_and_delete(
        mut self,
        header: String,
        names: Arc<Names>,
        phase: Arc<Phase>,
    ) -> Result<Vec<u32>> {
        let mut latencies = Vec::new();
        let mut pair = Pair::with_header(&header, "");
        while !phase.over.load(Ordering::Relaxed) {
            pair.rename(&names)?;
            let started = Instant::now();
            let token = self.exchange(&pair.create, 201).await?.token;
            let created = Instant::now();
            pair.set_token(&self.buffer[token.ok_or("a lease came without a Lock-Token")?]);
            self.exchange(&pair.delete, 204).await?;
            let deleted = Instant::now();
            if phase.measuring.load(Ordering::Relaxed) {
                latencies.extend([nanoseconds(created - started), nanoseconds(deleted - created)]);
            }
        }
        Ok(latencies)
    }

    /// Sends a request; the response, which must have the status `expected`.
    pub(crate) async fn exchange(&mut self, request: &[u8], expected: u16) -> Result<Response> {
        self.send(request).await?;
        self.answer(&[expected]).await
    }

    pub(crate) async fn send(&mut self, request: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(request).await?)
    }

    /// The next response, which must have one of the statuses `expected`.
    pub(crate) async fn answer(&mut self, expected: &[u16]) -> Result<Response> {
        let mut filled = 0;
        let found = loop {
            let read = self.stream.read(&mut self.buffer[filled..]).await?;
            if read == 0 {
                return Err("the server closed a connection in use".into());
            }
            filled += read;
            if let Some(found) = response(&self.buffer[..filled])? {
                break found;
            }
        };
        if !expected.contains(&found.status) || found.bytes != filled {
            let answer = String::from_utf8_lossy(&self.buffer[..filled]);
            return Err(format!("in place of {expected:?} came: {answer}").into());
        }
        Ok(found)
    }
}

impl Connection<TlsStream<TcpStream>> {
    async fn open_tls(address: SocketAddr, tls: &Arc<ClientConfig>) -> Result<Self> {
        let stream = handshake(address, tls).await?;
        stream.get_ref().0.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; 8192] })
    }
}

/// Clients on a thread of their own that send more than they may, until this is ended.
pub(crate) struct GreedyClients {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<usize>>,
}

impl GreedyClients {
    /// Clients on so many connections that are known by a line in the head of each request.
    pub(crate) fn start(count: usize, header: &str, service: &Process) -> Self {
        let (stop, address, header) = (Arc::default(), service.address, header.to_owned());
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let clients = (0..count)
                    .map(async |_| Connection::open(address).await?.press(&header, &stopped).await);
                Ok(try_join_all(clients).await?.into_iter().sum())
            })
        });
        Self { stop, thread }
    }

    /// Ends them; how many of their requests were refused.
    pub(crate) fn end(self) -> Result<usize> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the greedy clients panicked")?
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

/// Whether there was one left to take.
fn takes_one(left: &AtomicUsize) -> bool {
    let one_less = |left: usize| left.checked_sub(1);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
}

fn cpu(services: &[&Process], redis: Option<&Process>) -> Result<Cpu> {
    let redis = redis.map_or(Ok(0.0), Process::cpu)?;
    let service = services.iter().map(|service| service.cpu()).sum::<Result<f64>>()?;
    Ok(Cpu { generator: own_cpu()?, service, redis, machine: machine_cpu()? })
}

pub(crate) fn nanoseconds(time: Duration) -> u32 {
    u32::try_from(time.as_nanos()).unwrap_or(u32::MAX)
}
