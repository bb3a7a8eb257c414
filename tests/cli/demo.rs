//! Goal: the pages that `keylatch demo` names are there, and it leaves nothing behind.
//!
//! Method: the process itself, with its own temporary directory.

use std::io::{BufRead as _, BufReader, Write as _};
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
    let lines = lines.map_while(Result::ok).skip_while(|line| !line.starts_with("  http://"));
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

/// On a terminal the service itself says what to open and to try.
#[tokio::test]
async fn service_on_a_terminal_says_where_it_is_and_what_to_try() {
    let service = env!("CARGO_BIN_EXE_keylatch");
    let start = format!("exec {service} --listen 127.0.0.1:0 --store memory:");
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &start, "/dev/null"]).env_clear();
    command.env("PATH", "/usr/bin:/bin").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut terminal = command.spawn().expect("util-linux");
    let lines = BufReader::new(terminal.stdout.take().expect("standard output")).lines();
    let mut lines = lines.map_while(Result::ok);
    let said: Vec<_> = lines.by_ref().take_while(|line| !line.contains("Ctrl-C")).collect();
    for part in [
        "keylatch listens at http://127.0.0.1:",
        "memory: (tier process)",
        "/docs ",
        "the console",
        "curl -X POST http://127.0.0.1:",
        "keylatch lock acquire report --server http://127.0.0.1:",
    ] {
        assert!(said.iter().any(|line| line.contains(part)), "{part}: {said:?}");
    }
    let mut keys = terminal.stdin.take().expect("standard input");
    keys.write_all(b"\x03").expect("Ctrl-C");
    assert!(lines.any(|line| line.contains("SIGINT")));
    assert_eq!(lines.count(), 0);
    assert!(terminal.wait().expect("it ends").success());
}
