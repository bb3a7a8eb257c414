//! The services of the campaign of jobs: over one store, killed and stopped while machines use
//! them.
//!
//! Goal: a machine finds its service at one address, whatever becomes of the process there.
//!
//! Method: an instance on disk, or two over a server that is shared, each behind a proxy that leads
//! to the process that runs now.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use keylatch_testkit::{Dice, PostgresServer, Process, Proxy, RedisServer};
use tempfile::TempDir;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::TTL;
use super::ledger::now;
use super::machine::millis;
use crate::KEYLATCH;
use crate::locks::pass;

/// What keeps the locks and the records.
#[derive(Debug)]
pub(super) enum Store {
    Embedded(TempDir),
    Redis(Box<RedisServer>),
    Postgres(PostgresServer),
}

/// The services over one store.
#[derive(Debug)]
pub(super) struct Fleet {
    store: Store,
    instances: Vec<Instance>,
    /// When leases began again, since the embedded store was opened again.
    restarts: std::sync::Mutex<Vec<Duration>>,
}

#[derive(Debug)]
struct Instance {
    proxy: Proxy,
    process: Mutex<Option<Process>>,
}

impl Store {
    pub(super) async fn all() -> [Self; 3] {
        let lasting = ["--appendonly", "yes", "--appendfsync", "always"];
        [
            Self::Embedded(tempfile::tempdir().expect("a temporary directory")),
            Self::Redis(Box::new(RedisServer::start_with(&lasting).await)),
            Self::Postgres(PostgresServer::start().await),
        ]
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Embedded(_) => "embedded",
            Self::Redis(_) => "Redis",
            Self::Postgres(_) => "PostgreSQL",
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Embedded(directory) => format!("embedded:{}", directory.path().display()),
            Self::Redis(redis) => redis.url(),
            Self::Postgres(server) => server.url("postgres"),
        }
    }

    async fn serve(&self) -> Process {
        KEYLATCH.serve(&["--store", &self.url()], &[]).await
    }
}

impl Fleet {
    pub(super) async fn start(store: Store) -> Arc<Self> {
        let count = if matches!(store, Store::Embedded(_)) { 1 } else { 2 };
        let mut instances = Vec::new();
        for _ in 0..count {
            let process = store.serve().await;
            let proxy = Proxy::start(process.address.to_string()).await;
            instances.push(Instance { proxy, process: Mutex::new(Some(process)) });
        }
        Arc::new(Self { store, instances, restarts: std::sync::Mutex::default() })
    }

    pub(super) fn store(&self) -> &'static str {
        self.store.name()
    }

    /// When leases began again, in order.
    pub(super) fn restarts(&self) -> Vec<Duration> {
        self.restarts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where the machine with this number finds its service.
    pub(super) fn address_for(&self, machine: usize) -> String {
        self.instances[machine % self.instances.len()].proxy.address().to_string()
    }

    /// Kills and stops instances until the campaign ends; gives how often.
    pub(super) async fn fail(self: Arc<Self>, mut dice: Dice, ending: CancellationToken) -> u64 {
        let mut faults = 0;
        let rest = |dice: &mut Dice| pass(millis(2000 + dice.below(4000)));
        while ending.run_until_cancelled(rest(&mut dice)).await.is_some() {
            let instance = &self.instances[dice.below(self.instances.len() as u64) as usize];
            match dice.below(6) {
                0..3 => self.restart(instance).await,
                // No lease of before is renewed.
                3 => instance.pause(TTL + millis(500)).await,
                _ => instance.pause(millis(200 + dice.below(1000))).await,
            }
            faults += 1;
        }
        faults
    }

    /// Kills an instance and starts it again.
    pub(super) async fn restart_any(&self, dice: &mut Dice) {
        self.restart(&self.instances[dice.below(self.instances.len() as u64) as usize]).await;
    }

    async fn restart(&self, instance: &Instance) {
        instance.proxy.refuse();
        let mut process = instance.process.lock().await;
        process.take().expect("it runs").ended_by("-KILL").await;
        let next = self.store.serve().await;
        if matches!(self.store, Store::Embedded(_)) {
            self.restarts.lock().unwrap_or_else(PoisonError::into_inner).push(now());
        }
        instance.proxy.lead_to(next.address.to_string());
        *process = Some(next);
        instance.proxy.forward();
    }
}

impl Instance {
    async fn pause(&self, time: Duration) {
        let process = self.process.lock().await;
        let process = process.as_ref().expect("it runs");
        process.signal("-STOP");
        pass(time).await;
        process.signal("-CONT");
    }
}
