//! Ports for servers that listen on a port that they are given.
//!
//! A port is from a range that the system gives to no connection, and a process gets each once, so
//! it stays free while a server that was killed is started again. A server that can choose its port
//! itself does so.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// A port that is free, with one for the bus of a cluster 10,000 above it. It stays free until a
/// server listens on it, and while a server that was killed is started again: it is none of those
/// that the system gives to connections, and the process gets it once.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let number = std::process::id().wrapping_mul(61).wrapping_add(next);
        let port = u16::try_from(12_000 + number % 10_000).expect("a port");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
