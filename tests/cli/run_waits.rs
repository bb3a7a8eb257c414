//! Goal: `--wait` waits for longer than one request may, and a command without a usable server says
//! why.
//!
//! Method: services with short limits, and servers that do not speak TLS.

use keylatch_testkit::{Exit, RunningCommand, ScriptDirectory, Service, config, eventually};
use serde_json::json;

use crate::{KEYLATCH, is};

#[tokio::test]
async fn long_wait_keeps_its_queue_position() {
    let mut config = config("memory:");
    // A request may wait for less than the command wants to, so that it asks again after some 3 s.
    config.wait.max_wait_ms = 4000;
    let service = Service::start_with(config).await;
    let held = service.create("a", &json!({"ttl_ms": 60_000})).await;
    let (first, second) = (ScriptDirectory::new(), ScriptDirectory::new());
    let script = "echo $KEYLATCH_FENCING_TOKEN; begun; held";
    let one = first.run(&KEYLATCH, &service.url(), &["--wait", "1m", "a"], script);
    service.has_waiting("a", 1).await;
    let two = second.run(&KEYLATCH, &service.url(), &["--wait", "1m", "a"], script);
    service.has_waiting("a", 2).await;
    // The time of the first one's first request is over.
    eventually(async || (refused(&service).await > 0).then_some(())).await;
    assert_eq!(service.release("a", &held.token()).await.status, 204);
    for stage in [&first, &second] {
        stage.begun().await;
        stage.go();
    }
    let fencing_token = |ended: &Exit| ended.stdout.trim().parse::<u64>().expect("a fencing token");
    let (one, two) = (one.ended().await, two.ended().await);
    assert_eq!((one.code, two.code), (Some(0), Some(0)), "{one:?} {two:?}");
    assert!(
        held.fencing_token() < fencing_token(&one) && fencing_token(&one) < fencing_token(&two),
        "{one:?} {two:?}"
    );
}

#[tokio::test]
async fn service_without_waiting_is_polled() {
    let service = Service::set(|config| config.wait.max_wait_ms = 500).await;
    let held = service.create("a", &json!({"ttl_ms": 60_000})).await;
    let stage = ScriptDirectory::new();
    let running = stage.run(&KEYLATCH, &service.url(), &["--wait", "1m", "a"], "begun");
    eventually(async || (refused(&service).await > 1).then_some(())).await;
    assert_eq!(service.release("a", &held.token()).await.status, 204);
    assert_eq!(running.ended().await.code, Some(0));
    assert_eq!(service.look("a").await.status, 404);
}

#[tokio::test]
async fn server_without_tls_exits_69() {
    let service = Service::start("memory:").await;
    let server = format!("https://{}", service.address);
    let ended = run(&server, &[]).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    let why = format!("keylatch: {server}: the service cannot be reached: ");
    assert!(ended.stderr.starts_with(&why) && ended.stderr.len() > why.len() + 5, "{ended:?}");
}

#[tokio::test]
async fn machine_without_certificates_exits_70_for_https() {
    let service = Service::start("memory:").await;
    let none = [("SSL_CERT_FILE", "/dev/null"), ("SSL_CERT_DIR", "/dev/null")];
    let ended = run(&format!("https://{}", service.address), &none).await;
    is(&ended, 70, &["the certificates cannot be used: "]);
    let ended = run(&service.url(), &none).await;
    assert_eq!((ended.code, &*ended.stdout), (Some(0), "ran\n"), "{ended:?}");
}

async fn run(server: &str, environment: &[(&str, &str)]) -> Exit {
    let environment = [&[("KEYLATCH_URL", server)], environment].concat();
    KEYLATCH.run_with(&["run", "--wait", "0s", "a", "--", "echo", "ran"], &environment).await
}

/// How many requests for a lock were answered that it is held.
async fn refused(service: &Service) -> u64 {
    let of = "keylatch_http_request_duration_seconds_count{method=\"POST\",\
              route=\"/v1/locks/{name}\",status=\"409\"}";
    service.metric(of).await
}

#[tokio::test]
async fn waiting_run_says_that_its_service_cannot_be_reached() {
    let arguments = ["run", "--server", "http://127.0.0.1:1", "--wait", "2s", "a", "--", "true"];
    let ended = KEYLATCH.run(&arguments).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    let said: Vec<_> = ended.stderr.lines().collect();
    assert!(said.len() == 2 && said[0].ends_with("trying again"), "{ended:?}");
}

/// Runs the command in a new terminal, by util-linux's `script`.
async fn on_terminal(arguments: &str) -> Exit {
    let command = format!("exec {} {arguments}", env!("CARGO_BIN_EXE_keylatch"));
    let terminal = ["script", "--quiet", "--return", "--command", &command, "/dev/null"];
    RunningCommand::of(&terminal, &[("PATH", "/usr/bin:/bin")]).ended().await
}

#[tokio::test]
async fn waiting_command_says_on_a_terminal_who_holds_the_lock_and_how_many_are_ahead() {
    let service = Service::start("memory:").await;
    service.create("a", &json!({"owner": "runner 7", "ttl_ms": 60_000})).await;
    let url = service.url();
    let arguments = ["run", "--server", &url, "--wait", "1m", "a", "--", "true"];
    let other = KEYLATCH.start(&arguments, &[]);
    service.has_waiting("a", 1).await;
    for command in ["run a --wait 2s -c true", "lock acquire a --wait 2s", "lock hold a --wait 2s"]
    {
        let ended = on_terminal(&format!("{command} --server {url}")).await;
        assert_eq!(ended.code, Some(73), "{ended:?}");
        let said = ended.stdout.lines().find(|line| line.contains("waiting for `a`"));
        let said = said.unwrap_or_else(|| panic!("{command}: {ended:?}")).trim_end();
        for part in ["held by runner 7 for ", " s left unless renewed; at most 1 ahead"] {
            assert!(said.contains(part), "{command}: {said}");
        }
    }
    other.signal("-TERM");
    let other = other.ended().await;
    assert!(!other.stderr.contains("waiting for"), "no terminal reads it: {other:?}");
}

#[tokio::test]
async fn client_that_is_first_in_line_has_none_ahead() {
    let service = Service::start("memory:").await;
    service.create("a", &json!({"mode": "shared", "ttl_ms": 60_000})).await;
    let ended = on_terminal(&format!("run a --wait 2s -c true --server {}", service.url())).await;
    let said = "held by 1 client that shares it; none ahead";
    assert!(ended.stdout.contains(said), "{ended:?}");
}

#[tokio::test]
async fn run_with_max_ahead_0_waits_alone_or_exits_at_once() {
    let service = Service::start("memory:").await;
    let held = service.create("a", &json!({"owner": "runner 7", "ttl_ms": 60_000})).await;
    let environment = [("KEYLATCH_URL", &*service.url())];
    let wait = ["--wait", "1m", "--max-ahead", "0"];
    let run = [&["run"], &wait[..], &["a", "--", "echo", "ran"]].concat();
    let next = KEYLATCH.start(&run, &environment);
    service.has_waiting("a", 1).await;
    let skip = [&["run", "--held-exit", "0"], &run[1..]].concat();
    let acquire = [&["lock", "acquire"], &wait[..], &["a"]].concat();
    for (arguments, code) in [(&run, 73), (&skip, 0), (&acquire, 73)] {
        let ended = KEYLATCH.run_with(arguments, &environment).await;
        assert_eq!((ended.code, &*ended.stdout), (Some(code), ""), "{ended:?}");
        assert!(ended.stderr.starts_with("keylatch: `a` is held by runner 7, for "), "{ended:?}");
        assert!(ended.stderr.contains(" s unless renewed, and 1 waits for it"), "{ended:?}");
    }
    assert_eq!(service.release("a", &held.token()).await.status, 204);
    let next = next.ended().await;
    assert_eq!((next.code, &*next.stdout), (Some(0), "ran\n"), "{next:?}");
    let arguments = ["run", "-n", "--max-ahead", "0", "a", "--", "true"];
    is(&KEYLATCH.run_with(&arguments, &environment).await, 64, &[]);
}
