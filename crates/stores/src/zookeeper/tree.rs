//! Where each row is: `ROOT/l/3f/NAME` for a lock, `ROOT/r/3f/KEY` for a record, `ROOT/f/3f` for a
//! floor, and `ROOT/id`. A record that is marked has an empty node beside, `ROOT/m/3f/KEY`.
//!
//! Names are in base64url, since a node's name may have no `/`. The 256 parents of a kind keep what
//! one parent lists small. A row's version is the transaction that wrote it, which rises over the
//! whole ensemble, and below it the data version, which a write names as its condition. Tested
//! here, and by the conformance.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zookeeper_client::Stat;

use crate::optimistic::conditional::{Key, Version};

/// The node below which everything is.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    /// Its path, without a slash at the end.
    pub(super) root: String,
}

impl Tree {
    /// The nodes whose children are the buckets: of locks, of records, of floors and of marks.
    pub(super) fn kinds(&self) -> [String; 4] {
        ["l", "r", "f", "m"].map(|kind| format!("{}/{kind}", self.root))
    }

    /// The node that has the rows of a bucket.
    pub(super) fn bucket(&self, kind: char, bucket: u8) -> String {
        format!("{}/{kind}/{bucket:02x}", self.root)
    }

    pub(super) fn node(&self, key: &Key) -> String {
        let name = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match key {
            Key::Lock(lock) => {
                format!("{}/{}", self.bucket('l', key.bucket()), name(lock.as_str().as_bytes()))
            }
            Key::Record(record) => {
                format!("{}/{}", self.bucket('r', key.bucket()), name(record.as_bytes()))
            }
            Key::Floor(bucket) => self.bucket('f', *bucket),
            Key::Id => format!("{}/id", self.root),
        }
    }

    /// The node that says that a row is marked; `None` for a row that never is.
    pub(super) fn mark(&self, key: &Key) -> Option<String> {
        let Key::Record(record) = key else { return None };
        let name = URL_SAFE_NO_PAD.encode(record.as_bytes());
        Some(format!("{}/{name}", self.bucket('m', key.bucket())))
    }

    /// Whether a node is below those of the marks.
    pub(super) fn is_mark(&self, node: &str) -> bool {
        node.strip_prefix(&*self.root).is_some_and(|rest| rest.starts_with("/m/"))
    }

    /// The key of the row whose node this is, if it is one.
    pub(super) fn key_of(&self, node: &str) -> Option<Key> {
        let (kind, rest) = node.strip_prefix(&*self.root)?.strip_prefix('/')?.split_once('/')?;
        match (kind, rest.split_once('/')) {
            ("f", None) => u8::from_str_radix(rest, 16).ok().map(Key::Floor),
            ("l", Some((_, name))) => Self::key_in('l', name),
            ("r", Some((_, name))) => Self::key_in('r', name),
            _ => None,
        }
    }

    /// The key of a row of a kind that has this name in its bucket.
    pub(super) fn key_in(kind: char, name: &str) -> Option<Key> {
        let name = URL_SAFE_NO_PAD.decode(name).ok()?;
        Key::from_bytes(&[&[u8::try_from(kind).ok()?], &*name].concat())
    }
}

pub(super) fn parent_of(node: &str) -> &str {
    node.rsplit_once('/').map_or("/", |(parent, _)| parent)
}

/// The version of a row that a transaction left with a data version.
pub(super) fn version_of(zxid: i64, data_version: i32) -> Version {
    let (zxid, data_version) = (zxid.cast_unsigned(), data_version.cast_unsigned());
    Version((u128::from(zxid) << 32) | u128::from(data_version))
}

pub(super) fn version_in(stat: &Stat) -> Version {
    version_of(stat.mzxid, stat.version)
}

/// The greatest version that a transaction may have left: what the timeline notes of it.
pub(super) fn end_of(zxid: i64) -> Version {
    version_of(zxid, -1)
}

/// The data version that a write names as its condition.
pub(super) fn data_version(version: Version) -> i32 {
    u32::try_from(version.0 & u128::from(u32::MAX)).unwrap_or_default().cast_signed()
}

#[cfg(test)]
mod tests {
    use keylatch_core::idempotency::RecordKey;
    use keylatch_core::lock::LockName;

    use super::*;

    #[test]
    fn node_leads_back_to_its_key() {
        let tree = Tree { root: "/team/keylatch".to_owned() };
        for name in ["a", "orders/42 ä", ".", "..", &"ü".repeat(LockName::MAX_BYTES / 2)] {
            let key = Key::Lock(LockName::parse(name).unwrap());
            assert_eq!(tree.key_of(&tree.node(&key)), Some(key));
        }
        assert_eq!(tree.key_of("/team/keylatch/f/3f"), Some(Key::Floor(0x3f)));
        let key = Key::Record(RecordKey::from_bytes([0x3f; 32]));
        let mark = tree.mark(&key).expect("a record may be marked");
        assert_eq!(tree.key_of(&tree.node(&key)), Some(key));
        assert!(tree.is_mark(&mark) && tree.key_of(&mark).is_none(), "{mark} is no row");
        for other in
            ["/team/keylatch", "/team/keylatch/l/3f", "/other/l/3f/YQ", "/team/keylatch2/l/3f/YQ"]
        {
            assert_eq!(tree.key_of(other), None, "{other}");
        }
    }

    #[test]
    fn version_rises_with_the_transaction_and_keeps_the_condition() {
        assert!(version_of(8, 0) > version_of(7, i32::MAX), "a node that was made again is newer");
        assert!(version_of(7, 3) <= end_of(7) && end_of(7) < version_of(8, 0));
        for data_version in [0, 1, i32::MAX, i32::MIN, -2] {
            assert_eq!(super::data_version(version_of(5, data_version)), data_version);
        }
    }
}
