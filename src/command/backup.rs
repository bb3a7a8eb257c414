//! `keylatch backup FILE`: a copy of the store, whole and on disk before it has its name.
//!
//! The bytes go to a new file beside FILE, which has FILE's name once all of them are synced.
//! Whatever ends the command before that leaves FILE as it was. Tested in `tests/cli/backup.rs`.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use http_body_util::BodyExt as _;
use nix::sys::signal::Signal;
use tempfile::NamedTempFile;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use super::ServiceArguments;
use super::service::{Ask, Service};
use crate::failure::Failure;

const SILENCE: Duration = Duration::from_secs(30);
/// The exit codes of what SIGINT and SIGTERM ended, as shells have them.
const INTERRUPTED: u8 = 130;
const TERMINATED: u8 = 143;

/// What the help says about exit codes.
pub const BACKUP_EXIT_CODES: &str = "\
Exit codes:
  0    FILE has the whole copy, and is on disk
  64   the arguments are wrong, or FILE is there already
  69   the service cannot be reached, or cannot answer
  74   FILE cannot be written
  76   the service refuses the request, has a store of which it gives no copy, or is not a keylatch server";

/// Where to put a copy of the store.
#[derive(Debug, Args)]
pub struct BackupCommand {
    #[command(flatten)]
    service: ServiceArguments,
    /// Replace FILE if it is there
    #[arg(long)]
    force: bool,
    /// The file to write, on this machine
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl BackupCommand {
    /// Writes the copy, and gives the exit code. Unless it is whole, the file is as it was.
    pub async fn run(self) -> Result<u8, Failure> {
        if !self.force && self.file.symlink_metadata().is_ok() {
            return Err(self.is_there());
        }
        let service = Service::new(&self.service)?;
        let (mut int, mut term) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        // A file at the size limit of the process is a full disk, and not the signal's end.
        let _too_large = signal(SignalKind::from_raw(Signal::SIGXFSZ as i32))?;
        tokio::select! {
            written = self.write(&service) => written.map(|()| 0),
            _ = int.recv() => Ok(INTERRUPTED),
            _ = term.recv() => Ok(TERMINATED),
        }
    }

    async fn write(&self, service: &Service) -> Result<(), Failure> {
        let mut answer = service.open(Ask::get("/v1/backup".to_owned())).await?.into_body();
        let failed = |error| Failure::File(self.file.clone(), error);
        let mut part = self.part().map_err(failed)?;
        loop {
            let frame = timeout(SILENCE, answer.frame()).await;
            let frame = frame.map_err(|_| service.unanswered("the copy stopped on its way"))?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|error| service.unanswered(&error))?;
            if let Ok(bytes) = frame.into_data() {
                part.write_all(&bytes).map_err(failed)?;
            }
        }
        part.as_file().sync_all().map_err(failed)?;
        self.name(part)
    }

    /// The file until it is whole, which only its owner may read.
    fn part(&self) -> io::Result<NamedTempFile> {
        let name = self.file.file_name().ok_or(io::ErrorKind::IsADirectory)?;
        tempfile::Builder::new().prefix(name).suffix(".part").tempfile_in(self.directory())
    }

    fn name(&self, part: NamedTempFile) -> Result<(), Failure> {
        let named =
            if self.force { part.persist(&self.file) } else { part.persist_noclobber(&self.file) };
        named.map_err(|error| match error.error.kind() {
            io::ErrorKind::AlreadyExists => self.is_there(),
            _ => Failure::File(self.file.clone(), error.error),
        })?;
        let directory = File::open(self.directory()).and_then(|directory| directory.sync_all());
        directory.map_err(|error| Failure::File(self.file.clone(), error))
    }

    fn directory(&self) -> &Path {
        let parent = self.file.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new("."))
    }

    fn is_there(&self) -> Failure {
        let file = self.file.display();
        Failure::Arguments(format!("{file} is there already: --force replaces it"))
    }
}
