//! Why a command did not do what it was asked to do, and the exit code that says so to a script.
//!
//! It is that of all commands that are clients of a service. A command that `run`, `once` or
//! `elect` ran to its end gives its own code. Every other end has a code of sysexits.h, or one that
//! shells use, so that a script tells "held by another" from "could not find out", and a lost lock
//! from a failed command. Invariant: no failure is 0 but that of `once` whose COMMAND runs
//! elsewhere, and a code keeps its meaning for ever. Tested in `tests/cli/lock_commands.rs`,
//! `run.rs` and `once.rs`.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use hyper::StatusCode;
use keylatch_client::{Error, Held};
use keylatch_wire::{Code, ProblemDocument, Retry, in_words, millis};

/// The exit codes of every command, for people.
const EXIT_CODES: [(u8, &str); 5] = [
    (0, "it is done"),
    (64, "the arguments are wrong"),
    (69, "the service cannot be reached, or cannot answer"),
    (70, "something on this machine is missing, such as room for the output"),
    (76, "the service refuses the request, or is not a keylatch server"),
];
pub(crate) const FREE: (u8, &str) = (1, "no client holds the lock");
pub(crate) const NO_RECORD: (u8, &str) = (1, "the key was never used in this scope, or is free");
pub(crate) const WAS_HELD: (u8, &str) =
    (HELD, "another client held the lock until the wait was over");
pub(crate) const LOST: (u8, &str) = (75, "the lock is held by another token, or no longer");

/// What the help of a command says about exit codes: those of all, and its own.
pub(crate) fn exit_codes(own: &[(u8, &str)]) -> String {
    let mut all = [&EXIT_CODES, own].concat();
    all.sort_unstable();
    let lines = all.iter().map(|(code, what)| format!("\n  {code:<3}  {what}"));
    format!("Exit codes:{}", lines.collect::<String>())
}

/// What the help of `run` says about them.
pub const RUN_EXIT_CODES: &str = "\
Exit codes:
  that of COMMAND, or 128 + N if signal N ended it; otherwise
  64   the arguments are wrong
  69   the service cannot be reached, or cannot answer
  70   something on this machine is missing, such as random bytes
  73   another client held the lock until the wait was over, or too many waited
  75   the lock was lost or about to end, and COMMAND was stopped
  76   the service refuses the request, or is no keylatch
  126  COMMAND cannot be executed
  127  COMMAND is not found";

/// What the help of `elect` says about them.
pub const ELECT_EXIT_CODES: &str = "\
Exit codes:
  that of COMMAND, or 128 + N if signal N ended it; otherwise
  0    a signal asked for the end, and this one does not lead any more
  64   the arguments are wrong
  69   the service cannot answer
  70   something on this machine is missing, such as the address to listen on
  75   the lock was lost or about to end, and COMMAND could not be killed
  76   the service refuses the request, or is no keylatch
  126  COMMAND cannot be executed
  127  COMMAND is not found";

/// What the help of `once` says about them.
pub const ONCE_EXIT_CODES: &str = "\
Exit codes:
  that of COMMAND, now or in an earlier run, or 128 + N if signal N ended it; otherwise
  0    another machine runs COMMAND, and this one does not wait
  64   the arguments are wrong
  65   it is not known what came of an earlier run
  69   the service cannot be reached, or cannot answer
  70   something on this machine is missing, such as random bytes
  73   another machine ran COMMAND until the wait was over
  75   the lease was lost or about to end, and COMMAND was stopped
  76   the service refuses the request, keeps no records of keys, or is no keylatch
  126  COMMAND cannot be executed
  127  COMMAND is not found";

/// Where another client holds the lock, unless the arguments say something else.
pub const HELD: u8 = 73;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The service could not be asked, or is not to be had. A URL that is wrong may hold a
    /// password, and what is held is not the service's fault.
    #[error("{}{error}", prefix(server, error))]
    Client {
        /// The service.
        server: String,
        /// The connection's error, or what is wrong with the response.
        error: Error,
    },
    /// The service says what is wrong.
    #[error("{}", .0.detail)]
    Problem(Box<ProblemDocument>),
    /// Something else than keylatch answered.
    #[error("{0}, which keylatch did not answer")]
    Foreign(StatusCode),
    /// The answer is not one that this version understands.
    #[error("the answer is not one of this version of keylatch: {0}")]
    Malformed(serde_json::Error),
    /// The lease ended while it was held.
    #[error("the lock is lost: {0}")]
    Lost(String),
    /// The arguments fit no request.
    #[error("{0}")]
    Arguments(String),
    /// The response cannot be written to this file.
    #[error("{file} cannot be written: {1}", file = .0.display())]
    File(PathBuf, io::Error),
    /// The response cannot be printed.
    #[error("the answer cannot be printed: {0}")]
    Output(#[from] io::Error),
    /// Another client holds a lock, after this wait; and the exit code for it.
    #[error("{0}{waited}", waited = waited(*.1))]
    Held(Box<Held>, Duration, u8),
    /// Another machine runs what is done once, as the text says; and how long this one has waited,
    /// if it was to wait.
    #[error("{0}{waited}", waited = .1.map(waited).unwrap_or_default())]
    InProgress(String, Option<Duration>),
    /// It is not known what came of an earlier run of this key, and why.
    #[error(
        "the outcome of `{0}` is unknown: {1}. Find out what it did, then settle it: \
         keylatch key resolve '{quoted}' --done, or --not-done, with --reason TEXT",
        quoted = .0.replace('\'', r"'\''")
    )]
    Unknown(String, String),
    /// The program of the command cannot be started.
    #[error("`{}` {}", .0.display(), why_not_started(.1))]
    Spawn(OsString, io::Error),
    /// The lease of the command was lost.
    #[error("{0}")]
    Stopped(StopResult),
    /// The system did not do its part.
    #[error("{0}")]
    System(io::Error),
    /// A signal came before the command was started.
    #[error("ended by signal {0} before COMMAND began")]
    Signal(i32),
}

/// What became of a command when its lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StopResult {
    /// It did not run.
    #[error("the command was not started")]
    NotStarted,
    /// It ended after its SIGTERM.
    #[error("the command was stopped")]
    Ended,
    /// It was killed.
    #[error("the command was killed")]
    Killed,
    /// Not even that ended it in time.
    #[error("the command cannot be killed")]
    StillThere,
}

impl Failure {
    pub(crate) fn is(&self, code: Code) -> bool {
        matches!(self, Self::Problem(problem) if problem.is(code))
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::InProgress(_, None) => 0,
            Self::Arguments(_) => 64,
            Self::Unknown(..) => 65,
            Self::Foreign(status) if status.is_server_error() => 69,
            Self::Output(_) | Self::System(_) => 70,
            Self::InProgress(..) => HELD,
            Self::Held(_, _, code) => *code,
            Self::File(..) => 74,
            Self::Lost(_) | Self::Stopped(_) => 75,
            Self::Foreign(_) | Self::Malformed(_) => 76,
            Self::Spawn(_, error) if error.kind() == io::ErrorKind::NotFound => 127,
            Self::Spawn(..) => 126,
            Self::Signal(signal) => of_signal(*signal),
            Self::Client { error, .. } => of_error(error),
            Self::Problem(problem) => of_problem(problem),
        }
    }

    /// The exit code alone, where the failure is what others do and nothing is to be said of that.
    pub(crate) fn quietly(self, is_quiet: bool) -> Result<u8, Self> {
        match self {
            Self::Held(..) | Self::InProgress(..) if is_quiet => Ok(self.code()),
            failure => Err(failure),
        }
    }
}

/// The exit code of what a signal ended, as shells have it.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// The exit code of what the client could not find out.
fn of_error(error: &Error) -> u8 {
    match error {
        Error::Settings(_) => 64,
        Error::Held(_) => HELD,
        Error::Unreachable(_)
        | Error::OtherStore(_)
        | Error::Unanswered(_)
        | Error::Unavailable(_) => 69,
        Error::Problem(problem) if problem.known_code().is_some_and(passes) => 69,
        Error::Problem(_) | Error::Refused(_) => 76,
        _ => 70,
    }
}

fn of_problem(problem: &ProblemDocument) -> u8 {
    match problem.known_code() {
        Some(Code::LockHeld) => HELD,
        Some(Code::LockNotHeld | Code::LockBroken | Code::TokenMismatch) => 75,
        Some(Code::NoRecord) => 1,
        Some(code) if passes(code) => 69,
        _ => 76,
    }
}

/// Whether the same request may succeed later.
fn passes(code: Code) -> bool {
    code.retry() == Retry::SameKey
}

fn prefix(server: &str, error: &Error) -> String {
    let says_all = matches!(error, Error::Settings(_) | Error::Held(_));
    if says_all { String::new() } else { format!("{server}: ") }
}

fn waited(time: Duration) -> String {
    format!("; waited {}", in_words(millis(time)))
}

fn why_not_started(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "is not found".to_owned(),
        _ => format!("cannot be executed: {error}"),
    }
}
