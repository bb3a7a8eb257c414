//! Why the process cannot start or continue. What fails in a request is a
//! [`Problem`](crate::http::Problem).
//!
//! `main` prints the error with its causes and ends with a code other than 0. Invariant: none shows
//! a secret of the configuration. Tested in `tests/cli/commands.rs`.

use std::io::ErrorKind;

use crate::config::ConfigError;
use crate::http::{ServeError, TlsFileError};
use keylatch_stores::OpenError;

/// Why the process ends without having been told to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the text of each says it")]
pub enum Error {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error(
        "the guard of {path} needs records of idempotency keys, and a `{store}:` store keeps none: use \
         another store, or take the guards out of the configuration"
    )]
    Unguarded { path: String, store: String },
    #[error(
        "the guard of {path} takes issued keys, and nothing signs them: set `issued_keys.secret_file` \
         (KEYLATCH_ISSUED_KEYS_SECRET_FILE) to a file with a secret of 32 bytes or more, the same for all instances. \
         A `{store}:` store has none; `embedded:` makes one"
    )]
    NoSecret { path: String, store: String },
    #[error("{place}: {reason}")]
    Secrets { place: String, reason: String },
    #[error("{0}")]
    Access(String),
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    #[error(
        "will not listen on {address} without identities, since every client there could do everything. Set \
         `identities` (KEYLATCH_IDENTITIES) to a file of them, which `keylatch apikey create` helps to write; or \
         set `open = true` (KEYLATCH_OPEN) where a proxy or a network guards it; or listen on loopback"
    )]
    Exposed { address: String },
    #[error("cannot listen on {address}: {source}{}", way_out(address, source))]
    Listen { address: String, source: std::io::Error },
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("{0}")]
    Unreachable(String),
    #[error("no random bytes: {0}")]
    Random(#[from] getrandom::Error),
    #[error("cannot log: {0}")]
    Telemetry(Box<dyn std::error::Error + Send + Sync>),
    #[error("traces: {0}")]
    Traces(#[source] std::io::Error),
    #[error("the audit log in {file}: {source}")]
    Audit { file: String, source: std::io::Error },
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("not healthy: {0}")]
    Unhealthy(String),
}

/// What to do where the service cannot listen.
fn way_out(address: &str, error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrInUse if !address.starts_with("unix:") => {
            "; another port is free, perhaps: `--listen 7071`"
        }
        ErrorKind::InvalidInput => "; write it like `127.0.0.1:7070`, `7070` or `unix:PATH`",
        _ => "",
    }
}
