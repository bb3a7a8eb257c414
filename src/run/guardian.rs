//! The end of a command whose `run` was killed by SIGKILL, of which no process can take note
//! itself.
//!
//! A shell outside the command's process group reads a pipe that only `run` can write to. A line
//! says that `run` looks after the command to its end. The end of the pipe without one says that
//! `run` has gone, and the shell ends the group: SIGTERM, then SIGKILL. It does not reach what has
//! left the group, and a kill of it too leaves the command alone. Where there is no `sh`, there is
//! no guardian. Tested in `tests/cli/run_killed.rs`.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::unistd::Pid;

/// What the shell does: the first line names the group, and the second one is the end of its watch.
const SCRIPT: &str = "trap '' HUP INT QUIT TERM TSTP
    read -r group || exit 0
    read -r end && exit 0
    kill -TERM \"-$group\" && kill -CONT \"-$group\"
    sleep \"$1\"
    kill -KILL \"-$group\"";
/// How long the command has to end by itself, at most: its lease ends as well.
const GRACE: Duration = Duration::from_secs(1);

/// The shell that ends the command where this process cannot. Dropped, it ends nothing.
#[derive(Debug)]
pub(super) struct Guardian(Child);

impl Guardian {
    /// Starts it for a command under a lease of this length, before the command itself.
    pub(super) fn start(lease: Duration) -> Option<Self> {
        let grace = GRACE.min(lease / 4).as_secs_f64().to_string();
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT, "keylatch-guardian", &grace]).current_dir("/").process_group(0);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        shell.spawn().ok().map(Self)
    }

    /// Names the group that it is to end.
    pub(super) fn watch(&mut self, group: Pid) {
        self.tell(&format!("{group}\n"));
    }

    fn tell(&mut self, line: &str) {
        if let Some(pipe) = &mut self.0.stdin {
            // One that was killed guards nothing any more.
            let _ = pipe.write_all(line.as_bytes());
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // Twice, as it may not have been told of a group.
        self.tell("end\nend\n");
    }
}
