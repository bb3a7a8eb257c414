//! The instances of keylatch that a campaign of keys kills and starts again.
//!
//! Goal: a shopper always finds an instance that the campaign has not killed.
//!
//! Method: processes end by SIGKILL. `kill` hides the address before it ends the process, and
//! `restart` shows the new one. An instance reaches a store by a proxy, or has a disk whose syncs
//! can be made slow. `Fleet::none` leads straight to the upstream, for the test of the check:
//! `check_reports_double_runs_without_a_guard`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use keylatch_testkit::{Dice, Process, Proxy, WallClock, soon};
use tempfile::{NamedTempFile, TempDir};
use tokio::sync::{Mutex, watch};

use super::{LEASE, UPSTREAM_TIMEOUT};
use crate::KEYLATCH;
use crate::locks::pass;

/// Instances of keylatch over one store, some of which may just be dead.
#[derive(Debug)]
pub(super) struct Fleet {
    /// The URL of the store.
    store: String,
    /// The way to a store that is a server.
    link: Option<Proxy>,
    /// The disk of one that is not.
    disk: Option<WallClock>,
    config: NamedTempFile,
    directory: TempDir,
    processes: Mutex<Vec<Option<Process>>>,
    addresses: watch::Sender<Vec<Option<SocketAddr>>>,
}

impl Fleet {
    /// So many instances over a store, which guard the upstream at a URL.
    pub(super) async fn start(store: &str, upstream: &str, instances: usize) -> Self {
        let mut fleet = Self::before(store, upstream);
        match server_of(store) {
            Some(server) => {
                let link = Proxy::start(server.to_owned()).await;
                fleet.store = store.replace(server, &link.address().to_string());
                fleet.link = Some(link);
            }
            None => fleet.disk = WallClock::new(fleet.directory.path()).ok(),
        }
        fleet.processes.lock().await.resize_with(instances, || None);
        fleet.addresses.send_replace(vec![None; instances]);
        for number in 0..instances {
            fleet.restart(number).await;
        }
        fleet
    }

    /// No instance at all: what is sent goes straight to `address`.
    pub(super) fn none(address: SocketAddr) -> Self {
        let fleet = Self::before("memory:", "http://127.0.0.1:9");
        fleet.addresses.send_replace(vec![Some(address)]);
        fleet
    }

    /// How many instances there are.
    pub(super) async fn len(&self) -> usize {
        self.processes.lock().await.len()
    }

    /// Kills an instance.
    pub(super) async fn kill(&self, number: usize) {
        // Only clients that already have the address meet the dead instance.
        self.addresses.send_modify(|addresses| addresses[number] = None);
        let process = self.processes.lock().await[number].take().expect("it runs");
        process.ended_by("-KILL").await;
    }

    /// Starts an instance that was killed.
    pub(super) async fn restart(&self, number: usize) {
        let config = self.config.path().to_str().expect("a plain path");
        let arguments = ["--config", config, "--store", &self.store];
        let environment: Vec<_> = self.disk.iter().flat_map(WallClock::environment).collect();
        let process = KEYLATCH.serve(&arguments, &environment).await;
        let address = process.address;
        self.processes.lock().await[number] = Some(process);
        self.addresses.send_modify(|addresses| addresses[number] = Some(address));
    }

    /// Stops an instance, or lets it go on. Its clients wait.
    pub(super) async fn signal(&self, number: usize, signal: &str) {
        let processes = self.processes.lock().await;
        processes[number].as_ref().expect("it runs").signal(signal);
    }

    /// Disturbs for a moment what is between the instances and their store.
    pub(super) async fn disturb_store(&self, dice: &mut Dice) {
        if let Some(link) = &self.link {
            match dice.below(4) {
                0 => link.lose_answers(),
                1 => link.hold_requests(),
                2 => link.hold_answers(),
                _ => link.refuse(),
            }
            pass(Duration::from_millis(100 + dice.below(900))).await;
            link.forward();
        }
        if let Some(disk) = &self.disk {
            // A sync that begins now ends when each lease is over that was there before.
            disk.delay_syncs(LEASE + LEASE / 6);
            pass(LEASE / 3).await;
            disk.delay_syncs(Duration::ZERO);
        }
    }

    /// The address of some instance that is not known to be dead.
    pub(super) async fn any(&self, dice: &mut Dice) -> SocketAddr {
        let mut addresses = self.addresses.subscribe();
        let some_live = addresses.wait_for(|all| all.iter().any(Option::is_some));
        let all = soon("an instance", some_live).await.expect("the fleet is there").clone();
        let live: Vec<_> = all.into_iter().flatten().collect();
        live[dice.below(live.len() as u64) as usize]
    }

    fn before(store: &str, upstream: &str) -> Self {
        let mut config = NamedTempFile::new().expect("a temporary file");
        for (path, on_crash) in [("/orders", "unknown"), ("/mails", "rerun")] {
            let guard = config_of(path, upstream, on_crash);
            writeln!(config, "{guard}").expect("the file takes it");
        }
        let derives = "missing_key = \"derive\"\nmax_wait_ms = 3000\n\
                       derive = { anonymous = true, window_ms = 86400000 }";
        let clicks = config_of("/clicks", upstream, "unknown");
        writeln!(config, "{clicks}\n{derives}").expect("the file takes it");
        // An upstream that is not heard carries nothing out after `after_ms`.
        let settles = "settle = { get = \"/by-key/{key}\", done = [201], not_done = [404], after_ms = 12000, \
                       every_ms = 1000 }";
        let taps = config_of("/taps", upstream, "unknown");
        writeln!(config, "{taps}\n{derives}\n{settles}").expect("the file takes it");
        let (processes, addresses) = Default::default();
        let (store, directory) = (store.to_owned(), TempDir::new().expect("a directory"));
        Self { store, link: None, disk: None, config, directory, processes, addresses }
    }
}

/// A guard, as the configuration has it.
fn config_of(path: &str, upstream: &str, on_crash: &str) -> String {
    let (lease, timeout) = (LEASE.as_millis(), UPSTREAM_TIMEOUT.as_millis());
    format!(
        "[[guard]]\npath = \"{path}\"\nupstream = \"{upstream}\"\non_crash = \"{on_crash}\"\n\
         lease_ms = {lease}\ntimeout_ms = {timeout}"
    )
}

/// The address of the server in the URL of a store, if there is one.
fn server_of(store: &str) -> Option<&str> {
    let (_, server) = store.split_once("://")?;
    server.rsplit('@').next()?.split('/').next()
}
