//! The stores of the matrix: how each is started, and what a test can do with it.
//!
//! The matrix itself, with what each store can do, is in `keylatch-testkit-macros`. Each line of it has
//! a function here that starts the store.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use keylatch::config::Config;
use tempfile::TempDir;

use crate::store_time::pass_for_store;
use crate::{
    Cluster, FakeEngine, Faults, OpenStore, PostgresDatabase, RedisServer, RedlockNodes, Sentinels,
    Service, ZookeeperRoot, config, empty_etcd, seed,
};

/// How often a store in the test's process removes expired locks.
const SWEEP_PERIOD: Duration = Duration::from_secs(5);
/// After how many of them it removes expired records as well, and one.
const SWEEPS: u32 = 7;
/// By how much a store that estimates its engine's clock may be ahead of it on a busy machine, and how late
/// it may see a write where there is none: its leases end so much later.
const AHEAD: Duration = Duration::from_millis(200);
/// How often a test lets the store's task run: a sweep yields after each of 256 buckets.
const TURNS: u32 = 600;

/// Locks in the memory of the test's process.
pub async fn memory() -> TestStore {
    TestStore::new(config("memory:"), TokioClock::default())
}

/// A file in a new directory.
pub async fn embedded() -> TestStore {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let url = format!("embedded:{}", directory.path().display());
    TestStore::new(config(&url), TokioClock::in_directory(directory))
}

/// One Redis without persistence.
pub async fn redis() -> TestStore {
    let server = RedisServer::start().await;
    TestStore::new(config(&server.url()), server)
}

/// A master that a sentinel monitors.
pub async fn sentinel() -> TestStore {
    let sentinels = Sentinels::start(0, 1).await;
    TestStore::new(config(&sentinels.url()), sentinels)
}

/// A cluster of three masters.
pub async fn cluster() -> TestStore {
    let cluster = Cluster::start(3, 0).await;
    TestStore::new(config(&cluster.url()), cluster)
}

/// Five independent nodes.
pub async fn redlock() -> TestStore {
    let nodes = RedlockNodes::start().await;
    TestStore::new(nodes.config(), nodes)
}

/// A database of one PostgreSQL.
pub async fn postgres() -> TestStore {
    let database = PostgresDatabase::create().await;
    TestStore::new(config(&database.url()), database)
}

/// The keys below a prefix of one etcd.
pub async fn etcd() -> TestStore {
    TestStore::new(config(&empty_etcd().await), EtcdClock(TokioClock::default()))
}

/// A node of one ZooKeeper.
pub async fn zookeeper() -> TestStore {
    let root = ZookeeperRoot::create().await;
    TestStore::new(config(&root.url()), root)
}

/// The adapter over conditional writes, on an engine in the test's process.
pub async fn conditional() -> TestStore {
    of_engine(FakeEngine::new(Faults::HARMLESS, seed()))
}

/// The same on an engine that has no clock.
pub async fn clockless() -> TestStore {
    let engine = FakeEngine::without_clock(Faults::HARMLESS, seed());
    let mut store = TestStore::new(config("memory:"), TokioClock::default());
    store.engine = Some(engine);
    store
}

/// The same on an engine that removes rows by itself, as Redis does.
pub async fn forgetful() -> TestStore {
    of_engine(FakeEngine::forgetful(Faults::HARMLESS, seed()))
}

/// The same on one whose buckets fall into parts, as those of a cluster do.
pub async fn divided() -> TestStore {
    of_engine(FakeEngine::of_parts(3, Faults::HARMLESS, seed()))
}

/// The adapter over an engine in the test's process.
fn of_engine(engine: FakeEngine) -> TestStore {
    // The configuration of its services, of which it has none, has a URL that opens nothing.
    let mut store = TestStore::new(config("memory:"), engine.clone());
    store.engine = Some(engine);
    store
}

/// A store that was started for one test. Clones are the same store; it ends with the last.
#[derive(Debug, Clone)]
pub struct TestStore {
    config: Config,
    clock: Arc<dyn StoreClock>,
    /// Where the store has no URL.
    engine: Option<FakeEngine>,
}

impl TestStore {
    fn new(config: Config, clock: impl StoreClock + 'static) -> Self {
        Self { config, clock: Arc::new(clock), engine: None }
    }

    /// Its URL, as in the configuration.
    pub fn url(&self) -> &str {
        self.config.store.expose()
    }

    /// The default configuration over it.
    pub fn config(&self) -> Config {
        self.config.clone()
    }

    /// Lets time pass for its locks and records.
    pub async fn advance(&self, by: Duration) {
        self.clock.advance(by).await;
    }

    /// Lets so much time pass that the store removes what has expired, records included.
    pub async fn pass_a_sweep(&self) {
        for _ in 0..SWEEPS {
            self.advance(SWEEP_PERIOD).await;
            self.clock.settle().await;
        }
    }

    /// Opens it as the service does.
    pub async fn open(&self) -> OpenStore {
        if let Some(engine) = &self.engine {
            return OpenStore(keylatch_stores::optimistic(engine.clone()));
        }
        let opened = keylatch_stores::open(self.url(), self.config.stores()).await;
        OpenStore(opened.expect("the store opens"))
    }
}

/// What a `#[store_test]` takes.
pub trait FromStore: Sized {
    /// Makes it on a store that has just been started.
    fn from_store(store: &TestStore) -> impl Future<Output = Self>;
}

/// Starts a store and runs a test on it; what `#[store_test]` makes of a function calls this.
pub async fn run<S: FromStore>(start: impl Future<Output = TestStore>, test: impl AsyncFn(&S)) {
    let store = start.await;
    test(&S::from_store(&store).await).await;
}

impl FromStore for TestStore {
    async fn from_store(store: &TestStore) -> Self {
        store.clone()
    }
}

/// A service with the default configuration.
impl FromStore for Service {
    async fn from_store(store: &TestStore) -> Self {
        Self::start_with(store.config()).await
    }
}

/// The locks of a store whose time a test moves forward.
#[derive(Debug)]
pub struct Locks {
    locks: OpenStore,
    store: TestStore,
}

impl FromStore for Locks {
    async fn from_store(store: &TestStore) -> Self {
        let locks = store.open().await;
        Self { locks, store: store.clone() }
    }
}

impl Locks {
    /// Lets time pass.
    pub async fn advance(&self, by: Duration) {
        self.store.advance(by).await;
    }

    /// Lets so much time pass that the store removes what has expired.
    pub async fn pass_a_sweep(&self) {
        self.store.pass_a_sweep().await;
    }
}

impl Deref for Locks {
    type Target = OpenStore;

    fn deref(&self) -> &OpenStore {
        &self.locks
    }
}

/// The records of a store whose time a test moves forward.
#[derive(Debug)]
pub struct Records {
    records: OpenStore,
    store: TestStore,
}

impl FromStore for Records {
    async fn from_store(store: &TestStore) -> Self {
        let records = store.open().await;
        Self { records, store: store.clone() }
    }
}

impl Records {
    /// Lets time pass.
    pub async fn advance(&self, by: Duration) {
        self.store.advance(by).await;
    }

    /// Lets so much time pass that the store removes what has expired.
    pub async fn pass_a_sweep(&self) {
        self.store.pass_a_sweep().await;
    }
}

impl Deref for Records {
    type Target = OpenStore;

    fn deref(&self) -> &OpenStore {
        &self.records
    }
}

/// The time of a store, which a test moves forward, so that no test waits for a lease to end.
#[async_trait]
trait StoreClock: fmt::Debug + Send + Sync {
    /// Lets time pass.
    async fn advance(&self, by: Duration);

    /// Lets the store's own task come in between.
    async fn settle(&self) {
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
    }
}

/// tokio's clock, by which the stores in the test's process count.
#[derive(Debug, Default)]
struct TokioClock {
    /// Where the store keeps its file.
    _directory: Option<TempDir>,
}

impl TokioClock {
    /// A clock that keeps a directory for as long as it lives.
    fn in_directory(directory: TempDir) -> Self {
        Self { _directory: Some(directory) }
    }
}

#[async_trait]
impl StoreClock for TokioClock {
    async fn advance(&self, by: Duration) {
        // A stopped clock jumps to the next timer while all tasks wait, for instance for the disk. So
        // it is stopped no longer than this.
        tokio::time::pause();
        tokio::time::advance(by).await;
        tokio::time::resume();
    }
}

/// etcd has no clock, and a process counts from when it saw a write.
#[derive(Debug)]
struct EtcdClock(TokioClock);

#[async_trait]
impl StoreClock for EtcdClock {
    async fn advance(&self, by: Duration) {
        self.0.advance(by + AHEAD).await;
    }
}

/// A Redis counts by its own clock, which is set forward.
#[async_trait]
impl StoreClock for RedisServer {
    async fn advance(&self, by: Duration) {
        self.advance(by + AHEAD);
        pass_for_store(by + AHEAD);
    }
}

#[async_trait]
impl StoreClock for Sentinels {
    async fn advance(&self, by: Duration) {
        self.servers[0].advance(by + AHEAD);
        pass_for_store(by + AHEAD);
    }
}

#[async_trait]
impl StoreClock for Cluster {
    async fn advance(&self, by: Duration) {
        for master in self.masters() {
            master.advance(by + AHEAD);
        }
        pass_for_store(by + AHEAD);
    }
}

#[async_trait]
impl StoreClock for RedlockNodes {
    async fn advance(&self, by: Duration) {
        self.age(by).await;
    }
}

#[async_trait]
impl StoreClock for PostgresDatabase {
    async fn advance(&self, by: Duration) {
        self.advance(by + AHEAD).await;
    }
}

/// A ZooKeeper has no clock: the store counts by tokio's, from when it saw a write.
#[async_trait]
impl StoreClock for ZookeeperRoot {
    async fn advance(&self, by: Duration) {
        self.pass(by + AHEAD).await;
    }

    async fn settle(&self) {
        self.settle().await;
    }
}

#[async_trait]
impl StoreClock for FakeEngine {
    async fn advance(&self, by: Duration) {
        self.advance(by + AHEAD);
        pass_for_store(by + AHEAD);
    }
}
