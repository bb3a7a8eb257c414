//! A machine of the campaign of jobs: its clock, its way to the service, and what it runs.
//!
//! Goal: each machine fails as a machine does, apart from all others.
//!
//! Method: a machine is a wall clock of its own, a proxy in front of the service, and the tree of
//! processes that its cron or its supervisor has started. A kill or a pause comes to all of the
//! tree, or a kill to `keylatch` alone.

use std::fs;
use std::time::Duration;

use keylatch_testkit::{Exit, Proxy, RunningCommand, WallClock};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::task::JoinHandle;

use crate::locks::pass;

/// How long a command may take to its end. It may wait for several others, one after the other.
const LIMIT: Duration = Duration::from_secs(180);

/// A machine that is up.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) number: usize,
    proxy: Proxy,
    clock: WallClock,
}

/// What is done to a machine while it runs something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// By SIGTERM.
    AskToEnd,
    /// `keylatch` is killed, and what it runs is not.
    KillKeylatch,
    KillMachine,
    /// All of it is stopped.
    Pause,
    /// No request gets through.
    Cut,
    /// Requests are carried out, and their responses are lost.
    LoseAnswers,
    HoldAnswers,
}

/// What ends or stops a leader.
pub(super) const ENDS: [Fault; 5] =
    [Fault::AskToEnd, Fault::KillKeylatch, Fault::KillMachine, Fault::Pause, Fault::Cut];

pub(super) const FAULTS: [Fault; 6] = [
    Fault::KillKeylatch,
    Fault::KillMachine,
    Fault::Pause,
    Fault::Cut,
    Fault::LoseAnswers,
    Fault::HoldAnswers,
];

impl Machine {
    /// A machine that reaches the service at an address.
    pub(super) async fn new(number: usize, service: String, clock: WallClock) -> Self {
        Self { number, proxy: Proxy::start(service).await, clock }
    }

    /// Runs a line of its crontab, which has `$0` for the program and `$1` for what is run.
    pub(super) fn start(&self, line: &str, run: &str) -> Running {
        let (url, number) = (self.proxy.http_url(), self.number.to_string());
        let own = [("KEYLATCH_URL", &*url), ("MACHINE", &*number)];
        let environment = [&self.clock.environment()[..], &own].concat();
        let program = env!("CARGO_BIN_EXE_keylatch");
        let command = RunningCommand::of(&["sh", "-c", line, program, run], &environment);
        let keylatch = i32::try_from(command.id()).expect("an id");
        let ended = tokio::spawn(command.ended_within(LIMIT));
        Running { keylatch: Pid::from_raw(keylatch), ended }
    }

    /// Does this to the machine, and undoes after some time what can be undone.
    pub(super) async fn suffer(&self, fault: Fault, running: &Running, time: Duration) {
        match fault {
            Fault::AskToEnd => running.signal(Signal::SIGTERM),
            Fault::KillKeylatch => running.signal(Signal::SIGKILL),
            Fault::KillMachine => {
                for process in running.stop() {
                    let _ = kill(process, Signal::SIGKILL);
                }
            }
            Fault::Pause => {
                let stopped = running.stop();
                pass(time).await;
                for process in stopped {
                    let _ = kill(process, Signal::SIGCONT);
                }
            }
            Fault::Cut => self.proxy.refuse(),
            Fault::LoseAnswers => self.proxy.lose_answers(),
            Fault::HoldAnswers => self.proxy.hold_answers(),
        }
        if matches!(fault, Fault::Cut | Fault::LoseAnswers | Fault::HoldAnswers) {
            pass(time).await;
            self.proxy.forward();
        }
    }
}

impl Fault {
    pub(super) fn is_kill(self) -> bool {
        matches!(self, Self::KillKeylatch | Self::KillMachine)
    }
}

/// What a machine runs.
#[derive(Debug)]
pub(super) struct Running {
    keylatch: Pid,
    ended: JoinHandle<Exit>,
}

impl Running {
    pub(super) async fn ended(self) -> Exit {
        self.ended.await.expect("an end")
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_finished()
    }

    /// Sends a signal to `keylatch`.
    pub(super) fn signal(&self, signal: Signal) {
        if !self.has_ended() {
            // It may just have ended.
            let _ = kill(self.keylatch, signal);
        }
    }

    /// Stops `keylatch` and all that it has started; gives them, parents first.
    fn stop(&self) -> Vec<Pid> {
        let mut tree = if self.has_ended() { Vec::new() } else { vec![self.keylatch] };
        let mut next = 0;
        while let Some(process) = tree.get(next).copied() {
            let _ = kill(process, Signal::SIGSTOP);
            tree.extend(children(process));
            next += 1;
        }
        tree
    }
}

/// The processes that the threads of this one have started.
fn children(of: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten();
    let threads = threads.filter_map(Result::ok).map(|thread| thread.path().join("children"));
    let children: String = threads.filter_map(|list| fs::read_to_string(list).ok()).collect();
    let ids = children.split_ascii_whitespace().filter_map(|id| id.parse().ok());
    ids.map(Pid::from_raw).collect()
}

pub(super) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
