//! The Rust client of [keylatch](https://docs.rs/keylatch).
//!
//! Inside: `connection` sends a request with a deadline, to one URL or the next, and `tries` says
//! how often; `watchdog` renews, `session` is a claim under way or granted, and `ending` releases it
//! when it is dropped. All are the same for one lock and for several: `target` has the difference. Every request carries a Lock-Token of the client's own, so each is safe to repeat.
//! The tests are with the service, over real connections that fail.
#![doc = include_str!("../README.md")]

/// An event for the log of a program that has one.
macro_rules! event {
    ($level:ident, $($event:tt)+) => {
        #[cfg(feature = "tracing")]
        tracing::$level!($($event)+)
    };
}

mod builder;
mod client;
mod clock;
mod connection;
mod elect;
mod ending;
mod error;
mod events;
mod guard;
mod hold;
#[cfg(feature = "tls")]
pub mod https;
mod lease;
mod node;
mod once;
mod options;
mod proxy;
mod session;
mod target;
#[cfg(feature = "testing")]
#[path = "../testing/fake.rs"]
pub mod testing;
mod transport;
mod tries;
mod watch;
mod watchdog;

pub use builder::Builder;
pub use client::Client;
pub use error::{BoxError, Error, Held};
pub use events::Event;
pub use guard::{Guard, LockGuard, SetGuard};
pub use hyper::http::{self, Response, StatusCode};
pub use keylatch_core::lock::{FencingToken, ReleaseReply, Token};
pub use keylatch_wire::{
    BreakLockRequest, DescribedRequest, HeaderValues, HeldLock, Holder, OnCrash, ProblemDocument,
    Retry,
};
pub use lease::{FencedLease, Lease, LeaseLost, LossReason};
pub use once::{BeginReply, NothingDone, Once, OnceOptions, Run, Scope};
pub use options::{AcquireOptions, FOREVER, Limit};
pub use target::LeasedLock;
pub use transport::{Body, ClientCertificate};
pub use watch::Watch;
