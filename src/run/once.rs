//! One `keylatch once`: run the command if no machine has, keep its exit code, and give that to
//! those that begin the key later.
//!
//! The record of the key decides who runs it. Invariant: a command that has ended by itself has its
//! exit code kept, one that did not start frees the key, and one that was stopped or killed has an
//! unknown outcome, or may run again where the caller said so. It has ended, or was killed, before
//! its lease ends. Tested in `tests/cli/once.rs`.

use std::convert::Infallible;
use std::ffi::OsString;
use std::future::pending;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use bytes::Bytes;
use keylatch_client::{
    AcquireOptions, BeginReply, Client, Error, HeldLock, LossReason, OnceOptions, Response, Run,
    StatusCode, escape,
};
use keylatch_wire::{Code, IdempotencyRecord};
use tokio::time::timeout;

use super::group::{End, Group};
use super::job::{client, service_failure};
use super::output::Output;
use super::reentry::{self, Environment};
use super::supervision::{Signals, supervise};
use super::waiting::read;
use crate::failure::{Failure, StopResult};
use crate::plain::say;

/// The header of the kept response that has the exit code.
const EXIT_CODE: &str = "exit-code";
/// How long to ask who runs the command.
const LOOK_LIMIT: Duration = Duration::from_secs(1);

/// What is to be run once.
#[derive(Debug)]
pub struct OnceJob {
    /// The URL of the service.
    pub server: String,
    /// What is done once.
    pub key: String,
    /// How it is begun.
    pub options: OnceOptions,
    /// A label that tells people who runs it.
    pub owner: String,
    /// Whether what the command printed is shown to those that begin the key later.
    pub replays_output: bool,
    /// Whether to be silent about runs of others.
    pub is_quiet: bool,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// Runs the command once; gives its exit code.
pub async fn once(job: &OnceJob) -> Result<u8, Failure> {
    let mut signals = Signals::catch().map_err(Failure::System)?;
    let (client, labels) = (client(&job.server)?, client(&job.server)?);
    let begun = tokio::select! {
        begun = begin(&client, job) => begun,
        signal = signals.end() => Err(Failure::Signal(signal as i32)),
    };
    let ran = match begun {
        Ok(BeginReply::Begun(run)) => {
            let ran = tokio::select! {
                ran = run_now(job, run, &mut signals) => ran,
                never = show_label(&labels, job) => match never {},
            };
            // Its lock is being released then, for which the exit code does not wait for long.
            let _ = timeout(LOOK_LIMIT, labels.close()).await;
            ran
        }
        Ok(BeginReply::Done(answer)) => Ok(replay(job, &answer)),
        Err(failure) => Err(failure),
    };
    // A begin that was given up frees what it has begun.
    client.close().await;
    ran.or_else(|failure| failure.quietly(job.is_quiet))
}

/// Begins at once, or else says why not, and waits for as long as the options say.
async fn begin(client: &Client, job: &OnceJob) -> Result<BeginReply, Failure> {
    let (begun, mut wait) = (Instant::now(), Duration::ZERO);
    loop {
        let has_waited = !wait.is_zero();
        let options = OnceOptions { wait, ..job.options.clone() };
        let failure = match client.begin(&job.key, &options).await {
            Ok(reply) => return Ok(reply),
            Err(error) => {
                let waited = has_waited.then(|| begun.elapsed());
                failure(client, job, error, waited).await
            }
        };
        wait = job.options.wait.saturating_sub(begun.elapsed());
        let then = match &failure {
            _ if wait.is_zero() => return Err(failure),
            Failure::InProgress(..) => "waiting",
            // The service may answer later.
            failure if failure.code() == 69 => "trying again",
            _ => return Err(failure),
        };
        if !job.is_quiet {
            say(&format!("{failure}; {then}"));
        }
    }
}

async fn failure(
    client: &Client,
    job: &OnceJob,
    error: Error,
    waited: Option<Duration>,
) -> Failure {
    let code = match &error {
        Error::Problem(problem) => problem.known_code(),
        _ => None,
    };
    let key = &job.key;
    match code {
        Some(Code::RequestInProgress) => Failure::InProgress(what_runs(client, job).await, waited),
        // It began after a wait, and its lease has ended before this machine heard of it.
        Some(Code::TokenMismatch) => {
            say(&error);
            Failure::Stopped(StopResult::NotStarted)
        }
        Some(Code::OutcomeUnknown) => {
            let when = look(client, key).await.and_then(|record| record.begun_at);
            let when = when.map(|at| format!(" at {at}")).unwrap_or_default();
            Failure::Unknown(key.clone(), format!("the run that began{when} did not end"))
        }
        _ => service_failure(&job.server, error),
    }
}

/// Who runs the command, and since when, as far as this client may know.
async fn what_runs(client: &Client, job: &OnceJob) -> String {
    let look = async { (look(client, &job.key).await, client.show(&label_of(job)).await) };
    let (record, label) = timeout(LOOK_LIMIT, look).await.unwrap_or((None, Ok(None)));
    let place = match label {
        Ok(Some(HeldLock::Exclusive(lock))) => lock.owner.map(|owner| format!("at {owner}")),
        _ => None,
    };
    let place = place.unwrap_or_else(|| "elsewhere".to_owned());
    // When the first run began: another one may have ended in a crash.
    let since = record.filter(|record| record.attempts == 1).and_then(|record| record.begun_at);
    let since = since.map(|at| format!(", since {at}")).unwrap_or_default();
    format!("`{}` runs {place}{since}", job.key)
}

async fn look(client: &Client, key: &str) -> Option<IdempotencyRecord> {
    let path = format!("/v1/idempotency/{}", escape(key));
    let (record, _) = timeout(LOOK_LIMIT, read(client, path)).await.ok()?.ok()?;
    record
}

/// The lock whose owner is the label of the machine that runs the command.
fn label_of(job: &OnceJob) -> String {
    format!("once/{}", job.key)
}

/// Holds the lock for people to read, where this client may, until this is dropped. Nothing goes by
/// it: the record decides who runs the command.
async fn show_label(client: &Client, job: &OnceJob) -> Infallible {
    let owner = Some(job.owner.clone());
    // A machine that died may have held it, as long as its run.
    let (ttl, wait) = (job.options.lease, job.options.lease);
    let options = AcquireOptions { ttl, wait, owner, ..AcquireOptions::default() };
    let _guard = client.lock(label_of(job), &options).await;
    pending().await
}

/// Runs the command under the lease of its run, and says what came of it.
async fn run_now(job: &OnceJob, run: Run, signals: &mut Signals) -> Result<u8, Failure> {
    let (lease, captured) = ((&*run, job.options.lease), job.replays_output);
    let mut group = match Group::spawn(&job.command, environment(job, &run), lease, captured) {
        Ok(group) => group,
        Err(failure) => {
            kept(job, run.abandon().await);
            return Err(failure);
        }
    };
    let mut output = group.pipes().map(Output::follow);
    let lost = |reason: &LossReason| format!("the run of `{}` is lost: {reason}", job.key);
    let ran = supervise(group, &run, signals, &lost).await;
    match ran {
        Ok(End::Exit(code)) => {
            drained(output.as_mut(), signals).await;
            let output = output.as_ref().map(Output::tail).unwrap_or_default();
            let answer = answer(code, output).map_err(io::Error::other).map_err(Failure::System)?;
            kept(job, run.complete(answer).await);
            return Ok(code);
        }
        Ok(End::Signal(signal)) => {
            kept(job, run.fail(&format!("signal {signal} ended the command")).await);
        }
        // The lease has ended or will, whether the service hears of it or not.
        Err(Failure::Stopped(StopResult::Ended | StopResult::Killed)) => {
            drop(run.fail("the lease was lost, and the command was stopped").await);
        }
        // It may still run, so nothing else may.
        Err(_) => run.leave(),
    }
    drained(output.as_mut(), signals).await;
    ran.map(End::code)
}

/// Waits for the reader of the output, unless a signal says not to.
async fn drained(output: Option<&mut Output>, signals: &mut Signals) {
    let Some(output) = output else { return };
    tokio::select! {
        () = output.drained() => {}
        _ = signals.end() => {}
    }
}

/// Says where the end of a run is not kept.
fn kept(job: &OnceJob, ended: Result<(), Error>) {
    if let Err(error) = ended {
        say(&format!("how `{}` ended is not kept for the others: {error}", job.key));
    }
}

/// What is kept of a command that has ended.
fn answer(code: u8, output: Vec<u8>) -> Result<Response<Bytes>, keylatch_client::http::Error> {
    let status = if code == 0 { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    let response = Response::builder().status(status).header(EXIT_CODE, code.to_string());
    response.header("content-type", "text/plain").body(output.into())
}

/// What the command of an earlier run came to.
fn replay(job: &OnceJob, answer: &Response<Option<Bytes>>) -> u8 {
    let code = answer.headers().get(EXIT_CODE).and_then(|code| code.to_str().ok()?.parse().ok());
    // A person has settled an outcome without an exit code, or erased the response.
    let code = code.unwrap_or_else(|| u8::from(!answer.status().is_success()));
    let (output, lacks) = match answer.body() {
        Some(output) if job.replays_output => (&output[..], ""),
        None if job.replays_output => (&[][..], "; what it printed was not kept"),
        _ => (&[][..], ""),
    };
    // Where nobody reads it, the exit code is given all the same.
    let _ = io::stdout().write_all(output);
    if !job.is_quiet && (code != 0 || !lacks.is_empty() || io::stderr().is_terminal()) {
        say(&format!("`{}` ran before, with exit code {code}{lacks}", job.key));
    }
    code
}

/// What the command has in its environment: no lock of an outer `run`, whose fencing token is
/// another one.
fn environment(job: &OnceJob, run: &Run) -> Environment {
    let mut environment = reentry::outside();
    environment.extend([
        (reentry::URL, Some(job.server.clone())),
        ("KEYLATCH_KEY", Some(job.key.clone())),
        (reentry::FENCING_TOKEN, Some(run.fencing_token().to_string())),
    ]);
    environment
}
