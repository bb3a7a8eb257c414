//! The Rust client of [keylatch](https://docs.rs/keylatch).
//!
//! Inside: `connection` sends a request with a deadline, to one URL or the next, and retries it;
//! `session` releases a claim, under way or granted, that is dropped, and `lease`
//! renews it. All are the same for one lock and for several: `target` has the difference. Every
//! request carries a Lock-Token of the client's own, so each is safe to repeat. The tests are with
//! the service, over real connections that fail.
#![doc = include_str!("../README.md")]
#![warn(clippy::pedantic)]

mod builder;
mod client;
mod clock;
mod connection;
mod error;
mod guard;
#[cfg(feature = "tls")]
pub mod https;
mod lease;
mod node;
mod once;
mod options;
mod session;
mod streams;
mod target;
#[cfg(feature = "testing")]
#[path = "../testing/fake.rs"]
pub mod testing;
mod transport;

pub use builder::Builder;
pub use client::Client;
pub use connection::escape;
pub use error::{BoxError, Error, Held, Result};
pub use guard::{Guard, LockGuard, SetGuard};
pub use hyper::http::{self, Response, StatusCode};
pub use keylatch_core::lock::{FencingToken, ReleaseReply, Token};
pub use keylatch_wire::{
    BreakLockRequest, DescribedRequest, HeaderValues, HeldLock, Holder, OnCrash, ProblemDocument,
    Retry,
};
pub use lease::{Lease, LeaseLost, LossReason};
pub use once::{BeginReply, NothingDone, Once, OnceOptions, Run, Scope};
pub use options::{AcquireOptions, FOREVER, Limit};
pub use streams::{Event, Watch};
pub use target::LeasedLock;
pub use transport::{Body, ClientCertificate};
