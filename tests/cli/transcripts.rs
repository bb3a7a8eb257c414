//! Goal: the commands of the README and of the pages print what these show.
//!
//! Method: all commands of a page run in one shell, in a directory of its own, with only the
//! addresses changed to free ones. What the page shows is printed in that order, line by line;
//! numbers, times and tokens are others each time.

use std::os::unix::fs::symlink;
use std::time::Duration;

use keylatch_testkit::{RunningCommand, Upstream, free_port};

use crate::KEYLATCH;

const README: &str = include_str!("../../README.md");

/// A page gives the service a second to start, which a busy machine may not have.
const WAITS: &str = r#"up() { until curl -so /dev/null "$1/livez"; do command sleep 0.1; done; }
sleep() { command sleep "$1"; up "$KEYLATCH_LISTEN"; }"#;

/// The blocks of code in one of these languages.
fn blocks<'a>(page: &'a str, languages: &[&str]) -> Vec<&'a str> {
    let code = page.split("```").skip(1).step_by(2);
    let code = code.filter_map(|block| block.split_once('\n'));
    code.filter(|(language, _)| languages.contains(language)).map(|(_, text)| text).collect()
}

/// A line without the words that are others each time: those with a digit in them, the host before
/// a process's number, and tokens.
fn shape(line: &str) -> String {
    let line = line.trim();
    let start = line.split_once(", pid ").map_or("", |(start, _)| start);
    let host = start.rsplit(['"', ' ']).next().unwrap_or_default();
    let in_word = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let mut shape = String::new();
    for word in line.split_inclusive(|c: char| !in_word(c)) {
        let bare = word.trim_end_matches(|c: char| !in_word(c));
        let differs = bare.contains(|c: char| c.is_ascii_digit()) || bare.len() == 32;
        let differs = differs || (!host.is_empty() && bare == host);
        shape += if differs { "_" } else { bare };
        shape += &word[bare.len()..];
    }
    shape
}

/// What these commands print, run where `keylatch` is and where `shop.toml` has these settings.
async fn printed(commands: &str, settings: &str, address: &str) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    std::fs::create_dir_all(here.join("target/release")).expect("a directory");
    for path in ["keylatch", "target/release/keylatch"] {
        symlink(env!("CARGO_BIN_EXE_keylatch"), here.join(path)).expect("a link");
    }
    std::fs::write(here.join("shop.toml"), settings).expect("it is written");
    std::fs::write(here.join(".curlrc"), "silent\n").expect("it is written");
    let here = here.display().to_string();
    let path = format!("{here}:{}", std::env::var("PATH").expect("a path"));
    let url = format!("http://{address}");
    let environment =
        [("HOME", &*here), ("PATH", &path), ("KEYLATCH_LISTEN", address), ("KEYLATCH_URL", &url)];
    let script = format!("cd \"$HOME\"; exec 2>&1\n{WAITS}\n{commands}\nkill -9 $(jobs -p)\n");
    let shell = RunningCommand::of(&["bash", "-c", &script], &environment);
    shell.ended_within(Duration::from_secs(120)).await.stdout
}

/// Whether a page shows what its commands print, in its order.
#[track_caller]
fn agree(page: &str, printed: &str) {
    let mut left = printed.lines().map(shape);
    for shown in blocks(page, &["json", "text"]).iter().flat_map(|block| block.lines()) {
        let shown = shape(shown);
        let found = shown.is_empty() || left.any(|line| line == shown);
        assert!(found, "{shown} is not printed there:\n{printed}");
    }
}

async fn run(page: &str, address: &str) {
    let commands = blocks(page, &["bash"]).concat().replace("localhost:7070", address);
    agree(page, &printed(&commands, "", address).await);
}

#[tokio::test]
async fn readme_is_a_transcript() {
    let upstream = Upstream::start().await;
    let settings = blocks(README, &["toml"]).concat();
    let settings = settings.replace("http://127.0.0.1:8000", &upstream.url());
    let [address, shop] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let commands = blocks(README, &["bash"]);
    let commands = commands.into_iter().filter(|block| !block.contains("cargo install"));
    let commands = commands.collect::<String>().replace("/tmp/try", ".");
    let commands = commands.replace("localhost:7070", &address);
    let commands = commands.replace("localhost:7071", &shop);
    let commands = commands.replace("--listen 7071", &format!("--listen {shop}"));
    let commands = commands.replace("shop.log & sleep 1", &format!("shop.log & up {shop}"));
    let printed = printed(&commands, &settings, &address).await;
    agree(README, &printed);
    assert_eq!(upstream.runs(), 2);
    let payments = printed.lines().filter(|line| line.starts_with("{\"id\":\"1\""));
    assert_eq!(payments.count(), 2, "{printed}");
    assert!(printed.contains("\nthe report\nunder fencing token "), "{printed}");
}

/// This page starts the service itself, and kills it.
#[tokio::test]
async fn page_of_idempotency_is_a_transcript() {
    let page = include_str!("../../docs/idempotency.md");
    run(page, &format!("127.0.0.1:{}", free_port())).await;
}

#[tokio::test]
async fn pages_are_transcripts() {
    for page in [
        include_str!("../../docs/locks.md"),
        include_str!("../../docs/waiting.md"),
        include_str!("../../docs/modes.md"),
        include_str!("../../docs/run.md"),
        include_str!("../../docs/run-once.md"),
        include_str!("../../docs/command-line.md"),
    ] {
        let service = KEYLATCH.serve(&[], &[]).await;
        run(page, &service.address.to_string()).await;
    }
}
