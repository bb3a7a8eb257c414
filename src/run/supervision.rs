//! The command while it runs under a lease, be it that of a lock or that of a key: signals on their
//! way to it, the terminal, and its end when the lease is lost.
//!
//! A signal that was ignored when `run` started stays ignored, as `nohup` wants it. Invariant: the
//! command has ended, or was killed, before the validity of its lease ends. Tested in
//! `tests/cli/run.rs`, `run_overlap.rs`, `run_signals.rs` and `once.rs`.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use keylatch_client::{Lease, LossReason};
use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};

use super::group::{End, Group, ProcessChange, Terminal, suspend_job};
use crate::failure::Failure;
use crate::plain::say;

/// How long before a validity ends the command is killed, at most: the signal takes its time.
const MARGIN: Duration = Duration::from_millis(200);
/// How long the command has to end by itself where the service has said that the lease is over.
const GONE_GRACE: Duration = Duration::from_secs(1);
/// How long the reader of standard error may take for a line.
const LISTENING: Duration = Duration::from_millis(200);

/// Waits for the end of the command, or makes it end when the lease is lost; `what_is_lost` says
/// which.
pub(super) async fn supervise(
    mut group: Group,
    lease: &Lease,
    signals: &mut Signals,
    what_is_lost: &dyn Fn(&LossReason) -> String,
) -> Result<End, Failure> {
    let mut terminal = Terminal::open();
    if Terminal::is_ours_alone() {
        resume(&group, lease, &mut terminal, true);
    }
    let lost = lease.lost();
    loop {
        tokio::select! {
            biased;
            () = lost.cancelled() => {
                terminal.reclaim();
                return Err(stop(group, lease, what_is_lost).await);
            }
            changed = group.changed() => match changed.map_err(Failure::System)? {
                ProcessChange::Ended(end) => return Ok(end),
                ProcessChange::Suspended(by) => suspended(by, &group, lease, &mut terminal),
            },
            signal = signals.next() => match signal {
                Signal::SIGCONT => resume(&group, lease, &mut terminal, false),
                signal => group.send(signal),
            },
        }
    }
}

/// Does what a shell does when its job is suspended.
fn suspended(by: Signal, group: &Group, lease: &Lease, terminal: &mut Terminal) {
    match by {
        // It wants the terminal, which it was not given at the start.
        Signal::SIGTTIN | Signal::SIGTTOU if !terminal.is_given() && terminal.give(group.id()) => {
            group.send(Signal::SIGCONT);
        }
        Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU => {
            let had_terminal = terminal.is_given();
            terminal.reclaim();
            suspend_job();
            resume(group, lease, terminal, had_terminal);
        }
        // A person pauses the command, which keeps its lease.
        _ => {}
    }
}

/// Continues the command, unless its lease has ended meanwhile.
fn resume(group: &Group, lease: &Lease, terminal: &mut Terminal, with_terminal: bool) {
    if lease.valid_for().is_zero() {
        return;
    }
    if with_terminal {
        terminal.give(group.id());
    }
    group.send(Signal::SIGCONT);
}

/// Stops the command before its lease can have ended elsewhere, or at once if it may have.
async fn stop(
    group: Group,
    lease: &Lease,
    what_is_lost: &dyn Fn(&LossReason) -> String,
) -> Failure {
    let lost = lease.loss().unwrap_or(LossReason::Paused);
    let why = format!("{}; stopping the command", what_is_lost(&lost));
    // Standard error may have no reader, and the command has to be stopped all the same.
    let saying = tokio::task::spawn_blocking(move || say(&why));
    let left = lease.valid_for();
    let grace = left - MARGIN.min(left / 4);
    let grace = match lost {
        LossReason::Unrenewed(_) | LossReason::Paused => grace,
        _ => grace.min(GONE_GRACE),
    };
    let stopped = group.stop(grace).await;
    let _ = tokio::time::timeout(LISTENING, saying).await;
    Failure::Stopped(stopped)
}

/// What is passed on to the command. Others are not for it (SIGCHLD, SIGPIPE), cannot be caught
/// (SIGKILL, SIGSTOP), or stop `run` itself (SIGTTIN, SIGTTOU).
const PASSED_ON: [Signal; 10] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// The signals that this process gets in place of the command.
#[derive(Debug)]
pub(super) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    asked_to_end: bool,
}

impl Signals {
    /// Catches them from now on; not those that were ignored, so that `nohup` still works.
    pub(super) fn catch() -> io::Result<Self> {
        let ignored = ignored();
        let streams = PASSED_ON
            .into_iter()
            .filter(|signal| ignored & (1 << (*signal as u32 - 1)) == 0)
            .map(|signal| Ok((signal, unix::signal(SignalKind::from_raw(signal as i32))?)));
        Ok(Self { streams: streams.collect::<io::Result<_>>()?, asked_to_end: false })
    }

    /// The next signal.
    pub(super) async fn next(&mut self) -> Signal {
        let signal = std::future::poll_fn(|cx| self.poll_next(cx)).await;
        self.asked_to_end |= [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT].contains(&signal);
        signal
    }

    /// Whether one has asked for the end, be it passed on or not.
    pub(super) fn asked_to_end(&self) -> bool {
        self.asked_to_end
    }

    /// The next signal that asks to end.
    pub(super) async fn end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            let goes_on = [Signal::SIGWINCH, Signal::SIGTSTP, Signal::SIGCONT].contains(&signal);
            if !goes_on {
                return signal;
            }
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Signal> {
        for (signal, stream) in &mut self.streams {
            if stream.poll_recv(cx).is_ready() {
                return Poll::Ready(*signal);
            }
        }
        Poll::Pending
    }
}

/// The signals that this process ignores, one bit each from SIGHUP on; none where the system has no
/// such file.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
