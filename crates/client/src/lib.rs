//! The Rust client of [keylatch](https://docs.rs/keylatch): acquires a lock, renews it in the
//! background, and tells when it is lost.
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
//! # What a guard promises
//!
//! A [`LockGuard`] counts its validity from the moment a request was *sent*, on a clock that also
//! runs while the machine is suspended. It counts as lost a quarter of its TTL, at most 10 s,
//! *before* the validity ends, so the program has time to stop. No lease alone protects a resource
//! from a program that was paused at the wrong moment: hand the fencing token to the resource, which
//! refuses a smaller one.
//!
//! # Inside
//!
//! `client` asks until the wait is over, `guard` renews, `session` proves a claim by its token and
//! releases it when it is dropped, `connection` sends one request with a deadline. Every request
//! carries a Lock-Token of the client's own, so each is safe to repeat. The tests are with the
//! service, over real connections that fail.

mod client;
mod clock;
mod connection;
mod error;
mod guard;
pub mod https;
mod session;

pub use client::{AcquireOptions, AcquireReply, Client, Holder};
pub use error::Error;
pub use guard::{LeaseStatus, LockGuard, LossReason};
pub use keylatch_core::lock::{
    EntryName, FencingToken, Limit, LockName, Owner, ReleaseReply, Slots, Token, Ttl,
};
pub use keylatch_wire::Retry;
