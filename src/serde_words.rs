//! What serde could not read, in the words of keylatch: a member of a request, a setting of a file.
//!
//! serde names types of Rust. A person wants the rule, and the name that was meant. serde's
//! messages have a few shapes, which are taken apart here; one of another shape stays as it is.
//! Tested in `tests/api/invalid_bodies.rs` and `tests/cli/config`.

/// What is wrong with `what`, without the place that the message ends with.
pub(crate) fn reworded(what: &str, message: &str) -> String {
    let message = message.lines().next().unwrap_or_default();
    let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
    let (shape, rest) = message.split_once(' ').unwrap_or((message, ""));
    let (kind, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    match (shape, kind, rest.rsplit_once(", expected ")) {
        ("invalid", "type:" | "value:", Some((found, rule))) => {
            format!("{what} must be {}, not {}", in_words(rule), value(found))
        }
        ("unknown", "variant", Some((found, rule))) => {
            format!("{what} must be {rule}, not {found}")
        }
        ("unknown", "field", Some((_, known))) => match meant(what, known) {
            Some(meant) => format!("{what} is unknown: did you mean `{meant}`?"),
            None => format!("{what} is unknown: use {known}"),
        },
        ("missing", "field", _) => format!("{what} lacks {rest}"),
        ("duplicate", "field", _) => format!("{rest} is there twice"),
        _ => format!("{what}: {message}"),
    }
}

/// The one of the names in backticks that the last name of a path in backticks resembles.
fn meant<'a>(path: &str, known: &'a str) -> Option<&'a str> {
    let name = path.trim_matches('`').rsplit('.').next().unwrap_or_default();
    similar(name, known.split('`').skip(1).step_by(2))
}

/// The name that a word resembles, if it is not another word altogether.
pub(crate) fn similar<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let all = names.map(|name| (strsim::jaro(word, name), name));
    let (likeness, name) = all.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (likeness > 0.75).then_some(name)
}

fn in_words(rule: &str) -> &str {
    match rule {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of 0 or more",
        "a boolean" => "`true` or `false`",
        "a sequence" => "a list",
        "a map" => "a table",
        rule if rule.starts_with("struct ") => "a table",
        rule => rule,
    }
}

/// A value as it was written, without its type.
fn value(found: &str) -> &str {
    match found {
        "sequence" => "a list",
        "map" => "an object",
        found if found.starts_with("string ") => &found["string ".len()..],
        found => found.split('`').nth(1).unwrap_or(found),
    }
}
