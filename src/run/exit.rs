//! The exit codes of `keylatch run`, and what a run says when it fails.
//!
//! A command that ran gives its own code. Every other end has a code of sysexits.h, or one that
//! shells use, so that a script can tell a lost lock from a failed command. Tested in
//! `tests/cli/run.rs`.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::time::Duration;

use keylatch_client::{Error, Held, Retry};
use keylatch_wire::Code;

/// What the help says about exit codes.
pub const EXIT_CODES: &str = "\
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

/// What the help of `elect` says about exit codes.
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

/// What the help of `once` says about exit codes.
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

/// Why the command did not run to its own end.
#[derive(Debug)]
pub(super) enum Failure {
    Held {
        held: Box<Held>,
        waited: Duration,
    },
    /// Another machine runs what is done once.
    InProgress {
        what: String,
        /// How long this one has waited, if it was to wait.
        waited: Option<Duration>,
    },
    /// It is not known what came of an earlier run.
    Unknown {
        key: String,
        why: String,
    },
    Service {
        server: String,
        error: Error,
    },
    Spawn {
        program: OsString,
        error: io::Error,
    },
    Lost(StopResult),
    System(io::Error),
    /// A signal came before the command was started.
    Signal(i32),
}

/// What became of a command when its lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopResult {
    /// It did not run.
    NotStarted,
    /// It ended after its SIGTERM.
    Ended,
    /// It was killed.
    Killed,
    /// Not even that ended it in time.
    StillThere,
}

impl Failure {
    /// The exit code, after sysexits.h and the shells where they have one.
    pub(super) fn code(&self) -> u8 {
        match self {
            Self::InProgress { waited: None, .. } => 0,
            Self::Held { .. } | Self::InProgress { .. } => 73,
            Self::Unknown { .. } => 65,
            Self::Service { error, .. } => code_of_error(error),
            Self::Spawn { error, .. } if error.kind() == io::ErrorKind::NotFound => 127,
            Self::Spawn { .. } => 126,
            Self::Lost(_) => 75,
            Self::System(_) => 70,
            Self::Signal(signal) => of_signal(*signal),
        }
    }
}

/// The exit code of what the client could not find out.
pub(crate) fn code_of_error(error: &Error) -> u8 {
    match error {
        Error::Settings(_) => 64,
        Error::Held(_) => 73,
        Error::Unreachable(_)
        | Error::OtherStore(_)
        | Error::Unanswered(_)
        | Error::Unavailable(_) => 69,
        Error::Problem(problem) if problem.known_code().is_some_and(passes) => 69,
        Error::Problem(_) | Error::Refused(_) => 76,
        _ => 70,
    }
}

/// Whether the same request may succeed later.
fn passes(code: Code) -> bool {
    code.retry() == Retry::SameKey
}

/// The exit code of what a signal ended, as shells have it.
pub(super) fn of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held { held, waited } => {
                write!(f, "{held}; waited {:.1} s", waited.as_secs_f64())
            }
            Self::InProgress { what, waited: None } => f.write_str(what),
            Self::InProgress { what, waited: Some(waited) } => {
                write!(f, "{what}; waited {:.1} s", waited.as_secs_f64())
            }
            Self::Unknown { key, why } => write!(
                f,
                "the outcome of `{key}` is unknown: {why}. Find out what it did, then settle it: \
                 keylatch key resolve '{}' --done, or --not-done, with --reason TEXT",
                key.replace('\'', r"'\''")
            ),
            // A URL that is wrong may hold a password.
            Self::Service { error: error @ Error::Settings(_), .. } => error.fmt(f),
            Self::Service { server, error } => write!(f, "{server}: {error}"),
            Self::Spawn { program, error } => {
                let program = program.display();
                match error.kind() {
                    io::ErrorKind::NotFound => write!(f, "`{program}` is not found"),
                    _ => write!(f, "`{program}` cannot be executed: {error}"),
                }
            }
            Self::Lost(StopResult::NotStarted) => f.write_str("the command was not started"),
            Self::Lost(StopResult::Ended) => f.write_str("the command was stopped"),
            Self::Lost(StopResult::Killed) => f.write_str("the command was killed"),
            Self::Lost(StopResult::StillThere) => f.write_str("the command cannot be killed"),
            Self::System(error) => error.fmt(f),
            Self::Signal(signal) => write!(f, "ended by signal {signal} before COMMAND began"),
        }
    }
}
