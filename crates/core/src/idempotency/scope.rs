//! What a record is about, as a person recognises it: the scope and the key, as far as a store
//! keeps them.
//!
//! The name of a record is a digest, which leads to a record and not from it. So that an operator
//! can find the one payment whose outcome is unknown, a store keeps a [`RecordScope`] with the
//! record, until the record ends. It is kept for every state alike: beside a stored response, whose
//! body says more, a key reveals little, and a list of records without it would lead to none of
//! them. What is kept has a limit, since a path may be as long as a request's head. Invariant: no
//! `Debug` shows any of it, so no log does.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{FingerprintHasher, IdempotencyKey, Principal, RecordKey, Scope, Share};

/// The scope and the key of a record, each as far as it is kept. Clones share it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordScope {
    parts: Arc<ScopeParts>,
    /// In whose part of the room the record counts, in this process alone.
    #[serde(skip)]
    share: Share,
}

#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct ScopeParts {
    principal: Principal,
    method: Box<str>,
    path: Box<str>,
    source: Box<str>,
    key: IdempotencyKey,
}

impl RecordScope {
    /// How many bytes are kept of a path.
    pub const MAX_PATH_BYTES: usize = 1024;
    /// How many bytes are kept of a principal.
    pub const MAX_PRINCIPAL_BYTES: usize = 256;
    /// How many bytes are kept of a method.
    pub const MAX_METHOD_BYTES: usize = 64;
    /// The source of records that are keylatch's own, and in no list and no count. No source of
    /// keys has this name.
    pub const INTERNAL: &str = "internal";

    /// What a store keeps of `scope` and `key`.
    pub fn new(scope: &Scope<'_>, key: &IdempotencyKey) -> Self {
        let principal = scope.principal.to_string();
        let parts = Arc::new(ScopeParts {
            principal: Principal::parse(beginning(&principal, Self::MAX_PRINCIPAL_BYTES)),
            method: beginning(scope.method, Self::MAX_METHOD_BYTES).into(),
            path: beginning(scope.path, Self::MAX_PATH_BYTES).into(),
            source: scope.source.into(),
            key: key.clone(),
        });
        Self { parts, share: Share::default() }
    }

    /// Where a guard that only observes keeps a record, by the key of the record that it would have
    /// if it enforced. It has hashes alone, and no guard that enforces finds it.
    pub fn observed(record: &RecordKey) -> (RecordKey, Self) {
        let mut hasher = FingerprintHasher::new("observed");
        hasher.add(record.as_bytes());
        let key = IdempotencyKey::from(hasher.finish());
        let principal = &Principal::None;
        let scope = Scope { principal, method: "", path: "", source: Self::INTERNAL };
        (scope.record(&key), Self::new(&scope, &key))
    }

    /// Whether its record is keylatch's own: of a guard that only observes, or of the toy shop.
    pub fn is_internal(&self) -> bool {
        self.source() == Self::INTERNAL
    }

    /// The same, whose record counts in this share.
    #[must_use]
    pub fn in_share(self, share: Share) -> Self {
        Self { share, ..self }
    }

    /// In whose part of the room the record counts.
    pub fn share(&self) -> Share {
        self.share
    }

    /// How many bytes it has.
    pub(super) fn bytes(&self) -> u64 {
        let ScopeParts { principal, method, path, source, key } = &*self.parts;
        let principal = principal.to_string();
        [&*principal, method, path, source, key.as_str()].iter().map(|text| text.len() as u64).sum()
    }

    /// Whose key it is.
    pub fn principal(&self) -> &Principal {
        &self.parts.principal
    }

    /// The method of the request, such as `POST`.
    pub fn method(&self) -> &str {
        &self.parts.method
    }

    /// The normalised path.
    pub fn path(&self) -> &str {
        &self.parts.path
    }

    /// Where the key comes from; empty for one that the client sends as its `Idempotency-Key`.
    pub fn source(&self) -> &str {
        &self.parts.source
    }

    /// The client's name for its intent.
    pub fn key(&self) -> &IdempotencyKey {
        &self.parts.key
    }

    /// Whether this is all of the scope, so that it leads to the record of this name.
    pub fn leads_to(&self, record: &RecordKey) -> bool {
        let ScopeParts { principal, method, path, source, key } = &*self.parts;
        Scope { principal, method, path, source }.record(key) == *record
    }
}

impl fmt::Debug for RecordScope {
    /// A path may name a person, and a key is a client's own: no log needs them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordScope(..)")
    }
}

/// The longest beginning of `text` that has at most `most` bytes.
pub(super) fn beginning(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> IdempotencyKey {
        IdempotencyKey::parse("order-17").unwrap()
    }

    #[test]
    fn long_scope_is_cut_between_characters_and_leads_nowhere() {
        let path = format!("/{}", "ü".repeat(600));
        let scope = Scope {
            principal: &Principal::User("ann".to_owned()),
            method: "POST",
            path: &path,
            source: "",
        };
        let kept = RecordScope::new(&scope, &key());
        assert_eq!(kept.path().len(), RecordScope::MAX_PATH_BYTES - 1, "`ü` has two bytes");
        assert!(path.starts_with(kept.path()));
        assert!(!kept.leads_to(&scope.record(&key())));
        let whole = Scope { path: &path[..101], ..scope };
        assert!(RecordScope::new(&whole, &key()).leads_to(&whole.record(&key())));
    }

    #[test]
    fn scope_is_not_shown() {
        let scope = Scope {
            principal: &Principal::User("ann".to_owned()),
            method: "POST",
            path: "/v1/orders",
            source: "",
        };
        assert_eq!(format!("{:?}", RecordScope::new(&scope, &key())), "RecordScope(..)");
    }
}
