//! Goal: signals and the terminal reach the command as if it ran alone.
//!
//! Method: scripts that trap signals, and a pseudo-terminal.

use std::process::Stdio;

use keylatch_testkit::{RunningCommand, ScriptDirectory, Service, eventually, soon};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use crate::{KEYLATCH, Stage as _, is, staged};

#[tokio::test]
async fn signals_are_forwarded() {
    let service = Service::start("memory:").await;
    for signal in ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "ALRM"] {
        let stage = ScriptDirectory::new();
        let script = format!("trap 'echo {signal}; exit 3' {signal}; begun; held");
        let running = stage.begin(&service.url(), &["a"], &script).await;
        running.signal(&format!("-{signal}"));
        let ended = running.ended().await;
        assert_eq!((ended.code, ended.stdout), (Some(3), format!("{signal}\n")));
        assert_eq!(ended.stderr, "", "{signal}");
        assert_eq!(service.look("a").await.status, 404, "{signal}");
    }
}

#[tokio::test]
async fn command_ended_by_a_forwarded_signal_exits_128_plus_signal() {
    let service = Service::start("memory:").await;
    for (signal, code) in [("TERM", 143), ("INT", 130), ("USR1", 138)] {
        let stage = ScriptDirectory::new();
        let running = stage.run(&KEYLATCH, &service.url(), &["a"], "begun; held");
        stage.begun().await;
        running.signal(&format!("-{signal}"));
        assert_eq!(running.ended().await.code, Some(code), "{signal}");
        assert!(!stage.is_alive(), "{signal}");
    }
}

#[tokio::test]
async fn ignored_signal_stays_ignored() {
    let (service, stage) = staged().await;
    let script = stage.script("trap 'exit 4' USR1; begun; held");
    let nohup = r#"trap "" HUP; exec "$0" run a -- sh -c "$1""#;
    let running = RunningCommand::of(
        &["sh", "-c", nohup, env!("CARGO_BIN_EXE_keylatch"), &script],
        &[("KEYLATCH_URL", &service.url())],
    );
    stage.begun().await;
    running.signal("-HUP");
    running.signal("-USR1");
    assert_eq!(running.ended().await.code, Some(4));
}

#[tokio::test]
async fn signal_ends_the_wait_and_leaves_the_queue() {
    let service = Service::start("memory:").await;
    let held = service.create("a", &json!({"ttl_ms": 60_000})).await;
    for (signal, number, code) in [("TERM", 15, 143), ("INT", 2, 130)] {
        let stage = ScriptDirectory::new();
        let running = stage.run(&KEYLATCH, &service.url(), &["--wait", "1m", "a"], "begun");
        // It listens to signals before it asks, and asks before it ends.
        running.catches(number).await;
        running.signal(&format!("-{signal}"));
        is(&running.ended().await, code, &[]);
        assert_eq!(stage.read("begun"), "");
    }
    assert_eq!(service.release("a", &held.token()).await.status, 204);
    assert_eq!(service.look("a").await.status, 404);
}

#[tokio::test]
async fn paused_command_keeps_its_lock() {
    let (service, stage) = staged().await;
    let running =
        stage.run(&KEYLATCH, &service.url(), &["--ttl", "5s", "a"], "begun; kill -STOP $$; exit 5");
    stage.begun().await;
    let fencing_token = service.look("a").await.fencing_token();
    let other =
        ScriptDirectory::new().run(&KEYLATCH, &service.url(), &["--wait", "6s", "a"], "begun");
    assert_eq!(other.ended().await.code, Some(73));
    assert_eq!(service.look("a").await.fencing_token(), fencing_token);
    running.signal("-CONT");
    assert_eq!(running.ended().await.code, Some(5));
}

#[tokio::test]
async fn command_has_the_terminal_and_its_keys() {
    let (service, stage) = staged().await;
    let script = "
        trap 'echo interrupted >>keys' INT; begun
        while [ \"$line\" != end ]; do
            read -r line && echo got $line >>keys || [ -t 0 ] || exit 7
        done
        exit 6";
    // util-linux's `script` runs a command in a new terminal.
    std::fs::write(stage.path("script"), stage.script(script)).expect("a script");
    let run = format!(
        "exec {} run a -- sh {}",
        env!("CARGO_BIN_EXE_keylatch"),
        stage.path("script").display()
    );
    let mut child = tokio::process::Command::new("env")
        .args(["--default-signal", "script", "--quiet", "--return", "--command", &run, "/dev/null"])
        .env("KEYLATCH_URL", service.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("script runs");
    let mut keys = child.stdin.take().expect("its keys");
    stage.begun().await;
    for (key, seen) in
        [("hello\n", "got hello\n"), ("\x03", "interrupted\n"), ("end\n", "got end\n")]
    {
        keys.write_all(key.as_bytes()).await.expect("a terminal");
        eventually(async || stage.read("keys").ends_with(seen).then_some(())).await;
    }
    let ended = soon("its end", child.wait()).await.expect("it ends");
    assert_eq!(ended.code(), Some(6));
    // The terminal's own interrupt is not passed on once more.
    assert_eq!(stage.read("keys"), "got hello\ninterrupted\ngot end\n");
}
