//! One `keylatch run`: acquire its locks, run the command while the lease lasts, release.
//!
//! The client renews the lease in the background. Invariant: the command has ended, or was killed, before
//! the validity ends, so no other client holds the lock while it runs. Tested in `tests/cli/run.rs`,
//! `run_overlap.rs`, `run_sets.rs` and `run_waits.rs`.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::exit::Failure;
use super::group::{Group, ProcessChange, Terminal, suspend_job};
use super::reentry::{self, Environment};
use super::signals::Signals;
use super::waiting::narrate;
use super::{Job, Locks};
use crate::plain::say;
use keylatch_client::{Client, Error, Guard, LossReason, ReleaseReply};
use keylatch_core::lock::LockName;

/// How long before a validity ends the command is killed, at most: the signal takes its time.
const MARGIN: Duration = Duration::from_millis(200);
/// How long the command has to end by itself where the service has said that the lease is over.
const GONE_GRACE: Duration = Duration::from_secs(1);
/// How long the reader of standard error may take for a line.
const LISTENING: Duration = Duration::from_millis(200);

/// Runs a job; gives the exit code, and says on standard error what went wrong.
pub async fn run(job: &Job) -> u8 {
    match try_run(job).await {
        Ok(code) => code,
        Err(failure) => {
            say(&failure);
            failure.code()
        }
    }
}

async fn try_run(job: &Job) -> Result<u8, Failure> {
    let mut signals = Signals::catch().map_err(Failure::System)?;
    let client = client(&job.server).map_err(|error| service_failure(job, error))?;
    let ran = run_with(&client, job, &mut signals).await;
    // What an acquire that did not succeed may have got all the same.
    client.close().await;
    ran
}

/// A client with the key and the authorities of the environment, if it has them.
fn client(server: &str) -> Result<Client, Error> {
    Client::builder(server).with_env()?.build()
}

async fn run_with(client: &Client, job: &Job, signals: &mut Signals) -> Result<u8, Failure> {
    let begun = Instant::now();
    match &job.locks {
        Locks::One(name) => {
            let lock = client.lock(name.as_str(), &job.options);
            let guard = acquired(client, job, begun, lock, signals).await?;
            let environment = reentry::of_lock(job, &guard);
            under(job, guard, environment, signals).await
        }
        Locks::Several(set) => {
            let names = set.names().iter().map(LockName::as_str);
            let locks = client.lock_all(names, &job.options);
            let guard = acquired(client, job, begun, locks, signals).await?;
            let environment = reentry::of_set(job, &guard);
            under(job, guard, environment, signals).await
        }
    }
}

/// The guard of an acquire, unless a signal ends it.
async fn acquired<L>(
    client: &Client,
    job: &Job,
    begun: Instant,
    acquire: impl Future<Output = Result<Guard<L>, Error>>,
    signals: &mut Signals,
) -> Result<Guard<L>, Failure> {
    tokio::select! {
        acquired = acquire => acquired.map_err(|error| match error {
            Error::Held(held) => Failure::Held { held, waited: begun.elapsed() },
            error => service_failure(job, error),
        }),
        signal = signals.end() => Err(Failure::Signal(signal as i32)),
        never = narrate(client, &job.server, job.locks.names()) => match never {},
    }
}

fn service_failure(job: &Job, error: Error) -> Failure {
    Failure::Service { server: job.server.clone(), error }
}

/// Runs the command under its locks, and releases them.
async fn under<L>(
    job: &Job,
    guard: Guard<L>,
    environment: Environment,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let ran = match Group::spawn(&job.command, environment) {
        Ok(group) => supervise(job, group, &guard, signals).await,
        Err(error) => {
            let program = job.command.first().cloned().unwrap_or_default();
            Err(Failure::Spawn { program, error })
        }
    };
    let lost = matches!(ran, Err(Failure::Lost(_)));
    match guard.close().await {
        Ok(ReleaseReply::Released) => {}
        _ if lost => {}
        Ok(_) => say(match job.locks {
            Locks::One(_) => "the lock was no longer held at its release",
            Locks::Several(_) => "not all of the locks were still held at their release",
        }),
        Err(error) => {
            let locks = match job.locks {
                Locks::One(_) => "the lock is",
                Locks::Several(_) => "the locks are",
            };
            say(&format!("{locks} not released and will expire: {error}"));
        }
    }
    ran
}

/// Waits for the end of the command, or makes it end when the lock is lost.
async fn supervise<L>(
    job: &Job,
    mut group: Group,
    guard: &Guard<L>,
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
                terminal.reclaim();
                return Err(stop(job, group, guard).await);
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
fn suspended<L>(by: Signal, group: &Group, guard: &Guard<L>, terminal: &mut Terminal) {
    match by {
        // It wants the terminal, which it was not given at the start.
        Signal::SIGTTIN | Signal::SIGTTOU if !terminal.is_given() && terminal.give(group.id()) => {
            group.send(Signal::SIGCONT);
        }
        Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU => {
            let had_terminal = terminal.is_given();
            terminal.reclaim();
            suspend_job();
            resume(group, guard, terminal, had_terminal);
        }
        // A person pauses the command, which keeps its lock.
        _ => {}
    }
}

/// Continues the command, unless its lock has ended meanwhile.
fn resume<L>(group: &Group, guard: &Guard<L>, terminal: &mut Terminal, with_terminal: bool) {
    if guard.valid_for().is_zero() {
        return;
    }
    if with_terminal {
        terminal.give(group.id());
    }
    group.send(Signal::SIGCONT);
}

/// Stops the command before its lease can have ended elsewhere, or at once if it may have.
async fn stop<L>(job: &Job, group: Group, guard: &Guard<L>) -> Failure {
    let lost = guard.loss().unwrap_or(LossReason::Paused);
    let why = format!("{}; stopping the command", what_is_lost(&job.locks, &lost));
    // Standard error may have no reader, and the command has to be stopped all the same.
    let saying = tokio::task::spawn_blocking(move || say(&why));
    let left = guard.valid_for();
    let grace = left - MARGIN.min(left / 4);
    let grace = match lost {
        LossReason::Unrenewed(_) | LossReason::Paused => grace,
        _ => grace.min(GONE_GRACE),
    };
    let stopped = group.stop(grace).await;
    let _ = tokio::time::timeout(LISTENING, saying).await;
    Failure::Lost(stopped)
}

/// Says which lock is lost, and how; all are where the service was not asked or gave no answer.
fn what_is_lost(locks: &Locks, lost: &LossReason) -> String {
    match (lost, locks) {
        (LossReason::OneOfSet { name, reason }, _) => format!("`{name}` is lost: {reason}"),
        (lost, Locks::One(_)) => format!("{locks} is lost: {lost}"),
        (lost, Locks::Several(_)) => format!("{locks} are lost: {lost}"),
    }
}
