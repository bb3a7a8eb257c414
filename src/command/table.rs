//! A table for people: columns as wide as their longest value, the head in bold on a terminal
//! (`NO_COLOR` turns that off, <https://no-color.org>).
//!
//! A value is made plain before it is printed, because a client chose names and labels. Scripts
//! read `--json` instead. Tested in `tests/cli/lock_commands.rs`.

use std::io::{self, IsTerminal as _, Write as _};

use crate::plain::{plain, plain_json};

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
        io::stdout().write_all(self.text(is_bold).as_bytes())
    }

    fn text(&self, is_bold: bool) -> String {
        let width = |column: usize| {
            let values = self.rows.iter().map(|row| row[column].chars().count());
            values.max().unwrap_or_default().max(self.head[column].len())
        };
        let widths: Vec<_> = (0..self.head.len()).map(width).collect();
        let line = |values: &[String]| {
            let padded = values.iter().zip(&widths).map(|(value, width)| format!("{value:width$}"));
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let head: Vec<_> = self.head.iter().map(|&name| name.to_owned()).collect();
        let head = line(&head);
        let head = if is_bold { format!("\x1b[1m{head}\x1b[0m\n") } else { head + "\n" };
        self.rows.iter().fold(head, |text, row| text + &line(row) + "\n")
    }
}

/// Prints what is known of one thing, a line for each.
pub(super) fn print_facts(facts: &[(&str, String)]) -> io::Result<()> {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let lines = facts.iter().map(|(name, value)| format!("{name:width$}  {}\n", plain(value)));
    io::stdout().write_all(lines.collect::<String>().as_bytes())
}

pub(super) fn print_json(text: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{}", plain_json(text.trim_end()))
}
