//! The instances of keylatch that a campaign of keys kills and starts again.
//!
//! Goal: a shopper always finds an instance that the campaign has not killed.
//!
//! Method: processes end by SIGKILL. `kill` hides the address before it ends the process, and
//! `restart` shows the new one. `Fleet::none` leads straight to the upstream, for the test of the
//! check: `check_reports_double_runs_without_a_guard`.

use std::io::Write as _;
use std::net::SocketAddr;

use keylatch_testkit::{Dice, Process, soon};
use tempfile::NamedTempFile;
use tokio::sync::{Mutex, watch};

use super::{LEASE, UPSTREAM_TIMEOUT};
use crate::KEYLATCH;

/// Instances of keylatch over one store, some of which may just be dead.
#[derive(Debug)]
pub(super) struct Fleet {
    store: String,
    config: NamedTempFile,
    processes: Mutex<Vec<Option<Process>>>,
    addresses: watch::Sender<Vec<Option<SocketAddr>>>,
}

impl Fleet {
    /// So many instances over a store, which guard the upstream at a URL.
    pub(super) async fn start(store: &str, upstream: &str, instances: usize) -> Self {
        let fleet = Self::before(store, upstream);
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
        let process = KEYLATCH.serve(&["--config", config, "--store", &self.store], &[]).await;
        let address = process.address;
        self.processes.lock().await[number] = Some(process);
        self.addresses.send_modify(|addresses| addresses[number] = Some(address));
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
            let lease = LEASE.as_millis();
            let guard = format!("[[guard]]\npath = \"{path}\"\nupstream = \"{upstream}\"");
            let times =
                format!("lease_ms = {lease}\ntimeout_ms = {}", UPSTREAM_TIMEOUT.as_millis());
            writeln!(config, "{guard}\non_crash = \"{on_crash}\"\n{times}")
                .expect("the file takes it");
        }
        let (processes, addresses) = Default::default();
        Self { store: store.to_owned(), config, processes, addresses }
    }
}
