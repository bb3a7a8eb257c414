//! A path as the most lenient of servers reads it: which guard it is of, and whether it climbs.
//!
//! Guards are chosen by the path as it is written, and upstreams read paths in ways of their own: they decode
//! escapes, a `/` among them, once or more often, drop empty segments and `.`, take `\` for `/`, cut parameters
//! (`;x=1`), and dots and blanks at the end of a segment, off. Whatever one of them might read as the path of a stricter
//! guard is not sent on by a looser one, and neither is a path with `..` in it, or with what hides one: control
//! characters, of which one ends a path in C, and characters in more bytes than they have in UTF-8. Tested in
//! `tests/api/gateway_paths.rs`.

use std::borrow::Cow;

use percent_encoding::percent_decode;

/// How often a path may be decoded before nothing changes. One time is enough for what a client means.
const MAX_DECODINGS: usize = 4;

/// A path, read so.
#[derive(Debug)]
pub(super) struct PathReading<'a> {
    decoded: Cow<'a, [u8]>,
}

impl<'a> PathReading<'a> {
    /// The path, decoded until nothing changes. `None` where servers disagree on what is a part of what.
    pub(super) fn of(path: &'a str) -> Option<Self> {
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
            let end = segment.iter().position(|byte| *byte == b';').unwrap_or(segment.len());
            &segment[..end]
        })
    }

    /// Whether the path leaves what it begins with.
    pub(super) fn climbs(&self) -> bool {
        // Behind a blank, dots and blanks at the end count for nothing.
        let is_up = |segment: &[u8]| segment.split(|byte| *byte == b' ').next() == Some(b"..");
        self.segments().any(|segment| is_up(segment) && without_end(segment).is_empty())
    }

    /// Whether every server reads all of the path as text, and none decodes it once more.
    pub(super) fn is_plain(&self) -> bool {
        !self.decoded.contains(&b'%') && str::from_utf8(&self.decoded).is_ok()
    }

    /// Whether the path is that of a guard, or below it.
    pub(super) fn is_within(&self, guard: &str) -> bool {
        let mut guard = guard.split('/').filter(|segment| !segment.is_empty());
        let mut segments = self.segments().map(without_end).filter(|segment| !segment.is_empty());
        guard.all(|segment| segments.next().is_some_and(|own| own == segment.as_bytes()))
    }
}

/// A segment without dots and blanks at its end, which Windows cuts off.
fn without_end(segment: &[u8]) -> &[u8] {
    let end = segment.iter().rposition(|byte| !b". ".contains(byte)).map_or(0, |last| last + 1);
    &segment[..end]
}
