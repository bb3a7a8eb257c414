//! The file of the audit log: opened once, and followed where it is moved away.
//!
//! A writer that keeps the file that it opened would write on in one that an operator moved away;
//! here each line looks first what is at the path. Invariant: a line is in the file as a whole or
//! not at all, also where the disk is full. Tested in `tests/api/audit_files.rs` and
//! `tests/cli/audit_log.rs`.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

/// What a mode allows to others than the owner.
const OTHERS: u32 = 0o077;

/// A file that lines are appended to.
pub(super) struct AuditFile {
    path: PathBuf,
    file: File,
}

impl AuditFile {
    /// Opens or creates the file, which only its owner may read.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: open(path)? })
    }

    /// Whether the file can be written, without making it.
    pub(super) fn check(path: &Path) -> io::Result<()> {
        match OpenOptions::new().append(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                Ok(access(parent.unwrap_or(Path::new(".")), AccessFlags::W_OK | AccessFlags::X_OK)?)
            }
            opened => opened.map(drop),
        }
    }

    /// Appends a line.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let found = self.follow()?;
        self.file.write_all(line).inspect_err(|_| {
            // What fitted of the line would spoil the next. A device has no length to set.
            let _ = self.file.set_len(found.len());
        })
    }

    /// What is at the path, which is the open file from now on.
    fn follow(&mut self) -> io::Result<Metadata> {
        let opened = self.file.metadata()?;
        match fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == (opened.dev(), opened.ino()) => Ok(found),
            _ => {
                self.file = open(&self.path)?;
                self.file.metadata()
            }
        }
    }
}

/// A file that is there may have been made for others to read. A device is everybody's.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let found = file.metadata()?;
    let mode = found.permissions().mode();
    if found.is_file() && mode & OTHERS != 0 {
        file.set_permissions(Permissions::from_mode(mode & !OTHERS))?;
    }
    Ok(file)
}
