//! Redlock: locks over several Redis servers that know nothing of each other, by majority.
//!
//! Every node is asked at once, with a time limit of its own, and what a quorum says counts (the
//! algorithm is the one published as "Distributed Locks with Redis"). A lock is a hash on each node, with
//! the keys that it has on one Redis, and is given back by the same scripts.
//!
//! A grant takes two rounds, which are those of Paxos. In the first, nodes give the lock; each notes its
//! fencing counter in it, and promises the attempt's ballot. In the second, the largest counter plus one
//! is written back as the grant's fencing token, or what another attempt with the same token may have
//! written already. A node takes it only if it is above what it noted, and no higher ballot was promised.
//! ARCHITECTURE.md argues why fencing tokens rise, and why those of one grant are the same.

mod agree;
mod ballot;
mod count;
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
mod vote;

pub use store::{RedlockSettings, redlock};
