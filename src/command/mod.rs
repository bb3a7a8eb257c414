//! The commands that print something and end. `keylatch lock …` and the records of `keylatch key …`
//! are clients of a service: each sends what it is asked to send, and prints the response as a
//! table or as the JSON of the API. `keylatch config …` says what the service would be started
//! with.
//!
//! `run` is a client too and lives in a module of its own, because it has a process to look after.
//! Tested in `tests/cli/lock_commands.rs` and `key_commands.rs`.

mod arguments;
mod backup;
mod config;
mod elect;
mod failure;
mod lock;
mod once;
mod record;
mod run;
mod service;
mod table;

pub use arguments::{ENVIRONMENT, LeaseArguments, ServiceArguments};
pub use backup::{BACKUP_EXIT_CODES, BackupCommand};
pub use config::print_settings;
pub use elect::ElectCommand;
pub use failure::Failure;
pub use lock::LockCommand;
pub use once::OnceCommand;
pub use record::RecordCommand;
pub use run::RunCommand;
