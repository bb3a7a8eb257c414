//! The arguments that several commands have, and how a shell writes their values.
//!
//! One definition each, so that `--ttl 30s` means the same everywhere. A flag counts before its
//! variable. Tested in `tests/cli/lock_commands.rs` and `run.rs`.

use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;
use keylatch_client::{AcquireOptions, Limit};
use keylatch_core::lock::{Owner, Slots, Ttl};

/// What the help of every client says about its environment.
pub const ENVIRONMENT: &str = "\
Environment:
  KEYLATCH_URL          the URL of the service, or unix:PATH
  KEYLATCH_API_KEY      the key by which the service knows this client
  KEYLATCH_CA           a file of the authorities that vouch for the service, in place of the system's
  KEYLATCH_CLIENT_CERT  a file of the certificate that this client shows, and
  KEYLATCH_CLIENT_KEY   a file of its key";

/// Where the service is.
#[derive(Debug, Clone, Args)]
pub struct ServiceArguments {
    /// The URL of the service, or unix:PATH
    #[arg(long, env = "KEYLATCH_URL", value_name = "URL", hide_env_values = true)]
    #[arg(default_value = "http://127.0.0.1:7070")]
    pub server: String,
}

/// How a lock is wanted.
#[derive(Debug, Clone, Args)]
pub struct LeaseArguments {
    /// How long the lock lasts unless renewed
    #[arg(long, value_parser = ttl, value_name = "TIME", default_value = "30s")]
    ttl: Ttl,
    /// How long to wait for the lock
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "10s")]
    wait: Duration,
    /// Try once, and do not wait
    #[arg(short = 'n', long = "try", conflicts_with = "wait")]
    tries_once: bool,
    /// Wait only where at most so many wait already: with 0, one at a time and one after it
    #[arg(long, value_parser = count, value_name = "N", allow_negative_numbers = true)]
    #[arg(conflicts_with = "tries_once")]
    max_ahead: Option<u64>,
    /// A label that says who holds the lock [default: the machine and the process]
    #[arg(long, value_parser = owner)]
    owner: Option<Owner>,
    /// Hold the lock together with others that share it
    #[arg(long)]
    shared: bool,
    /// Hold the lock together with at most so many, this one included, each in a slot of its own,
    /// from 0
    #[arg(long, value_parser = slots, value_name = "N")]
    limit: Option<Slots>,
}

impl LeaseArguments {
    /// The same for the client.
    pub fn options(self) -> AcquireOptions {
        let owner = Some(or_this_process(self.owner));
        let limit = match self.limit {
            Some(slots) => Limit::Counted(slots.get().into()),
            None if self.shared => Limit::Shared,
            None => Limit::Exclusive,
        };
        let wait = if self.tries_once { Duration::ZERO } else { self.wait };
        let (ttl, max_ahead) = (self.ttl.get(), self.max_ahead);
        AcquireOptions { ttl, wait, max_ahead, owner, limit, ..AcquireOptions::default() }
    }
}

/// The label of the holder, or the machine and the process if there is none.
pub(super) fn or_this_process(owner: Option<Owner>) -> String {
    let machine = nix::unistd::gethostname().unwrap_or_default();
    let this = || format!("{}, pid {}", machine.display(), std::process::id());
    owner.map_or_else(this, |owner| owner.as_str().to_owned())
}

/// A time such as `1m 30s`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let like = |why: &str| format!("{why}: write it like `30s`, `1m 30s` or `500ms`");
    let duration: SignedDuration = text.parse().map_err(|_| like("it is not a time"))?;
    duration.try_into().map_err(|_| like("it is before now"))
}

/// A TTL, written as a time.
pub(super) fn ttl(text: &str) -> Result<Ttl, String> {
    let millis = u64::try_from(duration(text)?.as_millis()).unwrap_or(u64::MAX);
    Ttl::from_millis(millis).map_err(|_| "it must be from 100ms to 24h".to_owned())
}

fn count(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "it is no whole number from 0 on")
}

fn slots(text: &str) -> Result<Slots, String> {
    let slots = text.parse().map_err(|_| "it is not a whole number".to_owned())?;
    Slots::new(slots).map_err(|error| error.to_string())
}

/// A label that is not empty.
pub(super) fn owner(text: &str) -> Result<Owner, String> {
    let owner = Owner::parse(text).map_err(|error| error.to_string())?;
    owner.ok_or_else(|| "it is empty".to_owned())
}
