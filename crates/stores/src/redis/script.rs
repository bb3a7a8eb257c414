//! The Lua scripts, the names of their keys, and how values are written in them.
//!
//! A script is one or more files of `lua/`, one behind the other: shared functions first, then the
//! command.
//!
//! Tested by all tests over Redis, and the format of names by the tests of odd lock names.

use std::fmt;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bb8_redis::redis::Script;

use keylatch_core::idempotency::RecordKey;
use keylatch_core::lock::LockName;
#[cfg(feature = "redlock")]
use keylatch_core::lock::TokenHash;

macro_rules! scripts {
    ($($name:ident: $($file:literal),+;)+) => {$(
        pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(concat!($(include_str!(concat!("lua/", $file, ".lua"))),+))
        });
    )+};
}

scripts! {
    WRITE: "row", "write";
    WRITE_ALL: "row", "write_all";
    READ: "read";
    ANNOUNCE: "announce";
    UNFINISHED: "unfinished";
    UNLIST: "unlist";
}
#[cfg(feature = "redlock")]
scripts! {
    REDLOCK_ACQUIRE: "redlock", "redlock_acquire";
    REDLOCK_ACCEPT: "redlock", "redlock_accept";
    REDLOCK_RENEW: "redlock", "redlock_renew";
    REDLOCK_LOOK: "redlock", "redlock_look";
    REDLOCK_END: "redlock", "redlock_end";
}

#[derive(Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    fn of(&self, bucket: u8, rest: impl fmt::Display) -> String {
        format!("{}:{{{bucket:02x}}}:{rest}", self.prefix)
    }

    pub(super) fn lock(&self, bucket: u8, name: &LockName) -> String {
        self.of(bucket, format_args!("lock:{name}"))
    }

    /// The channel for changes of watched locks, and for announcements of watches.
    pub(super) fn change_channel(&self) -> String {
        format!("{}:changes", self.prefix)
    }

    pub(super) fn record(&self, key: &RecordKey) -> String {
        self.of(key.bucket(), format_args!("record:{}", record_name(key)))
    }

    /// The index of a bucket's unfinished records.
    pub(super) fn unfinished(&self, bucket: u8) -> String {
        self.of(bucket, "unfinished")
    }

    pub(super) fn fencing_token(&self, bucket: u8) -> String {
        self.of(bucket, "fence")
    }

    /// Which store it is.
    pub(super) fn id(&self, bucket: u8) -> String {
        self.of(bucket, "id")
    }

    /// A pattern for `SCAN` that finds the records.
    pub(super) fn record_pattern(&self) -> String {
        format!("{}:{{??}}:record:*", Glob(&self.prefix))
    }

    /// A pattern for `SCAN` that finds at least the locks whose names begin with `prefix`.
    pub(super) fn pattern(&self, prefix: &str) -> String {
        format!("{}:{{??}}:lock:{}*", self.prefix, Glob(prefix))
    }

    pub(super) fn record_key(&self, key: &[u8]) -> Option<RecordKey> {
        let (bucket, name) = self.parts(key, "}:record:")?;
        parse_record_name(name).filter(|key| bucket == format!("{:02x}", key.bucket()))
    }

    pub(super) fn lock_name(&self, key: &[u8]) -> Option<LockName> {
        let (bucket, name) = self.parts(key, "}:lock:")?;
        let name = LockName::stored(name).ok();
        name.filter(|name| bucket == format!("{:02x}", name.bucket()))
    }

    /// The bucket and the name in a key of a kind.
    fn parts<'a>(&self, key: &'a [u8], kind: &str) -> Option<(&'a str, &'a str)> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        rest.strip_prefix(":{")?.split_once(kind)
    }
}

/// A record as its key and the indexes have it.
pub(super) fn record_name(key: &RecordKey) -> String {
    URL_SAFE_NO_PAD.encode(key.as_bytes())
}

pub(super) fn parse_record_name(name: &str) -> Option<RecordKey> {
    let bytes = URL_SAFE_NO_PAD.decode(name).ok()?;
    bytes.try_into().ok().map(RecordKey::from_bytes)
}

#[cfg(feature = "redlock")]
/// A token hash as scripts write it: 43 characters, short enough for Redis's compact hashes.
pub(super) fn token(hash: &TokenHash) -> String {
    URL_SAFE_NO_PAD.encode(hash.as_bytes())
}

/// A glob pattern that matches this text only.
struct Glob<'a>(&'a str);

impl fmt::Display for Glob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            if matches!(character, '*' | '?' | '[' | ']' | '^' | '\\') {
                f.write_str("\\")?;
            }
            write!(f, "{character}")?;
        }
        Ok(())
    }
}
