use std::fs::File;
use std::io::{self, IsTerminal as _};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

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

    /// Takes the terminal back from the group that has it from us.
    pub(super) fn take_back(&mut self) {
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
        self.take_back();
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
