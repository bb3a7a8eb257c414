//! Goal: a command under `keylatch once` runs once for its key, whatever becomes of the machines.
//!
//! Method: several commands as the machines, shell scripts, and a service that is cut off. What a
//! key came to is read over HTTP.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keylatch_testkit::{
    Answer, Exit, RunningCommand, ScriptDirectory, Service, WallClock, eventually,
};
use reqwest::Method;
use serde_json::json;

use crate::{KEYLATCH, ask, is, staged};

async fn once(server: &str, arguments: &[&str]) -> Exit {
    ask(server, "once", arguments).await
}

/// Starts `keylatch once ARGUMENTS -- sh -c SCRIPT`.
fn start(
    stage: &ScriptDirectory,
    server: &str,
    arguments: &[&str],
    script: &str,
) -> RunningCommand {
    let script = stage.script(script);
    let arguments = [&["once"], arguments, &["--", "sh", "-c", &script]].concat();
    KEYLATCH.start(&arguments, &[("KEYLATCH_URL", server)])
}

/// The same of any command, with its standard error in the file `said`, for the test to read
/// meanwhile.
fn start_heard(stage: &ScriptDirectory, server: &str, arguments: &[&str]) -> RunningCommand {
    let said = stage.path("said").display().to_string();
    let exec = "exec \"$0\" once \"$@\" 2>\"$SAID\"";
    let shell = ["sh", "-c", exec, env!("CARGO_BIN_EXE_keylatch")];
    let environment = [("KEYLATCH_URL", server), ("SAID", &said)];
    RunningCommand::of(&[&shell[..], arguments].concat(), &environment)
}

async fn says(stage: &ScriptDirectory, text: &str) {
    eventually(async || stage.read("said").contains(text).then_some(())).await;
}

#[tokio::test]
async fn exit_code_of_the_first_is_that_of_all() {
    let (service, stage) = staged().await;
    for code in [0, 7] {
        let key = format!("nightly-{code}");
        let script =
            stage.script(&format!("echo $KEYLATCH_KEY $KEYLATCH_FENCING_TOKEN >>ran; exit {code}"));
        let command = [&*key, "--", "sh", "-c", &script];
        for _ in 0..3 {
            is(&once(&service.url(), &command).await, code, &[]);
        }
        let ran = stage.read("ran");
        let last: Vec<_> = ran.lines().last().expect("it ran").split(' ').collect();
        assert_eq!(last[0], key);
        assert!(last[1].parse::<u64>().is_ok(), "{ran}");
    }
    assert_eq!(stage.read("ran").lines().count(), 2, "each key ran once");
}

/// What cron gives to a shell of a line of the example's crontab, where `%` is a newline and `\\%`
/// is `%`.
fn of_crontab(program: &str, report: &str) -> String {
    let crontab = include_str!("../../examples/cron/nightly-report");
    let line = crontab.lines().rfind(|line| !line.starts_with('#')).expect("a line");
    let command = line.splitn(7, ' ').last().expect("a command").replace("\\%", "\0");
    assert!(!command.contains('%'), "{command}");
    here(&command.replace('\0', "%"), program, report)
}

/// What a shell in a pod of the example's CronJob is given.
fn of_cronjob(program: &str, report: &str) -> String {
    let cronjob = include_str!("../../examples/kubernetes-cronjob/cronjob.yaml");
    let command = cronjob.lines().find_map(|line| line.trim().strip_prefix("command: [sh, -c, '"));
    here(command.and_then(|it| it.strip_suffix("']")).expect("a command"), program, report)
}

/// The same command for the programs of this machine.
fn here(command: &str, program: &str, report: &str) -> String {
    let command = command.replace("keylatch once", &format!("{program} once"));
    command.replace("/usr/local/bin/report", report)
}

#[tokio::test]
async fn short_cron_job_runs_once_on_machines_whose_clocks_differ() {
    let (service, stage) = staged().await;
    let clocks = tempfile::tempdir().expect("a directory");
    let clock = WallClock::new(clocks.path()).expect("a clock");
    std::fs::write(stage.path("report"), "#!/bin/sh\necho ran >>\"$0.ran\"\n").expect("a script");
    let executable = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(stage.path("report"), executable).expect("it may be executed");
    let (program, report) =
        (env!("CARGO_BIN_EXE_keylatch"), stage.path("report").display().to_string());
    let (cron, pod) = (of_crontab(program, &report), of_cronjob(program, &report));
    // Each cron fires when the clock of its machine is at midnight, one after the other.
    let day = 24 * 60 * 60;
    for (machine, command) in [("one", &cron), ("two", &cron), ("a-pod", &pod)] {
        let clock = clock.another(machine);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        clock.set(Duration::from_secs(day - now % day));
        let url = service.url();
        let environment = [&clock.environment()[..], &[("KEYLATCH_URL", &url)]].concat();
        is(&RunningCommand::of(&["sh", "-c", command], &environment).ended().await, 0, &[]);
    }
    assert_eq!(stage.read("report.ran"), "ran\n");
}

#[tokio::test]
async fn output_is_replayed_where_that_is_asked_for() {
    let service = Service::start("memory:").await;
    let script = "echo out; echo error >&2; exit 3";
    let command = ["--replay-output", "a", "--", "sh", "-c", script];
    let first = once(&service.url(), &command).await;
    is(&first, 3, &[]);
    assert_eq!((first.stdout.as_str(), first.stderr.as_str()), ("out\n", "error\n"));
    let next = once(&service.url(), &command).await;
    is(&next, 3, &["keylatch: `a` ran before, with exit code 3"]);
    let mut lines: Vec<_> = next.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["error", "out"]);
    let silent = once(&service.url(), &["-q", "a", "--", "false"]).await;
    is(&silent, 3, &[]);
    assert_eq!((silent.stdout.as_str(), silent.stderr.as_str()), ("", ""));
}

#[tokio::test]
async fn last_64_kib_of_the_output_are_kept() {
    let service = Service::start("memory:").await;
    let script = "head -c 100000 /dev/zero | tr '\\0' a; printf end";
    let command = ["--replay-output", "a", "--", "sh", "-c", script];
    assert_eq!(once(&service.url(), &command).await.stdout.len(), 100_003);
    let replayed = once(&service.url(), &command).await.stdout;
    assert_eq!(replayed.len(), 65536);
    assert!(replayed.ends_with("aend"));
}

#[tokio::test]
async fn output_that_is_read_late_is_passed_on_whole() {
    let (service, stage) = staged().await;
    let arguments = ["--replay-output", "a"];
    let first =
        start(&stage, &service.url(), &arguments, "head -c 100000 /dev/zero; begun; exit 4");
    stage.begun().await;
    // Longer than what a child has to print.
    is(&once(&service.url(), &["--wait", "7s", "a", "--", "false"]).await, 73, &[]);
    let ended = first.ended().await;
    is(&ended, 4, &[]);
    assert_eq!(ended.stdout.len(), 100_000);
}

#[tokio::test]
async fn output_of_a_command_that_a_signal_ended_is_passed_on_whole() {
    let (service, stage) = staged().await;
    let arguments = ["--replay-output", "a"];
    let script = "head -c 100000 /dev/zero; begun; kill -9 $$";
    let first = start(&stage, &service.url(), &arguments, script);
    stage.begun().await;
    let unknown = async || {
        let next = once(&service.url(), &["a", "--", "false"]).await;
        (next.code == Some(65)).then_some(())
    };
    eventually(unknown).await;
    let ended = first.ended().await;
    is(&ended, 137, &[]);
    assert_eq!(ended.stdout.len(), 100_000);
}

#[tokio::test]
async fn command_whose_output_nobody_reads_any_more_is_told_so() {
    let service = Service::start("memory:").await;
    let script = "\"$0\" once --replay-output a -- yes | head -n 1";
    let shell = ["sh", "-c", script, env!("CARGO_BIN_EXE_keylatch")];
    let ended = RunningCommand::of(&shell, &[("KEYLATCH_URL", &service.url())]).ended().await;
    assert_eq!(ended.stdout, "y\n", "{ended:?}");
}

#[tokio::test]
async fn kept_exit_code_is_given_where_nobody_reads_the_kept_output() {
    let (service, stage) = staged().await;
    let command = ["--replay-output", "a", "--", "sh", "-c", "echo out; exit 3"];
    is(&once(&service.url(), &command).await, 3, &[]);
    let script = "mkfifo out; exec 3<>out 4>out 3<&-; \"$0\" once --replay-output a -- true >&4";
    let script = stage.script(script);
    let shell = ["sh", "-c", &script, env!("CARGO_BIN_EXE_keylatch")];
    is(&RunningCommand::of(&shell, &[("KEYLATCH_URL", &service.url())]).ended().await, 3, &[]);
}

#[tokio::test]
async fn exit_code_is_kept_where_the_output_is_too_large() {
    let service = Service::set(|config| config.idempotency.response_limit_bytes = 1000).await;
    for (key, exit) in [("a", 0), ("b", 7)] {
        let (script, code) = ("head -c 10000 /dev/zero; exit $0", exit.to_string());
        let command = ["--replay-output", key, "--", "sh", "-c", script, &code];
        is(&once(&service.url(), &command).await, exit, &[]);
        let next = once(&service.url(), &command).await;
        is(&next, exit, &["ran before, with exit code", "what it printed was not kept"]);
        assert_eq!(next.stdout, "");
    }
}

#[tokio::test]
async fn status_is_left_of_an_exit_code_that_was_erased() {
    let service = Service::start("memory:").await;
    for (key, exit, left) in [("a", "0", 0), ("b", "7", 1)] {
        let command = ["--replay-output", key, "--", "sh", "-c", "exit $0", exit];
        once(&service.url(), &command).await;
        let path = format!("/v1/idempotency/{key}/answer");
        assert_eq!(Answer::of(service.request(Method::DELETE, &path)).await.status, 204);
        is(&once(&service.url(), &command).await, left, &["what it printed was not kept"]);
    }
}

#[tokio::test]
async fn output_that_a_child_holds_open_does_not_hold_the_end() {
    let (service, stage) = staged().await;
    let script = "begun; (held) & echo out";
    let first = start(&stage, &service.url(), &["--replay-output", "a"], script);
    stage.begun().await;
    // The record is done while the child lives.
    let done = async || {
        let next = once(&service.url(), &["--replay-output", "-q", "a", "--", "false"]).await;
        (next.stdout == "out\n").then_some(())
    };
    eventually(done).await;
    assert!(stage.is_alive());
    stage.go();
    is(&first.ended().await, 0, &[]);
}

#[tokio::test]
async fn others_end_at_once_and_are_told_who_runs_it() {
    let (service, stage) = staged().await;
    let first = start(&stage, &service.url(), &["--owner", "build-7", "a"], "begun; held; exit 4");
    stage.begun().await;
    let told = async || {
        let other = once(&service.url(), &["a", "--", "echo", "ran"]).await;
        is(&other, 0, &["keylatch: `a` runs ", ", since 20"]);
        assert_eq!(other.stdout, "");
        other.stderr.contains("`a` runs at build-7, since 20").then_some(())
    };
    eventually(told).await;
    let quiet = once(&service.url(), &["--quiet", "a", "--", "echo", "ran"]).await;
    is(&quiet, 0, &[]);
    assert_eq!(quiet.stderr, "");
    let impatient = once(&service.url(), &["--wait", "1s", "a", "--", "echo", "ran"]).await;
    is(&impatient, 73, &["runs at build-7", "; waiting", "; waited "]);
    let waiting = KEYLATCH.start(
        &["once", "--wait", "1m", "a", "--", "echo", "ran"],
        &[("KEYLATCH_URL", &service.url())],
    );
    stage.go();
    is(&first.ended().await, 4, &[]);
    let waited = waiting.ended().await;
    is(&waited, 4, &[]);
    assert_eq!(waited.stdout, "", "it did not run");
    service.is_free("once%2Fa").await;
}

#[tokio::test]
async fn machine_whose_label_cannot_be_shown_runs_all_the_same() {
    let (service, stage) = staged().await;
    // No lock has a longer name.
    let key = "k".repeat(255);
    let first = start(&stage, &service.url(), &[&key], "begun; held; exit 4");
    stage.begun().await;
    is(&once(&service.url(), &[&key, "--", "echo", "ran"]).await, 0, &["runs elsewhere, since 20"]);
    stage.go();
    is(&first.ended().await, 4, &[]);
}

#[tokio::test]
async fn who_may_wait_waits_for_a_service_that_cannot_be_reached() {
    let (_service, proxy) = Service::behind_proxy().await;
    let stage = ScriptDirectory::new();
    proxy.refuse();
    let arguments = ["--wait", "1m", "a", "--", "echo", "ran"];
    let waiting = start_heard(&stage, &proxy.http_url(), &arguments);
    says(&stage, "; trying again").await;
    proxy.forward();
    let ended = waiting.ended().await;
    is(&ended, 0, &[]);
    assert_eq!(ended.stdout, "ran\n");
}

#[tokio::test]
async fn who_may_wait_begins_again_where_its_run_was_lost_before_its_start() {
    let (service, proxy) = Service::behind_proxy().await;
    let stage = ScriptDirectory::new();
    let of_key = |method| service.request(method, "/v1/idempotency/a");
    let rerun = json!({"lease_ms": 60_000, "on_crash": "rerun"});
    let held = Answer::of(of_key(Method::POST).json(&rerun)).await;
    let arguments = ["--ttl", "3s", "--on-crash", "rerun", "a", "--", "echo", "ran"];
    let waiting = start_heard(&stage, &proxy.http_url(), &arguments);
    says(&stage, "; waiting").await;
    // It begins after a wait of more than half of its lease, and its first renewal does not arrive.
    service.create("clock", &json!({"ttl_ms": 2000})).await;
    service.is_free("clock").await;
    proxy.hold_requests();
    let abandon = of_key(Method::DELETE).header("lock-token", held.token());
    assert_eq!(Answer::of(abandon).await.status, 204);
    // The client gives a response 5 s, and the lease is over before.
    service.create("clock", &json!({"ttl_ms": 10_000})).await;
    service.is_free("clock").await;
    proxy.forward();
    let ended = waiting.ended().await;
    is(&ended, 0, &[]);
    assert_eq!(ended.stdout, "ran\n");
}

#[tokio::test]
async fn command_whose_lease_is_over_before_its_start_does_not_start() {
    let (service, proxy) = Service::behind_proxy().await;
    let stage = ScriptDirectory::new();
    let of_key = |method| service.request(method, "/v1/idempotency/a");
    let held = Answer::of(of_key(Method::POST).json(&json!({"lease_ms": 60_000}))).await;
    let arguments = ["--ttl", "1s", "--wait", "1m", "a", "--", "echo", "ran"];
    let waiting = start_heard(&stage, &proxy.http_url(), &arguments);
    says(&stage, "; waiting").await;
    proxy.hold_answers();
    let abandon = of_key(Method::DELETE).header("lock-token", held.token());
    assert_eq!(Answer::of(abandon).await.status, 204);
    // It begins, and its lease ends before it hears of it.
    let over = async || {
        let record = Answer::of(of_key(Method::GET)).await;
        (record.json["state"] == "unknown").then_some(())
    };
    eventually(over).await;
    proxy.forward();
    let ended = waiting.ended().await;
    let said = stage.read("said");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(75), ""), "{said}");
    assert!(said.contains("the command was not started"), "{said}");
}

#[tokio::test]
async fn machine_that_dies_leaves_it_to_a_person() {
    let (service, stage) = staged().await;
    let first = start(&stage, &service.url(), &["--ttl", "3s", "a"], "begun; held");
    stage.begun().await;
    first.signal("-KILL");
    let unknown = async || {
        let next = once(&service.url(), &["a", "--", "echo", "ran"]).await;
        assert_eq!(next.stdout, "");
        (next.code == Some(65)).then_some(next)
    };
    let told = eventually(unknown).await;
    is(&told, 65, &["the outcome of `a` is unknown", "keylatch key resolve 'a' --done"]);
    let url = service.url();
    let settle = ["key", "resolve", "a", "--server", &url, "--not-done", "--reason", "looked"];
    is(&KEYLATCH.run(&settle).await, 0, &[]);
    assert_eq!(once(&url, &["a", "--", "echo", "ran"]).await.stdout, "ran\n");
}

#[tokio::test]
async fn rerun_takes_over_from_a_machine_that_died() {
    let (service, stage) = staged().await;
    let arguments = ["--ttl", "3s", "--on-crash", "rerun", "a"];
    let script = "echo $KEYLATCH_FENCING_TOKEN >>fences; begun; held";
    let first = start(&stage, &service.url(), &arguments, script);
    stage.begun().await;
    let others = ["next-1", "next-2"].map(|owner| {
        let arguments = [&["--owner", owner], &arguments[..]].concat();
        start(&stage, &service.url(), &arguments, script)
    });
    first.signal("-KILL");
    let fences = || -> Vec<u64> {
        stage.read("fences").lines().map(|line| line.parse().expect("a number")).collect()
    };
    eventually(async || (fences().len() == 2).then_some(())).await;
    // Who runs it now, and nothing of when the one that died began.
    let told = async || {
        let look = once(&service.url(), &["--wait", "0s", "a", "--", "false"]).await;
        is(&look, 0, &["`a` runs "]);
        assert!(!look.stderr.contains("since"), "{look:?}");
        look.stderr.contains("`a` runs at next").then_some(())
    };
    eventually(told).await;
    assert!(fences()[0] < fences()[1], "{:?}", fences());
    stage.go();
    for other in others {
        is(&other.ended().await, 0, &[]);
    }
    assert_eq!(fences().len(), 2, "one of the others ran it");
}

#[tokio::test]
async fn command_that_a_signal_ends_has_not_ended_by_itself() {
    let (service, stage) = staged().await;
    let first = start(&stage, &service.url(), &["a"], "begun; held");
    stage.begun().await;
    first.signal("-TERM");
    is(&first.ended().await, 143, &[]);
    is(&once(&service.url(), &["a", "--", "true"]).await, 65, &["unknown"]);
    let rerun = ["--on-crash", "rerun", "b", "--", "sh", "-c"];
    is(&once(&service.url(), &[&rerun[..], &["kill -9 $$"]].concat()).await, 137, &[]);
    is(&once(&service.url(), &[&rerun[..], &["exit 5"]].concat()).await, 5, &[]);
}

#[tokio::test]
async fn command_that_cannot_start_frees_the_key() {
    let service = Service::start("memory:").await;
    for (program, code) in [("no-such-program", 127), ("/etc/passwd", 126)] {
        let ended = once(&service.url(), &["a", "--", program]).await;
        is(&ended, code, &[&format!("keylatch: `{program}` ")]);
    }
    is(&once(&service.url(), &["a", "--", "sh", "-c", "exit 6"]).await, 6, &[]);
}

#[tokio::test]
async fn command_is_stopped_before_another_machine_can_run_it() {
    let (service, proxy) = Service::behind_proxy().await;
    let stage = ScriptDirectory::new();
    let script = "trap 'echo stopped; exit 0' TERM; begun; held; held";
    let first = start(&stage, &proxy.http_url(), &["--ttl", "4s", "a"], script);
    stage.begun().await;
    proxy.refuse();
    stage.left().await;
    let look = once(&service.url(), &["a", "--", "echo", "ran"]).await;
    assert_eq!(look.stdout, "");
    proxy.forward();
    let ended = first.ended().await;
    is(&ended, 75, &["the run of `a` is lost", "could not be renewed", "the command was stopped"]);
    assert_eq!(ended.stdout, "stopped\n");
}

#[tokio::test]
async fn command_within_a_run_has_the_fencing_token_of_its_key_alone() {
    let service = Service::start("memory:").await;
    let script = "echo $KEYLATCH_NAME $KEYLATCH_TOKEN $KEYLATCH_KEY";
    let keylatch = env!("CARGO_BIN_EXE_keylatch");
    let command = ["run", "a", "--", keylatch, "once", "k", "--", "sh", "-c", script];
    let ended = KEYLATCH.run_with(&command, &[("KEYLATCH_URL", service.url())]).await;
    is(&ended, 0, &[]);
    assert_eq!(ended.stdout, "k\n");
}

#[tokio::test]
async fn advice_can_be_pasted_into_a_shell() {
    let service = Service::start("memory:").await;
    let key = "a b's";
    is(&once(&service.url(), &[key, "--", "sh", "-c", "kill -9 $$"]).await, 137, &[]);
    let next = once(&service.url(), &[key, "--", "true"]).await;
    is(&next, 65, &[r"keylatch key resolve 'a b'\''s' --done"]);
}

#[cfg(feature = "test-engines")]
#[tokio::test]
async fn store_without_records_is_refused_before_anything_runs() {
    let nodes = keylatch_testkit::RedlockNodes::start().await;
    let service = Service::start_with(nodes.config()).await;
    let ended = once(&service.url(), &["a", "--", "echo", "ran"]).await;
    is(&ended, 76, &["keeps no records"]);
    assert_eq!(ended.stdout, "");
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused() {
    for (arguments, why) in [
        (&["a"][..], "COMMAND"),
        (&["a", "true"], "Put `--` before the command: keylatch once KEY -- COMMAND"),
        (&["", "--", "true"], "KEY"),
        (&["--for", "0s", "a", "--", "true"], "it must be from 1s to 8760h"),
        (&["--for", "1y", "a", "--", "true"], "write it like `30s`"),
        (&["--on-crash", "again", "a", "--", "true"], "possible values: unknown, rerun"),
        (&["--wait", "soon", "a", "--", "true"], "write it like `30s`"),
        (&["--ttl", "25h", "a", "--", "true"], "it must be from 100ms to 24h"),
    ] {
        is(&once("http://127.0.0.1:9", arguments).await, 64, &[why]);
    }
    let help = once("", &["--help"]).await;
    is(&help, 0, &[]);
    for word in ["64 ", "65 ", "73 ", "75 ", "76 ", "126 ", "KEYLATCH_URL"] {
        assert!(help.stdout.contains(word), "{word}: {help:?}");
    }
}

#[tokio::test]
async fn kept_exit_code_is_part_of_the_record() {
    let service = Service::start("memory:").await;
    is(&once(&service.url(), &["a", "--", "sh", "-c", "exit 9"]).await, 9, &[]);
    let begin = service.request(Method::POST, "/v1/idempotency/a").json(&json!({}));
    let record = Answer::of(begin).await;
    assert_eq!(record.json["answer"]["headers"]["exit-code"][0], "9", "{record:?}");
}
