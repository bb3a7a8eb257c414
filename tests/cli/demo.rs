//! Goal: the pages that `keylatch demo` names are there, and it leaves nothing behind.
//!
//! Method: the process itself, with its own temporary directory.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

#[tokio::test]
async fn demo_serves_pages_that_it_names_and_removes_its_store() {
    let temporary = TempDir::new().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_keylatch"));
    // What is set for a service of one's own is not the demo's.
    command.env("KEYLATCH_SANDBOX", "off").env("KEYLATCH_STORE", "redis://127.0.0.1:1");
    command.arg("demo").env("TMPDIR", temporary.path()).stdout(Stdio::piped());
    let mut demo = command.spawn().expect("it starts");
    let left = || std::fs::read_dir(temporary.path()).expect("a directory").count();
    let lines = BufReader::new(demo.stdout.take().expect("standard output")).lines();
    let lines = lines.map_while(Result::ok).skip_while(|line| !line.contains("http://"));
    let pages: Vec<String> = lines
        .take_while(|line| line.contains("http://"))
        .map(|line| line.split_whitespace().next().expect("a URL").to_owned())
        .collect();
    for path in ["/demo", "/", "/docs", "/openapi.json"] {
        assert!(pages.iter().any(|page| page.ends_with(path)), "{path}: {pages:?}");
    }
    for page in &pages {
        let answer = reqwest::get(page).await.expect("an answer");
        assert_eq!(answer.status(), 200, "{page}");
    }
    assert_eq!(left(), 1);
    let process = i32::try_from(demo.id()).expect("a process id");
    kill(Pid::from_raw(process), Signal::SIGTERM).expect("a signal");
    assert!(demo.wait().expect("it ends").success());
    assert_eq!(left(), 0);
}
