//! A path as the most lenient of servers reads it: which guard it is of, and whether it climbs.
//!
//! Guards are chosen by the path as it is written, and upstreams read paths in ways of their own:
//! they decode escapes, a `/` among them, once or more often, drop empty segments and `.`, take `\`
//! for `/`, cut parameters (`;x=1`, `%3Fx`), and dots and blanks at the end of a segment, off,
//! ignore the case of letters, and serve `/orders` as `/orders.json` and `/index.php/orders`.
//! Whatever one of them might read as the path of a stricter guard is not sent on by a looser one,
//! and neither is a path with `..` in it, or with what hides one: control characters, of which one
//! ends a path in C, and characters in more bytes than they have in UTF-8. What a guard does once
//! for a path it does once for all of these spellings. Tested in `tests/api/gateway_paths.rs` and
//! `derived_keys.rs`.

use std::borrow::Cow;

use percent_encoding::percent_decode;

/// How often a path may be decoded before nothing changes. One time is enough for what a client
/// means.
const MAX_DECODINGS: usize = 4;

/// What the names of scripts end with, below which a front controller serves the paths that it
/// serves without it.
#[cfg(feature = "gateway")]
const SCRIPTS: [&str; 6] = [".php", ".cgi", ".fcgi", ".pl", ".py", ".aspx"];

#[derive(Debug)]
pub(crate) struct PathReading<'a> {
    decoded: Cow<'a, [u8]>,
}

impl<'a> PathReading<'a> {
    /// The path, decoded until nothing changes. `None` where servers disagree on what is a part of
    /// what.
    pub(crate) fn of(path: &'a str) -> Option<Self> {
        let mut decoded = Cow::Borrowed(path.as_bytes());
        for _ in 0..MAX_DECODINGS {
            let Cow::Owned(next) = Cow::from(percent_decode(&decoded)) else {
                let reading = Self { decoded };
                return (!reading.has_hidden()).then_some(reading);
            };
            decoded = Cow::Owned(next);
        }
        None
    }

    /// Whether the path has a control character, or a character in more bytes than it has in UTF-8.
    fn has_hidden(&self) -> bool {
        let is_overlong = |bytes: &[u8]| {
            matches!(bytes, [0xC0 | 0xC1, 0x80..=0xBF] | [0xE0, 0x80..=0x9F] | [0xF0, 0x80..=0x8F])
        };
        self.decoded.iter().any(u8::is_ascii_control) || self.decoded.windows(2).any(is_overlong)
    }

    fn segments(&self) -> impl Iterator<Item = &[u8]> {
        let segments = self.decoded.split(|byte| b"/\\".contains(byte));
        segments.map(|segment| {
            let end = segment.iter().position(|byte| b";?#".contains(byte));
            let end = end.unwrap_or(segment.len());
            &segment[..end]
        })
    }

    /// The one spelling of all that some server may read as the same path, also with a format
    /// (`.json`).
    pub(crate) fn canonical(&self) -> String {
        let mut segments = self.folded_segments();
        let last = segments.pop().unwrap_or_default();
        let stem = last.split('.').next().filter(|stem| !stem.is_empty());
        segments.extend(stem.map(str::to_owned));
        segments.iter().map(|segment| format!("/{segment}")).collect()
    }

    /// The segments that count, without the case of their letters.
    fn folded_segments(&self) -> Vec<String> {
        let segments = self.segments().map(without_end).filter(|segment| !segment.is_empty());
        segments.map(|segment| folded(&String::from_utf8_lossy(segment))).collect()
    }

    /// Whether it is one segment, as each server reads it.
    #[cfg(feature = "gateway")]
    pub(crate) fn is_segment(text: &str) -> bool {
        let is_part = text.bytes().all(|byte| !b"/\\;?#%".contains(&byte));
        is_part && !text.is_empty() && without_end(text.as_bytes()).len() == text.len()
    }

    /// Whether the path leaves what it begins with.
    #[cfg(feature = "gateway")]
    pub(crate) fn climbs(&self) -> bool {
        // Behind a blank, dots and blanks at the end count for nothing.
        let is_up = |segment: &[u8]| segment.split(|byte| *byte == b' ').next() == Some(b"..");
        self.segments().any(|segment| is_up(segment) && without_end(segment).is_empty())
    }

    /// Whether every server reads all of the path as text, and none decodes it once more.
    #[cfg(feature = "gateway")]
    pub(crate) fn is_plain(&self) -> bool {
        !self.decoded.contains(&b'%') && str::from_utf8(&self.decoded).is_ok()
    }

    /// Whether the path is that of a guard, or below it; also with a format (`.json`), where the
    /// request changes something.
    #[cfg(feature = "gateway")]
    pub(crate) fn is_within(&self, guard: &str, takes_format: bool) -> bool {
        let guard: Vec<_> = guard.split('/').filter(|part| !part.is_empty()).collect();
        let own = self.folded_segments();
        let behind_script = own.iter().position(|own| SCRIPTS.iter().any(|end| own.ends_with(end)));
        // Behind two slashes, what reads a path as a URL takes the first segment for a host.
        let has_host = self.decoded.iter().take_while(|byte| b"/\\".contains(byte)).count() > 1;
        let starts = [Some(0), behind_script.map(|place| place + 1), has_host.then_some(1)];
        let mut parts = starts.into_iter().flatten().filter_map(|start| own.get(start..));
        parts.any(|own| leads(own, &guard, takes_format))
    }
}

/// Whether segments begin with those of a guard.
#[cfg(feature = "gateway")]
fn leads(own: &[String], guard: &[&str], takes_format: bool) -> bool {
    let is_whole = own.len() == guard.len();
    let is_part = |(place, (own, part)): (usize, (&String, &&str))| {
        let has_format = takes_format && is_whole && place + 1 == guard.len();
        let rest = own.strip_prefix(&folded(part));
        rest.is_some_and(|rest| rest.is_empty() || has_format && rest.starts_with('.'))
    };
    own.len() >= guard.len() && own.iter().zip(guard).enumerate().all(is_part)
}

/// A text without the case of its letters. Some capitals come of two letters, and some letters of
/// two capitals.
fn folded(text: &str) -> String {
    if text.is_ascii() { text.to_ascii_lowercase() } else { text.to_uppercase().to_lowercase() }
}

/// A segment without dots and blanks at its end, which Windows cuts off.
fn without_end(segment: &[u8]) -> &[u8] {
    let end = segment.iter().rposition(|byte| !b". ".contains(byte)).map_or(0, |last| last + 1);
    &segment[..end]
}
