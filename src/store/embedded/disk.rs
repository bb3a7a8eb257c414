//! A disk for tests that loses power, fills up and fails.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::{Database, StorageBackend};

use super::backend::{SyncFailed, Watched};
use super::engine::Medium;

/// A disk in memory that knows what was synced. Clones are the same disk.
#[derive(Debug, Clone)]
pub(super) struct Disk(Arc<Mutex<State>>);

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
    /// Whether a sync is one.
    honest: bool,
    /// Bytes there is room for.
    capacity: u64,
    /// Whether writing fails, or after how many operations it will.
    broken: bool,
    breaks_in: Option<u64>,
    /// Whether the next sync fails.
    sync_fails: bool,
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
        Self(Arc::new(Mutex::new(State {
            seen: content.clone(),
            durable: content,
            unsynced: Vec::new(),
            fuse: None,
            after: None,
            dice: Dice(seed),
            honest: true,
            capacity: u64::MAX,
            broken: false,
            breaks_in: None,
            sync_fails: false,
        })))
    }

    /// A disk with an empty store.
    pub(super) fn formatted(seed: u64) -> Self {
        let disk = Self::new(Vec::new(), seed);
        let database = Database::builder().create_with_backend(disk.clone()).unwrap();
        super::engine::create(&database).unwrap();
        drop(database);
        disk
    }

    pub(super) fn medium(&self) -> Medium {
        let (disk, sync_failed) = (self.clone(), SyncFailed::default());
        let failed = sync_failed.clone();
        let open = move || {
            let watched = Watched::new(disk.clone(), failed.clone());
            Database::builder().create_with_backend(watched)
        };
        Medium { name: "a disk".into(), open: Box::new(open), sync_failed }
    }

    /// From now on a sync does nothing, as on a disk that lies.
    pub(super) fn lie(&self) {
        self.state().honest = false;
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
    }

    /// The content as a process reads it.
    pub(super) fn content(&self) -> Vec<u8> {
        self.state().seen.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
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
        for write in self.unsynced.clone() {
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

    fn write(&mut self, write: Write) {
        write.apply(&mut self.seen);
        self.unsynced.push(write);
        self.burn();
    }

    fn fits(&mut self, end: u64) -> io::Result<()> {
        match &mut self.breaks_in {
            Some(0) => self.broken = true,
            Some(left) => *left -= 1,
            None => {}
        }
        if self.broken {
            return Err(io::Error::other("the disk is broken"));
        }
        if end > self.capacity {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the disk is full"));
        }
        Ok(())
    }
}

impl Write {
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
        let bytes = state.seen.get(offset..offset + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.state();
        state.fits(length)?;
        state.write(Write::Length(length as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        if std::mem::take(&mut state.sync_fails) {
            // As Linux does: the pages count as written, and no later sync writes them.
            state.unsynced.clear();
            return Err(io::Error::other("the sync failed"));
        }
        // The power may go just before the sync, or just after it.
        state.burn();
        if state.honest {
            let synced = std::mem::take(&mut state.unsynced);
            for write in synced {
                write.apply(&mut state.durable);
            }
        }
        state.burn();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.fits(offset + data.len() as u64)?;
        state.write(Write::Bytes { offset: offset as usize, data: data.to_vec() });
        Ok(())
    }
}
