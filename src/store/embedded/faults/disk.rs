//! A disk for tests that loses power, fills up, fails and hangs.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use redb::{Database, StorageBackend};

use super::super::backend::{Overlay, SyncFailed, Watched};
use super::super::engine::{self, Medium};

/// A disk in memory that knows what was synced. Clones are the same disk.
#[derive(Debug, Clone)]
pub(super) struct Disk(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Told when the disk begins to hang, and when it no longer does.
    hanging: Condvar,
}

#[derive(Debug)]
struct State {
    /// What a process reads: everything that was written.
    seen: Vec<u8>,
    /// What survives a power cut for certain.
    durable: Vec<u8>,
    /// What was written since the last sync, in order.
    unsynced: Vec<Write>,
    /// How many operations are left until the power goes.
    fuse: Option<u64>,
    /// The disk after the power cut, once that has happened.
    after: Option<Vec<u8>>,
    dice: Dice,
    sync: Sync,
    /// How much of what is not synced was there at the last sync.
    late: usize,
    /// Bytes there is room for.
    capacity: u64,
    /// Whether it says so when there is no more room.
    says_full: bool,
    /// Whether everything fails, or after how many writes it will.
    broken: bool,
    breaks_in: Option<u64>,
    read_only: bool,
    /// Whether the next sync fails.
    sync_fails: bool,
    /// Whether a sync waits, and whether one does.
    hangs: bool,
    is_hanging: bool,
    syncs: u64,
}

/// What a sync does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sync {
    Honest,
    /// Nothing.
    Nothing,
    /// What the one before it should have done, and a power cut loses the rest as a whole.
    Late,
}

#[derive(Debug, Clone)]
enum Write {
    Bytes { offset: usize, data: Vec<u8> },
    Length(usize),
}

/// A small generator of numbers that a seed decides (Steele et al., SplitMix64, OOPSLA 2014).
#[derive(Debug, Clone)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}

impl Disk {
    /// A disk with this content.
    pub(super) fn new(content: Vec<u8>, seed: u64) -> Self {
        let state = State {
            seen: content.clone(),
            durable: content,
            unsynced: Vec::new(),
            fuse: None,
            after: None,
            dice: Dice(seed),
            sync: Sync::Honest,
            late: 0,
            capacity: u64::MAX,
            says_full: true,
            broken: false,
            breaks_in: None,
            read_only: false,
            sync_fails: false,
            hangs: false,
            is_hanging: false,
            syncs: 0,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), hanging: Condvar::new() }))
    }

    /// A disk with an empty store.
    pub(super) fn formatted(seed: u64) -> Self {
        let disk = Self::new(Vec::new(), seed);
        let database = Database::builder().create_with_backend(disk.clone()).unwrap();
        engine::create(&database).unwrap();
        drop(database);
        disk
    }

    pub(super) fn medium(&self) -> Medium {
        let sync_failed = SyncFailed::default();
        let (disk, readable, failed) = (self.clone(), self.clone(), sync_failed.clone());
        let open = move || {
            let watched = Watched::new(disk.clone(), failed.clone());
            Database::builder().create_with_backend(watched)
        };
        let look = move || Database::builder().create_with_backend(Overlay::new(readable.clone())?);
        let (open, look) = (Box::new(open), Box::new(look));
        Medium { name: "a disk".into(), open, look, sync_failed, _directory: None }
    }

    /// From now on a sync does nothing, as on a disk that lies.
    pub(super) fn lie(&self) {
        self.state().sync = Sync::Nothing;
    }

    /// From now on a sync says that it is done before it is.
    pub(super) fn be_late(&self) {
        self.state().sync = Sync::Late;
    }

    /// Cuts the power after so many operations.
    pub(super) fn cut_after(&self, operations: u64) {
        self.state().fuse = Some(operations);
    }

    /// The disk after the power cut; `None` while there is power.
    pub(super) fn after_the_cut(&self) -> Option<Vec<u8>> {
        self.state().after.clone()
    }

    /// Cuts the power now, if it is still there.
    pub(super) fn cut(&self) -> Vec<u8> {
        let mut state = self.state();
        state.cut();
        state.after.clone().unwrap()
    }

    pub(super) fn has_power(&self) -> bool {
        self.state().after.is_none()
    }

    /// Leaves room for this many more bytes.
    pub(super) fn fill_up_to(&self, more: u64) {
        let mut state = self.state();
        state.capacity = state.seen.len() as u64 + more;
    }

    /// From now on what there is no room for is lost without a word.
    pub(super) fn lose_what_is_too_much(&self) {
        self.state().says_full = false;
    }

    /// From now on nothing can be written, as on a file system that found an error in itself.
    pub(super) fn turn_read_only(&self) {
        self.state().read_only = true;
    }

    /// From now on a sync does not end.
    pub(super) fn hang(&self) {
        self.state().hangs = true;
    }

    /// Waits until a sync hangs.
    pub(super) fn hangs(&self) {
        let hanging = self.0.hanging.wait_while(self.state(), |state| !state.is_hanging);
        drop(hanging.unwrap());
    }

    /// Lets what hangs go on.
    pub(super) fn go_on(&self) {
        self.state().hangs = false;
        self.0.hanging.notify_all();
    }

    /// How many syncs there were.
    pub(super) fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// From now on everything fails.
    pub(super) fn break_down(&self) {
        self.state().broken = true;
    }

    /// Breaks down in the middle of what comes.
    pub(super) fn break_down_after(&self, operations: u64) {
        self.state().breaks_in = Some(operations);
    }

    pub(super) fn fail_the_next_sync(&self) {
        self.state().sync_fails = true;
    }

    /// What a power cut would leave at least.
    pub(super) fn durable(&self) -> Vec<u8> {
        self.state().durable.clone()
    }

    /// Makes room, and mends what was broken.
    pub(super) fn mend(&self) {
        let mut state = self.state();
        state.capacity = u64::MAX;
        state.broken = false;
        state.breaks_in = None;
        state.read_only = false;
    }

    /// The content as a process reads it.
    pub(super) fn content(&self) -> Vec<u8> {
        self.state().seen.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }
}

impl State {
    /// What was synced, and of the rest any part in any order: each write may be there, be missing,
    /// or be torn.
    fn cut(&mut self) {
        if self.after.is_some() {
            return;
        }
        let mut content = self.durable.clone();
        let unsynced = if self.sync == Sync::Late { Vec::new() } else { self.unsynced.clone() };
        for write in unsynced {
            match (self.dice.below(3), write) {
                (0, _) => {}
                (1, Write::Bytes { offset, data }) => {
                    let torn = self.dice.below(data.len() as u64 + 1) as usize;
                    let half = Write::Bytes { offset, data: data[..torn].to_vec() };
                    half.apply(&mut content);
                }
                (_, write) => write.apply(&mut content),
            }
        }
        self.after = Some(content);
    }

    fn burn(&mut self) {
        match &mut self.fuse {
            Some(0) => self.cut(),
            Some(left) => *left -= 1,
            None => {}
        }
    }

    /// Writes what fits, if the disk lets anybody write.
    fn write(&mut self, write: Write) -> io::Result<()> {
        match &mut self.breaks_in {
            Some(0) => self.broken = true,
            Some(left) => *left -= 1,
            None => {}
        }
        self.works()?;
        if self.read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        if write.end() > self.capacity {
            let full = io::Error::new(io::ErrorKind::StorageFull, "the disk is full");
            return if self.says_full { Err(full) } else { Ok(()) };
        }
        write.apply(&mut self.seen);
        self.unsynced.push(write);
        self.burn();
        Ok(())
    }

    fn sync(&mut self) {
        let synced = match self.sync {
            Sync::Honest => self.unsynced.len(),
            Sync::Nothing => 0,
            Sync::Late => self.late,
        };
        for write in self.unsynced.drain(..synced) {
            write.apply(&mut self.durable);
        }
        self.late = self.unsynced.len();
    }

    fn works(&self) -> io::Result<()> {
        if self.broken { Err(io::Error::other("the disk is broken")) } else { Ok(()) }
    }
}

impl Write {
    fn end(&self) -> u64 {
        match self {
            Self::Length(length) => *length as u64,
            Self::Bytes { offset, data } => (offset + data.len()) as u64,
        }
    }

    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Length(length) => content.resize(*length, 0),
            Self::Bytes { offset, data } => {
                // A file grows when something is written behind its end.
                let end = offset + data.len();
                content.resize(content.len().max(end), 0);
                content[*offset..end].copy_from_slice(data);
            }
        }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (state, offset) = (self.state(), offset as usize);
        state.works()?;
        if let Some(bytes) = state.seen.get(offset..offset + out.len()) {
            out.copy_from_slice(bytes);
            return Ok(());
        }
        // What a disk has lost without a word, it still says to have.
        if state.says_full {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out.fill(0);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.state().write(Write::Length(length as usize))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        state.is_hanging = state.hangs;
        self.0.hanging.notify_all();
        state = self.0.hanging.wait_while(state, |state| state.hangs).unwrap();
        state.is_hanging = false;
        state.syncs += 1;
        if std::mem::take(&mut state.sync_fails) {
            // As Linux does: the pages count as written, and no later sync writes them.
            state.unsynced.clear();
            return Err(io::Error::other("the sync failed"));
        }
        // The power may go just before the sync, or just after it.
        state.burn();
        state.sync();
        state.burn();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.state().write(Write::Bytes { offset: offset as usize, data: data.to_vec() })
    }
}
