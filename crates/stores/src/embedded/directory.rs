//! The data directory: one process's alone, with the data file whole before it has its name, and no
//! more missing from its log than a power cut may have taken. Its files are open to their user
//! alone: they have answers of clients, and a lock on the lock file keeps the service from
//! starting. No link in it is followed, and no file in it is used that others may write: the
//! directory may be a group's.
//!
//! SQLite reads its log up to the first frame whose checksum does not match, and overlooks the rest
//! without a word. After a power cut that is right: the transaction that was being written is torn,
//! and was not answered. But the next transaction is begun only when the one before is synced. So a
//! frame that follows on the end of a transaction, behind a frame that does not match, shows that
//! something was lost that had been synced.
//!
//! The lock on the directory is tested below; the tests of `damage` break the file and its log.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use rusqlite::{Connection, OpenFlags};

use super::tables::{self, FileError};
use crate::error::OpenError;
use keylatch_core::lock::Token;

const DATA: &str = "locks.sqlite";
/// Its log, which is a part of it.
const LOG: &str = "locks.sqlite-wal";
/// Where the data file is made, before it gets its name, and what SQLite puts beside it meanwhile.
const NEW: [&str; 3] = ["locks.sqlite.new", "locks.sqlite.new-wal", "locks.sqlite.new-journal"];
/// Locked for as long as a process uses the directory, and holds that process's id.
const LOCK: &str = "lock";
/// What keys are signed with that the service issues.
pub(super) const SECRET: &str = "issued_keys.secret";
pub(super) const ID: &str = "store.id";
/// A commit that takes less than this is quick.
const QUICK: Duration = Duration::from_micros(500);
/// What the files and the directory allow to their user, and no one else.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;
/// What a mode allows to others than the user, and what of it is to write.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;
/// The part of the log before its first frame.
const LOG_HEADER: usize = 32;
/// What stands before each page of the log.
const FRAME_HEADER: usize = 24;
/// How a log begins, but for its last bit, which says in which order its checksums take the bytes.
const LOG_MAGIC: u32 = 0x377f_0682;

/// The two sums over all of a log that came before.
type Sums = [u32; 2];

/// Where the data is, and how it is opened: again after each I/O error.
pub(super) struct Medium {
    pub(super) name: PathBuf,
    pub(super) open: Opener,
    /// Opens it as it stands, also where nothing can be written, and writes nothing.
    pub(super) look: Opener,
    /// Whether a commit that took so long was quick.
    pub(super) is_quick: Box<dyn Fn(Duration) -> bool + Send>,
    /// The file itself, where it is one of the file system.
    pub(super) file: Option<Arc<File>>,
    /// This process's for as long as the medium is in use.
    pub(super) _directory: Option<Directory>,
}

type Opener = Box<dyn Fn() -> Result<Connection, FileError> + Send>;

/// A data directory that is this process's alone.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    lock: File,
}

impl Directory {
    /// Takes the directory at `path`, and makes it and its data file if they are not there.
    pub(super) fn lock(path: &Path) -> Result<Self, OpenError> {
        let cannot = |source| OpenError::Directory { path: path.to_owned(), source };
        create_directory(path, sync).map_err(cannot)?;
        // SQLite takes no link in a path, and those to the directory are the operator's.
        let path = &fs::canonicalize(path).map_err(cannot)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(FILE_MODE);
        let mut lock = open_own(&mut options, &path.join(LOCK)).map_err(cannot)?;
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
        // For people alone, and a full disk may take none of it.
        let _ = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        let directory = Self { path: path.to_owned(), lock };
        directory.create_data()?;
        Ok(directory)
    }

    /// How the data file is opened, now and again after an error. The directory is this process's
    /// for as long as that may happen.
    ///
    /// # Errors
    ///
    /// The data file cannot be read.
    pub(super) fn medium(self) -> Result<Medium, OpenError> {
        let (file, log) = (self.path.join(DATA), self.path.join(LOG));
        let (name, readable, readable_log) = (file.clone(), file.clone(), log.clone());
        let own = |path: &Path| open_own(&mut OpenOptions::new(), path);
        let cannot = |source| OpenError::Directory { path: self.path.clone(), source };
        // Before SQLite opens it: see `snapshot.rs`.
        let data = own(&file).map_err(cannot)?;
        find(own(&log)).map_err(cannot)?;
        let alone = OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let open = move || {
            // Not `create`: a file that lost its content must not become an empty store.
            not_empty(&file)?;
            if let Some(log) = find(own(&log))? {
                check_log(BufReader::new(log))?;
            }
            let connection =
                Connection::open_with_flags(&file, alone | OpenFlags::SQLITE_OPEN_READ_WRITE)?;
            tables::prepare(&connection)?;
            Ok(connection)
        };
        let look = move || {
            not_empty(&readable)?;
            // Where there is no log, SQLite would make one: what cannot change has none.
            let has_log = find(fs::metadata(&readable_log))?.is_some_and(|log| log.len() > 0);
            let path = percent_encode(readable.as_os_str().as_bytes(), NON_ALPHANUMERIC);
            let url = format!("file:{path}{}", if has_log { "" } else { "?immutable=1" });
            let flags = alone | OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
            // Only a writer locks the file, and this process has locked the directory.
            let connection = Connection::open_with_flags_and_vfs(url, flags, c"unix-none")?;
            tables::configure(&connection)?;
            Ok(connection)
        };
        Ok(Medium {
            name,
            open: Box::new(open),
            look: Box::new(look),
            is_quick: Box::new(|took| took < QUICK),
            file: Some(Arc::new(data)),
            _directory: Some(self),
        })
    }

    /// Makes the data file whole before it gets its name, so that a file of that name without
    /// content is damage and never a beginning.
    fn create_data(&self) -> Result<(), OpenError> {
        let cannot = |source| OpenError::Directory { path: self.path.clone(), source };
        let file = self.path.join(DATA);
        let is_there = |path| Ok(find(fs::symlink_metadata(path))?.is_some());
        if is_there(&file).map_err(cannot)? {
            return Ok(());
        }
        if is_there(&self.path.join(LOG)).map_err(cannot)? {
            let reason = format!("{DATA} is gone, of which it is a part");
            return Err(OpenError::Damaged { path: self.path.join(LOG), reason });
        }
        for left in NEW {
            find(fs::remove_file(self.path.join(left))).map_err(cannot)?;
        }
        let new = self.path.join(NEW[0]);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(FILE_MODE).open(&new).map_err(cannot)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let made = Connection::open_with_flags(&new, flags).map_err(FileError::from);
        made.and_then(|connection| tables::create(&connection))
            .map_err(|error| cannot(io::Error::other(error)))?;
        sync(&new).map_err(cannot)?;
        fs::rename(&new, &file).map_err(cannot)?;
        sync(&self.path).map_err(cannot)
    }
}

impl Drop for Directory {
    /// Frees the directory at once. Closing the file alone would not: a child process has it open
    /// too, from its fork until it runs its program.
    fn drop(&mut self) {
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, path = %self.path.display(), "the directory was not unlocked");
        }
    }
}

/// The random text in a file of a directory that this process has locked. It is made if it is not
/// there, and whole before it has its name.
pub(super) fn own_text(directory: &Path, name: &str) -> io::Result<Vec<u8>> {
    synced_text(directory, name, sync)
}

/// The text, with its name on the disk, also where the process that made it ended before that.
fn synced_text(
    directory: &Path,
    name: &str,
    sync: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<Vec<u8>> {
    let directory = fs::canonicalize(directory)?;
    let (file, new) = (directory.join(name), directory.join(format!("{name}.new")));
    let mut text = Vec::new();
    if let Some(mut found) = find(open_own(&mut OpenOptions::new(), &file))? {
        found.read_to_end(&mut text)?;
    } else {
        text.extend_from_slice(Token::generate().map_err(io::Error::other)?.expose().as_bytes());
        find(fs::remove_file(&new))?;
        let mut made =
            OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&new)?;
        made.write_all(&text)?;
        sync(&new)?;
        fs::rename(&new, &file)?;
    }
    sync(&directory)?;
    Ok(text)
}

/// Has the disk keep a file, or the names in a directory.
fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Opens a file of the directory to be read, and leaves it to its user alone. Who else may write in
/// the directory would have another file read, emptied or closed to others by a link, and SQLite
/// run what they wrote by a file of their own.
fn open_own(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let refuse = |why: &str| {
        let name = path.file_name().unwrap_or_default().display();
        Err(io::Error::other(format!("`{name}` {why}")))
    };
    // A pipe would be waited for.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = match options.read(true).custom_flags(flags.bits()).open(path) {
        Err(error) if error.raw_os_error() == Some(Errno::ELOOP as i32) => {
            return refuse("is a link, and none is followed");
        }
        opened => opened?,
    };
    let found = file.metadata()?;
    let mode = found.permissions().mode();
    if !found.is_file() || found.uid() != geteuid().as_raw() {
        return refuse("is no file of the user that keylatch runs as: chown it");
    }
    if mode & OTHERS_WRITE != 0 {
        return refuse("is a file that others may write: chmod go-w it, if you know that none did");
    }
    if mode & OTHERS != 0 {
        file.set_permissions(Permissions::from_mode(mode & !OTHERS))?;
    }
    Ok(file)
}

/// What is there; `None` where nothing is.
fn find<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// SQLite would make a file without content a store without locks.
fn not_empty(file: &Path) -> Result<(), FileError> {
    match fs::metadata(file)?.len() {
        0 => Err(FileError::Damaged("it is empty".to_owned())),
        _ => Ok(()),
    }
}

/// Makes a directory that stays: its name, and that of each level above it that was not there, is
/// on disk when this returns.
fn create_directory(path: &Path, sync: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let new: Vec<_> = path.ancestors().take_while(|level| !level.is_dir()).collect();
    for level in new.into_iter().rev() {
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(level)?;
        level.parent().map_or(Ok(()), &sync)?;
    }
    Ok(())
}

/// Fails where a log is damaged. One frame at a time is in memory: the log beside a long backup is
/// large.
pub(super) fn check_log(log: impl BufRead) -> Result<(), FileError> {
    log_damage(log)?.map_or(Ok(()), |reason| Err(FileError::Damaged(reason.to_owned())))
}

fn log_damage(mut log: impl BufRead) -> io::Result<Option<&'static str>> {
    let mut header = [0; LOG_HEADER];
    if !read_whole(&mut log, &mut header)? || log.fill_buf()?.is_empty() {
        return Ok(None);
    }
    if number(&header, 0) & !1 != LOG_MAGIC {
        return Ok(Some("its log does not begin as a log does"));
    }
    let big_endian = number(&header, 0) & 1 == 1;
    let sums = |sums, bytes: &[u8]| checksum(sums, bytes, big_endian);
    // A header that is torn was written when all before it was in the file.
    let seed = sums([0, 0], &header[..24]);
    if seed != pair(&header, 24) {
        return Ok(None);
    }
    let mut frame = vec![0; FRAME_HEADER + number(&header, 8) as usize];
    let salts = pair(&header, 16);
    let (mut before, mut broken, mut ended) = (seed, false, false);
    while read_whole(&mut log, &mut frame)? {
        // A frame from before SQLite began the log again.
        if pair(&frame, 8) != salts {
            (broken, ended) = (true, false);
            continue;
        }
        let matches = sums(sums(before, &frame[..8]), &frame[FRAME_HEADER..]) == pair(&frame, 16);
        if broken && ended && matches {
            return Ok(Some("its log is broken before its end"));
        }
        broken |= !matches;
        // How large the file is after the transaction, in the last frame of each.
        ended = number(&frame, 4) != 0;
        before = pair(&frame, 16);
    }
    Ok(None)
}

/// Fills the buffer; false where less is left.
fn read_whole(log: &mut impl BufRead, buffer: &mut [u8]) -> io::Result<bool> {
    match log.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn pair(bytes: &[u8], at: usize) -> Sums {
    [number(bytes, at), number(bytes, at + 4)]
}

/// SQLite's checksum of `bytes`, which continues that of the bytes before them.
fn checksum([mut first, mut second]: Sums, bytes: &[u8], big_endian: bool) -> Sums {
    let word =
        |bytes| if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) };
    for pair in bytes.as_chunks::<4>().0.as_chunks::<2>().0 {
        first = first.wrapping_add(word(pair[0])).wrapping_add(second);
        second = second.wrapping_add(word(pair[1])).wrapping_add(first);
    }
    [first, second]
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::{Directory, SECRET, create_directory, synced_text};

    /// A power cut takes the name of a directory that its parent was not synced for, and all in it.
    #[test]
    fn every_new_level_of_the_path_is_on_disk() {
        let parent = tempfile::TempDir::new().expect("a directory");
        let (there, middle) = (parent.path().join("there"), parent.path().join("there/new"));
        std::fs::create_dir(&there).expect("a free name");
        let (directory, synced) = (middle.join("newer/newest"), RefCell::new(Vec::new()));
        let create = || {
            create_directory(&directory, |level| {
                let entries = std::fs::read_dir(level)?.count();
                synced.borrow_mut().push((level.to_owned(), entries));
                Ok(())
            })
        };
        create().expect("a new directory");
        assert!(directory.is_dir());
        // Each when its new entry is in it.
        let levels = [there, middle.clone(), middle.join("newer")].map(|level| (level, 1));
        assert_eq!(synced.take(), levels);
        create().expect("it is there");
        assert_eq!(synced.take(), []);
    }

    /// A power cut leaves of a file what was synced, and takes names that their directory was not
    /// synced for. The keys that were signed with a secret which is gone are of no use.
    #[test]
    fn secret_and_its_name_are_on_disk_before_it_signs() {
        let parent = tempfile::TempDir::new().expect("a directory");
        let directory = parent.path().canonicalize().expect("a path");
        let synced = RefCell::new(Vec::new());
        let secret = || {
            synced_text(&directory, SECRET, |path| {
                let names = std::fs::read_dir(&directory)?.map(|entry| Ok(entry?.file_name()));
                let names = names.collect::<std::io::Result<Vec<_>>>()?;
                synced.borrow_mut().push((path.to_owned(), names, std::fs::read(path).ok()));
                Ok(())
            })
        };
        let first = secret().expect("a new secret");
        let new = format!("{SECRET}.new");
        let of_file = (directory.join(&new), vec![new.into()], Some(first.clone()));
        let of_name = (directory.clone(), vec![SECRET.into()], None);
        assert_eq!(synced.take(), [of_file, of_name.clone()]);
        // Who made it may have ended before its name was on the disk.
        assert_eq!(secret().expect("it is there"), first);
        assert_eq!(synced.take(), [of_name]);
    }

    #[test]
    fn directory_is_free_though_a_child_inherited_its_lock() {
        let parent = tempfile::TempDir::new().expect("a directory");
        let directory = Directory::lock(parent.path()).expect("a free directory");
        let _inherited = directory.lock.try_clone().expect("a second descriptor");
        Directory::lock(parent.path()).expect_err("it is in use");
        drop(directory);
        Directory::lock(parent.path()).expect("it is free again");
    }
}
