//! One `keylatch elect`: lead while a lock is held, again and again, and say who leads.
//!
//! Invariant: no two lead at once. The command has ended, or was killed, and the responses have
//! changed, before the validity of the lease ends. Tested in `tests/cli/elect.rs`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keylatch_client::{Client, LockGuard};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::Job;
use super::exit::{Failure, StopResult};
use super::job::{acquired, service_failure, under};
use super::leader::{Leader, listen, serve};
use super::reentry::of_lock;
use super::signals::Signals;
use crate::plain::say;

/// The pause before this process tries again after a loss, so that another one can lead.
const PAUSE: Duration = Duration::from_millis(500);

/// The lock that makes a leader, and what the leader runs.
#[derive(Debug)]
pub struct Election {
    /// The lock that the leader holds, and the command of the leader, if there is one.
    pub job: Job,
    /// Where to say who leads.
    pub listen: Option<SocketAddr>,
}

/// Tries to lead until a signal or the end of the command; gives the exit code, and says on standard
/// error what went wrong.
pub async fn elect(election: &Election) -> u8 {
    match try_elect(election).await {
        Ok(code) => code,
        Err(failure) => {
            say(&failure);
            failure.code()
        }
    }
}

async fn try_elect(election: &Election) -> Result<u8, Failure> {
    let job = &election.job;
    let mut signals = Signals::catch().map_err(Failure::System)?;
    let client = Client::builder(&job.server).with_env().and_then(|of| of.closing().build());
    let client = client.map_err(|error| service_failure(&job.server, error))?;
    let name = job.locks.names().first().map(ToString::to_string).unwrap_or_default();
    let owner = job.options.owner.clone().unwrap_or_default();
    let leader = Leader::new(client.clone(), name.clone(), owner);
    let _serving = match election.listen {
        Some(address) => {
            let listener = listen(address).await.map_err(Failure::System)?;
            Some(AbortOnDropHandle::new(tokio::spawn(serve(listener, Arc::clone(&leader)))))
        }
        None => None,
    };
    let ended = loop {
        let lock = client.lock(name.clone(), &job.options);
        let guard = match acquired(&client, job, Instant::now(), lock, &mut signals).await {
            Ok(guard) => guard,
            // A process that does not lead has nothing to end.
            Err(Failure::Signal(_)) => break Ok(0),
            Err(failure) => break Err(failure),
        };
        leader.leads(guard.lease());
        say(&format!("leading `{name}` under fencing token {}", guard.fencing_token()));
        match lead(job, guard, &mut signals).await {
            Err(Failure::Lost(StopResult::StillThere)) => {
                break Err(Failure::Lost(StopResult::StillThere));
            }
            Err(Failure::Lost(_)) if signals.asked_to_end() => break Ok(0),
            Err(Failure::Lost(_)) => say(&format!("leading `{name}` no longer; standing again")),
            ended => break ended,
        }
        sleep(PAUSE).await;
    };
    client.close().await;
    ended
}

/// Leads: runs the command, or waits for a signal.
async fn lead(job: &Job, guard: LockGuard, signals: &mut Signals) -> Result<u8, Failure> {
    if !job.command.is_empty() {
        let environment = of_lock(job, &guard);
        return under(job, guard, environment, signals).await;
    }
    let lost = guard.lost();
    let ended = tokio::select! {
        () = lost.cancelled() => Err(Failure::Lost(StopResult::Ended)),
        _ = signals.end() => Ok(0),
    };
    if let (Ok(_), Err(error)) = (&ended, guard.close().await) {
        say(&format!("the lock is not released and will expire: {error}"));
    }
    ended
}
