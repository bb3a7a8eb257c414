//! The arguments of `keylatch elect`.
//!
//! Tested in `tests/cli/elect.rs`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use keylatch_client::{AcquireOptions, FOREVER};
use keylatch_core::lock::{LockName, Owner, Ttl};

use super::ServiceArguments;
use super::arguments::{or_this_process, owner, ttl};
use crate::failure::{Failure, HELD};
use crate::run::{Job, Locks, elect};

/// An election.
#[derive(Debug, Args)]
pub struct ElectCommand {
    #[command(flatten)]
    service: ServiceArguments,
    /// What the others are told of this one where it leads, such as its URL
    /// [default: the machine and the process]
    #[arg(long, value_parser = owner, value_name = "URL")]
    owner: Option<Owner>,
    /// Where to say who leads: GET / is {"name": OWNER}, and GET /leader is 200 with the fencing
    /// token, or 503
    #[arg(long, value_parser = address, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// How long the others wait for a leader that has died
    #[arg(long, value_parser = ttl, value_name = "TIME", default_value = "15s")]
    ttl: Ttl,
    /// The lock that the leader holds
    #[arg(value_parser = LockName::parse)]
    name: LockName,
    /// A program that runs while this one leads, and its arguments
    #[arg(last = true)]
    command: Vec<OsString>,
}

impl ElectCommand {
    /// Leads, or waits to.
    pub async fn run(self) -> Result<u8, Failure> {
        let options = AcquireOptions {
            ttl: self.ttl.get(),
            wait: FOREVER,
            owner: Some(or_this_process(self.owner)),
            ..AcquireOptions::default()
        };
        let job = Job {
            server: self.service.server,
            locks: Locks::One(self.name),
            options,
            at_least: Duration::ZERO,
            held_exit: HELD,
            is_quiet: false,
            command: self.command,
        };
        elect(&job, self.listen).await
    }
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "it is no address with a port: write it like `127.0.0.1:4040`")
}
