//! Goal: a command under several locks has all of them or none, and is stopped when one is lost.
//!
//! Method: shell scripts as commands, which start `keylatch run` again; other clients over HTTP.

use keylatch_testkit::{ScriptDirectory, Service};
use serde_json::json;

use crate::{KEYLATCH, Stage as _, is, run, staged};

/// The path of [`KEYLATCH`], for scripts.
const PROGRAM: &str = env!("CARGO_BIN_EXE_keylatch");

async fn is_free(service: &Service, name: &str) {
    service.look(name).await.is_problem(404, "lock-not-held");
}

#[tokio::test]
async fn command_runs_under_all_locks_and_releases_them() {
    let (service, stage) = staged().await;
    let script = "echo \"$KEYLATCH_NAMES\"; echo \"$KEYLATCH_FENCING_TOKENS\"
        echo \"$KEYLATCH_NAME.$KEYLATCH_FENCING_TOKEN.$KEYLATCH_SLOTS.\"; begun; held; exit 7";
    let running = stage.begin(&service.url(), &["b", "a b=1", "c"], script).await;
    let mut tokens = String::new();
    for (name, path) in [("b", "b"), ("a b=1", "a%20b%3D1"), ("c", "c")] {
        tokens += &format!("{} {name}\n", service.look(path).await.fencing_token());
    }
    stage.go();
    let ended = running.ended().await;
    assert_eq!((ended.code, &*ended.stderr), (Some(7), ""), "{ended:?}");
    assert_eq!(ended.stdout, format!("b\na b=1\nc\n{tokens}...\n"));
    assert_eq!(service.get("/v1/locks").await.json["locks"], json!([]));
}

#[tokio::test]
async fn one_held_lock_is_named_and_the_others_stay_free() {
    let service = Service::start("memory:").await;
    service.create("b", &json!({"owner": "alice"})).await;
    let ended = run(&service.url(), &["--wait", "0s", "a", "b", "c", "--", "echo", "ran"]).await;
    is(&ended, 73, &["keylatch: `b` is held by alice"]);
    assert_eq!(ended.stdout, "");
    is_free(&service, "a").await;
    is_free(&service, "c").await;
}

#[tokio::test]
async fn command_waits_for_the_last_of_its_locks() {
    let service = Service::start("memory:").await;
    let (first, second) = (ScriptDirectory::new(), ScriptDirectory::new());
    let one = first.run(&KEYLATCH, &service.url(), &["a", "b"], "begun; held");
    first.begun().await;
    let arguments = ["--wait", "1m", "c", "b"];
    let two = second.run(&KEYLATCH, &service.url(), &arguments, "begun; held");
    first.go();
    second.begun().await;
    second.go();
    assert_eq!((one.ended().await.code, two.ended().await.code), (Some(0), Some(0)));
}

#[tokio::test]
async fn broken_lock_stops_the_command_and_the_others_are_released() {
    let (service, stage) = staged().await;
    let arguments = ["--ttl", "6s", "a", "b"];
    let script = "trap 'echo stopped; exit 0' TERM; begun; held";
    let running = stage.begin(&service.url(), &arguments, script).await;
    let fencing_token = service.look("b").await.fencing_token();
    service.break_lease("b", fencing_token).await;
    let ended = running.ended().await;
    assert_eq!((ended.code, &*ended.stdout), (Some(75), "stopped\n"), "{ended:?}");
    let why = "keylatch: `b` is lost: the lease was broken: it hangs; stopping the command";
    assert!(ended.stderr.contains(why), "{ended:?}");
    is_free(&service, "a").await;
    is_free(&service, "b").await;
}

#[tokio::test]
async fn unreachable_service_stops_the_command_of_a_set() {
    let (_service, proxy) = Service::behind_proxy().await;
    let stage = ScriptDirectory::new();
    let arguments = ["--ttl", "6s", "a", "b"];
    let running = stage.run(&KEYLATCH, &proxy.http_url(), &arguments, "begun; held");
    stage.begun().await;
    proxy.refuse();
    stage.left().await;
    proxy.forward();
    let ended = running.ended().await;
    assert_eq!(ended.code, Some(75), "{ended:?}");
    let why = "`a`, `b` are lost: the lease could not be renewed in time";
    assert!(ended.stderr.contains(why), "{ended:?}");
}

#[tokio::test]
async fn counted_set_says_the_slot_of_each_lock() {
    let service = Service::start("memory:").await;
    service.create("b", &json!({"mode": "shared", "limit": 2})).await;
    let arguments = ["--limit", "2", "a", "b", "--", "sh", "-c", "echo \"$KEYLATCH_SLOTS\""];
    let ended = run(&service.url(), &arguments).await;
    assert_eq!((ended.code, &*ended.stdout), (Some(0), "0 a\n1 b\n"), "{ended:?}");
}

#[tokio::test]
async fn run_within_a_run_of_the_same_set_leaves_it_held() {
    let (service, stage) = staged().await;
    let tokens = "echo \"$KEYLATCH_FENCING_TOKENS\" | sort";
    let inner = format!("'{PROGRAM}' run --wait 0s --shared b a -- sh -c '{tokens}'");
    let script = format!("{tokens}; {inner}; begun; held");
    let running = stage.begin(&service.url(), &["a", "b"], &script).await;
    for name in ["a", "b"] {
        let look = service.look(name).await;
        assert_eq!(look.status, 200, "the inner run released {name}");
        assert_eq!(look.json.get("mode"), None, "others may hold it too: {look:?}");
    }
    stage.go();
    let ended = running.ended().await;
    let (outer, inner) = ended.stdout.split_at(ended.stdout.len() / 2);
    assert_eq!((ended.code, outer, outer.lines().count()), (Some(0), inner, 2), "{ended:?}");
    assert_eq!(service.get("/v1/locks").await.json["locks"], json!([]));
}

#[tokio::test]
async fn run_of_one_lock_within_a_run_of_a_set_enters_it_again() {
    let (service, stage) = staged().await;
    let names = "echo \"$KEYLATCH_NAME.$KEYLATCH_NAMES\"";
    let inner = format!("'{PROGRAM}' run --wait 0s b -- sh -c '{names}'");
    let running =
        stage.run(&KEYLATCH, &service.url(), &["a", "b"], &format!("{inner}; begun; held"));
    stage.begun().await;
    assert_eq!(service.look("b").await.status, 200, "the inner run released it");
    stage.go();
    let ended = running.ended().await;
    assert_eq!((ended.code, &*ended.stdout), (Some(0), "b.\n"), "{ended:?}");
}

#[tokio::test]
async fn run_of_more_locks_within_a_run_is_a_run_of_its_own() {
    let service = Service::start("memory:").await;
    let inner = format!("'{PROGRAM}' run --wait 0s a c -- echo ran; echo $?");
    let ended = run(&service.url(), &["a", "b", "--", "sh", "-c", &inner]).await;
    is(&ended, 0, &["keylatch: `a` is held by"]);
    assert_eq!(ended.stdout, "73\n");
}

#[tokio::test]
async fn inner_run_for_fewer_is_refused_without_waiting() {
    let service = Service::start("memory:").await;
    for name in ["a", "b"] {
        service.create(name, &json!({"mode": "shared", "limit": 3, "ttl_ms": 3_600_000})).await;
    }
    for names in ["a", "a b"] {
        // Without the refusal it would wait for an hour.
        let inner = format!("'{PROGRAM}' run --wait 1h --limit 1 {names} -- echo ran; echo $?");
        let ended =
            run(&service.url(), &["--limit", "3", "a", "b", "--", "sh", "-c", &inner]).await;
        is(&ended, 0, &["`a` is held by"]);
        assert_eq!(ended.stdout, "73\n");
    }
}
