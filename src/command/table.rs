//! A table for people: columns as wide as their longest value, the head in bold on a terminal
//! (`NO_COLOR` turns that off, <https://no-color.org>), where the widest columns are cut to its
//! width.
//!
//! A value is made plain before it is printed, because a client chose names and labels. Scripts
//! read `--json` instead. Tested in `tests/cli/lock_commands.rs`.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write as _};

use rustix::termios::tcgetwinsize;

use crate::plain::{plain, plain_json};

/// What is between two columns.
const GAP: &str = "  ";
/// How narrow a column may get, if the terminal has no room for all.
const NARROWEST: usize = 8;

/// A table that is printed when it is complete.
pub(super) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, a value for each column.
    pub(super) fn add(&mut self, row: impl IntoIterator<Item = String>) {
        self.rows.push(row.into_iter().map(|value| plain(&value)).collect());
    }

    /// Prints it to standard output.
    pub(super) fn print(&self) -> io::Result<()> {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_bold = io::stdout().is_terminal() && !no_color;
        let room = tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
        let room = room.filter(|columns| *columns > 0).unwrap_or(usize::MAX);
        io::stdout().write_all(self.text(is_bold, room).as_bytes())
    }

    fn text(&self, is_bold: bool, room: usize) -> String {
        let width = |column: usize| {
            let values = self.rows.iter().map(|row| row[column].chars().count());
            values.max().unwrap_or_default().max(self.head[column].len())
        };
        let mut widths: Vec<_> = (0..self.head.len()).map(width).collect();
        while widths.iter().sum::<usize>() + GAP.len() * (widths.len() - 1) > room
            && let Some(widest) = widths.iter_mut().max()
            && *widest > NARROWEST
        {
            *widest -= 1;
        }
        let line = |values: &[String]| {
            let padded = values
                .iter()
                .zip(&widths)
                .map(|(value, &width)| format!("{:width$}", cut(value, width)));
            padded.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
        };
        let head: Vec<_> = self.head.iter().map(|&name| name.to_owned()).collect();
        let head = line(&head);
        let head = if is_bold { format!("\x1b[1m{head}\x1b[0m\n") } else { head + "\n" };
        self.rows.iter().fold(head, |text, row| text + &line(row) + "\n")
    }
}

/// A value in so many columns.
fn cut(value: &str, width: usize) -> Cow<'_, str> {
    if value.chars().count() <= width {
        return value.into();
    }
    value.chars().take(width - 1).chain(['…']).collect()
}

/// Prints what is known of one thing, a line for each.
pub(super) fn print_facts(facts: &[(impl AsRef<str>, String)]) -> io::Result<()> {
    let width = facts.iter().map(|(name, _)| name.as_ref().len()).max().unwrap_or_default();
    let line = |name: &str, value: &str| format!("{name:width$}  {}\n", plain(value));
    let lines = facts.iter().map(|(name, value)| line(name.as_ref(), value));
    io::stdout().write_all(lines.collect::<String>().as_bytes())
}

pub(super) fn print_json(text: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{}", plain_json(text.trim_end()))
}
