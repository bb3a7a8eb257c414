//! A path as the most lenient of servers reads it: which guard it is of, and whether it climbs.
//!
//! Guards are chosen by the path as it is written, and upstreams read paths in ways of their own: they decode
//! escapes, a `/` among them, drop empty segments and `.`, take `\` for `/`, and cut parameters (`;x=1`) off.
//! Whatever one of them might read as the path of a stricter guard is not sent on by a looser one, and
//! neither is a path with `..` in it. Tested in `tests/api/gateway_paths.rs`.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// A path, read so.
#[derive(Debug)]
pub(super) struct PathReading<'a> {
    decoded: Cow<'a, [u8]>,
}

impl<'a> PathReading<'a> {
    pub(super) fn of(path: &'a str) -> Self {
        Self { decoded: percent_decode_str(path).into() }
    }

    fn segments(&self) -> impl Iterator<Item = &[u8]> {
        let segments = self.decoded.split(|byte| b"/\\".contains(byte));
        let plain = segments.map(|segment| {
            let end = segment.iter().position(|byte| *byte == b';').unwrap_or(segment.len());
            &segment[..end]
        });
        plain.filter(|segment| !segment.is_empty() && *segment != b".")
    }

    /// Whether the path leaves what it begins with.
    pub(super) fn climbs(&self) -> bool {
        self.segments().any(|segment| segment == b"..")
    }

    /// Whether the path is that of a guard, or below it.
    pub(super) fn is_within(&self, guard: &str) -> bool {
        let mut guard = guard.split('/').filter(|segment| !segment.is_empty());
        let mut segments = self.segments();
        guard.all(|segment| segments.next().is_some_and(|own| own == segment.as_bytes()))
    }
}
