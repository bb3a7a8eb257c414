//! Shell scripts under `keylatch run` that say how far they are and wait for a word from the test.
//!
//! A script holds an `flock` on a file for as long as it, or anything that it has started, lives.
//! Two scripts of one directory that run at the same time leave a line in the file `overlaps`.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::{Program, RunningCommand, eventually};

/// What every script begins with. Descriptor 9 is locked for as long as the script or anything that
/// it has started lives, however it ends.
const BEGIN: &str = "
    exec 9>alive; flock -n 9 || echo $KEYLATCH_FENCING_TOKEN >>overlaps
    begun() { echo >begun; }
    held() { read -r word <go; }
";

/// A directory in which scripts run. They end with the test.
#[derive(Debug)]
pub struct ScriptDirectory {
    directory: TempDir,
    /// Words for scripts. This process has both ends open, so opening one end never waits.
    words: File,
}

#[expect(clippy::new_without_default, reason = "it makes a directory")]
impl ScriptDirectory {
    /// An empty directory.
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let go = directory.path().join("go");
        assert!(Command::new("mkfifo").arg(&go).status().expect("mkfifo runs").success());
        let words = File::options().read(true).write(true).open(go).expect("a pipe");
        Self { directory, words }
    }

    /// Starts `keylatch run ARGUMENTS -- sh -c SCRIPT`. In the script, `begun` tells the test that
    /// it runs, and `held` waits for a word from the test.
    pub fn run(
        &self,
        keylatch: &Program,
        server: &str,
        arguments: &[&str],
        script: &str,
    ) -> RunningCommand {
        let script = self.script(script);
        let arguments = [&["run"], arguments, &["--", "sh", "-c", &script]].concat();
        keylatch.start(&arguments, &[("KEYLATCH_URL", server)])
    }

    /// A script with what every script begins with, for a shell of the test's own.
    pub fn script(&self, script: &str) -> String {
        format!("cd '{}' || exit 99\n{BEGIN}\n{script}", self.directory.path().display())
    }

    /// Waits until the script has begun.
    pub async fn begun(&self) {
        self.has("begun").await;
    }

    /// Waits until there is a file.
    pub async fn has(&self, file: &str) {
        eventually(async || self.path(file).exists().then_some(())).await;
    }

    /// Lets one script pass `held`, now or when it comes to it.
    pub fn go(&self) {
        (&self.words).write_all(b"go\n").expect("room for a word");
    }

    /// Waits until every script and all that they have started have ended.
    pub async fn left(&self) {
        eventually(async || (!self.is_alive()).then_some(())).await;
    }

    /// The text of a file; empty where there is no file.
    pub fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.path(file)).unwrap_or_default()
    }

    /// Whether a script, or anything that one has started, still runs.
    pub fn is_alive(&self) -> bool {
        File::open(self.path("alive")).is_ok_and(|file| file.try_lock().is_err())
    }

    /// The path of a file in the directory.
    pub fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }
}
