//! Goal: waiters that leave leave no lock held and no queue entry.
//!
//! Method: thousands of raw connections that wait and close at random moments, on memory, embedded and
//! Redis.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use keylatch_testkit::{Answer, Dice, RedisServer, Service, eventually, scaled, soon};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How many clients come in all.
fn leavers() -> u64 {
    scaled(10_000)
}

/// How many are there at once.
const WAVE: u64 = 500;
/// How many locks they wait for.
const LOCKS: u64 = 5;
/// A lease that a leaver left behind would outlast the test.
const TTL_MS: u64 = 3_600_000;
/// How long the next client waits: a queue entry without a waiter lasts longer than this.
const NEXT_WAITS_MS: u64 = 2000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_waiters_leave_nothing_in_memory() {
    leave_nothing(&[Service::start("memory:").await]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_waiters_leave_nothing_on_disk() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = format!("embedded:{}", directory.path().display());
    leave_nothing(&[Service::start(&store).await]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_waiters_leave_nothing_in_redis() {
    let redis = RedisServer::start().await;
    let services = [Service::start(&redis.url()).await, Service::start(&redis.url()).await];
    leave_nothing(&services).await;
    let keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
    assert!(keys.iter().all(|key| key.ends_with(":fence")), "{keys:?}");
}

async fn leave_nothing(services: &[Service]) {
    // Both ends of each connection are files of this process.
    rlimit::increase_nofile_limit(4096).expect("more open files");
    let addresses: Arc<[_]> = services.iter().map(|service| service.address).collect();
    let (mut told, mut untold) = (0, 0);
    for wave in 0..leavers().div_ceil(WAVE) {
        let mut leaving = JoinSet::new();
        for number in 0..WAVE {
            let leaver = Leaver::new(wave * WAVE + number, &addresses);
            leaving.spawn(leaver.come_and_go());
        }
        while let Some(was_told) = soon("the next to go", leaving.join_next()).await {
            *(if was_told.unwrap() { &mut told } else { &mut untold }) += 1;
        }
        for lock in 0..LOCKS {
            is_free(&services[0], &name(lock), wave).await;
        }
    }
    assert!(told > 0 && untold > 0, "all {told} of them waited, or all {untold} of them left");
}

/// Asserts that the next client gets the lock before an abandoned queue entry could expire.
async fn is_free(service: &Service, lock: &str, wave: u64) {
    let next = service.create(lock, &json!({"wait_ms": NEXT_WAITS_MS})).await;
    assert_eq!(next.status, 201, "{lock} after wave {wave}: {next:?}");
    // A step of one that left may still be under way, and then what withdraws it is behind it.
    let seen = async |is_seen: fn(&Answer) -> bool| {
        eventually(async || is_seen(&service.look(lock).await).then_some(())).await;
    };
    seen(|look| look.json["waiting"] == 0).await;
    assert_eq!(service.release(lock, &next.token()).await.status, 204);
    seen(|look| look.status == 404).await;
}

/// A client that waits for a lock, and goes away at a random moment or with the grant.
struct Leaver {
    address: SocketAddr,
    lock: String,
    token: String,
    stays_for: Duration,
}

impl Leaver {
    fn new(number: u64, addresses: &[SocketAddr]) -> Self {
        let address = addresses[number as usize % addresses.len()];
        Self {
            address,
            lock: name(number % LOCKS),
            token: format!("the-token-of-leaver-{number}"),
            stays_for: Duration::from_micros(Dice(number).below(300_000)),
        }
    }

    /// Whether it read a grant; then it releases the lock.
    async fn come_and_go(self) -> bool {
        let body = format!(r#"{{"wait_ms":60000,"ttl_ms":{TTL_MS}}}"#);
        let connection = TcpStream::connect(self.address).await.expect("a connection");
        let (mut answers, mut requests) = connection.into_split();
        requests.write_all(self.request("POST", &body).as_bytes()).await.expect("sent");
        let mut staying = pin!(async {
            let mut answer = String::new();
            let _ = answers.read_to_string(&mut answer).await;
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 201 "), "{answer}");
            if !answer.is_empty() {
                self.release().await;
            }
            !answer.is_empty()
        });
        if let Ok(was_told) = timeout(self.stays_for, &mut staying).await {
            return was_told;
        }
        // For the service, a client that has ended its side is gone. The client can still read what
        // the service sent before it knew that.
        let _ = requests.shutdown().await;
        staying.await
    }

    async fn release(&self) {
        let mut connection = TcpStream::connect(self.address).await.expect("a connection");
        connection.write_all(self.request("DELETE", "").as_bytes()).await.expect("sent");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
    }

    fn request(&self, method: &str, body: &str) -> String {
        format!(
            "{method} /v1/locks/{} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Lock-Token: {}\r\nContent-Length: {}\r\n\r\n{body}",
            self.lock,
            self.token,
            body.len()
        )
    }
}

fn name(lock: u64) -> String {
    format!("deploy-{lock}")
}
