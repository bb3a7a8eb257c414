//! What others wrote, and times, on their way to a terminal or a log.
//!
//! A service, a client or a name may have characters that move a cursor, set a title or turn the
//! direction of a line. Invariant: none of them is written as it is. Tested in
//! `tests/cli/lock_commands.rs` and `tests/api/audit.rs`.

use std::fmt;
use std::io::{self, Write as _};

/// Tells the caller of a command what is the matter.
pub fn say(what: &(impl fmt::Display + ?Sized)) {
    // There is nowhere else to say that standard error is closed.
    let _ = writeln!(io::stderr(), "keylatch: {}", plain(&what.to_string()));
}

/// The text with `\u{fffd}` for each character that does not show, but for the ends of its lines.
pub(crate) fn plain(text: &str) -> String {
    text.replace(|c| c != '\n' && !shows(c), "\u{fffd}")
}

/// The same JSON, with the escape of JSON for each character that does not show.
pub(crate) fn plain_json(json: &str) -> String {
    let mut units = [0; 2];
    json.chars().fold(String::with_capacity(json.len()), |plain, c| match c {
        c if c == '\n' || shows(c) => plain + c.encode_utf8(&mut [0; 4]),
        c => c
            .encode_utf16(&mut units)
            .iter()
            .fold(plain, |plain, unit| plain + &format!("\\u{unit:04x}")),
    })
}

/// Whether a character shows, and does nothing else: it is no control, and none that Unicode has
/// for formats.
fn shows(c: char) -> bool {
    let is_format = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
    !c.is_control() && !is_format
}

/// A time for people: to a tenth of a second within two minutes, and in its two largest units
/// beyond.
pub(crate) fn in_words(millis: u64) -> String {
    let seconds = millis / 1000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match seconds {
        0..120 => format!("{seconds}.{} s", millis / 100 % 10),
        120..3600 => format!("{minutes} min {} s", seconds % 60),
        3600..86_400 => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}
