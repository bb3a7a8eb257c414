//! Why a store cannot be opened, for the person who configures it.
//!
//! Invariant: no error says a word of a URL but its scheme, because a URL may hold a password.
//! Tested with each engine in `tests/stores`, and by `tests/cli/commands.rs`.

use std::path::PathBuf;

/// Why a store cannot be used. None of these says a word of the URL but its scheme, because a URL
/// may hold a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No store has this scheme.
    #[error("no store has the scheme `{scheme}:`: {known}")]
    UnknownScheme {
        /// The scheme of the URL.
        scheme: String,
        /// The forms of the URLs that there are.
        known: String,
    },
    /// This build has no such store.
    #[error(
        "this binary was built without {0}; `cargo build --release --features {0}` builds one that has it, \
         and releases have all stores"
    )]
    LeftOut(&'static str),
    /// The embedded store has no directory.
    #[error("`embedded:` names no directory; the store's URL is `embedded:DIRECTORY`")]
    NoDirectory,
    /// The data directory cannot be used.
    #[error("the data directory {} cannot be used: {source}", path.display())]
    Directory {
        /// The path after `embedded:`.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// Another process has the data directory.
    #[error("the data directory {} is in use by process {owner}", path.display())]
    DirectoryInUse {
        /// The directory.
        path: PathBuf,
        /// The other process's id, or `unknown`.
        owner: String,
    },
    /// The data file cannot be trusted.
    #[error(
        "the data file {} is damaged ({reason}); restore it from a backup, or move it away to start \
         with no locks held, once every lease in it has surely ended", path.display()
    )]
    Damaged {
        /// The path of the data file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Another version wrote the data file.
    #[error(
        "the data file {} has format {found}, and this version of keylatch reads format {known} \
         alone: use the version that wrote it, or move the file away to start with no locks held, \
         once every lease in it has surely ended", path.display()
    )]
    OtherFormat {
        /// The path of the data file.
        path: PathBuf,
        /// The file's format.
        found: u64,
        /// The format of this version.
        known: u64,
    },
    /// Memory has no path.
    #[error("`memory:` keeps nothing and takes nothing after the colon")]
    MemoryWithPath,
    /// The text is no URL at all.
    #[error("the store must be a URL: {0}")]
    NoUrl(String),
    /// The URL's scheme is known, and the rest is not understood.
    #[error("the store's URL is not {0} URL: {1}")]
    BadUrl(&'static str, String),
    /// The engine answered, and must not be used for locks as it is.
    #[error("this {0} cannot keep locks: {1}")]
    Unfit(&'static str, String),
    /// The URL names nodes that make no store, or the settings do not fit them.
    #[error("the nodes of `redlock://` make no store: {0}")]
    BadRedlock(String),
    /// The Redis answered, and must not be used for locks as it is.
    #[error("this Redis is not fit to keep locks: {0}")]
    UnfitRedis(String),
}
