//! JSON pointers: they lead where another reader's do (`serde_json`), a field that is there counts
//! or does not as the setting says, and one that is not there changes nothing.
//!
//! The input is a pointer, a line feed, and JSON.

#![no_main]

use keylatch_axum::{FieldName, JsonPointer, canonical_json, canonical_json_of};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|text: &str| {
    let (pointer, json) = text.split_once('\n').unwrap_or((text, ""));
    let Some(parsed) = JsonPointer::parse(pointer) else {
        assert!(
            pointer.is_empty() || !pointer.starts_with('/') || pointer.contains('~'),
            "{pointer}"
        );
        return;
    };
    assert_eq!(parsed.to_string(), pointer);
    let (Some(whole), Ok(value)) = (canonical_json(json.as_bytes()), json.parse::<Value>()) else {
        return;
    };
    let is_there = value.pointer(pointer).is_some();
    let field = FieldName::Pointer(parsed);
    let without = canonical_json_of(json.as_bytes(), &field, false).expect("JSON");
    assert_eq!(without != whole, is_there, "{text}");
    let alone = canonical_json_of(json.as_bytes(), &field, true);
    assert_eq!(alone.is_some(), is_there, "{text}");
});
