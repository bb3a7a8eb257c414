//! The processes that the command has started, in whatever process groups and sessions they are by
//! now.
//!
//! `setsid`, `timeout` and daemons leave the command's process group, so a signal to the group does
//! not reach them. On Linux this process is their subreaper: a process whose parent has ended
//! becomes its child, and so none leaves the tree that `/proc` shows. A cgroup would hold them as
//! well, but it needs a tree of cgroups that this user may write. On other systems only the group
//! is known.
//!
//! Invariant: the children that this process had before it started the command are no descendants
//! of it. Tested in `tests/cli/run_descendants.rs`.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// All that the command has started.
#[derive(Debug)]
pub(super) struct Descendants {
    /// Children from before, of a shell that became this process by `exec`.
    others: Vec<Pid>,
}

/// A process, as `/proc` shows it.
#[derive(Debug)]
struct Process {
    id: Pid,
    parent: Pid,
    group: Pid,
    has_ended: bool,
}

impl Descendants {
    /// Makes this process the parent of every orphan from now on; to be called before the command
    /// starts.
    pub(super) fn adopt() -> Self {
        #[cfg(target_os = "linux")]
        let _ = nix::sys::prctl::set_child_subreaper(true);
        let this = Pid::this();
        let children = processes().into_iter().filter(|process| process.parent == this);
        Self { others: children.map(|process| process.id).collect() }
    }

    /// Notes that a child of this process has ended and that its id is free.
    pub(super) fn forget(&mut self, child: Pid) {
        self.others.retain(|other| *other != child);
    }

    /// Whether any of them lives, where the command has ended and this process still has children.
    pub(super) fn any_lives(&self) -> bool {
        if self.others.is_empty() {
            // What lives is a child of this process or has an ancestor that is.
            return cfg!(target_os = "linux");
        }
        self.list().iter().any(|process| !process.has_ended)
    }

    /// Sends a signal to each of them that is not in the process group of the command.
    pub(super) fn send_outside(&self, group: Pid, signal: Signal) {
        for process in self.list().iter().filter(|process| process.group != group) {
            // One that has ended takes no signal.
            let _ = kill(process.id, signal);
        }
    }

    /// The tree below this process, parents first.
    fn list(&self) -> Vec<Process> {
        let (mut found, mut parents) = (Vec::new(), vec![Pid::this()]);
        let mut rest = processes();
        rest.retain(|process| !self.others.contains(&process.id));
        while !parents.is_empty() {
            let (children, others) =
                rest.into_iter().partition(|process| parents.contains(&process.parent));
            rest = others;
            let children: Vec<Process> = children;
            parents = children.iter().map(|process| process.id).collect();
            found.extend(children);
        }
        found
    }
}

/// All processes that this one may see; none where the system has no such files.
fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    ids.filter_map(process).collect()
}

/// One process, unless it has ended and its parent has seen that.
fn process(id: i32) -> Option<Process> {
    let stat = fs::read(format!("/proc/{id}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name of the program is in parentheses, and may have some itself.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    let mut id_of_next = || fields.next()?.parse().ok().map(Pid::from_raw);
    Some(Process { id: Pid::from_raw(id), parent: id_of_next()?, group: id_of_next()?, has_ended })
}
