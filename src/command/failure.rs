//! Why a command did not do what it was asked to do, and the exit code that says so to a script.
//! The codes are those of `run`.
//!
//! A script tells "held by another" from "could not find out" by the code alone. Invariant: no
//! failure is 0, and a code keeps its meaning for ever. Tested in `tests/cli/lock_commands.rs`.

use std::io;
use std::path::PathBuf;

use hyper::StatusCode;
use keylatch_client::Error;
use keylatch_wire::{Code, ProblemDocument, Retry};

use crate::run::code_of_error;

/// The exit codes of every command, for people.
const EXIT_CODES: [(u8, &str); 5] = [
    (0, "it is done"),
    (64, "the arguments are wrong"),
    (69, "the service cannot be reached, or cannot answer"),
    (70, "something on this machine is missing, such as room for the output"),
    (76, "the service refuses the request, or is not a keylatch server"),
];
pub(super) const FREE: (u8, &str) = (1, "no client holds the lock");
pub(super) const NO_RECORD: (u8, &str) = (1, "the key was never used in this scope, or is free");
pub(super) const HELD: (u8, &str) = (73, "another client held the lock until the wait was over");
pub(super) const LOST: (u8, &str) = (75, "the lock is held by another token, or no longer");

/// What the help of a command says about exit codes: those of all, and its own.
pub(super) fn exit_codes(own: &[(u8, &str)]) -> String {
    let mut all = [&EXIT_CODES, own].concat();
    all.sort_unstable();
    let lines = all.iter().map(|(code, what)| format!("\n  {code:<3}  {what}"));
    format!("Exit codes:{}", lines.collect::<String>())
}

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
}

impl Failure {
    pub(super) fn is(&self, code: Code) -> bool {
        matches!(self, Self::Problem(problem) if problem.is(code))
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Client { error, .. } => code_of_error(error),
            Self::Problem(problem) => of_problem(problem),
            Self::Foreign(status) if status.is_server_error() => 69,
            Self::Foreign(_) | Self::Malformed(_) => 76,
            Self::Lost(_) => 75,
            Self::Arguments(_) => 64,
            Self::File(..) => 74,
            Self::Output(_) => 70,
        }
    }
}

fn of_problem(problem: &ProblemDocument) -> u8 {
    match problem.known_code() {
        Some(Code::LockHeld) => 73,
        Some(Code::LockNotHeld | Code::LockBroken | Code::TokenMismatch) => 75,
        Some(Code::NoRecord) => 1,
        Some(code) if code.retry() == Retry::SameKey => 69,
        _ => 76,
    }
}

fn prefix(server: &str, error: &Error) -> String {
    let says_all = matches!(error, Error::Settings(_) | Error::Held(_));
    if says_all { String::new() } else { format!("{server}: ") }
}
