use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;
use redb::{Database, DatabaseError, StorageBackend};

use super::OpenError;
use super::backend::{Overlay, SyncFailed, Watched};
use super::engine::{self, Medium};

/// The data file in the directory.
const DATA: &str = "locks.redb";
/// Where the data file is made, before it gets its name.
const NEW: &str = "locks.redb.new";
/// Locked for as long as a process uses the directory, and holds that process's id.
const LOCK: &str = "lock";

/// How much of the file redb keeps in memory. Every read is served from the table, so this is for
/// the pages that the next transaction changes.
const CACHE: usize = 16 * 1024 * 1024;

/// A data directory that is this process's alone.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    _lock: File,
}

impl Directory {
    /// Takes the directory at `path`, and makes it and its data file if they are not there.
    pub(super) fn lock(path: &Path) -> Result<Self, OpenError> {
        let cannot = |source| OpenError::Directory { path: path.to_owned(), source };
        create_directory(path).map_err(cannot)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut lock = options.open(path.join(LOCK)).map_err(cannot)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                let read = lock.read_to_string(&mut owner);
                let owner = if read.is_ok() { owner.trim() } else { "" };
                let owner = if owner.is_empty() { "unknown" } else { owner }.to_owned();
                return Err(OpenError::DirectoryInUse { path: path.to_owned(), owner });
            }
            Err(TryLockError::Error(source)) => return Err(cannot(source)),
        }
        lock.set_len(0).map_err(cannot)?;
        writeln!(lock, "{}", std::process::id()).map_err(cannot)?;
        let directory = Self { path: path.to_owned(), _lock: lock };
        directory.create_data()?;
        Ok(directory)
    }

    /// How the data file is opened, now and again after an error. The directory is this process's
    /// for as long as that may happen.
    pub(super) fn medium(self) -> Medium {
        let (file, sync_failed) = (self.path.join(DATA), SyncFailed::default());
        let (name, readable, failed) = (file.clone(), file.clone(), sync_failed.clone());
        let open = move || {
            // Not `create`: a file that lost its content must not become an empty store.
            let data = not_empty(OpenOptions::new().read(true).write(true).open(&file)?)?;
            database(Watched::file(data, failed.clone())?)
        };
        let look = move || {
            let data = not_empty(File::open(&readable)?)?;
            database(Overlay::new(FileBackend::new(data)?)?)
        };
        let (open, look) = (Box::new(open), Box::new(look));
        Medium { name, open, look, sync_failed, _directory: Some(self) }
    }

    /// Makes the data file whole before it gets its name, so that a file of that name without
    /// content is damage and never a beginning.
    fn create_data(&self) -> Result<(), OpenError> {
        let (file, new) = (self.path.join(DATA), self.path.join(NEW));
        let cannot = |source| OpenError::Directory { path: self.path.clone(), source };
        if fs::exists(&file).map_err(cannot)? {
            return Ok(());
        }
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
            _ => {}
        }
        let made = Database::create(&new).map_err(redb::Error::from);
        made.and_then(|database| engine::create(&database))
            .map_err(|error| cannot(io::Error::other(error)))?;
        fs::rename(&new, &file).map_err(cannot)?;
        File::open(&self.path).and_then(|directory| directory.sync_all()).map_err(cannot)
    }
}

fn not_empty(data: File) -> io::Result<File> {
    if data.metadata()?.len() == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty"));
    }
    Ok(data)
}

fn database(backend: impl StorageBackend) -> Result<Database, DatabaseError> {
    Database::builder().set_cache_size(CACHE).create_with_backend(backend)
}

/// Makes a directory that stays: its name is on disk when this returns.
fn create_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path)?;
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}
