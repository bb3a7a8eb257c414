//! A disk for tests that loses power, fills up, fails and hangs.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::super::engine::{FORMAT, Medium};
use super::super::{log, tables};
use super::vfs;
use super::writes::{File, Write};

/// The content of each file by its name.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// A disk in memory that knows what was synced. Clones are the same disk.
#[derive(Debug, Clone)]
pub(super) struct Disk(pub(super) Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    /// How SQLite finds it.
    pub(super) number: u64,
    state: Mutex<State>,
    /// Told when the disk begins to hang, and when it no longer does.
    hanging: Condvar,
}

#[derive(Debug)]
struct State {
    /// Which files there are. Their names are on disk from the beginning.
    files: BTreeMap<String, File>,
    /// How many operations are left until the power goes.
    fuse: Option<u64>,
    /// The disk after the power cut, once that has happened.
    after: Option<Files>,
    dice: Dice,
    sync: Sync,
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
    pub(super) fn new(content: Files, seed: u64) -> Self {
        let file = |seen: Vec<u8>| File { durable: seen.clone(), seen, ..File::default() };
        let state = State {
            files: content.into_iter().map(|(name, content)| (name, file(content))).collect(),
            fuse: None,
            after: None,
            dice: Dice(seed),
            sync: Sync::Honest,
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
        let (number, state, hanging) = (vfs::number(), Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { number, state, hanging });
        vfs::plug_in(&shared);
        Self(shared)
    }

    /// A disk with an empty store.
    pub(super) fn formatted(seed: u64) -> Self {
        let disk = Self::new(Files::new(), seed);
        tables::create(&disk.connect().unwrap(), FORMAT).unwrap();
        Self::new(disk.content(), seed)
    }

    pub(super) fn medium(&self) -> Medium {
        let (disk, readable) = (self.clone(), self.clone());
        let open = move || {
            log::check(disk.content().get("locks-wal").map_or(&[][..], |log| log))?;
            let connection = disk.connect()?;
            tables::prepare(&connection)?;
            Ok(connection)
        };
        let look = move || {
            let connection = readable.connect()?;
            tables::configure(&connection)?;
            Ok(connection)
        };
        let (open, look) = (Box::new(open), Box::new(look));
        Medium { name: "a disk".into(), open, look, _directory: None }
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
    pub(super) fn after_the_cut(&self) -> Option<Files> {
        self.state().after.clone()
    }

    /// Cuts the power now, if it is still there.
    pub(super) fn cut(&self) -> Files {
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
        state.capacity = state.used() + more;
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
    pub(super) fn durable(&self) -> Files {
        self.files(|file| &file.durable)
    }

    /// Makes room, and mends what was broken.
    pub(super) fn mend(&self) {
        let mut state = self.state();
        state.capacity = u64::MAX;
        state.broken = false;
        state.breaks_in = None;
        state.read_only = false;
        state.sync = Sync::Honest;
    }

    /// The content as a process reads it.
    pub(super) fn content(&self) -> Files {
        self.files(|file| &file.seen)
    }

    /// How large all files are together.
    pub(super) fn used(&self) -> u64 {
        self.state().used()
    }

    fn files(&self, content: impl Fn(&File) -> &Vec<u8>) -> Files {
        let state = self.state();
        state.files.iter().map(|(name, file)| (name.clone(), content(file).clone())).collect()
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
        let mut after = Files::new();
        for (name, file) in &self.files {
            let mut content = file.durable.clone();
            let unsynced: &[Write] = if self.sync == Sync::Late { &[] } else { &file.unsynced };
            for write in unsynced {
                match (self.dice.below(3), write) {
                    (0, _) => {}
                    (1, Write::Bytes { offset, data }) => {
                        let torn = self.dice.below(data.len() as u64 + 1) as usize;
                        let half = Write::Bytes { offset: *offset, data: data[..torn].to_vec() };
                        half.apply(&mut content);
                    }
                    (_, write) => write.apply(&mut content),
                }
            }
            after.insert(name.clone(), content);
        }
        self.after = Some(after);
    }

    fn burn(&mut self) {
        match &mut self.fuse {
            Some(0) => self.cut(),
            Some(left) => *left -= 1,
            None => {}
        }
    }

    /// Writes what fits, if the disk lets anybody write.
    fn write(&mut self, name: &str, write: Write) -> io::Result<()> {
        match &mut self.breaks_in {
            Some(0) => self.broken = true,
            Some(left) => *left -= 1,
            None => {}
        }
        self.works()?;
        if self.read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let used = self.used();
        let file = self.files.entry(name.to_owned()).or_default();
        let grows = write.end().saturating_sub(file.seen.len());
        if used + grows as u64 > self.capacity {
            // The word that SQLite's error for a full disk is made of.
            let full = io::Error::new(io::ErrorKind::WriteZero, "the disk is full");
            return if self.says_full { Err(full) } else { Ok(()) };
        }
        write.apply(&mut file.seen);
        file.unsynced.push(write);
        self.burn();
        Ok(())
    }

    fn used(&self) -> u64 {
        self.files.values().map(|file| file.seen.len() as u64).sum()
    }

    fn sync(&mut self, name: &str) {
        let Some(file) = self.files.get_mut(name) else { return };
        let synced = match self.sync {
            Sync::Honest => file.unsynced.len(),
            Sync::Nothing => 0,
            Sync::Late => file.late,
        };
        for write in file.unsynced.drain(..synced) {
            write.apply(&mut file.durable);
        }
        file.late = file.unsynced.len();
    }

    fn works(&self) -> io::Result<()> {
        if self.broken { Err(io::Error::other("the disk is broken")) } else { Ok(()) }
    }
}

/// What SQLite does with the files.
impl Disk {
    pub(super) fn exists(&self, name: &str) -> bool {
        self.state().files.contains_key(name)
    }

    /// Makes a file if it is not there.
    pub(super) fn open(&self, name: &str, writes: bool) -> io::Result<()> {
        let mut state = self.state();
        if writes && state.read_only {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if writes {
            state.files.entry(name.to_owned()).or_default();
        }
        Ok(())
    }

    pub(super) fn delete(&self, name: &str) -> io::Result<()> {
        let gone = self.state().files.remove(name);
        gone.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn len(&self, name: &str) -> u64 {
        self.state().files.get(name).map_or(0, |file| file.seen.len() as u64)
    }

    /// What is behind the end of the file is zero, and an error.
    pub(super) fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (state, offset) = (self.state(), offset as usize);
        state.works()?;
        let seen = state.files.get(name).map_or(&[][..], |file| &file.seen);
        let there = seen.get(offset..).unwrap_or_default();
        let (found, missing) = out.split_at_mut(there.len().min(out.len()));
        found.copy_from_slice(&there[..found.len()]);
        missing.fill(0);
        // What a disk has lost without a word, it still says to have.
        let whole = missing.is_empty() || !state.says_full;
        if whole { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    pub(super) fn set_len(&self, name: &str, length: u64) -> io::Result<()> {
        self.state().write(name, Write::Length(length as usize))
    }

    pub(super) fn write(&self, name: &str, offset: u64, data: &[u8]) -> io::Result<()> {
        self.state().write(name, Write::Bytes { offset: offset as usize, data: data.to_vec() })
    }

    pub(super) fn sync(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.is_hanging = state.hangs;
        self.0.hanging.notify_all();
        state = self.0.hanging.wait_while(state, |state| state.hangs).unwrap();
        state.is_hanging = false;
        state.syncs += 1;
        if std::mem::take(&mut state.sync_fails) {
            // As Linux does: the pages count as written, and no later sync writes them.
            if let Some(file) = state.files.get_mut(name) {
                file.unsynced.clear();
            }
            return Err(io::Error::other("the sync failed"));
        }
        // The power may go just before the sync, or just after it.
        state.burn();
        state.sync(name);
        state.burn();
        Ok(())
    }
}
