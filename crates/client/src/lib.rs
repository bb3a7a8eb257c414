//! A client of the service: acquires a lock, renews it in the background, says when it is lost.
//!
//! ```no_run
//! use keylatch_client::{Acquired, Client, Options};
//! use keylatch_core::lock::LockName;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new("http://127.0.0.1:7070")?;
//! let name = LockName::parse("deploy")?;
//! match client.acquire(&name, &Options::default()).await? {
//!     Acquired::Granted(guard) => {
//!         let lost = guard.lost();
//!         tokio::select! {
//!             () = lost.cancelled() => eprintln!("stopped: {}", guard.standing()),
//!             () = deploy(guard.fencing_token().get()) => {}
//!         }
//!         guard.close().await?;
//!     }
//!     Acquired::Held(holder) => println!("held by {holder:?}"),
//! }
//! # Ok(())
//! # }
//! # async fn deploy(fencing_token: u64) {}
//! ```
//!
//! Every request carries a Lock-Token of the client's own, so that each is safe to repeat, and each
//! has a deadline. This module knows the types of locks, and neither the service's HTTP code nor a
//! store.

mod acquire;
mod claim;
mod clock;
mod error;
mod guard;
mod renewing;
mod wire;

pub use acquire::{Acquired, Client, Holder, Options};
pub use error::Error;
pub use guard::Guard;
pub use renewing::{Lost, Standing};
