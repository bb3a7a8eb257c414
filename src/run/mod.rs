//! `keylatch run`: runs a command for as long as it holds a lock.
//!
//! The command has a process group of its own, so that stopping it reaches what it has started as
//! well; and the terminal, if there is one, so that it reads keys and Ctrl-C as it would without
//! `run`.

mod exit;
mod group;
mod job;
mod signals;
mod terminal;

pub use exit::EXIT_CODES;
pub use job::{Job, run};
