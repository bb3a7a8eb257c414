//! Goal: whatever becomes of machines and service, no key's command runs twice unless `--on-crash
//! rerun` said so after a crash, none is left out where a machine is there, and no two run at once.
//!
//! Method: rounds of three machines with a key each, on a service on disk, with one trouble while
//! the first one runs. Scripts hold an `flock`, and note their fencing tokens and their ends.

use keylatch_testkit::{Exit, RunningCommand, ScriptDirectory, scaled};

use crate::KEYLATCH;
use crate::run_overlap::ProxiedService;

/// What happens while the first of three machines runs the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    MachineKilled,
    ServiceRestarted,
    ServicePaused,
    Unreachable,
}

const TROUBLES: [Trouble; 5] = [
    Trouble::None,
    Trouble::MachineKilled,
    Trouble::ServiceRestarted,
    Trouble::ServicePaused,
    Trouble::Unreachable,
];

/// What three machines came to, the one that began first.
struct Round {
    stage: ScriptDirectory,
    ended: [Exit; 3],
}

#[tokio::test]
async fn command_of_a_key_runs_once_and_never_beside_itself() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut service = ProxiedService::open(&directory).await;
    let rounds = usize::try_from(scaled(10)).expect("a number of rounds");
    for number in 0..rounds {
        let trouble = TROUBLES[number % TROUBLES.len()];
        let on_crash = ["unknown", "rerun"][number / TROUBLES.len() % 2];
        let round = play(&mut service, &format!("round-{number}"), trouble, on_crash).await;
        let Round { stage, ended } = round;
        let what = format!("round {number}, {trouble:?}, {on_crash}: {ended:?}");
        assert_eq!(stage.read("overlaps"), "", "{what}");
        let fences = stage.read("fences");
        let fences: Vec<u64> = fences.lines().map(|fence| fence.parse().expect("one")).collect();
        assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}: {what}");
        let codes = ended.each_ref().map(|ended| ended.code);
        let [first, others @ ..] = codes;
        // Its own exit code, or the end of a lease that could not be renewed, or a kill.
        assert!(matches!(first, Some(5 | 75) | None), "{what}");
        assert_eq!(first.is_none(), trouble == Trouble::MachineKilled, "{what}");
        if first == Some(5) {
            assert_eq!((fences.len(), others), (1, [Some(5); 2]), "{what}");
        } else if on_crash == "unknown" {
            assert_eq!((fences.len(), others), (1, [Some(65); 2]), "{what}");
        } else {
            assert_eq!((fences.len(), others), (2, [Some(5); 2]), "{what}");
        }
        let has_ended = first == Some(5) || on_crash == "rerun";
        assert_eq!(stage.read("done").lines().count(), usize::from(has_ended), "{what}");
    }
}

async fn play(service: &mut ProxiedService, key: &str, trouble: Trouble, on_crash: &str) -> Round {
    let stage = ScriptDirectory::new();
    let script = "echo $KEYLATCH_FENCING_TOKEN >>fences; begun; held; echo done >>done; exit 5";
    let script = stage.script(script);
    let url = service.proxy.http_url();
    let start = || -> RunningCommand {
        let options = ["once", "--ttl", "5s", "--wait", "1m", "--on-crash", on_crash, key];
        let command = ["--", "sh", "-c", &script];
        KEYLATCH.start(&[&options[..], &command].concat(), &[("KEYLATCH_URL", &url)])
    };
    let first = start();
    stage.begun().await;
    let others = [start(), start()];
    match trouble {
        Trouble::None => {}
        Trouble::MachineKilled => {
            first.signal("-KILL");
            stage.left().await;
        }
        Trouble::ServiceRestarted => service.restart().await,
        Trouble::ServicePaused => {
            service.signal("-STOP");
            stage.left().await;
            service.signal("-CONT");
        }
        Trouble::Unreachable => {
            service.proxy.refuse();
            stage.left().await;
            service.proxy.forward();
        }
    }
    // One word for each that may come to it.
    stage.go();
    stage.go();
    let [second, third] = others;
    let (first, second, third) = tokio::join!(first.ended(), second.ended(), third.ended());
    Round { stage, ended: [first, second, third] }
}
