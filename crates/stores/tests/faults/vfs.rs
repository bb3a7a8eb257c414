//! The files that SQLite sees, each on a [`Disk`].
//!
//! SQLite knows one VFS for all disks, and a disk by the number in its path. No other process has a
//! disk, so a lock on a file is always to be had.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use sqlite_vfs::{DatabaseHandle, LockKind, OpenAccess, OpenOptions, Vfs, WalDisabled};

use crate::disk::{Disk, Shared};

/// The name by which SQLite knows it.
const NAME: &str = "disks";

/// The disks that are in use, by number.
static DISKS: LazyLock<Mutex<BTreeMap<u64, Weak<Shared>>>> = LazyLock::new(|| {
    sqlite_vfs::register(NAME, Disks, false).unwrap();
    Mutex::default()
});

/// A number that no other disk has.
pub(crate) fn number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// Lets SQLite find a disk.
pub(crate) fn plug_in(disk: &Arc<Shared>) {
    let mut disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
    disks.retain(|_, disk| disk.strong_count() > 0);
    disks.insert(disk.number, Arc::downgrade(disk));
}

impl Disk {
    /// A connection to the store on this disk.
    pub(crate) fn connect(&self) -> rusqlite::Result<Connection> {
        // The crate counts what is opened, and not so that two may do it at once.
        static OPENING: Mutex<()> = Mutex::new(());
        let _one_by_one = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        Connection::open_with_flags_and_vfs(format!("{}/locks", self.0.number), flags, NAME)
    }
}

struct Disks;

/// The disk and the name on it of what SQLite calls `path`.
fn find(path: &str) -> io::Result<(Disk, String)> {
    let (number, name) = path.split_once('/').ok_or(io::ErrorKind::NotFound)?;
    let number: u64 = number.parse().map_err(io::Error::other)?;
    let disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
    let disk = disks.get(&number).and_then(Weak::upgrade).ok_or(io::ErrorKind::NotFound)?;
    Ok((Disk(disk), name.to_owned()))
}

impl Vfs for Disks {
    type Handle = Handle;

    fn open(&self, path: &str, options: OpenOptions) -> io::Result<Handle> {
        let (disk, name) = find(path)?;
        disk.open_file(&name, options.access != OpenAccess::Read)?;
        Ok(Handle { disk, name, lock: LockKind::None })
    }

    fn delete(&self, path: &str) -> io::Result<()> {
        let (disk, name) = find(path)?;
        disk.delete(&name)
    }

    fn exists(&self, path: &str) -> io::Result<bool> {
        let (disk, name) = find(path)?;
        Ok(disk.exists(&name))
    }

    fn temporary_name(&self) -> String {
        "nothing temporary is kept in files".to_owned()
    }

    fn random(&self, buffer: &mut [i8]) {
        buffer.fill_with(|| number() as i8);
    }

    fn sleep(&self, duration: Duration) -> Duration {
        // SQLite pauses where another connection has locked the file, and no other has this disk.
        panic!("nothing is there to wait {duration:?} for")
    }
}

/// An open file. No other connection has the disk, so SQLite gets every lock that it asks for.
struct Handle {
    disk: Disk,
    name: String,
    lock: LockKind,
}

impl DatabaseHandle for Handle {
    type WalIndex = WalDisabled;

    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.len(&self.name))
    }

    fn read_exact_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.disk.read(&self.name, offset, buffer)
    }

    fn write_all_at(&mut self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.disk.write(&self.name, offset, buffer)
    }

    fn sync(&mut self, _data_only: bool) -> io::Result<()> {
        self.disk.sync(&self.name)
    }

    fn set_len(&mut self, size: u64) -> io::Result<()> {
        self.disk.set_len(&self.name, size)
    }

    fn lock(&mut self, lock: LockKind) -> io::Result<bool> {
        self.lock = lock;
        Ok(true)
    }

    fn reserved(&mut self) -> io::Result<bool> {
        Ok(self.lock >= LockKind::Reserved)
    }

    fn current_lock(&self) -> io::Result<LockKind> {
        Ok(self.lock)
    }

    fn wal_index(&self, _read_only: bool) -> io::Result<WalDisabled> {
        Ok(WalDisabled)
    }
}
