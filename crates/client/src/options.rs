//! How a lock is wanted.
//!
//! Every kind of lock is a set of options over the defaults, so that a new one breaks no caller.
//! What they say is sent as it is, and the service refuses what cannot be. Tested over HTTP in
//! `tests/api/rust_client.rs`.

use std::time::Duration;

use keylatch_core::lock::Token;

/// A wait without an end.
pub const FOREVER: Duration = Duration::MAX;

/// How a lock is wanted, or each of several. Each acquire makes a token of its own, unless `token`
/// has one.
#[derive(Debug, Clone)]
pub struct AcquireOptions {
    /// How long the lease lasts unless it is renewed.
    pub ttl: Duration,
    /// How long to wait for the lock: [`FOREVER`] for as long as it takes. A response that is on
    /// its way is still read, and an outage of up to 5 s is outlasted in any case.
    pub wait: Duration,
    /// Wait only where at most so many wait already; `None` for any number.
    pub max_ahead: Option<u64>,
    /// How long the connection of a [`hold`](crate::Client::hold) may have the lock, if the service
    /// is to end it then.
    pub max_hold: Option<Duration>,
    /// A label that says who holds the lock; `None` takes that of the client.
    pub owner: Option<String>,
    /// How many may hold the lock together with this client.
    pub limit: Limit,
    /// The token, if it is to be one that holds the lock already; `None` makes one.
    pub token: Option<Token>,
    /// The name under which to enter the lock. With a name the guard's end leaves that entry, and
    /// else the lock. Sets have no entries.
    pub entry: Option<String>,
    /// Whether the guard's end leaves its locks with the token: for a `token` by which another
    /// program holds them, and releases them. What that program has lost meanwhile, and this one
    /// got, expires.
    pub keep: bool,
}

/// How many may hold a lock together with a holder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Limit {
    /// None: the holder has it alone.
    #[default]
    Exclusive,
    /// At most so many, the holder included: each has one of as many slots.
    Counted(u64),
    /// Any number: a reader beside readers.
    Shared,
}

impl Default for AcquireOptions {
    /// 30 s, without waiting, exclusively.
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(30),
            wait: Duration::ZERO,
            max_ahead: None,
            max_hold: None,
            owner: None,
            limit: Limit::Exclusive,
            token: None,
            entry: None,
            keep: false,
        }
    }
}

impl AcquireOptions {
    /// The defaults, with a wait.
    #[must_use]
    pub fn waiting(wait: Duration) -> Self {
        Self { wait, ..Self::default() }
    }
}
