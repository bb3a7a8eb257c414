//! How the service meets the network: the section `server` of the configuration.
//!
//! Each field is a setting of `config/keylatch.toml`, which says what it means; times are in
//! milliseconds. `src/config` rules out what would stop the service. Tested in `tests/cli/config`
//! and `tests/api/connections.rs`.

use serde::Deserialize;

/// How the service meets the network.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the file of defaults documents every setting")]
pub struct Settings {
    pub hosts: Vec<String>,
    pub trusted_proxies: Vec<String>,
    pub max_connections: usize,
    pub max_concurrent_streams: u32,
    pub max_requests: usize,
    pub request_timeout_ms: u64,
    pub body_timeout_ms: u64,
    pub first_byte_timeout_ms: u64,
    pub header_timeout_ms: u64,
    pub keep_alive_timeout_ms: u64,
    pub write_timeout_ms: u64,
    pub upgrade_idle_timeout_ms: u64,
    pub body_limit_bytes: usize,
    pub header_limit_bytes: usize,
    pub max_headers: usize,
    pub drain_timeout_ms: u64,
}
