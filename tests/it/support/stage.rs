use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use super::{Running, eventually};

/// What every script begins with. Descriptor 9 is locked for as long as the script or anything that
/// it has started lives, however it ends, and a second script that runs meanwhile finds that out.
const BEGIN: &str = "
    exec 9>alive; flock -n 9 || echo $KEYLATCH_FENCING_TOKEN >>overlaps
    begun() { echo >begun; }
    held() { read -r word <go; }
";

/// A directory in which a command under `keylatch run` tells how far it is, and waits for a word.
#[derive(Debug)]
pub(crate) struct Stage {
    directory: TempDir,
    /// Words for scripts. Open on both ends, so that nobody waits for the other end.
    words: File,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let go = directory.path().join("go");
        assert!(Command::new("mkfifo").arg(&go).status().expect("mkfifo runs").success());
        let words = File::options().read(true).write(true).open(go).expect("a pipe");
        Self { directory, words }
    }

    /// Starts `keylatch run ARGUMENTS -- sh -c SCRIPT`. In the script, `begun` says that it runs
    /// and `held` waits for a word.
    pub(crate) fn run(&self, server: &str, arguments: &[&str], script: &str) -> Running {
        let script = self.script(script);
        let arguments = [&["run"], arguments, &["--", "sh", "-c", &script]].concat();
        Running::start(&arguments, &[("KEYLATCH_SERVER", server)])
    }

    /// The whole of a script.
    pub(crate) fn script(&self, script: &str) -> String {
        format!("cd '{}' || exit 99\n{BEGIN}\n{script}", self.directory.path().display())
    }

    /// Waits until the script has begun.
    pub(crate) async fn begun(&self) {
        self.has("begun").await;
    }

    /// Waits until there is a file.
    pub(crate) async fn has(&self, file: &str) {
        eventually(async || self.path(file).exists().then_some(())).await;
    }

    /// Lets a script that is held go on, now or when it comes to it.
    pub(crate) fn go(&self) {
        (&self.words).write_all(b"go\n").expect("room for a word");
    }

    /// Waits until no script, and nothing that one has started, is there any more.
    pub(crate) async fn left(&self) {
        eventually(async || (!self.is_alive()).then_some(())).await;
    }

    /// What is in a file; nothing if there is none.
    pub(crate) fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.path(file)).unwrap_or_default()
    }

    /// Whether a script, or anything that one has started, is still there.
    pub(crate) fn is_alive(&self) -> bool {
        File::open(self.path("alive")).is_ok_and(|file| file.try_lock().is_err())
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }
}
