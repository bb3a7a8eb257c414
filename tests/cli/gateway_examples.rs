//! Goal: a newcomer who copies the first example of `docs/gateway.md` gets one order of two.
//!
//! Method: the page's own configuration and commands, with only the two addresses changed to free
//! ones, run by a shell against the process.

use std::process::Stdio;

use keylatch_testkit::Upstream;
use tokio::process::Command;

use crate::KEYLATCH;

const PAGE: &str = include_str!("../../docs/gateway.md");

/// The first blocks of code in this language.
fn blocks(language: &'static str) -> impl Iterator<Item = &'static str> {
    // Every other part is code, and begins with its language.
    let code = PAGE.split("```").skip(1).step_by(2);
    code.filter_map(move |block| block.strip_prefix(language)?.strip_prefix('\n'))
}

#[tokio::test]
async fn first_example_works_word_for_word() {
    let upstream = Upstream::start().await;
    let file = tempfile::NamedTempFile::new().expect("a file");
    let settings = blocks("toml").next().expect("a configuration");
    assert!(settings.contains("http://127.0.0.1:8000"), "{settings}");
    let settings = settings.replace("http://127.0.0.1:8000", &upstream.url());
    std::fs::write(file.path(), settings).expect("it is written");
    let path = file.path().display().to_string();
    let service = KEYLATCH.serve(&["--config", &path], &[]).await;

    let commands = blocks("bash").find(|block| block.contains("curl")).expect("commands");
    let commands: Vec<_> = commands.lines().collect();
    assert_eq!(commands[0], commands[1]);
    for is_replay in [false, true] {
        let command = commands[0].replace("127.0.0.1:7070", &service.address.to_string());
        let ran = Command::new("sh").args(["-c", &command]).stdin(Stdio::null()).output().await;
        let shown = String::from_utf8(ran.expect("a shell").stdout).expect("text").to_lowercase();
        assert!(shown.starts_with("http/1.1 201"), "{shown}");
        assert_eq!(shown.contains("idempotent-replayed: true"), is_replay, "{shown}");
        assert!(shown.ends_with("{\"run\":1}"), "{shown}");
    }
    assert_eq!(upstream.runs(), 1);
}
