//! One `keylatch run`: acquire the lock, run the command while the lease lasts, release.
//!
//! The client renews the lease in the background. Invariant: the command has ended, or was killed, before
//! the validity ends, so no other client holds the lock while it runs. Tested in `tests/cli/run.rs`,
//! `run_overlap.rs` and `run_waits.rs`.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::exit::Failure;
use super::group::{Group, ProcessChange, Terminal, suspend_job};
use super::reentry;
use super::signals::Signals;
use keylatch_client::{AcquireOptions, AcquireReply, Client, LeaseStatus, LockGuard, LossReason};
use keylatch_core::lock::{LockName, ReleaseReply};

/// How long before a validity ends the command is killed, at most: the signal takes its time.
const MARGIN: Duration = Duration::from_millis(200);
/// How long the command has to end by itself where the service has said that the lease is over.
const GONE_GRACE: Duration = Duration::from_secs(1);
/// How long the reader of standard error may take for a line.
const LISTENING: Duration = Duration::from_millis(200);

/// What is to be run, and under which lock.
#[derive(Debug)]
pub struct Job {
    /// The URL of the service.
    pub server: String,
    /// The lock.
    pub name: LockName,
    /// How it is wanted.
    pub options: AcquireOptions,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// Runs a job; gives the exit code, and says on standard error what went wrong.
pub async fn run(job: &Job) -> u8 {
    match try_run(job).await {
        Ok(code) => code,
        Err(failure) => {
            say(&failure.to_string());
            failure.code()
        }
    }
}

async fn try_run(job: &Job) -> Result<u8, Failure> {
    let mut signals = Signals::catch().map_err(Failure::System)?;
    let service = |error| Failure::Service { server: job.server.clone(), error };
    let client = Client::new(&job.server).map_err(service)?;
    let acquired = tokio::select! {
        acquired = client.acquire(&job.name, &job.options) => acquired.map_err(service),
        signal = signals.end() => Err(Failure::Signal(signal as i32)),
    };
    let ran = match acquired {
        Ok(AcquireReply::Granted(guard)) => under(job, guard, &mut signals).await,
        Ok(AcquireReply::Held(holder)) => {
            Err(Failure::Held { name: job.name.clone(), holder, wait: job.options.wait })
        }
        Err(failure) => Err(failure),
    };
    // What an acquire that did not succeed may have got all the same.
    client.close().await;
    ran
}

/// Runs the command under a lock, and gives the lock back.
async fn under(job: &Job, guard: LockGuard, signals: &mut Signals) -> Result<u8, Failure> {
    let environment = reentry::environment(job, &guard);
    let ran = match Group::spawn(&job.command, environment) {
        Ok(group) => supervise(group, &guard, signals).await,
        Err(error) => {
            let program = job.command.first().cloned().unwrap_or_default();
            Err(Failure::Spawn { program, error })
        }
    };
    let lost = matches!(ran, Err(Failure::Lost(_)));
    match guard.close().await {
        Ok(ReleaseReply::Released) => {}
        _ if lost => {}
        Ok(_) => say("the lock was no longer held at its release"),
        Err(error) => say(&format!("the lock is not released and will expire: {error}")),
    }
    ran
}

/// Waits for the end of the command, or makes it end when the lock is lost.
async fn supervise(
    mut group: Group,
    guard: &LockGuard,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let mut terminal = Terminal::open();
    if Terminal::is_ours_alone() {
        resume(&group, guard, &mut terminal, true);
    }
    let lost = guard.lost();
    loop {
        tokio::select! {
            biased;
            () = lost.cancelled() => {
                terminal.take_back();
                return Err(stop(group, guard).await);
            }
            changed = group.changed() => match changed.map_err(Failure::System)? {
                ProcessChange::Ended(code) => return Ok(code),
                ProcessChange::Suspended(by) => suspended(by, &group, guard, &mut terminal),
            },
            signal = signals.next() => match signal {
                Signal::SIGCONT => resume(&group, guard, &mut terminal, false),
                signal => group.send(signal),
            },
        }
    }
}

/// Does what a shell does when its job is suspended.
fn suspended(by: Signal, group: &Group, guard: &LockGuard, terminal: &mut Terminal) {
    match by {
        // It wants the terminal, which it was not given at the start.
        Signal::SIGTTIN | Signal::SIGTTOU if !terminal.is_given() && terminal.give(group.id()) => {
            group.send(Signal::SIGCONT);
        }
        Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU => {
            let had_terminal = terminal.is_given();
            terminal.take_back();
            suspend_job();
            resume(group, guard, terminal, had_terminal);
        }
        // A person pauses the command, which keeps its lock.
        _ => {}
    }
}

/// Lets the command go on, unless its lock has ended meanwhile.
fn resume(group: &Group, guard: &LockGuard, terminal: &mut Terminal, with_terminal: bool) {
    if guard.valid_for().is_zero() {
        return;
    }
    if with_terminal {
        terminal.give(group.id());
    }
    group.send(Signal::SIGCONT);
}

/// Stops the command before its lease can have ended elsewhere, or at once if it may have.
async fn stop(group: Group, guard: &LockGuard) -> Failure {
    let lost = match guard.status() {
        LeaseStatus::Lost(reason) => reason,
        LeaseStatus::Held => LossReason::Paused,
    };
    let why = format!("`{}` is lost: {lost}; stopping the command", guard.name());
    // Standard error may have no reader, and the command has to be stopped all the same.
    let saying = tokio::task::spawn_blocking(move || say(&why));
    let left = guard.valid_for();
    let grace = left - MARGIN.min(left / 4);
    let grace = match lost {
        LossReason::NotHeld | LossReason::TakenOver | LossReason::Broken(_) => {
            grace.min(GONE_GRACE)
        }
        _ => grace,
    };
    let stopped = group.stop(grace).await;
    let _ = tokio::time::timeout(LISTENING, saying).await;
    Failure::Lost(stopped)
}

/// Tells the caller of the command what is the matter.
fn say(what: &str) {
    // There is nowhere else to say that standard error is closed.
    let _ = writeln!(io::stderr(), "keylatch: {what}");
}
