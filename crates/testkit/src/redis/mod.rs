//! Real Redis in each form that keylatch takes: one server, Sentinel, Cluster, and nodes for Redlock.
//!
//! Each form is processes of the test's own on free ports, with files in a directory that ends with them. A form
//! is ready when its constructor returns.

mod cluster;
mod redlock;
mod sentinel;
mod server;

pub use cluster::Cluster;
pub use redlock::{RedlockNodes, open_redlock, redlock_url, with_generous_timeouts};
pub use sentinel::Sentinels;
pub use server::RedisServer;
