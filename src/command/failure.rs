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

/// What the help says about exit codes.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    it is done
  1    there is nothing of that name: the lock is free, also at its release, or the key was never used
  64   the arguments are wrong
  69   the service cannot be reached, or cannot answer
  70   something on this machine is missing, such as random bytes
  73   another client held the lock until the wait was over
  75   the token does not hold the lock, or no longer
  76   the service refuses the request, or is no keylatch";

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
