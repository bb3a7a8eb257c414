//! Issued keys: one is good for the method, the path and the principal that it was issued for, and
//! for nothing else; and no text is a key that was not issued.
//!
//! The input is two such triples, and a text that is no key.

#![no_main]

use std::time::Duration;

use keylatch_axum::{IssuedKeys, is_issued};
use keylatch_core::idempotency::{Principal, Scope};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split('\n').chain(std::iter::repeat(""));
    let mut next = || lines.next().unwrap_or_default();
    let (one, other) = ([next(), next(), next()], [next(), next(), next()]);
    let keys = IssuedKeys::read(b"a secret of at least 32 bytes, or").expect("a secret");
    let principals = [one[2], other[2]].map(|name| Principal::User(name.to_owned()));
    let of = |parts: &[&str; 3], place: usize, key: &str| {
        let [method, path, _] = *parts;
        is_issued(&keys, key, &Scope { principal: &principals[place], method, path, source: "" })
    };
    let issued = Scope { principal: &principals[0], method: one[0], path: one[1], source: "" };
    let (key, _) = keys.issue(&issued, Duration::from_secs(3600)).expect("random bytes");
    assert!(of(&one, 0, &key), "{one:?}");
    assert_eq!(of(&other, 1, &key), one == other, "{one:?} {other:?}");
    let mut changed = key.clone().into_bytes();
    let place = bytes.len() % changed.len();
    changed[place] = if changed[place] == b'A' { b'B' } else { b'A' };
    let changed = String::from_utf8(changed).expect("ASCII");
    for forged in [&*changed, &key[1..], &key[..key.len() - 1], &text, next()] {
        assert!(!of(&one, 0, forged), "{forged}");
    }
});
