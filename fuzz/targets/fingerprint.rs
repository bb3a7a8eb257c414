//! Fingerprints: another spelling of the same JSON is the same request, another value in it is
//! another request, and a form that is coded again is the same.
//!
//! The input is a tree that is written twice, so that both spellings are valid.

#![no_main]

use std::collections::BTreeMap;

use keylatch_axum::canonical_json;
use keylatch_axum::fingerprint_of;
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, body)) = bytes.split_first() else { return };
    match choice % 4 {
        0 => json(body),
        1 => form(body),
        2 => {
            let _ = fingerprint_of("multipart/form-data; boundary=x", "", body);
        }
        _ => {
            let text = String::from_utf8_lossy(body);
            let (media_type, rest) = text.split_once('\n').unwrap_or((&text, ""));
            let (query, body) = rest.split_once('\n').unwrap_or((rest, ""));
            let _ = fingerprint_of(media_type, query, body.as_bytes());
        }
    }
});

fn json(body: &[u8]) {
    let Some(canonical) = canonical_json(body) else { return };
    let tree = Tree::read(body).expect("what has a canonical form is JSON");
    let respelt = tree.write(true);
    assert_eq!(canonical_json(respelt.as_bytes()), Some(canonical.clone()), "{respelt}");
    for changed in [0, 1, 2, 3, 5, 8] {
        let mut left = changed;
        let other = tree.change(&mut left).write(false);
        if left == usize::MAX {
            assert_ne!(canonical_json(other.as_bytes()), Some(canonical.clone()), "{other}");
        }
    }
}

fn form(body: &[u8]) {
    const FORM: &str = "application/x-www-form-urlencoded";
    let Ok(text) = str::from_utf8(body) else { return };
    // What has no value, or a name that some reader nests by, is compared as it is written.
    let is_flat = |name: &str| {
        !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
    };
    let is_pair = |pair: &str| pair.split_once('=').is_some_and(|(name, _)| is_flat(name));
    let is_plain = text.split('&').all(is_pair)
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"&=+-._".contains(&byte));
    if is_plain {
        let escaped: String = text
            .chars()
            .map(|c| match c {
                '&' | '=' | '+' => c.to_string(),
                c => format!("%{:02x}", u32::from(c)),
            })
            .collect();
        assert_eq!(
            fingerprint_of(FORM, "", body),
            fingerprint_of(FORM, "", escaped.as_bytes()),
            "{text}"
        );
    }
    let _ = fingerprint_of(FORM, text, body);
}

/// JSON as another reader than ours sees it: numbers as they are written.
#[derive(Clone)]
enum Tree {
    Object(BTreeMap<String, Tree>),
    Array(Vec<Tree>),
    Text(String),
    Written(String),
}

impl Tree {
    fn read(body: &[u8]) -> Option<Self> {
        let raw: &RawValue = serde_json::from_slice(body).ok()?;
        let text = raw.get();
        Some(match text.as_bytes()[0] {
            b'{' => {
                let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
                let members = members
                    .into_iter()
                    .map(|(name, value)| Some((name, Self::read(value.get().as_bytes())?)));
                Self::Object(members.collect::<Option<_>>()?)
            }
            b'[' => {
                let values: Vec<&RawValue> = serde_json::from_str(text).ok()?;
                Self::Array(
                    values
                        .iter()
                        .map(|value| Self::read(value.get().as_bytes()))
                        .collect::<Option<_>>()?,
                )
            }
            b'"' => Self::Text(serde_json::from_str(text).ok()?),
            _ => Self::Written(text.to_owned()),
        })
    }

    /// The same JSON; where it is respelt, with its members backwards, every character escaped, and
    /// white space.
    fn write(&self, respelt: bool) -> String {
        let space = if respelt { " \n" } else { "" };
        match self {
            Self::Object(members) => {
                let mut written: Vec<_> = members
                    .iter()
                    .map(|(name, value)| {
                        format!("{space}{}{space}:{}", quote(name, respelt), value.write(respelt))
                    })
                    .collect();
                if respelt {
                    written.reverse();
                }
                format!("{{{}{space}}}", written.join(","))
            }
            Self::Array(values) => {
                let written: Vec<_> = values.iter().map(|value| value.write(respelt)).collect();
                format!("[{space}{}{space}]", written.join(","))
            }
            Self::Text(text) => format!("{space}{}{space}", quote(text, respelt)),
            Self::Written(text) => format!("{space}{text}{space}"),
        }
    }

    /// The same with its `left`th value another one; `left` is then `usize::MAX`.
    fn change(&self, left: &mut usize) -> Self {
        match self {
            Self::Object(members) => Self::Object(
                members.iter().map(|(name, value)| (name.clone(), value.change(left))).collect(),
            ),
            Self::Array(values) => {
                Self::Array(values.iter().map(|value| value.change(left)).collect())
            }
            leaf if *left == 0 => {
                *left = usize::MAX;
                match leaf {
                    Self::Text(text) => Self::Text(format!("{text}.")),
                    Self::Written(text)
                        if text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) =>
                    {
                        Self::Array(vec![leaf.clone()])
                    }
                    Self::Written(text) => Self::Text(text.clone()),
                    _ => leaf.clone(),
                }
            }
            leaf => {
                if *left < usize::MAX {
                    *left -= 1;
                }
                leaf.clone()
            }
        }
    }
}

fn quote(text: &str, respelt: bool) -> String {
    if respelt {
        let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect();
        format!("\"{escaped}\"")
    } else {
        serde_json::to_string(text).unwrap()
    }
}
