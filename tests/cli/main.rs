//! The `keylatch` command as a process: arguments, configuration, `keylatch run`.
//!
//! Each test runs the program as a user or a script would, and asserts exit codes, output, and what
//! the service or the command under `run` saw.

#![warn(clippy::disallowed_methods)]
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

mod activation;
mod audit_log;
mod backup;
mod commands;
mod config;
mod demo;
mod elect;
mod gateway_examples;
mod job_recipes;
mod key_commands;
mod keys;
mod listeners;
mod lock_commands;
mod once;
mod recipes;
mod run;
mod run_descendants;
mod run_ends;
mod run_killed;
mod run_modes;
mod run_overlap;
mod run_sets;
mod run_signals;
mod run_waits;
mod signals;
mod tls;
#[cfg(feature = "test-engines")]
mod traces;
#[cfg(not(feature = "traces"))]
mod traces_absent;
mod transcripts;

use keylatch_testkit::{Exit, Program, RunningCommand, ScriptDirectory, Service};

/// The command under test.
static KEYLATCH: Program = Program::at(env!("CARGO_BIN_EXE_keylatch"));

/// What a command of a client comes to at a service.
async fn ask(server: &str, command: &str, arguments: &[&str]) -> Exit {
    KEYLATCH.run_with(&[&[command], arguments].concat(), &[("KEYLATCH_URL", server)]).await
}

async fn run(server: &str, arguments: &[&str]) -> Exit {
    ask(server, "run", arguments).await
}

/// Asserts an exit code, and that standard error says all of `why`.
#[track_caller]
fn is(ended: &Exit, code: i32, why: &[&str]) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    for why in why {
        assert!(ended.stderr.contains(why), "`{why}` is not in {ended:?}");
    }
}

/// A service in memory, and a directory for scripts under its locks.
async fn staged() -> (Service, ScriptDirectory) {
    (Service::start("memory:").await, ScriptDirectory::new())
}

/// Scripts under the command under test.
trait Stage {
    /// Starts `keylatch run ARGUMENTS -- sh -c SCRIPT`, and returns when the script has begun.
    async fn begin(&self, server: &str, arguments: &[&str], script: &str) -> RunningCommand;
}

impl Stage for ScriptDirectory {
    async fn begin(&self, server: &str, arguments: &[&str], script: &str) -> RunningCommand {
        let running = self.run(&KEYLATCH, server, arguments, script);
        self.begun().await;
        running
    }
}
