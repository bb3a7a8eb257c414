//! Goal: the audit log survives what an operator does to its file, and costs no request anything
//! where its disk is full.
//!
//! Method: services whose audit log is moved away, or on a device that takes nothing.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use keylatch_testkit::{Service, config, eventually};
use serde_json::{Value, json};

/// A service whose audit log is there; a grant has a line.
async fn start(audit: &Path) -> Service {
    let mut config = config("memory:");
    config.log.audit = audit.display().to_string();
    Service::start_with(config).await
}

async fn grant(service: &Service, lock: &str) {
    let lease = service.create(lock, &json!({})).await;
    assert_eq!(lease.status, 201, "{lease:?}");
}

/// The locks of the lines in a file, which are whole.
fn locks(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    let line = |line: &str| serde_json::from_str::<Value>(line).expect("a line is JSON");
    text.lines().map(|it| line(it)["lock"].as_str().expect("a lock").to_owned()).collect()
}

#[tokio::test]
async fn file_that_is_moved_or_cut_from_outside_is_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, moved) = (folder.path().join("audit.log"), folder.path().join("moved.log"));
    let service = start(&path).await;
    let has = async |path: &Path, names: &[&str]| {
        eventually(async || (locks(path) == names).then_some(())).await;
        let mode = std::fs::metadata(path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{names:?}");
    };
    grant(&service, "a").await;
    has(&path, &["a"]).await;
    std::fs::rename(&path, &moved).expect("it is moved");
    grant(&service, "b").await;
    has(&path, &["b"]).await;
    has(&moved, &["a"]).await;
    std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(0)).expect("cut");
    grant(&service, "c").await;
    has(&path, &["c"]).await;
    std::fs::remove_file(&path).expect("it is removed");
    grant(&service, "d").await;
    has(&path, &["d"]).await;
}

#[tokio::test]
async fn full_disk_loses_lines_and_no_request() {
    let service = start(Path::new("/dev/full")).await;
    for number in 0..5 {
        grant(&service, &format!("lock {number}")).await;
    }
    let lost = async || (service.metric("keylatch_audit_lost_total").await >= 5).then_some(());
    eventually(lost).await;
    assert_eq!(service.metric("keylatch_audit_lines_total").await, 0);
}

#[tokio::test]
async fn file_that_is_there_is_closed_to_all_but_its_owner() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit.log");
    let make = || {
        std::fs::write(&path, "").expect("a file");
        std::fs::set_permissions(&path, Permissions::from_mode(0o664)).expect("the owner may");
    };
    let mode = || std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777;
    make();
    let service = start(&path).await;
    assert_eq!(mode(), 0o600, "at the start");
    // As what rotates logs makes a new one.
    std::fs::remove_file(&path).expect("it is there");
    make();
    grant(&service, "a").await;
    eventually(async || (locks(&path) == ["a"]).then_some(())).await;
    assert_eq!(mode(), 0o600, "when it is another file");
}
