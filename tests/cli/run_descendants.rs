//! Goal: when a lock is lost, `keylatch run` stops all that its command has started, also what left
//! the command's process group; and it stops nothing else.
//!
//! Method: scripts with children in sessions and groups of their own, orphans among them. A
//! script's `flock` tells whether any of them lives.

use keylatch_testkit::{RunningCommand, ScriptDirectory, Service, eventually, redis_test};

use crate::{KEYLATCH, is, staged};

/// A child in a session of its own, one in a group of its own, and a daemon whose parents have
/// ended.
const SCATTER: &str = "
    exec >/dev/null 2>&1
    setsid sh -c 'echo >session; read word <go' &
    timeout 300 sh -c 'echo >group; read word <go' &
    (setsid sh -c '(echo >daemon; read word <go) &' &)
    begun";

async fn scattered(stage: &ScriptDirectory) {
    stage.begun().await;
    for child in ["session", "group", "daemon"] {
        stage.has(child).await;
    }
}

#[redis_test]
async fn lost_lock_ends_children_in_sessions_and_groups_of_their_own() {
    for (script, how) in [
        (format!("{SCATTER}; wait"), "the command was stopped"),
        (format!("trap '' TERM; {SCATTER}; trap - TERM; held"), "the command was killed"),
    ] {
        let (redis, service) = Service::on_redis().await;
        let stage = ScriptDirectory::new();
        let running = stage.run(&KEYLATCH, &service.url(), &["--ttl", "5s", "a"], &script);
        scattered(&stage).await;
        redis.run::<()>(&["FLUSHALL"]).await;
        is(&running.ended().await, 75, &[how]);
        assert!(!stage.is_alive(), "a child of the command lives without the lock");
    }
}

#[redis_test]
async fn lost_lock_spares_what_the_command_did_not_start() {
    let (redis, service) = Service::on_redis().await;
    let (stage, elsewhere) = (ScriptDirectory::new(), ScriptDirectory::new());
    // The shell that becomes `run` has a child already.
    let before = elsewhere.script("begun; held; echo >spared");
    let script = stage.script("begun; held");
    let running = RunningCommand::of(
        &[
            "sh",
            "-c",
            r#"sh -c "$2" >/dev/null 2>&1 & exec "$0" run --ttl 5s a -- sh -c "$1""#,
            env!("CARGO_BIN_EXE_keylatch"),
            &script,
            &before,
        ],
        &[("KEYLATCH_URL", &service.url())],
    );
    stage.begun().await;
    elsewhere.begun().await;
    redis.run::<()>(&["FLUSHALL"]).await;
    stage.left().await;
    elsewhere.go();
    elsewhere.has("spared").await;
    assert_eq!(running.ended().await.code, Some(75));
}

#[tokio::test]
async fn child_continues_after_the_command_has_ended_by_itself() {
    let (service, stage) = staged().await;
    let script = "setsid sh -c 'echo >begun; read word <go; echo >later' >/dev/null 2>&1 &
        until [ -e begun ]; do sleep 0.01; done; exit 3";
    let running = stage.run(&KEYLATCH, &service.url(), &["a"], script);
    assert_eq!(running.ended().await.code, Some(3));
    stage.go();
    stage.has("later").await;
}

#[tokio::test]
async fn orphan_of_the_command_leaves_no_zombie() {
    let (service, stage) = staged().await;
    let script = "(sh -c 'echo $$ >pid; mv pid orphan' &); begun; held";
    let running = stage.run(&KEYLATCH, &service.url(), &["a"], script);
    stage.has("orphan").await;
    let process = format!("/proc/{}", stage.read("orphan").trim());
    eventually(async || (!std::path::Path::new(&process).exists()).then_some(())).await;
    stage.go();
    assert_eq!(running.ended().await.code, Some(0));
}
