//! Redlock: locks over several Redis servers that know nothing of each other, by majority.
//!
//! Every node is asked at once, with a time limit of its own, and what a quorum says counts (the
//! algorithm is the one published as "Distributed Locks with Redis"). A lock is a hash on each node, with
//! the keys that it has on one Redis, and is given back by the same scripts.
//!
//! A grant takes two rounds. In the first, nodes give the lock; each notes its fencing counter in it. In
//! the second, the largest counter plus one is written back as the grant's fencing token, which a node
//! takes only if it is above what it noted. ARCHITECTURE.md argues why that makes them rise.

mod ballot;
mod giving;
mod grant;
mod list;
mod node;
mod nodes;
mod right;
mod round;
mod step;
mod store;
mod survey;
mod url;
mod vote;

pub use store::{RedlockSettings, RedlockStore};
