//! Goal: a command under `keylatch run` runs while its lock is held, and is stopped before the
//! lease can end otherwise.
//!
//! Method: shell scripts as commands, a service that dies, hangs and is cut off, and exit codes.

use std::time::{Duration, SystemTime};

use keylatch_testkit::{Exit, RedisServer, ScriptDirectory, Service, eventually, redis_test};
use serde_json::json;

use crate::{KEYLATCH, Stage as _, is, run, staged};

#[tokio::test]
async fn command_runs_under_its_lock_and_releases_it() {
    let (service, stage) = staged().await;
    let script = "echo $KEYLATCH_NAME $KEYLATCH_FENCING_TOKEN; begun; held; exit 7";
    let running = stage.begin(&service.url(), &["--owner", "alice", "a b"], script).await;
    let look = service.look("a%20b").await;
    assert_eq!(look.json["owner"], "alice", "{look:?}");
    stage.go();
    let ended = running.ended().await;
    is(&ended, 7, &[]);
    assert_eq!(ended.stderr, "");
    assert_eq!(ended.stdout, format!("a b {}\n", look.fencing_token()));
    assert_eq!(service.look("a%20b").await.status, 404);
}

#[tokio::test]
async fn text_runs_by_the_shell() {
    let service = Service::start("memory:").await;
    let ended = run(&service.url(), &["-c", "echo $KEYLATCH_NAME; exit 7", "a"]).await;
    is(&ended, 7, &[]);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("a\n", ""));
    let both = run(&service.url(), &["-c", "true", "a", "--", "true"]).await;
    is(&both, 64, &["cannot be used with"]);
}

#[tokio::test]
async fn shell_before_its_text_is_no_lock() {
    let service = Service::start("memory:").await;
    let url = service.url();
    for shell in ["sh", "bash", "dash", "zsh", "ksh", "fish", "/bin/sh"] {
        let ended = run(&url, &["foo", shell, "-c", "echo hi"]).await;
        is(&ended, 64, &[&format!("keylatch run foo -- {shell} -c TEXT")]);
        assert_eq!(ended.stdout, "", "it did not run");
    }
    is(&run(&url, &["foo", "bash", "-ec", "echo hi"]).await, 64, &["Put `--` before the command"]);
    // Those are locks.
    for arguments in [&["a", "b", "-c", "echo hi"][..], &["-c", "echo hi", "a", "sh"]] {
        let ended = run(&url, arguments).await;
        is(&ended, 0, &[]);
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("hi\n", ""));
    }
    is(&run(&url, &["sh", "-c", "true"]).await, 0, &[]);
}

#[tokio::test]
async fn command_without_dashes_is_told_where_they_go() {
    let ended = run("http://127.0.0.1:1", &["a", "true"]).await;
    is(&ended, 64, &["Put `--` before the command: keylatch run NAME -- COMMAND"]);
}

#[tokio::test]
async fn server_is_the_flag_then_the_variable() {
    let flag = ["-n", "--server", "http://127.0.0.4:1", "a", "--", "true"];
    is(&run("http://127.0.0.2:1", &flag).await, 69, &["http://127.0.0.4:1"]);
    is(&run("http://127.0.0.2:1", &["-n", "a", "--", "true"]).await, 69, &["http://127.0.0.2:1"]);
}

#[tokio::test]
async fn exit_code_is_that_of_the_command() {
    let service = Service::start("memory:").await;
    for (script, code) in [
        ("true", 0),
        ("exit 1", 1),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("kill -40 $$", 168),
    ] {
        let ended = run(&service.url(), &["a", "--", "sh", "-c", script]).await;
        is(&ended, code, &[]);
        assert_eq!(ended.stderr, "", "{script}");
        assert_eq!(service.look("a").await.status, 404, "{script}");
    }
}

#[tokio::test]
async fn lock_is_renewed_while_the_command_runs() {
    let (service, stage) = staged().await;
    let script = "begun; held";
    let running = stage.begin(&service.url(), &["--ttl", "5s", "a"], script).await;
    let fencing_token = service.look("a").await.fencing_token();
    // Another client waits for longer than the TTL and does not get the lock.
    let ended = run(&service.url(), &["--wait", "6s", "a", "--", "true"]).await;
    is(&ended, 73, &["`a` is held by"]);
    assert_eq!(service.look("a").await.fencing_token(), fencing_token);
    stage.go();
    is(&running.ended().await, 0, &[]);
}

#[tokio::test]
async fn command_waits_for_the_lock() {
    let service = Service::start("memory:").await;
    let (first, second) = (ScriptDirectory::new(), ScriptDirectory::new());
    let script = "echo $KEYLATCH_FENCING_TOKEN; begun; held";
    let one = first.begin(&service.url(), &["a"], script).await;
    let two = second.run(&KEYLATCH, &service.url(), &["--wait", "1m", "a"], script);
    first.go();
    second.begun().await;
    second.go();
    let (one, two) = (one.ended().await, two.ended().await);
    is(&one, 0, &[]);
    is(&two, 0, &[]);
    let fencing_token = |ended: &Exit| ended.stdout.trim().parse::<u64>().expect("a fencing token");
    assert!(fencing_token(&one) < fencing_token(&two), "{one:?} {two:?}");
}

#[tokio::test]
async fn held_lock_exits_73_and_names_the_holder() {
    let service = Service::start("memory:").await;
    let held = service.create("a", &json!({"ttl_ms": 600_000, "owner": "alice"})).await;
    for at_once in [&["-n"][..], &["--wait", "0s"]] {
        let ended = run(&service.url(), &[at_once, &["a", "--", "echo", "ran"]].concat()).await;
        is(&ended, 73, &["keylatch: `a` is held by alice"]);
        assert_eq!(ended.stdout, "");
        assert_eq!(service.look("a").await.fencing_token(), held.fencing_token());
    }
    is(&run(&service.url(), &["-n", "--wait", "1s", "a", "--", "true"]).await, 64, &["--wait"]);
}

/// One name more than a set may have.
const SEVENTEEN: [&str; 17] =
    ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q"];

#[tokio::test]
async fn wrong_arguments_exit_64() {
    let server = "http://127.0.0.1:9";
    let long = "n".repeat(256);
    for arguments in [
        &["a"][..],
        &["a", "--"],
        &["--", "true"],
        &["--ttl", "30", "a", "--", "true"],
        &["--ttl", "99ms", "a", "--", "true"],
        &["--ttl", "25h", "a", "--", "true"],
        &["--wait", "soon", "a", "--", "true"],
        &["--wait=-1s", "a", "--", "true"],
        &["--owner", "a\nb", "a", "--", "true"],
        &["--server", "ftp://host", "a", "--", "true"],
        &["--server", "http://user:sesame@host", "a", "--", "true"],
        &["--what", "a", "--", "true"],
        &["", "--", "true"],
        &[&long, "--", "true"],
        &["a", "b", "a", "--", "true"],
        &[&SEVENTEEN[..], &["--", "true"]].concat(),
    ] {
        let ended = run(server, arguments).await;
        assert_eq!(ended.code, Some(64), "{arguments:?}: {ended:?}");
        assert!(!ended.stderr.is_empty() && !ended.stderr.contains("sesame"), "{ended:?}");
    }
}

#[tokio::test]
async fn program_that_cannot_start_releases_its_lock() {
    let service = Service::start("memory:").await;
    let ended = run(&service.url(), &["a", "--", "no-such-program"]).await;
    is(&ended, 127, &["keylatch: `no-such-program` is not found"]);
    let ended = run(&service.url(), &["a", "--", "/etc/passwd"]).await;
    is(&ended, 126, &["keylatch: `/etc/passwd` cannot be executed"]);
    assert_eq!(service.look("a").await.status, 404);
}

#[redis_test]
async fn unreachable_service_exits_69() {
    let (_service, proxy) = Service::behind_proxy().await;
    proxy.refuse();
    let arguments = ["--wait", "0s", "a", "--", "echo", "ran"];
    let ended = run(&proxy.http_url(), &arguments).await;
    is(&ended, 69, &["keylatch: ", &proxy.http_url(), "the service gave no response"]);
    let mut redis = RedisServer::start().await;
    let service = Service::by_default(&redis.url()).await;
    redis.kill().await;
    let ended = run(&service.url(), &arguments).await;
    is(&ended, 69, &["keylatch: ", &service.url(), "503"]);
    assert_eq!(ended.stdout, "");
}

#[tokio::test]
async fn other_server_exits_76() {
    let service = Service::start("memory:").await;
    let elsewhere = format!("{}/elsewhere", service.url());
    let ended = run(&elsewhere, &["a", "--", "echo", "ran"]).await;
    is(&ended, 76, &["keylatch: ", &elsewhere, "404"]);
    assert_eq!(ended.stdout, "");
}

#[tokio::test]
async fn help_lists_the_exit_codes() {
    let ended = run("", &["--help"]).await;
    is(&ended, 0, &[]);
    for word in ["64 ", "69 ", "70 ", "73 ", "75 ", "76 ", "126 ", "127 ", "KEYLATCH_URL"] {
        assert!(ended.stdout.contains(word), "{word}: {ended:?}");
    }
}

#[tokio::test]
async fn service_starts_under_run() {
    let around = [
        ("KEYLATCH_URL", "http://127.0.0.1:7070"),
        ("KEYLATCH_NAME", "a"),
        ("KEYLATCH_FENCING_TOKEN", "1"),
        ("KEYLATCH_NAMES", "a\nb"),
        ("KEYLATCH_FENCING_TOKENS", "1 a\n2 b"),
        ("KEYLATCH_SLOTS", "0 a\n0 b"),
    ];
    KEYLATCH.serve(&[], &around).await;
}

/// How a command ends whose lock a Redis has forgotten, and what it has left.
async fn lost(script: &str) -> (Exit, ScriptDirectory) {
    let (redis, service) = Service::on_redis().await;
    let stage = ScriptDirectory::new();
    let running = stage.begin(&service.url(), &["--ttl", "4s", "a"], script).await;
    assert!(stage.is_alive());
    redis.run::<()>(&["FLUSHALL"]).await;
    (running.ended().await, stage)
}

#[redis_test]
async fn lost_lock_stops_the_command() {
    let (ended, _) = lost("trap 'echo stopped; exit 0' TERM; begun; held").await;
    is(&ended, 75, &["keylatch: `a` is lost: ", "no client holds", "the command was stopped"]);
    assert_eq!(ended.stdout, "stopped\n");
    let (ended, _) = lost("trap 'echo stopped; exit 0' TERM; begun; kill -STOP $$; held").await;
    is(&ended, 75, &["the command was stopped"]);
    assert_eq!(ended.stdout, "stopped\n", "it was paused");
}

#[redis_test]
async fn lost_lock_kills_a_command_and_its_children() {
    let (ended, stage) = lost("trap '' TERM; (held) & (held) & begun; wait").await;
    is(&ended, 75, &["the command was killed"]);
    stage.left().await;
}

#[redis_test]
async fn full_stderr_pipe_does_not_prevent_stopping() {
    let (redis, service) = Service::on_redis().await;
    let stage = ScriptDirectory::new();
    // As much as a pipe holds.
    let script = "head -c 65536 /dev/zero >&2; begun; held";
    let running = stage.begin(&service.url(), &["--ttl", "4s", "a"], script).await;
    redis.run::<()>(&["FLUSHALL"]).await;
    stage.left().await;
    is(&running.ended().await, 75, &["the command was stopped"]);
}

#[redis_test]
async fn child_of_the_command_may_outlive_it() {
    // The shell ends at once, and its child only when its parent has.
    let script = "(trap 'while kill -0 $$; do :; done; echo done >done; exit' TERM; begun; held) &
        wait";
    let (ended, stage) = lost(script).await;
    is(&ended, 75, &["the command was stopped"]);
    assert_eq!(stage.read("done"), "done\n");
}

#[tokio::test]
async fn unstoppable_command_is_killed_before_validity_ends() {
    let (service, proxy) = Service::behind_proxy().await;
    let stage = ScriptDirectory::new();
    let script = "trap 'while :; do echo >last; sleep 0.01; done' TERM; begun; held";
    let running = stage.begin(&proxy.http_url(), &["--ttl", "4s", "a"], script).await;
    proxy.refuse();
    // The look comes after `now`, so the end of the lease is a little too early.
    let now = SystemTime::now();
    let left = service.look("a").await.json["expires_in_ms"].as_u64().expect("a lock");
    let drift = 4000 / 100 + 2;
    let validity_ends = now + Duration::from_millis(left - drift);
    stage.left().await;
    let last = stage.path("last").metadata().expect("it was asked to stop before");
    let last = last.modified().expect("a time");
    assert!(last < validity_ends, "{last:?} {validity_ends:?}");
    proxy.forward();
    is(&running.ended().await, 75, &["could not be renewed", "the command was killed"]);
}

#[tokio::test]
async fn command_may_stop_for_the_rest_of_its_lease() {
    let (_service, proxy) = Service::behind_proxy().await;
    let stage = ScriptDirectory::new();
    // A quarter of 16 s is more than what this takes.
    let script = "trap 'sleep 1.5; echo done; exit' TERM; begun; held";
    let running = stage.begin(&proxy.http_url(), &["--ttl", "16s", "a"], script).await;
    proxy.refuse();
    stage.left().await;
    proxy.forward();
    let ended = running.ended().await;
    is(&ended, 75, &["could not be renewed", "the command was stopped"]);
    assert_eq!(ended.stdout, "done\n");
}

#[redis_test]
async fn command_of_a_taken_over_lock_is_killed_after_a_moment() {
    let (redis, service) = Service::on_redis().await;
    let stage = ScriptDirectory::new();
    let script = "trap 'echo asked >asked' TERM; begun; held; held; held";
    let running = stage.begin(&service.url(), &["--ttl", "12s", "a"], script).await;
    redis.run::<()>(&["FLUSHALL"]).await;
    // By its own count, `run` would signal the command at 4 s and kill it at 12 s.
    let other = service.create("a", &json!({"ttl_ms": 9000})).await;
    stage.left().await;
    let holder = service.look("a").await.fencing_token();
    assert_eq!(holder, other.fencing_token(), "the other still holds it");
    is(&running.ended().await, 75, &["another client holds the lock", "the command was killed"]);
    assert_eq!(stage.read("asked"), "asked\n");
    let holder = service.look("a").await.fencing_token();
    assert_eq!(holder, other.fencing_token(), "another client's lock was released");
}

#[tokio::test]
async fn hanging_service_stops_the_command() {
    let service = KEYLATCH.serve(&[], &[]).await;
    let server = format!("http://{}", service.address);
    let stage = ScriptDirectory::new();
    let running = stage.run(&KEYLATCH, &server, &["--ttl", "4s", "a"], "begun; held");
    stage.begun().await;
    service.signal("-STOP");
    is(&running.ended().await, 75, &["could not be renewed", "the command was stopped"]);
    stage.left().await;
}

#[tokio::test]
async fn paused_holder_stops_its_command_when_resumed() {
    let (service, stage) = staged().await;
    let script = "trap 'echo stopped >stopped' TERM; begun; held; held";
    let running = stage.begin(&service.url(), &["--ttl", "9s", "a"], script).await;
    let fencing_token = service.look("a").await.fencing_token();
    running.signal("-STOP");
    let next = async || {
        let next = service.create("a", &json!({"ttl_ms": 60_000})).await;
        (next.status == 201).then_some(next)
    };
    let next = eventually(next).await;
    assert!(next.fencing_token() > fencing_token);
    assert!(stage.is_alive(), "the command ended while `run` was stopped");
    running.signal("-CONT");
    is(&running.ended().await, 75, &["ended while this process was paused", "was killed"]);
    stage.left().await;
    assert_eq!(stage.read("stopped"), "", "there is no time to be asked");
    let holder = service.look("a").await.fencing_token();
    assert_eq!(holder, next.fencing_token(), "the other still holds it");
}
