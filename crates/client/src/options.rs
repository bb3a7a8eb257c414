//! How a lock is wanted.
//!
//! Every kind of lock is a set of options over the defaults, so that a new one breaks no caller. Tested over HTTP in
//! `tests/api/rust_client.rs`.

use std::time::Duration;

use keylatch_core::lock::{EntryName, Limit, Owner, Token, Ttl};

/// How a lock is wanted, or each of several.
#[derive(Debug, Clone)]
pub struct AcquireOptions {
    /// How long the lease lasts unless it is renewed.
    pub ttl: Ttl,
    /// How long to wait for the lock. An answer that is on its way is still read.
    pub wait: Duration,
    /// A label that says who holds the lock.
    pub owner: Option<Owner>,
    /// How many may hold the lock together with this client.
    pub limit: Limit,
    /// The token, if it is to be one that holds the lock already; `None` makes one.
    pub token: Option<Token>,
    /// The name under which to enter the lock. With a name the guard's end leaves that entry, and else the
    /// lock. Sets have no entries.
    pub entry: Option<EntryName>,
    /// Whether the guard's end leaves its locks with the token: for a `token` by which another program
    /// holds them, and releases them. What that program has lost meanwhile, and this one got, expires.
    pub keep: bool,
}

impl Default for AcquireOptions {
    /// 30 s, without waiting, without a label, exclusively.
    fn default() -> Self {
        Self {
            ttl: Ttl::DEFAULT,
            wait: Duration::ZERO,
            owner: None,
            limit: Limit::Exclusive,
            token: None,
            entry: None,
            keep: false,
        }
    }
}
