//! Goal: clients that leave, in whatever way, leave no lock held, no queue entry, no stream and no
//! connection.
//!
//! Method: thousands of raw connections on memory, embedded and Redis. Every second client waits
//! for a lock that is granted to one after the other and leaves at a random moment, or with the
//! grant. The others leave in every other [`Way`], and what they wait for is held by the test, so
//! that none is granted what it does not read.

mod ways;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use keylatch::app::{App, bind};
use keylatch::config::Config;
use keylatch::http::ListenerSettings;
use keylatch_testkit::{
    Answer, Api, Authority, RedisServer, Shop, Upstream, config, eventually, scaled, soon,
};
use rustls::ClientConfig;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::lateness::Lateness;
use ways::{Leaver, Way};

/// How many clients come in all.
fn leavers() -> u64 {
    scaled(10_000)
}

/// How many are there at once.
const WAVE: u64 = 500;
/// How many locks are granted to them.
const LOCKS: u64 = 5;
/// A lease that a leaver left behind would outlast the test.
const TTL_MS: u64 = 3_600_000;
/// How long the next client waits at most, beyond what the machine is late: a queue entry without a
/// waiter lasts longer.
const NEXT_WAITS: Duration = Duration::from_secs(2);
/// How many connections the client of the test may keep.
const OWN_CONNECTIONS: u64 = 8;
/// The lock that the test holds while they wait for it.
const HELD: &str = "held";
const HOLDER: &str = "the-token-of-the-test-itself";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_clients_leave_nothing_in_memory() {
    let scene = Scene::begin(&["memory:"]).await;
    scene.leave_nothing().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_clients_leave_nothing_on_disk() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = format!("embedded:{}", directory.path().display());
    Scene::begin(&[&store]).await.leave_nothing().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_clients_leave_nothing_in_redis() {
    let redis = RedisServer::start().await;
    Scene::begin(&[&redis.url(), &redis.url()]).await.leave_nothing().await;
    // Beside the counters, the records of the runs are there, as they are to be. A lock that was
    // left has a row for a moment, so that a step of the one that left comes too late.
    let of_locks = async || {
        let keys: Vec<String> = redis.run(&["KEYS", "*:lock:*"]).await;
        keys.is_empty().then_some(())
    };
    eventually(of_locks).await;
}

/// The instances, and what runs the guarded requests.
struct Scene {
    instances: Vec<Instance>,
    upstream: Upstream,
    tls: Arc<[Arc<ClientConfig>; 2]>,
    _authority: Authority,
}

/// An instance with a listener in clear text and one with TLS.
struct Instance {
    api: Api,
    door: Door,
    _closing: DropGuard,
}

/// Where an instance listens.
#[derive(Debug, Clone, Copy)]
struct Door {
    clear: SocketAddr,
    tls: SocketAddr,
}

impl Instance {
    async fn start(mut config: Config) -> Self {
        let bound = bind(&mut config).await.expect("they listen");
        let address = |place: usize| {
            config.listener[place].address.parse::<SocketAddr>().expect("an address")
        };
        let door = Door { clear: address(0), tls: address(1) };
        let app = App::new(config).await.expect("an app");
        let closing = CancellationToken::new();
        tokio::spawn(app.serve_on(bound, closing.clone().cancelled_owned()));
        Self { api: Api::at(door.clear), door, _closing: closing.drop_guard() }
    }

    /// Waits until a gauge, of which there may be several lines, has no more than this.
    async fn falls_to(&self, name: &str, most: u64) {
        eventually(async || {
            let metrics = self.api.get("/metrics").await.text;
            let lines = metrics.lines().filter(|line| line.starts_with(name));
            let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
            let sum: u64 = values.sum();
            (sum <= most).then_some(())
        })
        .await;
    }
}

impl Scene {
    async fn begin(stores: &[&str]) -> Self {
        // Both ends of each connection are files of this process.
        rlimit::increase_nofile_limit(8192).expect("more open files");
        let (authority, upstream) = (Authority::default(), Upstream::start().await);
        let mut instances = Vec::new();
        for store in stores {
            let listener = |tls| {
                let address = "127.0.0.1:0".to_owned();
                ListenerSettings { address, tls: Some(tls), ..ListenerSettings::default() }
            };
            let mut config = Config { tls: authority.serve(), ..config(store) };
            config.listener = vec![listener(false), listener(true)];
            config.guard = vec![Shop::guard(&upstream.url())];
            instances.push(Instance::start(config).await);
        }
        let tls = Arc::new(["http/1.1", "h2"].map(|protocol| authority.client(&[protocol], None)));
        Self { instances, upstream, tls, _authority: authority }
    }

    async fn leave_nothing(&self) {
        let (mut told, mut untold) = (0, 0);
        for wave in 0..leavers().div_ceil(WAVE) {
            let api = &self.instances[0].api;
            let held = api.create_as(HELD, HOLDER, &json!({ "ttl_ms": TTL_MS })).await;
            assert_eq!(held.status, 201, "{held:?}");
            // Its clients go while the runs are under way.
            self.upstream.hold();
            let mut leaving = JoinSet::new();
            for number in wave * WAVE..(wave + 1) * WAVE {
                leaving.spawn(self.leaver(number).come_and_go());
            }
            while let Some(was_told) = soon("the next to go", leaving.join_next()).await {
                match was_told.unwrap() {
                    Some(true) => told += 1,
                    Some(false) => untold += 1,
                    None => {}
                }
            }
            self.is_quiet(wave).await;
        }
        assert!(told > 0 && untold > 0, "all {told} of them waited, or all {untold} of them left");
    }

    fn leaver(&self, number: u64) -> Leaver {
        let instance = &self.instances[number as usize % self.instances.len()];
        Leaver::new(number, Way::of(number), instance.door, Arc::clone(&self.tls))
    }

    /// Asserts that nothing is left of those that were there.
    async fn is_quiet(&self, wave: u64) {
        let api = &self.instances[0].api;
        for lock in 0..LOCKS {
            is_free(api, &name(lock), wave).await;
        }
        is_seen(api, HELD, |look| look.json["waiting"] == 0).await;
        for instance in &self.instances {
            // The one that asks is there itself, on the connections that its client keeps. One that
            // stayed of each wave would be more in the end.
            instance.falls_to("keylatch_http_in_flight ", 1).await;
            instance.falls_to("keylatch_http_connections ", OWN_CONNECTIONS).await;
            instance.falls_to("keylatch_http_streams{", 0).await;
            instance.falls_to("keylatch_waiters ", 0).await;
        }
        assert_eq!(api.release(HELD, HOLDER).await.status, 204);
        is_seen(api, HELD, |look| look.status == 404).await;
        // Nor does one have a lock of its own.
        let none = async || {
            let list = api.get("/v1/locks?limit=1000").await;
            assert_eq!(list.status, 200, "{list:?}");
            (list.json["locks"] == json!([])).then_some(())
        };
        eventually(none).await;
        self.upstream.resume();
        for state in ["unknown", "in_flight"] {
            let unfinished = format!("keylatch_idempotency_records{{state=\"{state}\"}} ");
            self.instances[0].falls_to(&unfinished, 0).await;
        }
    }
}

/// Asserts that the next client gets the lock before an abandoned queue entry could expire.
async fn is_free(api: &Api, lock: &str, wave: u64) {
    let lateness = Lateness::watch();
    let next = api.create(lock, &json!({"wait_ms": 60_000})).await;
    assert_eq!(next.status, 201, "{lock} after wave {wave}: {next:?}");
    let (waited, most) = (next.json["waited_ms"].as_u64(), NEXT_WAITS + lateness.of_request());
    let is_soon = waited.is_some_and(|waited| Duration::from_millis(waited) < most);
    assert!(is_soon, "{lock} after wave {wave}, later than {most:?}: {next:?}");
    // A step of one that left may still be under way, and then what withdraws it is behind it.
    is_seen(api, lock, |look| look.json["waiting"] == 0).await;
    assert_eq!(api.release(lock, &next.token()).await.status, 204);
    is_seen(api, lock, |look| look.status == 404).await;
}

async fn is_seen(api: &Api, lock: &str, is: fn(&Answer) -> bool) {
    eventually(async || is(&api.look(lock).await).then_some(())).await;
}

fn name(lock: u64) -> String {
    format!("deploy-{lock}")
}
