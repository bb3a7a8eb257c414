//! The Rust client of [keylatch](https://docs.rs/keylatch): acquires a lock, or several at once,
//! renews it in the background, and tells when it is lost.
//!
//! ```no_run
//! use keylatch_client::{AcquireOptions, AcquireReply, Client, LockName};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new("http://127.0.0.1:7070")?;
//! let name = LockName::parse("deploy")?;
//! match client.acquire(&name, &AcquireOptions::default()).await? {
//!     AcquireReply::Granted(guard) => {
//!         let lost = guard.lost();
//!         tokio::select! {
//!             () = lost.cancelled() => eprintln!("stopped: {}", guard.status()),
//!             () = deploy(guard.fencing_token().get()) => {}
//!         }
//!         guard.close().await?;
//!     }
//!     AcquireReply::Held(holder) => println!("held by {holder:?}"),
//! }
//! # Ok(())
//! # }
//! # async fn deploy(fencing_token: u64) {}
//! ```
//!
//! # Waiting
//!
//! The service keeps a queue for each lock, first come, first served. With a `wait`, the client
//! stays in it across requests, lost answers and restarts of the service.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use keylatch_client::{AcquireOptions, AcquireReply, Client, LockName, Owner, Retry, Ttl};
//!
//! # async fn example(client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! let options = AcquireOptions {
//!     ttl: Ttl::from_millis(10_000)?,
//!     wait: Duration::from_secs(300),
//!     owner: Owner::parse("nightly report")?,
//!     ..AcquireOptions::default()
//! };
//! match client.acquire(&LockName::parse("report")?, &options).await {
//!     Ok(AcquireReply::Granted(guard)) => drop(guard),
//!     Ok(AcquireReply::Held(_)) => println!("still held after five minutes"),
//!     Err(error) if error.retry() == Retry::SameKey => println!("try again later: {error}"),
//!     Err(error) => return Err(error.into()),
//! }
//! // Guards that were dropped are released in the background; this waits for that.
//! client.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Several locks at once
//!
//! [`Client::acquire_set`] gets all locks of a [`LockSet`] or none, in one step and under one token. A
//! set that waits holds nothing, so no two wait for each other. Its guard is lost when any of its
//! locks is, and hands out a fencing token for each.
//!
//! ```no_run
//! use keylatch_client::{AcquireOptions, AcquireSetReply, Client, LockName, LockSet};
//!
//! # async fn example(client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! let accounts = LockSet::new(vec![LockName::parse("account/7")?, LockName::parse("account/42")?])?;
//! match client.acquire_set(&accounts, &AcquireOptions::default()).await? {
//!     AcquireSetReply::Granted(guard) => {
//!         for lock in guard.locks() {
//!             println!("{} under {}", lock.name, lock.fencing_token);
//!         }
//!         guard.close().await?;
//!     }
//!     AcquireSetReply::Held { name, holder } => println!("{name} is held by {holder:?}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Held by a connection, watched, done once
//!
//! [`Client::hold`] acquires a lock that is free as soon as the process is gone: the connection is the
//! claim, and the service renews it. [`Client::watch`] reports what happens to a lock. [`Client::begin`]
//! asks whether a thing is to be done now, or was done before.
//!
//! ```no_run
//! use hyper::StatusCode;
//! use keylatch_client::{BeginReply, Client, OnceOptions};
//!
//! # async fn example(client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! match client.begin("mail-17", &OnceOptions::default()).await? {
//!     BeginReply::Begun(run) => {
//!         send_mail(run.fencing_token().get()).await;
//!         run.complete(StatusCode::OK, "sent").await?;
//!     }
//!     BeginReply::Done(answer) => println!("it was sent before: {answer:?}"),
//! }
//! # Ok(())
//! # }
//! # async fn send_mail(fencing_token: u64) {}
//! ```
//!
//! # What a guard promises
//!
//! A [`Guard`] counts its validity from the moment a request was *sent*, on a clock that also
//! runs while the machine is suspended. It counts as lost a quarter of its TTL, at most 10 s,
//! *before* the validity ends, so the program has time to stop. No lease alone protects a resource
//! from a program that was paused at the wrong moment: hand the fencing token to the resource, which
//! refuses a smaller one.
//!
//! # Inside
//!
//! `client` asks until the wait is over, `watchdog` renews, `session` proves a claim by its token and
//! releases it when it is dropped, `connection` sends one request with a deadline. All of them are
//! the same for one lock and for several: `target` has the difference. Every request
//! carries a Lock-Token of the client's own, so each is safe to repeat. The tests are with the
//! service, over real connections that fail.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod api_key;
mod client;
mod clock;
mod connection;
mod error;
mod events;
mod guard;
mod hold;
pub mod https;
mod loss;
mod once;
mod options;
mod security;
mod session;
mod target;
mod unix;
mod watch;
mod watchdog;

pub use api_key::ApiKey;
pub use client::{AcquireReply, AcquireSetReply, Client, Holder};
pub use error::Error;
pub use events::Event;
pub use guard::{Guard, LockGuard, SetGuard};
pub use https::ClientCertificate;
pub use keylatch_core::lock::{
    EntryName, FencingToken, Limit, LockName, LockSet, Owner, ReleaseReply, Slots, Token, Ttl,
};
pub use keylatch_wire::{IdempotencyAnswer, ProblemDocument, Retry};
pub use loss::{LeaseStatus, LossReason};
pub use once::{BeginReply, OnceOptions, Run};
pub use options::AcquireOptions;
pub use security::Security;
pub use target::LeasedLock;
pub use watch::Watch;
