//! Goal: two commands under one lock never overlap.
//!
//! Method: pairs of scripts that hold an `flock`, while the service is killed, paused and cut off.

use keylatch_testkit::{Exit, Process, Proxy, RunningCommand, ScriptDirectory, scaled};
use tempfile::TempDir;

use crate::KEYLATCH;

/// How many rounds there are.
fn rounds() -> usize {
    usize::try_from(scaled(8)).expect("a number of rounds")
}

/// What happens to the service while the first of two commands runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    Restarted,
    Paused,
    Unreachable,
}

const TROUBLES: [Trouble; 4] =
    [Trouble::None, Trouble::Restarted, Trouble::Paused, Trouble::Unreachable];

#[tokio::test]
async fn commands_of_one_lock_never_overlap() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut service = ProxiedService::open(&directory).await;
    for round in 0..rounds() {
        let trouble = TROUBLES[round % TROUBLES.len()];
        let (stage, ended) = service.round(trouble).await;
        let overlaps = stage.read("overlaps");
        assert_eq!(overlaps, "", "round {round}, {trouble:?}: {ended:?}");
        let fences = stage.read("fences");
        let fences: Vec<u64> =
            fences.lines().map(|fencing_token| fencing_token.parse().expect("one")).collect();
        assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
        assert_eq!(fences.len(), 2, "round {round}, {trouble:?}: both ran: {ended:?}");
        let codes = ended.each_ref().map(|ended| ended.code);
        let lost = codes.iter().filter(|code| **code == Some(75)).count();
        let right = codes.iter().all(|code| matches!(code, Some(0 | 75)));
        let stopped = matches!(trouble, Trouble::Paused | Trouble::Unreachable);
        assert!(right && (!stopped || lost > 0), "round {round}, {trouble:?}: {ended:?}");
    }
}

#[tokio::test]
async fn check_reports_two_overlapping_commands() {
    let stage = ScriptDirectory::new();
    let script = stage.script("begun; held");
    let start = || RunningCommand::of(&["sh", "-c", &script], &[("KEYLATCH_FENCING_TOKEN", "1")]);
    let first = start();
    stage.begun().await;
    let second = start();
    stage.has("overlaps").await;
    drop((first, second));
}

/// A service on disk, behind a proxy that stays where it is.
struct ProxiedService {
    store: String,
    service: Option<Process>,
    proxy: Proxy,
}

impl ProxiedService {
    async fn open(directory: &TempDir) -> Self {
        let store = format!("embedded:{}", directory.path().display());
        let service = KEYLATCH.serve(&["--store", &store], &[]).await;
        let proxy = Proxy::start(service.address.to_string()).await;
        Self { store, service: Some(service), proxy }
    }

    /// Two commands at once, and trouble while the first one runs.
    async fn round(&mut self, trouble: Trouble) -> (ScriptDirectory, [Exit; 2]) {
        let stage = ScriptDirectory::new();
        let arguments = ["--ttl", "4s", "--wait", "1m", "a"];
        let script = "echo $KEYLATCH_FENCING_TOKEN >>fences; begun; held";
        let start = || stage.run(&KEYLATCH, &self.proxy.http_url(), &arguments, script);
        let (one, two) = (start(), start());
        stage.begun().await;
        match trouble {
            Trouble::None => {}
            Trouble::Restarted => self.restart().await,
            Trouble::Paused => {
                self.signal("-STOP");
                stage.left().await;
                self.signal("-CONT");
            }
            Trouble::Unreachable => {
                self.proxy.refuse();
                stage.left().await;
                self.proxy.forward();
            }
        }
        stage.go();
        stage.go();
        let (one, two) = tokio::join!(one.ended(), two.ended());
        (stage, [one, two])
    }

    async fn restart(&mut self) {
        self.proxy.refuse();
        if let Some(service) = self.service.take() {
            service.ended_by("-KILL").await;
        }
        let service = KEYLATCH.serve(&["--store", &self.store], &[]).await;
        self.proxy.lead_to(service.address.to_string());
        self.proxy.forward();
        self.service = Some(service);
    }

    fn signal(&self, signal: &str) {
        self.service.as_ref().expect("a service").signal(signal);
    }
}
