//! The process group of the command, and the terminal that the command has for as long as it runs.
//!
//! The command has a group of its own, so that a signal reaches what it has started as well, and
//! the end of the command is not taken for the end of the group. To stop the group is to stop the
//! descendants of the command that have left it, too. Of the groups that share a terminal one reads
//! it, so the command's group gets the terminal and this process takes it back, as a shell does
//! with a job.
//!
//! Invariant: a [`Group`] that is dropped before its command has ended is killed, and a
//! [`Terminal`] that is dropped is this process's again. Tested in `tests/cli/run.rs`,
//! `run_descendants.rs`, `run_overlap.rs` and `run_signals.rs`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::time::Duration;

use keylatch_client::Lease;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, killpg};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use rustix::process::{WaitOptions, WaitStatus, wait};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, interval, timeout_at};

use super::descendants::Descendants;
use super::guardian::Guardian;
use crate::failure::{Failure, StopResult, of_signal};
use crate::plain::say;

/// How often a group is looked at while it is being stopped: nothing tells when its last process
/// has ended.
const LOOK: Duration = Duration::from_millis(10);
/// How long a killed command may take to end: only the kernel can keep it for longer.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// The command, in its own process group with what it starts.
///
/// Dropped before the command has ended, it kills the group and what has left it.
#[derive(Debug)]
pub(super) struct Group {
    id: Pid,
    descendants: Descendants,
    changes: unix::Signal,
    /// How the command has ended, once it has.
    end: Option<End>,
    /// What is read of the command's output, where it is captured.
    pipes: Option<(ChildStdout, ChildStderr)>,
    /// For the case that this process is killed. It ends before the command is stopped.
    guardian: Option<Guardian>,
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// By itself, with this exit code.
    Exit(u8),
    /// By this signal.
    Signal(i32),
}

impl End {
    /// The exit code, as shells have it.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Exit(code) => code,
            Self::Signal(signal) => of_signal(signal),
        }
    }
}

/// What happened to the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessChange {
    /// It ended.
    Ended(End),
    /// A signal stopped it for now.
    Suspended(Signal),
}

impl Group {
    /// Starts the command, with these variables set or, where there is no value, removed. With
    /// `captured`, its output goes to [`pipes`](Self::pipes). It is ended also where this process
    /// is killed, before a lease of this `ttl` ends.
    pub(super) fn spawn(
        command: &[OsString],
        environment: Vec<(&'static str, Option<String>)>,
        (lease, ttl): (&Lease, Duration),
        captured: bool,
    ) -> Result<Self, Failure> {
        // It may have ended while this process heard of it, or slept.
        if let Err(lost) = lease.check() {
            say(&lost);
            return Err(Failure::Stopped(StopResult::NotStarted));
        }
        let program = command.first().cloned().unwrap_or_default();
        let spawned = Self::try_spawn(command, environment, ttl, captured);
        spawned.map_err(|error| Failure::Spawn(program, error))
    }

    fn try_spawn(
        command: &[OsString],
        environment: Vec<(&'static str, Option<String>)>,
        ttl: Duration,
        captured: bool,
    ) -> io::Result<Self> {
        let changes = unix::signal(SignalKind::child())?;
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
        let mut command = Command::new(program);
        for (variable, value) in environment {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        if captured {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        // A child from before the command, and so no descendant of it.
        let mut guardian = Guardian::start(ttl);
        let descendants = Descendants::adopt();
        let child = command.args(arguments).process_group(0).spawn()?;
        let id = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        if let Some(guardian) = &mut guardian {
            guardian.watch(id);
        }
        let pipes = child.stdout.zip(child.stderr);
        Ok(Self { id, descendants, changes, end: None, pipes, guardian })
    }

    /// The command's output, where it is captured, for who calls this first.
    pub(super) fn pipes(&mut self) -> Option<(ChildStdout, ChildStderr)> {
        self.pipes.take()
    }

    /// The id of the group.
    pub(super) fn id(&self) -> Pid {
        self.id
    }

    /// Sends a signal to all of the group.
    pub(super) fn send(&self, signal: Signal) {
        // A group that has ended takes no signal.
        let _ = killpg(self.id, signal);
    }

    /// Waits until the command ends or is suspended. May be dropped and called again.
    pub(super) async fn changed(&mut self) -> io::Result<ProcessChange> {
        loop {
            if let Some(change) = self.change()? {
                return Ok(change);
            }
            self.changes.recv().await;
        }
    }

    /// Ends the group and what has left it: SIGTERM, and after `grace` SIGKILL.
    pub(super) async fn stop(mut self, grace: Duration) -> StopResult {
        let end = Instant::now() + grace;
        // Another child to tell from the command's would have all processes read at each look.
        self.guardian = None;
        if !grace.is_zero() {
            // What is suspended would not read the first one alone.
            for signal in [Signal::SIGTERM, Signal::SIGCONT] {
                self.send_to_all(signal);
            }
            if timeout_at(end, self.gone()).await.is_ok() {
                return StopResult::Ended;
            }
        }
        match timeout_at(Instant::now() + KILL_LIMIT, self.killed()).await {
            Ok(()) => StopResult::Killed,
            Err(_) => StopResult::StillThere,
        }
    }

    /// Waits until the command has ended, and all that it has started.
    async fn gone(&mut self) {
        let mut look = interval(LOOK);
        while !self.is_gone() {
            look.tick().await;
        }
    }

    /// The same, and kills what is there, since a process may start another one while it is looked
    /// for.
    async fn killed(&mut self) {
        let mut look = interval(LOOK);
        self.send_to_all(Signal::SIGKILL);
        while !self.is_gone() {
            look.tick().await;
            self.send_to_all(Signal::SIGKILL);
        }
    }

    fn is_gone(&mut self) -> bool {
        let has_children = loop {
            match self.news() {
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        let others_live = has_children && self.descendants.any_lives();
        self.end.is_some() && !others_live && killpg(self.id, None).is_err()
    }

    fn send_to_all(&self, signal: Signal) {
        self.send(signal);
        self.descendants.send_outside(self.id, signal);
    }

    /// What has become of the command since the last call.
    fn change(&mut self) -> io::Result<Option<ProcessChange>> {
        if let Some(end) = self.end {
            return Ok(Some(ProcessChange::Ended(end)));
        }
        while let Some((child, status)) = self.news()? {
            let stopped_by = status.stopping_signal().map(Signal::try_from);
            match (self.end, stopped_by) {
                (Some(end), _) => return Ok(Some(ProcessChange::Ended(end))),
                (None, Some(Ok(signal))) if child == self.id => {
                    return Ok(Some(ProcessChange::Suspended(signal)));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// What has become of one child: the command, or an orphan of its. An orphan that has ended is
    /// in the way until its parent has seen that, which is this process.
    fn news(&mut self) -> io::Result<Option<(Pid, WaitStatus)>> {
        let Some((child, status)) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED)? else {
            return Ok(None);
        };
        let child = Pid::from_raw(child.as_raw_nonzero().get());
        let end = status.exit_status().map(|code| End::Exit(code as u8));
        let end = end.or_else(|| status.terminating_signal().map(End::Signal));
        if end.is_some() {
            self.descendants.forget(child);
        }
        if child == self.id {
            self.end = end;
        }
        Ok(Some((child, status)))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.end.is_none() {
            self.send_to_all(Signal::SIGKILL);
        }
    }
}

/// The terminal that this process was started from, which one process group at a time reads.
///
/// Dropped, it is this process's again.
#[derive(Debug)]
pub(super) struct Terminal {
    device: Option<File>,
    /// The group that has it from us.
    given: Option<Pid>,
}

impl Terminal {
    /// The terminal of the session, if it has one.
    pub(super) fn open() -> Self {
        Self { device: File::open("/dev/tty").ok(), given: None }
    }

    /// Whether both ends of a pipe are out of play, so that no neighbour wants the terminal.
    pub(super) fn is_ours_alone() -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    /// Gives the terminal to `group` if it is ours to give; says whether the group has it.
    pub(super) fn give(&mut self, group: Pid) -> bool {
        let Some(device) = &self.device else { return false };
        if tcgetpgrp(device) == Ok(getpgrp()) && tcsetpgrp(device, group).is_ok() {
            self.given = Some(group);
        }
        self.given.is_some()
    }

    /// Whether a group has the terminal from us.
    pub(super) fn is_given(&self) -> bool {
        self.given.is_some()
    }

    /// Makes this process's group the foreground group again, in place of the one that it gave the
    /// terminal to.
    pub(super) fn reclaim(&mut self) {
        let (Some(device), Some(group)) = (&self.device, self.given.take()) else { return };
        if tcgetpgrp(device) != Ok(group) {
            return;
        }
        // To take it from the background stops a process, unless it blocks the signal for that.
        let set = SigSet::from(Signal::SIGTTOU);
        if let Ok(before) = set.thread_swap_mask(SigmaskHow::SIG_BLOCK) {
            let _ = tcsetpgrp(device, getpgrp());
            let _ = before.thread_set_mask();
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.reclaim();
    }
}

/// Suspends this process and its neighbours in the job, as Ctrl-Z would have done, and returns when
/// they continue.
///
/// It sends SIGTTOU: this process catches SIGTSTP, and SIGSTOP would also stop a job that no shell
/// is there to wake.
pub(super) fn suspend_job() {
    let _ = kill(Pid::from_raw(0), Signal::SIGTTOU);
}
