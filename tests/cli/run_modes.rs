//! Goal: commands share a lock as they ask, a `run` within a `run` enters its lock again, and a
//! command is stopped when its lease is broken.
//!
//! Method: shell scripts as commands, which start `keylatch run` again.

use keylatch_testkit::{ScriptDirectory, Service};
use serde_json::json;

use crate::{KEYLATCH, Stage as _, is, run, staged};

/// The path of [`KEYLATCH`], for scripts.
const PROGRAM: &str = env!("CARGO_BIN_EXE_keylatch");

#[tokio::test]
async fn commands_that_share_a_lock_run_together_each_in_a_slot() {
    let service = Service::start("memory:").await;
    let stages = [ScriptDirectory::new(), ScriptDirectory::new()];
    let script = "echo slot $KEYLATCH_SLOT; begun; held";
    let mut running = Vec::new();
    for stage in &stages {
        running.push(stage.run(&KEYLATCH, &service.url(), &["--limit", "2", "pool"], script));
        stage.begun().await;
    }
    is(&run(&service.url(), &["--limit", "2", "-n", "pool", "--", "true"]).await, 73, &[]);
    stages.iter().for_each(ScriptDirectory::go);
    for (slot, running) in running.into_iter().enumerate() {
        let ended = running.ended().await;
        assert_eq!((ended.code, ended.stdout), (Some(0), format!("slot {slot}\n")));
    }
}

#[tokio::test]
async fn readers_run_together_and_a_writer_does_not() {
    let service = Service::start("memory:").await;
    let (reader, other) = (ScriptDirectory::new(), ScriptDirectory::new());
    let script = "echo \"slot $KEYLATCH_SLOT.\"; begun; held";
    let one = reader.begin(&service.url(), &["--shared", "file"], script).await;
    let two = other.begin(&service.url(), &["--shared", "file"], script).await;
    is(&run(&service.url(), &["-n", "file", "--", "true"]).await, 73, &[]);
    reader.go();
    other.go();
    for running in [one, two] {
        let ended = running.ended().await;
        assert_eq!((ended.code, &*ended.stdout), (Some(0), "slot .\n"), "{ended:?}");
    }
}

#[tokio::test]
async fn run_within_a_run_enters_the_lock_again_and_leaves_it_held() {
    let (service, stage) = staged().await;
    let inner = format!("'{PROGRAM}' run --wait 0s a -- sh -c 'echo $KEYLATCH_FENCING_TOKEN'");
    let script = format!("echo $KEYLATCH_FENCING_TOKEN; {inner}; begun; held");
    let running = stage.begin(&service.url(), &["a"], &script).await;
    let look = service.look("a").await;
    assert_eq!(look.status, 200, "the inner run released the lock of the outer one");
    stage.go();
    let ended = running.ended().await;
    let fencing_token = look.fencing_token();
    let expected = format!("{fencing_token}\n{fencing_token}\n");
    assert_eq!((ended.code, ended.stdout), (Some(0), expected), "{}", ended.stderr);
    assert_eq!(service.look("a").await.status, 404);
}

#[tokio::test]
async fn run_within_a_run_changes_neither_the_ttl_nor_who_else_may_hold_the_lock() {
    let (service, stage) = staged().await;
    let inner =
        format!("'{PROGRAM}' run --ttl 1h --shared a -- sh -c 'echo >inner; read -r word <go'");
    let running = stage.run(&KEYLATCH, &service.url(), &["--ttl", "10s", "a"], &inner);
    stage.has("inner").await;
    let look = service.look("a").await;
    assert!(look.json["expires_in_ms"].as_u64() <= Some(10_000), "{look:?}");
    assert_eq!(look.json.get("mode"), None, "others may hold it too: {look:?}");
    service.create("a", &json!({"mode": "shared"})).await.is_problem(409, "lock-held");
    stage.go();
    assert_eq!(running.ended().await.code, Some(0));
}

#[tokio::test]
async fn run_at_another_service_does_not_send_the_token_there() {
    let (service, other) = (Service::start("memory:").await, Service::start("memory:").await);
    let elsewhere = other.url();
    let inner =
        format!("'{PROGRAM}' run --server {elsewhere} a -- sh -c 'echo >inner; read -r word <go'");
    let stage = ScriptDirectory::new();
    let running = stage.run(
        &KEYLATCH,
        &service.url(),
        &["a"],
        &format!("echo $KEYLATCH_TOKEN >token; {inner}"),
    );
    stage.has("inner").await;
    let token = stage.read("token");
    let renewal = other.renew("a", token.trim(), &json!({})).await;
    renewal.is_problem(412, "token-mismatch");
    stage.go();
    assert_eq!(running.ended().await.code, Some(0));
}

#[tokio::test]
async fn run_of_another_lock_within_a_run_has_a_lease_of_its_own() {
    let service = Service::start("memory:").await;
    let inner = format!(
        "'{PROGRAM}' run b -- sh -c 'echo \"slot $KEYLATCH_SLOT. limit $KEYLATCH_LIMIT.\"'"
    );
    let ended = run(&service.url(), &["--limit", "3", "a", "--", "sh", "-c", &inner]).await;
    assert_eq!((ended.code, &*ended.stdout), (Some(0), "slot . limit .\n"), "{ended:?}");
    assert_eq!(service.look("b").await.status, 404);
}

#[tokio::test]
async fn command_of_a_broken_lease_is_stopped_with_75() {
    let (service, stage) = staged().await;
    let running = stage.run(&KEYLATCH, &service.url(), &["--ttl", "6s", "a"], "begun; held");
    stage.begun().await;
    let fencing_token = service.look("a").await.fencing_token();
    service.break_lease("a", fencing_token).await;
    is(&running.ended().await, 75, &["the lease was broken: it hangs"]);
}
