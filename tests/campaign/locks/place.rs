//! The deployment of a lock campaign: a store, the instances of keylatch over it, and their
//! proxies.
//!
//! Goal: a fault can reach each process and each connection alone, and clients need not know of it.
//!
//! Method: clients reach an instance only through its proxy, whose address outlives the process.
//! Instances find Sentinel and Cluster without proxies, because these name their nodes themselves.
//! `Store::faults` lists the faults for each store. Every test in `mod.rs` opens one such place.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use keylatch_testkit::{
    Answer, Api, Cluster, Ensemble, EtcdCluster, PostgresPair, Process, Program, Proxy,
    RedisServer, Replication, Sentinels, WallClock, eventually,
};
use reqwest::Method;
use tempfile::TempDir;
use tokio::time::timeout;

use super::clock::pass;
use super::faults::{FaultEffect, Kind};
use super::members::Members;
use super::nodes::{Nodes, WHOLE};
use crate::KEYLATCH;

/// How long an instance waits for its store's answer, in ms.
const STORE_TIMEOUT: &str = "700";

const SNAPSHOTS: [&str; 3] = ["--save", "1", "1"];
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// What is done to the instances of every store.
const FAULTS_OF_INSTANCES: [Kind; 8] = [
    Kind::KillInstance,
    Kind::StopInstance,
    Kind::StopInstanceLong,
    Kind::CutClients,
    Kind::StallClients,
    Kind::LoseAnswersToClients,
    Kind::HoldRequestsOfClients,
    Kind::HoldAnswersToClients,
];
/// What is done to nodes that instances reach through proxies.
const FAULTS_OF_NODES: [Kind; 10] = [
    Kind::KillStore,
    Kind::StopStore,
    Kind::StopStoreLong,
    Kind::CutStore,
    Kind::StallStore,
    Kind::DelayStore,
    Kind::LoseAnswersOfStore,
    Kind::HoldRequestsToStore,
    Kind::HoldAnswersOfStore,
    Kind::StallStoreLong,
];

/// What a store can do beyond exclusive locks, one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Abilities {
    /// Locks of every kind, and breaks.
    pub(super) modes: bool,
    /// Several locks at once.
    pub(super) sets: bool,
}

/// Where locks are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Store {
    Memory,
    Embedded,
    /// One Redis without persistence.
    ForgetfulRedis,
    /// One Redis that writes all it knows to a file from time to time.
    SnapshotRedis,
    /// One Redis with `appendfsync always`.
    DurableRedis,
    /// A master with two replicas, and three sentinels.
    Sentinel,
    /// The same, with every grant on a replica before the service reports it.
    CarefulSentinel,
    /// Three masters with a replica each.
    Cluster,
    /// Five masters that know nothing of each other, with `appendfsync always`.
    Redlock,
    /// The same without persistence.
    ForgetfulRedlock,
    /// A primary and its synchronous standby.
    Postgres,
    /// A primary and a standby that it does not wait for.
    AsyncPostgres,
    /// Three members.
    Etcd,
    /// Three members.
    Zookeeper,
}

/// Which build of keylatch is run.
#[derive(Debug, Clone, Default)]
pub(super) struct Build {
    /// The program; the one that `KEYLATCH_TEST_PROGRAM` names, or that is tested, if `None`.
    pub(super) program: Option<Program>,
    /// The one mutant among those that the build has.
    pub(super) mutant: Option<&'static str>,
}

/// A store and the instances of keylatch over it, each behind a proxy and with proxies to the
/// store.
#[derive(Debug)]
pub(super) struct Deployment {
    pub(super) store: Store,
    build: Build,
    pub(super) nodes: Nodes,
    pub(super) instances: Vec<Instance>,
    /// The clock of the nodes that have it, or why it cannot be set.
    pub(super) clock: Result<WallClock, String>,
    directory: TempDir,
}

#[derive(Debug)]
pub(super) struct Instance {
    pub(super) process: Process,
    /// The way from clients.
    pub(super) front: Proxy,
    /// The ways to the nodes of the store.
    pub(super) links: Vec<Proxy>,
    /// Its wall clock, or why it cannot be set.
    pub(super) clock: Result<WallClock, String>,
    url: String,
}

impl Store {
    /// The faults that it is put to.
    ///
    /// Fencing tokens do not rise where the counter was lost and the clock set back, so no store
    /// has to stand both.
    pub(super) fn faults(self) -> Vec<Kind> {
        use Kind as K;
        let (instances, nodes) = (FAULTS_OF_INSTANCES, FAULTS_OF_NODES);
        match self {
            Self::Memory => instances.to_vec(),
            Self::Embedded => [&instances[..], &[K::SlowSyncs]].concat(),
            Self::ForgetfulRedis => {
                [&instances[..], &nodes, &[K::ScriptFlush, K::FlushAll, K::ClockAhead]].concat()
            }
            Self::DurableRedis => {
                [&instances[..], &nodes, &[K::ScriptFlush, K::ClockThereAndBack]].concat()
            }
            Self::Redlock => {
                let own = [K::ScriptFlush, K::ClockThereAndBack, K::KillMost, K::CutInTurn];
                [&instances[..], &nodes, &own].concat()
            }
            // How long a node has been up, only its clock knows.
            Self::SnapshotRedis => [&instances[..], &nodes, &[K::ScriptFlush]].concat(),
            Self::ForgetfulRedlock => {
                [&instances[..], &nodes, &[K::ScriptFlush, K::KillMost, K::CutInTurn]].concat()
            }
            Self::Postgres | Self::AsyncPostgres | Self::Etcd | Self::Zookeeper => {
                let leader = [K::KillLeader, K::StopLeader, K::CutLeader, K::InstanceClock];
                let own: &[_] = match self {
                    Self::Postgres => &[K::KillMost, K::Promote],
                    Self::AsyncPostgres => &[K::KillMost, K::Promote, K::PromoteBehind],
                    Self::Etcd => &[K::KillMost, K::KillFollowers],
                    _ => &[K::KillMost, K::KillFollowers, K::ExpireSession, K::StoreClock],
                };
                [&instances[..], &nodes, &leader, own].concat()
            }
            Self::Sentinel | Self::CarefulSentinel | Self::Cluster => {
                let failovers = [K::FailoverStopped, K::FailoverKilled, K::FailoverCutOff];
                let nodes =
                    [K::KillStore, K::StopStore, K::StopStoreLong, K::ScriptFlush, K::CutNode];
                let own: &[_] = match self {
                    Self::Cluster => &[K::MoveSlots],
                    _ => &[K::FailoverUnseen, K::KillSentinel, K::StopSentinel],
                };
                [&instances[..], &nodes, &failovers, own].concat()
            }
        }
    }

    /// Further settings of the instances.
    fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            // The longest that clients take, after which a node that came up votes.
            Self::ForgetfulRedlock => &[("KEYLATCH_REDLOCK_MAX_TTL_MS", "2000")],
            // A call waits for a session for 1 s, and then says that nothing was done.
            Self::Zookeeper => &[("KEYLATCH_STORE_TIMEOUT_MS", "1500")],
            // So that a slow sync is answered.
            Self::Embedded => &[("KEYLATCH_STORE_TIMEOUT_MS", "3000")],
            Self::CarefulSentinel => &[("KEYLATCH_REDIS_MIN_REPLICAS", "1")],
            _ => &[],
        }
    }

    /// Whether it may know again what was so some time ago, as a new master does.
    pub(super) fn goes_back(self) -> bool {
        use Store as S;
        matches!(
            self,
            S::SnapshotRedis | S::Sentinel | S::CarefulSentinel | S::Cluster | S::AsyncPostgres
        )
    }

    /// Whether it tells no time, so that each instance counts a lease from when it heard of it.
    pub(super) fn counts_by_news(self) -> bool {
        matches!(self, Self::Etcd | Self::Zookeeper)
    }

    /// What clients ask of it.
    pub(super) fn abilities(self) -> Abilities {
        let modes = !self.is_redlock();
        Abilities { modes, sets: modes && self != Self::Cluster }
    }

    pub(super) fn is_redlock(self) -> bool {
        matches!(self, Self::Redlock | Self::ForgetfulRedlock)
    }

    /// Whether several instances can share it.
    pub(super) fn is_shared(self) -> bool {
        !matches!(self, Self::Memory | Self::Embedded)
    }

    /// Whether it forgets nothing under these faults, so that its tier has to say so.
    pub(super) fn is_strict(self) -> bool {
        matches!(self, Self::Postgres | Self::Etcd | Self::Zookeeper)
    }
}

impl Deployment {
    pub(super) async fn open(store: Store, build: &Build) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let clock = WallClock::new(directory.path());
        let nodes = nodes(store, clock.as_ref().ok()).await;
        nodes.set_up().await;
        let (build, instances) = (build.clone(), Vec::new());
        let mut place = Self { store, build, nodes, instances, clock, directory };
        let instances = if store.is_shared() { 3 } else { 1 };
        for _ in 0..instances {
            let instance = place.instance().await;
            place.instances.push(instance);
        }
        place.is_well().await;
        place
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.instances.iter().map(|instance| instance.front.address()).collect()
    }

    /// The tier that an instance says its store has.
    pub(super) async fn tier(&self) -> String {
        let api = Api::at(self.instances[0].process.address);
        eventually(async || {
            let info = api.get("/v1/info").await;
            info.json["store"]["tier"].as_str().map(str::to_owned)
        })
        .await
    }

    /// Waits until every instance has its store.
    pub(super) async fn is_well(&self) {
        self.nodes.are_whole().await;
        for instance in &self.instances {
            let api = Api::at(instance.process.address);
            let mut last = None;
            let ready = async {
                loop {
                    let answer = Answer::try_of(api.request(Method::GET, "/readyz")).await;
                    if answer.as_ref().is_ok_and(|answer| answer.status == 200) {
                        return;
                    }
                    last = Some(answer);
                    pass(Duration::from_millis(10)).await;
                }
            };
            let ready = timeout(WHOLE, ready).await;
            assert!(ready.is_ok(), "not ready again after {WHOLE:?}: {last:?}");
        }
    }

    /// Kills an instance and, after a time, starts it again; gives both process ids.
    pub(super) async fn replace(&mut self, number: usize, after: Duration) -> [u32; 2] {
        let old = self.instances[number].process.id();
        self.instances[number].process.signal("-KILL");
        pass(after).await;
        let Instance { url, clock, .. } = &self.instances[number];
        let process = self.start(url, clock).await;
        let instance = &mut self.instances[number];
        instance.front.lead_to(process.address.to_string());
        let killed = std::mem::replace(&mut instance.process, process);
        assert_eq!(killed.ended().await.code, None, "it was killed");
        [old, instance.process.id()]
    }

    async fn instance(&self) -> Instance {
        let mut links = Vec::new();
        for address in self.nodes.addresses() {
            links.push(Proxy::start(address).await);
        }
        let addresses: Vec<_> = links.iter().map(|link| link.address().to_string()).collect();
        let addresses = addresses.join(",");
        let url = match (self.store, &self.nodes) {
            (Store::Memory, _) => "memory:".to_owned(),
            (Store::Embedded, _) => format!("embedded:{}/data", self.directory.path().display()),
            (_, Nodes::Members(members)) => members.url(&addresses),
            (store, _) if store.is_redlock() => format!("redlock://{addresses}"),
            (_, nodes) => nodes.url().unwrap_or_else(|| format!("redis://{addresses}")),
        };
        let clock = self.clock.as_ref().map_err(String::clone);
        let clock = clock.map(|clock| clock.another(&format!("clock-{}", self.instances.len())));
        let process = self.start(&url, &clock).await;
        let front = Proxy::start(process.address.to_string()).await;
        Instance { process, front, links, clock, url }
    }

    async fn start(&self, url: &str, clock: &Result<WallClock, String>) -> Process {
        let mutant = self.build.mutant.map(|mutant| ("MUTANT", mutant));
        let timeout = ("KEYLATCH_STORE_TIMEOUT_MS", STORE_TIMEOUT);
        let own = self.store.settings();
        // Of the others, some count by their instance's wall clock.
        let is_apart =
            self.store.is_strict() || matches!(self.store, Store::AsyncPostgres | Store::Embedded);
        let clock = clock.as_ref().ok().filter(|_| is_apart);
        let environment: Vec<_> = [timeout]
            .into_iter()
            .chain(own.iter().copied())
            .chain(mutant)
            .chain(environment(clock))
            .collect();
        let arguments = ["--store", url];
        let named = std::env::var("KEYLATCH_TEST_PROGRAM").ok().map(Program::found_at);
        let program = self.build.program.as_ref().or(named.as_ref()).unwrap_or(&KEYLATCH);
        program.serve(&arguments, &environment).await
    }
}

impl Instance {
    /// Whether the process answers within a short time.
    pub(super) async fn answers(&self, within: Duration) -> bool {
        let api = Api::at(self.process.address);
        let alive = Answer::try_of(api.request(Method::GET, "/livez"));
        timeout(within, alive).await.is_ok_and(|answer| answer.is_ok())
    }

    /// Sets its wall clock wrong, and leaves it so, for the processes that replace this one as
    /// well.
    pub(super) fn set_clock(&self, hours: i64) -> FaultEffect {
        let clock = self.clock.as_ref().map_err(String::clone)?;
        clock.set_hours(hours);
        let seen = format!("{hours} hours ahead in process {}", self.process.id());
        if clock.is_that_of(self.process.id()) { Ok(seen) } else { Err(seen) }
    }
}

/// Starts the servers of a store; those whose clock can be set have `shim`.
async fn nodes(store: Store, shim: Option<&WallClock>) -> Nodes {
    match store {
        Store::Memory | Store::Embedded => Nodes::Independent(Vec::new()),
        Store::ForgetfulRedis => Nodes::Independent(vec![node(&[], shim).await]),
        Store::SnapshotRedis => Nodes::Independent(vec![node(&SNAPSHOTS, None).await]),
        Store::DurableRedis => Nodes::Independent(vec![node(&DURABLE, shim).await]),
        Store::Sentinel | Store::CarefulSentinel => Nodes::Sentinels(Sentinels::start(2, 3).await),
        Store::Cluster => Nodes::Cluster(Cluster::start(3, 1).await),
        Store::ForgetfulRedlock => {
            Nodes::Independent(join_all((0..5).map(|_| node(&[], None))).await)
        }
        Store::Redlock => {
            // One of them has its own clock.
            let clocks = [shim, None, None, None, None];
            Nodes::Independent(join_all(clocks.map(|clock| node(&DURABLE, clock))).await)
        }
        Store::Postgres | Store::AsyncPostgres => {
            let replication = match store {
                Store::Postgres => Replication::Synchronous,
                _ => Replication::Asynchronous,
            };
            let pair = PostgresPair::start_with_environment(replication, &environment(shim)).await;
            Nodes::Members(Members::Postgres(pair))
        }
        Store::Etcd => Nodes::Members(Members::Etcd(EtcdCluster::start().await)),
        Store::Zookeeper => {
            let ensemble = Ensemble::start_with_environment(&environment(shim)).await;
            Nodes::Members(Members::Zookeeper(ensemble))
        }
    }
}

/// A node whose wall clock can be set, where there is a way to do that.
async fn node(options: &[&str], clock: Option<&WallClock>) -> RedisServer {
    RedisServer::start_in(options, &environment(clock)).await
}

/// What a process with this clock has to be started with.
fn environment(clock: Option<&WallClock>) -> Vec<(&str, &str)> {
    clock.map(WallClock::environment).into_iter().flatten().collect()
}

/// What a node says of itself, such as `run_id`.
pub(super) async fn fact(node: &RedisServer, fact: &str) -> String {
    // One that is just stopped or not there says nothing.
    let info = node.try_run::<String>(&["INFO", "everything"]);
    let info = timeout(Duration::from_secs(1), info).await.ok().and_then(Result::ok);
    let info = info.unwrap_or_default();
    let mut pairs = info.lines().filter_map(|line| line.split_once(':'));
    let found = pairs.find(|(name, _)| *name == fact);
    found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}
