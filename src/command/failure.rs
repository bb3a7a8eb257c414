//! Why a command did not do what it was asked to do, and the exit code that says so to a script.
//! The codes are those of `run`.
//!
//! A script tells "held by another" from "could not find out" by the code alone. Invariant: no
//! failure is 0, and a code keeps its meaning for ever. Tested in `tests/cli/lock_commands.rs`.

use std::fmt;
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
#[derive(Debug)]
pub enum Failure {
    /// The service could not be asked, or is not to be had.
    Client {
        /// The service.
        server: String,
        /// The connection's error, or what is wrong with the response.
        error: Error,
    },
    /// The service says what is wrong.
    Problem(Box<ProblemDocument>),
    /// Something else than keylatch answered.
    Foreign(StatusCode),
    /// The answer is not one that this version understands.
    Malformed(serde_json::Error),
    /// The lease ended while it was held.
    Lost(String),
    /// The arguments fit no request.
    Arguments(String),
    /// The response cannot be written to this file.
    File(PathBuf, io::Error),
    /// The response cannot be printed.
    Output(io::Error),
}

impl Failure {
    /// Whether it is a problem with this code.
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

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A URL that is wrong may hold a password, and what is held is not the service's fault.
            Self::Client { error: error @ (Error::Settings(_) | Error::Held(_)), .. } => {
                error.fmt(f)
            }
            Self::Client { server, error } => write!(f, "{server}: {error}"),
            Self::Problem(problem) => f.write_str(&problem.detail),
            Self::Foreign(status) => write!(f, "{status}, which keylatch did not answer"),
            Self::Malformed(error) => {
                write!(f, "the answer is not one of this version of keylatch: {error}")
            }
            Self::Lost(why) => write!(f, "the lock is lost: {why}"),
            Self::Arguments(why) => f.write_str(why),
            Self::File(file, error) => write!(f, "{} cannot be written: {error}", file.display()),
            Self::Output(error) => write!(f, "the answer cannot be printed: {error}"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}
