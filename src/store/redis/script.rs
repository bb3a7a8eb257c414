use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bb8_redis::redis::Script;

use crate::idempotency::{Fingerprint, RecordKey};
use crate::lock::{LockName, TokenHash};

/// A script of one or more Lua files, one behind the other.
macro_rules! script {
    ($($file:literal),+) => {
        Script::new(concat!($(include_str!(concat!("lua/", $file, ".lua"))),+))
    };
}

/// The steps, one Lua file each.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) acquire: Script,
    pub(super) withdraw: Script,
    pub(super) renew: Script,
    pub(super) release: Script,
    pub(super) get: Script,
    pub(super) record: RecordScripts,
}

/// The steps on records.
#[derive(Debug)]
pub(super) struct RecordScripts {
    pub(super) begin: Script,
    pub(super) extend: Script,
    pub(super) complete: Script,
    pub(super) abandon: Script,
    pub(super) resolve: Script,
    pub(super) find: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            acquire: script!("fence", "acquire"),
            withdraw: script!("withdraw"),
            renew: script!("renew"),
            release: script!("release"),
            get: script!("get"),
            record: RecordScripts {
                begin: script!("fence", "record", "record_begin"),
                extend: script!("record", "record_extend"),
                complete: script!("record", "record_complete"),
                abandon: script!("record", "record_abandon"),
                resolve: script!("record", "record_resolve"),
                find: script!("record", "record_find"),
            },
        }
    }
}

/// How keys are named.
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

    pub(super) fn record(&self, key: &RecordKey) -> String {
        let name = URL_SAFE_NO_PAD.encode(key.as_bytes());
        format!("{}:{{{:02x}}}:record:{name}", self.prefix, key.bucket())
    }

    pub(super) fn fence(&self, bucket: u8) -> String {
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

/// How scripts write a token hash: 43 characters, short enough for Redis's compact hashes.
pub(super) fn token(hash: &TokenHash) -> String {
    URL_SAFE_NO_PAD.encode(hash.as_bytes())
}

/// How scripts write a fingerprint, likewise.
pub(super) fn fingerprint(fingerprint: &Fingerprint) -> String {
    URL_SAFE_NO_PAD.encode(fingerprint.as_bytes())
}

/// Text in which a glob pattern finds nothing but itself.
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
