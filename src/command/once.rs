//! The arguments of `keylatch once`.
//!
//! What they mean together is decided here, before anything is asked. Tested in
//! `tests/cli/once.rs`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use keylatch_client::{FOREVER, OnceOptions};
use keylatch_core::idempotency::IdempotencyKey;
use keylatch_core::lock::{Owner, Ttl};
use keylatch_wire::OnCrash;

use super::ServiceArguments;
use super::arguments::{duration, or_this_process, owner, ttl};
use crate::failure::Failure;
use crate::run::{OnceJob, once};

/// The shortest and the longest time for which a service keeps what came of a run.
const KEPT: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(365 * 24 * 60 * 60));

/// A command to run once.
#[derive(Debug, Args)]
pub struct OnceCommand {
    #[command(flatten)]
    service: ServiceArguments,
    /// How long the exit code is kept, and COMMAND does not run again
    #[arg(long = "for", value_parser = retention, value_name = "TIME", default_value = "24h")]
    retention: Duration,
    /// What comes of this run if this machine dies: a person settles it, or another machine runs
    /// COMMAND again
    #[arg(long, value_parser = ["unknown", "rerun"], value_name = "WHAT")]
    #[arg(default_value = "unknown")]
    on_crash: String,
    /// How long to wait for the end of a run of another machine, or for a service that cannot be
    /// reached [default: not at all; with --on-crash rerun for as long as it takes]
    #[arg(long, value_parser = duration, value_name = "TIME")]
    wait: Option<Duration>,
    /// Keep the last 64 KiB that COMMAND prints, and print them where it ran before
    #[arg(long)]
    replay_output: bool,
    /// Say nothing of the runs of other machines
    #[arg(short, long)]
    quiet: bool,
    /// A label that tells the others who runs COMMAND [default: the machine and the process]
    #[arg(long, value_parser = owner)]
    owner: Option<Owner>,
    /// How long the run lasts unless renewed
    #[arg(long, value_parser = ttl, value_name = "TIME", default_value = "30s")]
    ttl: Ttl,
    /// What is done once: a name with what tells tonight from tomorrow in it, as
    /// `nightly-2026-11-21`
    #[arg(value_parser = IdempotencyKey::parse)]
    key: IdempotencyKey,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl OnceCommand {
    /// Runs the command, if none has.
    pub async fn run(self) -> Result<u8, Failure> {
        let (on_crash, wait) = match self.on_crash.as_str() {
            "rerun" => (OnCrash::Rerun, FOREVER),
            _ => (OnCrash::Unknown, Duration::ZERO),
        };
        let options = OnceOptions {
            lease: self.ttl.get(),
            retention: Some(self.retention),
            wait: self.wait.unwrap_or(wait),
            on_crash,
            ..OnceOptions::default()
        };
        let job = OnceJob {
            server: self.service.server,
            key: self.key.as_str().to_owned(),
            owner: or_this_process(self.owner),
            options,
            replays_output: self.replay_output,
            is_quiet: self.quiet,
            command: self.command,
        };
        once(&job).await
    }
}

fn retention(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let (least, most) = KEPT;
    if (least..=most).contains(&time) {
        Ok(time)
    } else {
        Err("it must be from 1s to 8760h".into())
    }
}
