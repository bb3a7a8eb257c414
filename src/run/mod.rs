//! `keylatch run`: runs a command for as long as it holds a lock, or several.
//!
//! The command has its own process group, so that signals reach what it has started as well, and a
//! lost lock stops all of its descendants. It also has the terminal, if there is one, so that it
//! reads keys and Ctrl-C as it would without `run`.

use std::ffi::OsString;
use std::time::Duration;

use keylatch_client::AcquireOptions;

mod descendants;
mod elect;
mod exit;
mod group;
mod guardian;
mod job;
mod leader;
mod locks;
mod once;
mod output;
mod reentry;
mod signals;
mod supervision;
mod waiting;

pub use elect::{Election, elect};
pub(crate) use exit::code_of_error;
pub use exit::{ELECT_EXIT_CODES, EXIT_CODES, ONCE_EXIT_CODES};
pub use job::run;
pub use locks::Locks;
pub use once::{OnceJob, once};
pub use reentry::Reentry;
pub(crate) use waiting::narrate;

/// What is to be run, and under which locks.
#[derive(Debug)]
pub struct Job {
    /// The URL of the service.
    pub server: String,
    /// The locks.
    pub locks: Locks,
    /// How they are wanted.
    pub options: AcquireOptions,
    /// How long the locks stay held where the command ends sooner.
    pub at_least: Duration,
    /// The exit code where others hold a lock, if it is not that of [`EXIT_CODES`].
    pub held_exit: Option<u8>,
    /// Whether to be silent about others that hold a lock.
    pub is_quiet: bool,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}
