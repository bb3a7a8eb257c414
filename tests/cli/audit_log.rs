//! Goal: the audit log goes to standard output where a collector reads it, and a full disk under
//! its file loses lines, says so once, and leaves no half of a line.
//!
//! Method: the command as a process; a limit on the size of its files is the full disk.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use keylatch_testkit::{Api, eventually, free_port};
use serde_json::{Value, json};

use crate::KEYLATCH;

#[tokio::test]
async fn lines_go_to_standard_output_and_the_log_does_not() {
    let audit = [("KEYLATCH_LOG_AUDIT", "-"), ("KEYLATCH_STORE", "memory:")];
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let process = KEYLATCH.start(&["--listen", &address.to_string()], &audit);
    let api = Api::at(address);
    let client = reqwest::Client::new();
    let ready = async || client.get(format!("http://{address}/livez")).send().await.ok();
    eventually(ready).await;
    let lease = api.create("deploy", &json!({})).await;
    assert_eq!(lease.status, 201, "{lease:?}");
    assert_eq!(api.release("deploy", &lease.token()).await.status, 204);
    process.signal("-TERM");
    let exit = process.ended().await;
    let lines = exit.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let lines: Vec<Value> = lines.collect();
    let acts: Vec<_> = lines.iter().map(|line| (&line["act"], &line["fencing_token"])).collect();
    let fencing_token = json!(lease.fencing_token());
    let expected = [(&json!("grant"), &fencing_token), (&json!("release"), &fencing_token)];
    assert_eq!(acts, expected, "{exit:?}");
    assert!(!exit.stdout.contains(&lease.token()), "{exit:?}");
}

#[tokio::test]
async fn full_disk_loses_whole_lines_until_there_is_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit.log");
    let file = path.display().to_string();
    let audit = [("KEYLATCH_LOG_AUDIT", file.as_str()), ("KEYLATCH_STORE", "memory:")];
    let process = KEYLATCH.serve(&[], &audit).await;
    let api = Api::at(process.address);
    let metric = async |name: &str, least: f64| {
        let reached = async || {
            let text = api.get("/metrics").await.text;
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            value.filter(|value: &f64| *value >= least)
        };
        eventually(reached).await
    };
    assert_eq!(api.create("first", &json!({})).await.status, 201);
    metric("keylatch_audit_lines_total ", 1.0).await;
    // Half a line more fits.
    let size = std::fs::metadata(&path).expect("the file").len();
    limit_files(process.id(), &(size + 40).to_string());
    for lock in ["second", "third"] {
        assert_eq!(api.create(lock, &json!({})).await.status, 201, "no request fails");
    }
    metric("keylatch_audit_lost_total ", 2.0).await;
    limit_files(process.id(), "unlimited");
    assert_eq!(api.create("fourth", &json!({})).await.status, 201);
    metric("keylatch_audit_lines_total ", 2.0).await;
    assert_eq!(locks(&path), ["first", "fourth"]);
    let log = process.ended_by("-TERM").await.stderr;
    assert_eq!(log.matches("the audit log cannot be written").count(), 1, "{log}");
    assert_eq!(log.matches("the audit log is written again").count(), 1, "{log}");
}

fn locks(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("the file");
    let lock = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("a line is whole");
        line["lock"].as_str().expect("a lock").to_owned()
    };
    text.lines().map(lock).collect()
}

fn limit_files(process: u32, bytes: &str) {
    let limit = format!("--fsize={bytes}:unlimited");
    let set = Command::new("prlimit").args(["--pid", &process.to_string(), &limit]).status();
    assert!(set.expect("prlimit of util-linux runs").success());
}
