//! One `keylatch run`: acquire its locks, run the command while the lease lasts, release.
//!
//! The client renews the lease in the background. Invariant: the command has ended, or was killed,
//! before the validity ends, so no other client holds the lock while it runs. Tested in
//! `tests/cli/run.rs`, `run_overlap.rs`, `run_sets.rs` and `run_waits.rs`.

use std::time::{Duration, Instant};

use super::group::{End, Group};
use super::reentry::{self, Environment};
use super::supervision::{Signals, supervise};
use super::waiting::narrate;
use super::{Job, Locks};
use crate::failure::Failure;
use crate::plain::say;
use keylatch_client::{Builder, Client, Error, Guard, LossReason, ReleaseReply};
use keylatch_core::lock::{LockName, Ttl};

/// The shortest time for which a lock is left held.
const SHORTEST: Duration = Duration::from_millis(Ttl::MIN_MILLIS);

/// Runs a job; gives the exit code.
pub async fn run(job: &Job) -> Result<u8, Failure> {
    let mut signals = Signals::catch().map_err(Failure::System)?;
    let client = client(&job.server)?;
    let ran = run_with(&client, job, &mut signals).await;
    // What an acquire that did not succeed may have got all the same.
    client.close().await;
    ran.or_else(|failure| failure.quietly(job.is_quiet))
}

/// A client with the key and the authorities of the environment, if it has them.
pub(super) fn client(server: &str) -> Result<Client, Failure> {
    let client = Client::builder(server).with_env().and_then(Builder::build);
    client.map_err(|error| service_failure(server, error))
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
pub(super) async fn acquired<L>(
    client: &Client,
    job: &Job,
    begun: Instant,
    acquire: impl Future<Output = Result<Guard<L>, Error>>,
    signals: &mut Signals,
) -> Result<Guard<L>, Failure> {
    tokio::select! {
        acquired = acquire => acquired.map_err(|error| match error {
            Error::Held(held) => Failure::Held(held, begun.elapsed(), job.held_exit),
            error => service_failure(&job.server, error),
        }),
        signal = signals.end() => Err(Failure::Signal(signal as i32)),
        never = narrate(client, &job.server, job.locks.names()), if !job.is_quiet => match never {},
    }
}

pub(super) fn service_failure(server: &str, error: Error) -> Failure {
    Failure::Client { server: server.to_owned(), error }
}

/// Runs the command under its locks, and releases them, or leaves them for the rest of the time
/// that they are to be held.
pub(super) async fn under<L>(
    job: &Job,
    guard: Guard<L>,
    environment: Environment,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let begun = Instant::now();
    let lost = |reason: &LossReason| what_is_lost(&job.locks, reason);
    let ran = match Group::spawn(&job.command, environment, (&guard, job.options.ttl), false) {
        Ok(group) => supervise(group, &guard, signals, &lost).await,
        Err(failure) => Err(failure),
    };
    let rest = job.at_least.saturating_sub(begun.elapsed());
    if ran.is_ok() && rest >= SHORTEST {
        if let Err(error) = guard.leave_for(rest).await {
            say(&format!("{} is not left held for the rest of --at-least: {error}", job.locks));
        }
    } else {
        release(job, guard, matches!(ran, Err(Failure::Stopped(_)))).await;
    }
    ran.map(End::code)
}

pub(super) async fn release<L>(job: &Job, guard: Guard<L>, was_lost: bool) {
    match guard.close().await {
        Ok(ReleaseReply::Released) => {}
        _ if was_lost => {}
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
}

/// Says which lock is lost, and how; all are where the service was not asked or gave no response.
fn what_is_lost(locks: &Locks, lost: &LossReason) -> String {
    match (lost, locks) {
        (LossReason::OneOfSet { name, reason }, _) => format!("`{name}` is lost: {reason}"),
        (lost, Locks::One(_)) => format!("{locks} is lost: {lost}"),
        (lost, Locks::Several(_)) => format!("{locks} are lost: {lost}"),
    }
}
