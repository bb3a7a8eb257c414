//! The stores of the matrix: how each is started, and what a test can do with it.
//!
//! The matrix itself, with what each store can do, is in `keylatch-testkit-macros`. Each line of it
//! has a function here that starts the store; those of the feature `engines` are in
//! `engines/stores.rs`.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use keylatch::config::Config;
use tempfile::TempDir;

use crate::store_time::pass_for_store;
use crate::{FakeEngine, Faults, OpenStore, RedisServer, Service, Shop, config, seed, started};

/// How often a store in the test's process removes expired locks.
const SWEEP_PERIOD: Duration = Duration::from_secs(5);
/// After how many of them it removes expired records as well, and one.
const SWEEPS: u32 = 7;
/// By how much a store that estimates its engine's clock may be ahead of it on a busy machine, and
/// how late it may see a write where there is none: its leases end so much later.
pub(crate) const AHEAD: Duration = Duration::from_secs(1);
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
    pub(crate) fn new(config: Config, clock: impl StoreClock + 'static) -> Self {
        Self { config, clock: Arc::new(clock), engine: None }
    }

    /// Its URL, as in the configuration.
    pub fn url(&self) -> &str {
        self.config.store.expose()
    }

    /// The configuration of [`config`] over it.
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

    /// Opens it as the service does, and waits until it answers.
    pub async fn open(&self) -> OpenStore {
        if let Some(engine) = &self.engine {
            return OpenStore(keylatch_stores::optimistic(engine.clone()));
        }
        let opened = keylatch_stores::open(self.url(), self.config.stores()).await;
        let store = OpenStore(opened.expect("the store opens"));
        started(async || store.health().await.ok()).await;
        store
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

/// A service that is ready, with the configuration of [`config`].
impl FromStore for Service {
    async fn from_store(store: &TestStore) -> Self {
        let service = Self::start_with(store.config()).await;
        started(async || (service.get("/readyz").await.status == 200).then_some(())).await;
        service
    }
}

/// A shop over it, with a guard that is as it is by default.
impl FromStore for Shop {
    async fn from_store(store: &TestStore) -> Self {
        Self::open(store.url()).await
    }
}

/// An open store whose time a test moves forward.
#[derive(Debug)]
pub struct Locks {
    open: OpenStore,
    store: TestStore,
}

/// The same, in tests of its records.
pub type Records = Locks;

impl FromStore for Locks {
    async fn from_store(store: &TestStore) -> Self {
        Self { open: store.open().await, store: store.clone() }
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
        &self.open
    }
}

/// The time of a store, which a test moves forward, so that no test waits for a lease to end.
#[async_trait]
pub(crate) trait StoreClock: fmt::Debug + Send + Sync {
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
pub(crate) struct TokioClock {
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
        // A stopped clock jumps to the next timer while all tasks wait, for instance for the disk.
        // So it is stopped no longer than this.
        tokio::time::pause();
        tokio::time::advance(by).await;
        tokio::time::resume();
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
impl StoreClock for FakeEngine {
    async fn advance(&self, by: Duration) {
        self.advance(by + AHEAD);
        pass_for_store(by + AHEAD);
    }
}
