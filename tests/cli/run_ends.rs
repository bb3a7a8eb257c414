//! Goal: what a `keylatch run` leaves behind, and how it ends, is what its options say.
//!
//! Method: commands that end at once, a proxy that loses a response, and a look at the locks over
//! HTTP afterwards.

use keylatch_testkit::{Proxy, ScriptDirectory, Service, eventually};
use serde_json::json;

use crate::{Stage as _, is, run};

#[tokio::test]
async fn lock_of_a_short_command_stays_held_for_at_least_the_time() {
    let service = Service::start("memory:").await;
    for (names, exit) in [(&["a"][..], 0), (&["b"], 7), (&["c", "d"], 0)] {
        let script = format!("exit {exit}");
        let command = [&["--at-least", "50s"], names, &["--", "sh", "-c", &script]].concat();
        let ended = run(&service.url(), &command).await;
        is(&ended, exit, &[]);
        assert_eq!(ended.stderr, "");
        for name in names {
            let left = service.look(name).await.json["expires_in_ms"].as_u64().expect("it is held");
            assert!(left <= 50_000, "{left}");
            assert!(left > 30_000, "no longer than the TTL: {left}");
        }
    }
}

#[tokio::test]
async fn lock_stays_held_where_a_response_is_lost_or_the_service_is_away_for_a_moment() {
    for disturb in [Proxy::lose_answers, Proxy::refuse] {
        let (service, proxy) = Service::behind_proxy().await;
        let stage = ScriptDirectory::new();
        let running =
            stage.begin(&proxy.http_url(), &["--at-least", "50s", "a"], "begun; held").await;
        disturb(&proxy);
        let before = proxy.disturbed();
        stage.go();
        eventually(async || (proxy.disturbed() > before).then_some(())).await;
        proxy.forward();
        let ended = running.ended().await;
        is(&ended, 0, &[]);
        assert_eq!(ended.stderr, "");
        let left = service.look("a").await.json["expires_in_ms"].as_u64().expect("it is held");
        assert!(left > 30_000, "no longer than the TTL: {left}");
    }
}

#[tokio::test]
async fn lock_of_a_command_that_took_longer_or_did_not_start_is_released() {
    let service = Service::start("memory:").await;
    let longer = ["--at-least", "200ms", "a", "--", "sleep", "0.2"];
    is(&run(&service.url(), &longer).await, 0, &[]);
    assert_eq!(service.look("a").await.status, 404);
    let missing = ["--at-least", "50s", "a", "--", "no-such-program"];
    is(&run(&service.url(), &missing).await, 127, &["not found"]);
    assert_eq!(service.look("a").await.status, 404);
}

#[tokio::test]
async fn inner_run_leaves_the_time_to_the_outer_one() {
    let service = Service::start("memory:").await;
    let program = env!("CARGO_BIN_EXE_keylatch");
    let inner = format!("{program} run --at-least 50s a -- echo ran");
    let ended = run(&service.url(), &["a", "--", "sh", "-c", &inner]).await;
    is(&ended, 64, &["a `run` around this one holds `a`: give --at-least to that one"]);
    assert_eq!(ended.stdout, "");
    for wrong in ["99ms", "25h"] {
        let ended = run(&service.url(), &["--at-least", wrong, "a", "--", "true"]).await;
        is(&ended, 64, &["it must be from 100ms to 24h"]);
    }
}

#[tokio::test]
async fn held_lock_ends_as_a_script_asks() {
    let service = Service::start("memory:").await;
    service.create("a", &json!({"ttl_ms": 600_000, "owner": "alice"})).await;
    let ended = run(&service.url(), &["-n", "--held-exit", "0", "a", "--", "echo", "ran"]).await;
    // A person reads it.
    is(&ended, 0, &["`a` is held by alice, for 9 min "]);
    assert_eq!(ended.stdout, "");
    // Longer than it takes before it says that it waits.
    let waits = ["--wait", "2s", "-q", "--held-exit", "4", "a", "--", "true"];
    let ended = run(&service.url(), &waits).await;
    is(&ended, 4, &[]);
    assert_eq!(ended.stderr, "");
    let unreachable = run("http://127.0.0.1:1", &["-q", "-n", "a", "--", "true"]).await;
    is(&unreachable, 69, &["cannot be reached"]);
    for (option, value, why) in [
        ("--held-exit", "256", "256 is not in 0..=255"),
        ("--held-exit", "-1", "-1 is not in 0..=255"),
        ("--max-ahead", "-1", "it is no whole number from 0 on"),
        ("--max-ahead", "one", "it is no whole number from 0 on"),
    ] {
        let ended = run(&service.url(), &[option, value, "a", "--", "true"]).await;
        is(&ended, 64, &[why]);
    }
}
