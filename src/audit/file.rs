//! The file of the audit log: opened once, followed where it is moved away, and rotated when it is large.
//!
//! The crates that rotate files by size keep the file that they opened, and would write on in one that an
//! operator moved away; here each line looks first what is at the path. Invariant: a line is in the file as a
//! whole or not at all, also where the disk is full.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

/// A file that lines are appended to.
pub(super) struct AuditFile {
    path: PathBuf,
    file: File,
    /// How large it may become; 0 for as large as it likes.
    max_bytes: u64,
    /// How many earlier files are kept.
    kept: usize,
    has_failed_to_rotate: bool,
}

impl AuditFile {
    /// Opens or creates the file, which only its owner may read.
    pub(super) fn open(path: &Path, max_bytes: u64, kept: usize) -> io::Result<Self> {
        let (path, file) = (path.to_owned(), open(path)?);
        Ok(Self { path, file, max_bytes, kept, has_failed_to_rotate: false })
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
        let mut found = self.follow()?;
        if self.is_full(&found, line) {
            self.rotate();
            found = self.follow()?;
        }
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

    fn is_full(&self, found: &Metadata, line: &[u8]) -> bool {
        let is_above = found.len() + line.len() as u64 > self.max_bytes;
        self.max_bytes > 0 && found.is_file() && found.len() > 0 && is_above
    }

    /// Moves the file to the name of the last one. Where that fails, lines go on in the file that is there.
    fn rotate(&mut self) {
        let moved = self.move_away();
        if let Err(error) = &moved
            && !self.has_failed_to_rotate
        {
            tracing::warn!(%error, "the audit log cannot be rotated and becomes larger");
        }
        self.has_failed_to_rotate = moved.is_err();
    }

    fn move_away(&self) -> io::Result<()> {
        if self.kept == 0 {
            return fs::remove_file(&self.path);
        }
        for number in (1..self.kept).rev() {
            match fs::rename(self.earlier(number), self.earlier(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.path, self.earlier(1))
    }

    /// The path of an earlier file; 1 is the last.
    fn earlier(&self, number: usize) -> PathBuf {
        let mut path = OsString::from(&self.path);
        path.push(format!(".{number}"));
        path.into()
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of the file and of the earlier ones, the newest first.
    fn contents(path: &Path, files: usize) -> Vec<Option<String>> {
        let earlier =
            (1..files).map(|number| PathBuf::from(format!("{}.{number}", path.display())));
        let paths = [path.to_owned()].into_iter().chain(earlier);
        paths.map(|path| fs::read_to_string(path).ok()).collect()
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn file_that_would_become_too_large_is_moved_and_the_oldest_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mut file = AuditFile::open(&path, 8, 2).unwrap();
        let append = |file: &mut AuditFile, line: &str| file.append(line.as_bytes()).unwrap();
        for line in ["aaa\n", "bbb\n", "ccc\n", "a line that alone is longer\n", "ddd\n"] {
            append(&mut file, line);
        }
        let long = text("a line that alone is longer\n");
        assert_eq!(contents(&path, 4), [text("ddd\n"), long, text("ccc\n"), None]);
        let mut file = AuditFile::open(&path, 8, 0).unwrap();
        append(&mut file, "eee\n");
        append(&mut file, "fff\n");
        assert_eq!(contents(&path, 1), [text("fff\n")], "nothing earlier is kept");
    }

    #[test]
    fn lines_go_on_where_the_file_cannot_be_moved() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mut file = AuditFile::open(&path, 4, 1).unwrap();
        file.append(b"aaa\n").unwrap();
        fs::create_dir(folder.path().join("audit.log.1")).unwrap();
        fs::write(folder.path().join("audit.log.1/occupied"), "").unwrap();
        file.append(b"bbb\n").unwrap();
        assert_eq!(contents(&path, 1), [text("aaa\nbbb\n")]);
    }
}
