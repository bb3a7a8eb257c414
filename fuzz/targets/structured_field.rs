//! The value of an `Idempotency-Key` header: what a strict reader of structured fields (RFC 9651)
//! takes, we take, as the same key; and the text of a key is that key.
//!
//! The strict reader is the crate `sfv`, which has no code of ours.

#![no_main]

use keylatch_core::idempotency::IdempotencyKey;
use libfuzzer_sys::fuzz_target;
use sfv::{BareItem, Item, Parser};

fuzz_target!(|value: &[u8]| {
    let ours = IdempotencyKey::from_header(value);
    if let Ok(key) = &ours {
        assert_eq!(IdempotencyKey::parse(key.as_str()).as_ref(), Ok(key), "{}", key.as_str());
    }
    // Tabs may be around a value; the strict reader takes spaces alone there.
    let strict = Parser::new(value).parse::<Item>();
    if let Ok(Item { bare_item: BareItem::String(text), .. }) = strict {
        let text = text.as_str();
        let fits = text.len() <= IdempotencyKey::MAX_CHARS && text.contains(|c| c != ' ');
        let expected = fits.then_some(text);
        assert_eq!(ours.as_ref().ok().map(IdempotencyKey::as_str), expected);
    }
});
