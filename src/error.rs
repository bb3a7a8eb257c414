//! Why the process cannot start or continue. What fails in a request is a
//! [`Problem`](crate::http::Problem).
//!
//! `main` prints the error with its causes and ends with a code other than 0. Invariant: none shows
//! a secret of the configuration. Tested in `tests/cli/commands.rs`.

use crate::config::ConfigError;
use crate::http::{ServeError, TlsFileError};
use keylatch_stores::OpenError;

/// Why the process ends without having been told to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// A guard has no store for its records.
    #[error(
        "the guard of {path} needs records of idempotency keys, and a `{store}:` store keeps none: use \
         another store, or take the guards out of the configuration"
    )]
    Unguarded {
        /// The guard's path.
        path: String,
        /// The kind of store.
        store: String,
    },
    /// A guard takes issued keys, and nothing signs them.
    #[error(
        "the guard of {path} takes issued keys, and nothing signs them: set `issued_keys.secret_file` \
         (KEYLATCH_ISSUED_KEYS_SECRET_FILE) to a file with a secret of 32 bytes or more, the same for all instances. \
         A `{store}:` store has none; `embedded:` makes one"
    )]
    NoSecret {
        /// The guard's path.
        path: String,
        /// The kind of store.
        store: String,
    },
    /// Secrets are of no use: those of issued keys, or the encryption keys.
    #[error("{place}: {reason}")]
    Secrets {
        /// The setting and the file, or the store.
        place: String,
        /// What is wrong, without a word of the file.
        reason: String,
    },
    /// The file of identities or the issuer of tokens is of no use.
    #[error("{0}")]
    Access(String),
    /// The files of TLS are of no use.
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    /// Others than programs of this machine would reach the service, and nothing guards it.
    #[error(
        "will not listen on {address} without identities, since every client there could do everything. Set \
         `identities` (KEYLATCH_IDENTITIES) to a file of them, which `keylatch key create` helps to write; or \
         set `open = true` (KEYLATCH_OPEN) where a proxy or a network guards it; or listen on loopback"
    )]
    Exposed {
        /// The address.
        address: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address and port, or the path of a Unix socket.
        address: String,
        /// The error of the operating system, such as an address in use.
        source: std::io::Error,
    },
    /// The server broke.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The operating system has no random bytes.
    #[error("no random bytes: {0}")]
    Random(#[from] getrandom::Error),
    /// Logging cannot be set up.
    #[error("cannot log: {0}")]
    Telemetry(Box<dyn std::error::Error + Send + Sync>),
    /// Traces cannot be sent.
    #[error("traces: {0}")]
    Traces(#[source] std::io::Error),
    /// The audit log cannot be written.
    #[error("the audit log in {file}: {source}")]
    Audit {
        /// The path of the setting `log.audit`.
        file: String,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// Signals or the runtime cannot be set up, or standard output is closed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The health check found the service not to be well.
    #[error("not healthy: {0}")]
    Unhealthy(String),
}
