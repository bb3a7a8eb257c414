//! How the service meets the network: the section `server` of the configuration.
//!
//! Each field is a setting of `config/keylatch.toml`, which says what it means; times are in
//! milliseconds. `src/config` rules out what would stop the service. Tested in `tests/cli/config`
//! and `tests/api/connections.rs`.

use serde::Deserialize;

/// How the service meets the network.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The hosts that the service goes by, beside loopback names.
    pub hosts: Vec<String>,
    /// The addresses and networks of the proxies whose `X-Forwarded-*` is believed.
    pub trusted_proxies: Vec<String>,
    /// Connections served at once.
    pub max_connections: usize,
    /// Requests answered at once on one connection of HTTP/2.
    pub max_concurrent_streams: u32,
    /// Requests answered at once.
    pub max_requests: usize,
    /// Time for a request as a whole, in milliseconds.
    pub request_timeout_ms: u64,
    /// Time for a request's body to arrive, in milliseconds.
    pub body_timeout_ms: u64,
    /// Time for a new connection to send its first byte, in milliseconds.
    pub first_byte_timeout_ms: u64,
    /// Time from the first byte of a request's head to its last, in milliseconds.
    pub header_timeout_ms: u64,
    /// Time between a response and the next request, in milliseconds.
    pub keep_alive_timeout_ms: u64,
    /// Time for which a client may read nothing of what it is sent, in milliseconds.
    pub write_timeout_ms: u64,
    /// Time for which a connection that changed to another protocol may carry nothing, in
    /// milliseconds.
    pub upgrade_idle_timeout_ms: u64,
    /// The largest request body, in bytes.
    pub body_limit_bytes: usize,
    /// The largest head of a request, in bytes.
    pub header_limit_bytes: usize,
    /// The most header lines in a request.
    pub max_headers: usize,
    /// Time for requests to be finished at shutdown, in milliseconds.
    pub drain_timeout_ms: u64,
}
