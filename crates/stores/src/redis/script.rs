//! The Lua scripts, the names of their keys, and how values are written in them.
//!
//! A script is one or more files of `lua/`, one behind the other: shared functions first, then the
//! command. The words of the keys (`line`, `places`, `attempts`, `turns`) are older than the words of
//! the code (queue, expiry, attempt, wakeup), and stay, because instances of two versions share them.
//!
//! Tested by all tests over Redis, and the format of names by the tests of odd lock names.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bb8_redis::redis::Script;

use keylatch_core::idempotency::{Fingerprint, RecordKey};
use keylatch_core::lock::{LockName, TokenHash};

/// A script of one or more Lua files, one behind the other.
macro_rules! script {
    ($($file:literal),+) => {
        Script::new(concat!($(include_str!(concat!("lua/", $file, ".lua"))),+))
    };
}

/// The longest time in an argument, some 2,000 years: Redis takes it, and Lua knows it exactly.
const LONGEST_MILLIS: u64 = 1 << 46;
/// How many characters a token hash has in a script.
const TOKEN_CHARS: usize = 43;

/// The commands on one Redis.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) acquire: Script,
    pub(super) withdraw: Script,
    pub(super) renew: Script,
    pub(super) release: Script,
    pub(super) get: Script,
    pub(super) announce: Script,
    pub(super) record: RecordScripts,
    pub(super) redlock: RedlockScripts,
}

/// The commands on records.
#[derive(Debug)]
pub(super) struct RecordScripts {
    pub(super) begin: Script,
    pub(super) extend: Script,
    pub(super) complete: Script,
    pub(super) abandon: Script,
    pub(super) resolve: Script,
    pub(super) find: Script,
    pub(super) summary: Script,
    pub(super) unfinished: Script,
}

/// The commands on one node of several, other than those of one Redis.
#[derive(Debug)]
pub(super) struct RedlockScripts {
    pub(super) acquire: Script,
    pub(super) accept: Script,
    pub(super) renew: Script,
    pub(super) get: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            acquire: script!("fence", "queue", "acquire"),
            withdraw: script!("queue", "withdraw"),
            renew: script!("renew"),
            release: script!("queue", "release"),
            get: script!("get"),
            announce: script!("announce"),
            record: RecordScripts {
                begin: script!("fence", "record", "record_begin"),
                extend: script!("record", "record_extend"),
                complete: script!("record", "record_complete"),
                abandon: script!("record", "record_abandon"),
                resolve: script!("record", "record_resolve"),
                find: script!("record", "record_find"),
                summary: script!("record", "record_summary"),
                unfinished: script!("record_unfinished"),
            },
            redlock: RedlockScripts {
                acquire: script!("redlock", "redlock_acquire"),
                accept: script!("redlock", "redlock_accept"),
                renew: script!("redlock", "redlock_renew"),
                get: script!("redlock", "redlock_get"),
            },
        }
    }
}

/// The names of keys and channels.
#[derive(Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    pub(super) fn lock(&self, bucket: u8, name: &LockName) -> String {
        format!("{}:{{{bucket:02x}}}:lock:{name}", self.prefix)
    }

    /// The three keys of a lock's queue: the order of its entries, when they expire, and the attempts
    /// that renewed them last.
    pub(super) fn queue(&self, bucket: u8, name: &LockName) -> [String; 3] {
        ["line", "places", "attempts"]
            .map(|part| format!("{}:{{{bucket:02x}}}:{part}:{name}", self.prefix))
    }

    /// The channel for wakeups.
    pub(super) fn wakeup_channel(&self) -> String {
        format!("{}:turns", self.prefix)
    }

    /// The lock and the waiter of a wakeup: a message is a token hash and the lock's key.
    pub(super) fn parse_wakeup(&self, message: &[u8]) -> Option<(LockName, TokenHash)> {
        let (hash, lock) = message.split_at_checked(TOKEN_CHARS)?;
        let hash = URL_SAFE_NO_PAD.decode(hash).ok()?.try_into().ok()?;
        Some((self.lock_name(lock)?, TokenHash::from_bytes(hash)))
    }

    /// The channel for changes of watched locks, and for announcements of watches.
    pub(super) fn change_channel(&self) -> String {
        format!("{}:changes", self.prefix)
    }

    pub(super) fn record(&self, key: &RecordKey) -> String {
        format!("{}:{{{:02x}}}:record:{}", self.prefix, key.bucket(), record_name(key))
    }

    /// The index of a bucket's unfinished records.
    pub(super) fn unfinished(&self, bucket: u8) -> String {
        format!("{}:{{{bucket:02x}}}:unfinished", self.prefix)
    }

    /// A pattern for `SCAN` that finds the records.
    pub(super) fn record_pattern(&self) -> String {
        format!("{}:{{??}}:record:*", Glob(&self.prefix))
    }

    /// The record that a key is of.
    pub(super) fn record_key(&self, key: &[u8]) -> Option<RecordKey> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        let (bucket, name) = rest.strip_prefix(":{")?.split_once("}:record:")?;
        let key = parse_record_name(name)?;
        (bucket == format!("{:02x}", key.bucket())).then_some(key)
    }

    pub(super) fn fencing_token(&self, bucket: u8) -> String {
        format!("{}:{{{bucket:02x}}}:fence", self.prefix)
    }

    /// A pattern for `SCAN` that finds at least the locks whose names begin with `prefix`.
    pub(super) fn pattern(&self, prefix: &str) -> String {
        format!("{}:{{??}}:lock:{}*", self.prefix, Glob(prefix))
    }

    /// The lock that a key is of.
    pub(super) fn lock_name(&self, key: &[u8]) -> Option<LockName> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        let (bucket, name) = rest.strip_prefix(":{")?.split_once("}:lock:")?;
        let name = LockName::parse(name).ok()?;
        (bucket == format!("{:02x}", name.bucket())).then_some(name)
    }
}

/// A record as its key and the indexes have it.
pub(super) fn record_name(key: &RecordKey) -> String {
    URL_SAFE_NO_PAD.encode(key.as_bytes())
}

/// The record of a name.
pub(super) fn parse_record_name(name: &str) -> Option<RecordKey> {
    let bytes = URL_SAFE_NO_PAD.decode(name).ok()?;
    bytes.try_into().ok().map(RecordKey::from_bytes)
}

/// A time as a script's argument: at least 1 ms, because Redis deletes a key whose expiry is not in
/// the future at once, in the middle of the command that writes it.
pub(super) fn millis(time: Duration) -> u64 {
    millis_or_none(time).max(1)
}

/// The same for a span that may be of no time.
pub(super) fn millis_or_none(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).min(LONGEST_MILLIS)
}

/// A token hash as scripts write it: 43 characters, short enough for Redis's compact hashes.
pub(super) fn token(hash: &TokenHash) -> String {
    URL_SAFE_NO_PAD.encode(hash.as_bytes())
}

/// A fingerprint as scripts write it, likewise.
pub(super) fn fingerprint(fingerprint: &Fingerprint) -> String {
    URL_SAFE_NO_PAD.encode(fingerprint.as_bytes())
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
