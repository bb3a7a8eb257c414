//! Goal: a command ends with its `keylatch run`, also where that is killed.
//!
//! Method: shell scripts as commands, and SIGKILL for the process around them.

use crate::{Stage as _, staged};

#[tokio::test]
async fn killed_run_takes_its_command_and_what_that_started_with_it() {
    let (service, stage) = staged().await;
    let script = "trap 'echo asked >asked; exit' TERM; (held) & begun; wait";
    let running = stage.begin(&service.url(), &["--ttl", "30s", "a"], script).await;
    running.signal("-KILL");
    stage.left().await;
    assert_eq!(stage.read("asked"), "asked\n");
    assert_eq!(service.look("a").await.status, 200, "it has ended before its lease");
}

#[tokio::test]
async fn command_that_ignores_the_end_of_its_run_is_killed() {
    let (service, stage) = staged().await;
    let script = "trap '' TERM; (held) & begun; wait; wait";
    let running = stage.begin(&service.url(), &["--ttl", "30s", "a"], script).await;
    running.signal("-KILL");
    stage.left().await;
}

#[tokio::test]
async fn process_that_a_command_leaves_behind_outlives_them() {
    let (service, stage) = staged().await;
    let script = "(held; echo done >done) >/dev/null 2>&1 & begun";
    let running = stage.begin(&service.url(), &["a"], script).await;
    assert_eq!(running.ended().await.code, Some(0));
    stage.go();
    stage.has("done").await;
}
