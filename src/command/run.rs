//! The arguments of `keylatch run`.
//!
//! What they mean together is decided here, before anything is asked: which words are locks, and
//! whether the process runs under them already. Tested in `tests/cli/run.rs` and `run_ends.rs`.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use clap::Args;
use keylatch_core::lock::{LockName, LockSet, Ttl};

use super::arguments::ttl;
use super::{LeaseArguments, ServiceArguments};
use crate::failure::{Failure, HELD};
use crate::run::{Job, Locks, Reentry, run};

/// The shells that people put before `-c`.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "fish"];

/// A command to run under locks.
#[derive(Debug, Args)]
pub struct RunCommand {
    #[command(flatten)]
    service: ServiceArguments,
    #[command(flatten)]
    lease: LeaseArguments,
    /// Leave the lock held for the rest of this time where COMMAND ends sooner
    #[arg(long, value_parser = ttl, value_name = "TIME")]
    at_least: Option<Ttl>,
    /// Exit with this code where another client held the lock until the wait was over
    #[arg(long, value_name = "CODE", default_value_t = HELD, allow_negative_numbers = true)]
    held_exit: u8,
    /// Say nothing of other clients that hold the lock
    #[arg(short, long)]
    quiet: bool,
    /// Run this text by `sh`, in place of COMMAND
    #[arg(short = 'c', value_name = "TEXT", conflicts_with = "command")]
    shell: Option<String>,
    /// The lock, or up to 16 to hold at once
    #[arg(value_parser = LockName::parse, value_name = "NAME", required = true, num_args = 1..=LockSet::MAX)]
    names: Vec<LockName>,
    /// The program and its arguments
    #[arg(last = true, required_unless_present = "shell")]
    command: Vec<OsString>,
}

impl RunCommand {
    /// Runs the command under its locks, or within a `run` around this one that has them all.
    pub async fn run(self) -> Result<u8, Failure> {
        if let Some(shell) = self.shell_as_name(std::env::args_os()) {
            let lock = &self.names[0];
            return Err(Failure::Arguments(format!(
                "`{shell}` is a lock here and no shell. Put `--` before the command: \
                 keylatch run {lock} -- {shell} -c TEXT. Or leave the shell to keylatch: \
                 keylatch run {lock} -c TEXT"
            )));
        }
        let locks = Locks::new(self.names);
        let locks = locks.map_err(|error| Failure::Arguments(format!("a set of locks {error}")))?;
        let (server, mut options) = (self.service.server, self.lease.options());
        if let Some(outer) = Reentry::find(&server, &locks, |variable| std::env::var(variable).ok())
        {
            if self.at_least.is_some() {
                return Err(Failure::Arguments(format!(
                    "a `run` around this one holds {locks}: give --at-least to that one"
                )));
            }
            let entering = outer.options(&locks, options);
            options = entering.map_err(|error| Failure::System(io::Error::other(error)))?;
        }
        let by_shell = |text: String| vec!["sh".into(), "-c".into(), text.into()];
        let command = self.shell.map_or(self.command, by_shell);
        let at_least = self.at_least.map_or(Duration::ZERO, Ttl::get);
        let (held_exit, is_quiet) = (self.held_exit, self.quiet);
        run(&Job { server, locks, options, at_least, held_exit, is_quiet, command }).await
    }

    /// The last name, where it is a shell with its `-c`: a command in the manner of `flock`, which
    /// has no `--`.
    fn shell_as_name(&self, arguments: impl IntoIterator<Item = OsString>) -> Option<&LockName> {
        let shell = self.names.last().filter(|_| self.shell.is_some() && self.names.len() > 1)?;
        let program = shell.as_str().rsplit('/').next().unwrap_or_default();
        let arguments: Vec<_> = arguments.into_iter().collect();
        let is_before_text =
            arguments.windows(2).any(|pair| pair[0] == shell.as_str() && pair[1] == "-c");
        (SHELLS.contains(&program) && is_before_text).then_some(shell)
    }
}
