//! `keylatch run`: runs a command for as long as it holds a lock, or several.
//!
//! The command has its own process group, so that signals reach what it has started as well, and a
//! lost lock stops all of its descendants. It also has the terminal, if there is one, so that it
//! reads keys and Ctrl-C as it would without `run`. One lock goes by the requests for one, which
//! every store serves; several by those for sets. Tested in `tests/cli/run*.rs`.

use std::ffi::OsString;
use std::fmt;
use std::slice;
use std::time::Duration;

use keylatch_client::AcquireOptions;
use keylatch_core::lock::{InvalidLockSet, LockName, LockSet};

mod descendants;
mod elect;
mod group;
mod guardian;
mod job;
mod once;
mod output;
mod reentry;
mod supervision;
mod waiting;

pub use elect::elect;
pub use job::run;
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
    /// The exit code where others hold a lock.
    pub held_exit: u8,
    /// Whether to be silent about others that hold a lock.
    pub is_quiet: bool,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// One lock, or several.
#[derive(Debug, Clone)]
pub enum Locks {
    /// One lock.
    One(LockName),
    /// Several locks, in the order of the arguments.
    Several(LockSet),
}

impl Locks {
    /// The locks of these names.
    pub fn new(mut names: Vec<LockName>) -> Result<Self, InvalidLockSet> {
        match (names.pop(), names.is_empty()) {
            (Some(only), true) => Ok(Self::One(only)),
            (last, _) => {
                names.extend(last);
                LockSet::new(names).map(Self::Several)
            }
        }
    }

    /// Their names, in the order of the arguments.
    pub fn names(&self) -> &[LockName] {
        match self {
            Self::One(name) => slice::from_ref(name),
            Self::Several(set) => set.names(),
        }
    }
}

impl fmt::Display for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.names().iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}`{name}`")?;
        }
        Ok(())
    }
}
