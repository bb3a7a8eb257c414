//! The audit log: who did what to the work of others, a JSON object a line, in a file of the operator's.
//!
//! It has each break and each resolve, when the store is asked and when its answer is known, and each request
//! that was refused because of its identity. A thread writes the lines, so that no request waits for a disk; it opens
//! the file for each line, so a file that is moved away is followed by a new one. Unlike the log it has names
//! of locks and keys, and what people wrote; it has no token. Tested in `tests/api/audit.rs`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};

/// The file that lines are appended to, until this is dropped.
pub struct AuditLog {
    writer: Mutex<NonBlocking>,
    /// Writes what there is when it is dropped.
    _worker: WorkerGuard,
}

impl AuditLog {
    /// Appends to a file, which only its owner may read.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = AuditFile { path: path.to_owned(), has_failed: false };
        file.open()?;
        let (writer, worker) = NonBlockingBuilder::default().lossy(true).finish(file);
        Ok(Self { writer: Mutex::new(writer), _worker: worker })
    }

    /// Appends a line.
    pub(crate) fn write(&self, line: &impl Serialize) {
        let Ok(mut json) = serde_json::to_vec(line) else { return };
        json.push(b'\n');
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        // A queue that is full loses the line, and a file that fails says so itself.
        let _ = writer.write_all(&json);
    }
}

impl std::fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuditLog").finish_non_exhaustive()
    }
}

/// Opens the file for each line.
struct AuditFile {
    path: PathBuf,
    has_failed: bool,
}

impl AuditFile {
    fn open(&self) -> io::Result<File> {
        OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)
    }
}

impl Write for AuditFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let written = self.open().and_then(|mut file| file.write_all(line));
        if let Err(error) = &written
            && !self.has_failed
        {
            tracing::error!(file = %self.path.display(), %error, "the audit log cannot be written");
        }
        self.has_failed = written.is_err();
        written.map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
