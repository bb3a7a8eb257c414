//! Goal: `keylatch backup FILE` writes a copy that has every grant which was answered before, under
//! load, and a file that is not whole never has the name.
//!
//! Method: the command as a process beside a service under load; services on what it wrote; a full
//! disk; a server that ends in the middle.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::stream::{self, StreamExt as _};
use keylatch_testkit::{Answer, Api, Exit, Service, eventually};
use reqwest::Method;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::{KEYLATCH, ask, is};

const TOKEN: &str = "a-token-of-the-clients-own";
const CLIENTS: usize = 8;
/// How many grants each client has when the copy begins.
const BEFORE: usize = 20;

fn embedded(directory: &Path) -> String {
    format!("embedded:{}", directory.display())
}

async fn back_up(url: &str, arguments: &[&str]) -> Exit {
    ask(url, "backup", arguments).await
}

/// Where a copy goes, as the only file of a directory that a service can start on.
struct Target {
    directory: TempDir,
    file: PathBuf,
}

impl Target {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("locks.sqlite");
        Self { directory, file }
    }

    fn path(&self) -> &str {
        self.file.to_str().expect("a path of text")
    }

    /// The names in the directory.
    fn files(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.directory.path()).expect("a directory");
        let names = files.map(|file| file.expect("a file").file_name());
        names.map(|name| name.into_string().expect("a name of text")).collect()
    }
}

/// Creates locks one after the other and releases each second one, until it is stopped; gives how
/// many.
async fn work(address: std::net::SocketAddr, client: usize, stopped: Arc<AtomicBool>) -> usize {
    let api = Api::at(address);
    let mut count = 0;
    while count < BEFORE || !stopped.load(Ordering::Relaxed) {
        let name = format!("later-{client}-{count}");
        let created = api.create_as(&name, TOKEN, &json!({"ttl_ms": 600_000})).await;
        assert_eq!(created.status, 201, "{created:?}");
        if count % 2 == 1 {
            assert_eq!(api.release(&name, TOKEN).await.status, 204);
        }
        count += 1;
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_under_load_has_every_grant_that_was_answered_before() {
    let data = tempfile::tempdir().expect("a directory");
    let service = KEYLATCH.serve(&["--store", &embedded(data.path())], &[]).await;
    let (api, mut grants) = (Api::at(service.address), Vec::new());
    let stopped = Arc::new(AtomicBool::new(false));
    let load = (0..CLIENTS)
        .map(|client| tokio::spawn(work(service.address, client, Arc::clone(&stopped))))
        .collect::<Vec<_>>();
    for lock in 0..CLIENTS * BEFORE {
        let name = format!("before-{lock}");
        let created = api.create_as(&name, TOKEN, &json!({"ttl_ms": 600_000})).await;
        grants.push((name, created.fencing_token()));
    }
    let (target, url) = (Target::new(), format!("http://{}", service.address));
    let ended = back_up(&url, &[target.path()]).await;
    stopped.store(true, Ordering::Relaxed);
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(0), "", ""));
    for client in load {
        assert!(client.await.expect("every change was answered") >= BEFORE);
    }
    assert_eq!(target.files(), ["locks.sqlite"]);
    let mode = std::fs::metadata(&target.file).expect("the copy").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let copied = KEYLATCH.serve(&["--store", &embedded(target.directory.path())], &[]).await;
    let copy = Api::at(copied.address);
    for (name, token) in &grants {
        let again = copy.create_as(name, TOKEN, &json!({})).await;
        assert_eq!((again.status.as_u16(), again.fencing_token()), (200, *token), "{name}");
    }
    let last = grants.iter().map(|(_, token)| *token).max();
    let next = copy.create("next", &json!({})).await;
    assert!(Some(next.fencing_token()) > last, "{next:?} is not above {last:?}");
}

#[tokio::test]
async fn file_that_is_there_stays_unless_it_is_to_be_replaced() {
    let data = tempfile::tempdir().expect("a directory");
    let service = Service::start(&embedded(data.path())).await;
    let (target, url) = (Target::new(), service.url());
    std::fs::write(&target.file, "precious").expect("a file");
    is(&back_up(&url, &[target.path()]).await, 64, &["--force"]);
    assert_eq!(std::fs::read(&target.file).expect("the file"), b"precious");
    is(&back_up(&url, &["--force", target.path()]).await, 0, &[]);
    assert_eq!(target.files(), ["locks.sqlite"]);
    KEYLATCH.serve(&["--store", &embedded(target.directory.path())], &[]).await;
}

#[tokio::test]
async fn full_disk_of_the_client_leaves_no_file() {
    let data = tempfile::tempdir().expect("a directory");
    let service = Service::start(&embedded(data.path())).await;
    let (target, url) = (Target::new(), service.url());
    let limit = ["prlimit", "--fsize=4096:4096"];
    let arguments = ["backup", "--server", &url, target.path()];
    is(&KEYLATCH.run_through(&limit, &arguments).await, 74, &[target.path()]);
    assert_eq!(target.files(), [] as [&str; 0]);
}

#[tokio::test]
async fn copy_that_is_cut_short_leaves_no_file() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: 100000\r\n\r\nSQLite";
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let server = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.expect("a connection");
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            assert!(connection.read_buf(&mut request).await.expect("a request") > 0);
        }
        connection.write_all(answer.as_bytes()).await.expect("it takes the answer");
    });
    let target = Target::new();
    let ended = back_up(&url, &[target.path()]).await;
    server.await.expect("it was asked");
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert_eq!(target.files(), [] as [&str; 0]);
}

#[tokio::test]
async fn store_that_gives_no_copy_leaves_no_file() {
    let service = Service::start("memory:").await;
    let target = Target::new();
    let ended = back_up(&service.url(), &[target.path()]).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(76), ""), "{ended:?}");
    assert!(ended.stderr.contains("The store cannot do this"), "{ended:?}");
    assert_eq!(target.files(), [] as [&str; 0]);
}

/// Has the store keep answers that are more together than all buffers between it and a client take.
async fn fill(api: &Api) {
    let keep = async |key: usize| {
        let path = format!("/v1/idempotency/large-{key}");
        let lease = json!({"lease_ms": 60_000});
        let begun = Answer::of(api.request(Method::POST, &path).json(&lease)).await;
        let request = api.request(Method::PUT, &path).header("lock-token", begun.token());
        let kept = Answer::of(request.json(&json!({"body": "x".repeat(60_000)}))).await;
        assert_eq!(kept.status, 200, "{kept:?}");
    };
    stream::iter((0..300).map(keep)).buffer_unordered(32).collect::<Vec<()>>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_of_the_service_breaks_the_copy_off_and_not_the_service() {
    let data = tempfile::tempdir().expect("a directory");
    let service = KEYLATCH.serve(&["--store", &embedded(data.path())], &[]).await;
    let api = Api::at(service.address);
    fill(&api).await;
    let copy = api.request(Method::GET, "/v1/backup").send().await.expect("an answer");
    assert_eq!(copy.status(), 200);
    let process = service.id().to_string();
    let limit_files = |bytes: &str| {
        let limit = format!("--fsize={bytes}:unlimited");
        let set = Command::new("prlimit").args(["--pid", &process, &limit]).status();
        assert!(set.expect("prlimit of util-linux runs").success());
    };
    // Less than a page: wherever in its log the store writes next, it does not fit.
    limit_files("1024");
    api.create_as("a", TOKEN, &json!({})).await.is_problem(503, "store-unavailable");
    copy.bytes().await.expect_err("the file changes, so its copy is not whole");
    limit_files("unlimited");
    let takes_changes = async || {
        let created = api.create_as("a", TOKEN, &json!({})).await;
        created.status.is_success().then_some(())
    };
    eventually(takes_changes).await;
    let target = Target::new();
    is(&back_up(&format!("http://{}", service.address), &[target.path()]).await, 0, &[]);
}
