//! A disk for tests that loses power, fills up, fails, hangs and is slow.
//!
//! It knows of each file what was written and what was synced, and which thread synced last. What a
//! power cut leaves is what was synced and any part of the rest. A fault is a call on [`Disk`], and
//! [`Disk::mend`] ends it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use keylatch_stores::OpenError;
use keylatch_stores::test_medium::{self, FILE_FORMAT, TestMedium, TestStore};

use crate::dice::Dice;
use crate::vfs;
use crate::writes::{File, Write};

/// The data file, and its log.
const DATA: &str = "locks";
const LOG: &str = "locks-wal";

/// The limit of the fencing tokens on a disk from [`Disk::formatted`]: ahead of the clock, as after
/// the clock was set back, so that what tokens rise above is what is on disk.
const AHEAD: u64 = 1 << 52;

/// The content of each file by its name.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// A disk in memory that knows what was synced. Clones are the same disk.
#[derive(Debug, Clone)]
pub(crate) struct Disk(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    /// How SQLite finds it.
    pub(crate) number: u64,
    state: Mutex<State>,
    /// Notified when the disk begins to hang, and when it no longer does.
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
    /// Whether nothing can be written to the data file, to which the log is moved.
    bad_data: bool,
    /// Whether connecting panics, as a defect of keylatch would.
    panics: bool,
    /// Whether the next sync fails.
    sync_fails: bool,
    /// What waits, and whether anything does.
    hangs: Option<Hang>,
    is_hanging: bool,
    slow: bool,
    syncs: u64,
    /// The thread of the last sync.
    synced_by: String,
}

/// What hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hang {
    All,
    /// The data file, to which the log is moved, and not the log.
    Data,
    /// What is read, and no sync.
    Reads,
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

impl Disk {
    /// A disk with this content.
    pub(crate) fn new(content: Files, seed: u64) -> Self {
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
            bad_data: false,
            panics: false,
            sync_fails: false,
            hangs: None,
            is_hanging: false,
            slow: false,
            syncs: 0,
            synced_by: String::new(),
        };
        let (number, state, hanging) = (vfs::number(), Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { number, state, hanging });
        vfs::plug_in(&shared);
        Self(shared)
    }

    /// A disk with an empty store, whose fencing tokens are ahead of the clock.
    pub(crate) fn formatted(seed: u64) -> Self {
        Self::of_format(FILE_FORMAT, seed)
    }

    /// The same, and the store on it.
    pub(crate) fn with_store() -> (Self, Arc<TestStore>) {
        let disk = Self::formatted(1);
        let store = disk.open().unwrap();
        (disk, Arc::new(store))
    }

    /// A disk with an empty store, whose fencing tokens are the clock's.
    pub(crate) fn with_clock(seed: u64) -> Self {
        Self::with_head(FILE_FORMAT, 0, seed)
    }

    /// A disk with a store whose file says that it has this format.
    pub(crate) fn of_format(format: u64, seed: u64) -> Self {
        Self::with_head(format, AHEAD, seed)
    }

    fn with_head(format: u64, fence_limit: u64, seed: u64) -> Self {
        let disk = Self::new(Files::new(), seed);
        test_medium::create(&disk.connect().unwrap(), format, fence_limit).unwrap();
        Self::new(disk.content(), seed)
    }

    /// The store on this disk.
    pub(crate) fn open(&self) -> Result<TestStore, OpenError> {
        let (connecting, reading, timed) = (self.clone(), self.clone(), self.clone());
        TestStore::open(TestMedium {
            connect: Box::new(move || {
                let panics = connecting.state().panics;
                assert!(!panics, "a defect in the way to the disk");
                connecting.connect()
            }),
            read_log: Box::new(move || reading.log()),
            is_quick: Box::new(move || !timed.state().slow),
        })
    }

    /// The log as a process reads it; empty where there is none.
    pub(crate) fn log(&self) -> Vec<u8> {
        self.state().files.get(LOG).map_or_else(Vec::new, |log| log.seen.clone())
    }

    /// From now on a sync does nothing, as on a disk that lies.
    pub(crate) fn lie(&self) {
        self.state().sync = Sync::Nothing;
    }

    /// From now on a sync says that it is done before it is.
    pub(crate) fn be_late(&self) {
        self.state().sync = Sync::Late;
    }

    /// Cuts the power after so many operations.
    pub(crate) fn cut_after(&self, operations: u64) {
        self.state().fuse = Some(operations);
    }

    /// Cuts the power now, if it is still there. Gives what it leaves.
    pub(crate) fn cut(&self) -> Files {
        let mut state = self.state();
        state.cut();
        state.after.clone().unwrap()
    }

    pub(crate) fn has_power(&self) -> bool {
        self.state().after.is_none()
    }

    /// Leaves room for this many more bytes.
    pub(crate) fn fill_up_to(&self, more: u64) {
        let mut state = self.state();
        state.capacity = state.used() + more;
    }

    /// From now on what there is no room for is lost without a word.
    pub(crate) fn lose_what_is_too_much(&self) {
        self.state().says_full = false;
    }

    /// From now on nothing can be written, as on a file system that found an error in itself.
    pub(crate) fn turn_read_only(&self) {
        self.state().read_only = true;
    }

    /// From now on nothing can be written to the data file, and who connects after that error
    /// panics.
    pub(crate) fn panic_where_the_log_is_moved(&self) {
        let mut state = self.state();
        state.bad_data = true;
        state.panics = true;
    }

    /// From now on no sync ends.
    pub(crate) fn hang(&self) {
        self.state().hangs = Some(Hang::All);
    }

    /// From now on no sync of the data file ends, and those of its log do.
    pub(crate) fn hang_data(&self) {
        self.state().hangs = Some(Hang::Data);
    }

    /// From now on no read ends, and every sync does.
    pub(crate) fn hang_reads(&self) {
        self.state().hangs = Some(Hang::Reads);
    }

    /// Waits until something hangs. Gives the thread of the last sync, which is the one that a sync
    /// holds.
    pub(crate) async fn until_it_hangs(&self) -> String {
        let disk = self.clone();
        let hanging = tokio::task::spawn_blocking(move || {
            let wait = disk.0.hanging.wait_while(disk.state(), |state| !state.is_hanging);
            wait.unwrap().synced_by.clone()
        });
        hanging.await.unwrap()
    }

    /// Ends what hangs.
    pub(crate) fn resume(&self) {
        self.state().hangs = None;
        self.0.hanging.notify_all();
    }

    /// From now on no commit counts as quick; before, each does.
    pub(crate) fn slow_down(&self) {
        self.state().slow = true;
    }

    /// The thread of the last sync.
    pub(crate) fn synced_by(&self) -> String {
        self.state().synced_by.clone()
    }

    /// How many syncs there were.
    pub(crate) fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// From now on everything fails.
    pub(crate) fn break_down(&self) {
        self.state().broken = true;
    }

    /// Breaks down in the middle of what comes.
    pub(crate) fn break_down_after(&self, operations: u64) {
        self.state().breaks_in = Some(operations);
    }

    pub(crate) fn fail_the_next_sync(&self) {
        self.state().sync_fails = true;
    }

    /// Changes a bit of `bytes` wherever a file has them.
    pub(crate) fn damage(&self, bytes: &[u8]) {
        let mut places = 0;
        for file in self.state().files.values_mut() {
            let found = file.seen.windows(bytes.len()).position(|window| window == bytes);
            if let Some(at) = found {
                file.seen[at] ^= 1;
                places += 1;
            }
        }
        assert!(places > 0, "no file has these bytes");
    }

    /// What a power cut would leave at least.
    pub(crate) fn durable(&self) -> Files {
        self.files(|file| &file.durable)
    }

    /// Makes room, and mends what was broken.
    pub(crate) fn mend(&self) {
        let mut state = self.state();
        state.capacity = u64::MAX;
        state.broken = false;
        state.breaks_in = None;
        state.read_only = false;
        state.sync = Sync::Honest;
        state.slow = false;
    }

    /// The content as a process reads it.
    pub(crate) fn content(&self) -> Files {
        self.files(|file| &file.seen)
    }

    /// How large all files are together.
    pub(crate) fn used(&self) -> u64 {
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

    /// Writes what fits, if the disk takes writes.
    fn write(&mut self, name: &str, write: Write) -> io::Result<()> {
        match &mut self.breaks_in {
            Some(0) => self.broken = true,
            Some(left) => *left -= 1,
            None => {}
        }
        self.works()?;
        if self.read_only || (self.bad_data && name == DATA) {
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
    pub(crate) fn exists(&self, name: &str) -> bool {
        self.state().files.contains_key(name)
    }

    /// Makes a file if it is not there.
    pub(crate) fn open_file(&self, name: &str, writes: bool) -> io::Result<()> {
        let mut state = self.state();
        if writes && state.read_only {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if writes {
            state.files.entry(name.to_owned()).or_default();
        }
        Ok(())
    }

    pub(crate) fn delete(&self, name: &str) -> io::Result<()> {
        let gone = self.state().files.remove(name);
        gone.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(crate) fn len(&self, name: &str) -> u64 {
        self.state().files.get(name).map_or(0, |file| file.seen.len() as u64)
    }

    /// What is behind the end of the file is zero, and an error.
    pub(crate) fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = offset as usize;
        let state = self.hang_while(self.state(), |state| state.hangs == Some(Hang::Reads));
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

    pub(crate) fn set_len(&self, name: &str, length: u64) -> io::Result<()> {
        self.state().write(name, Write::Length(length as usize))
    }

    pub(crate) fn write(&self, name: &str, offset: u64, data: &[u8]) -> io::Result<()> {
        self.state().write(name, Write::Bytes { offset: offset as usize, data: data.to_vec() })
    }

    pub(crate) fn sync(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.synced_by = thread::current().name().unwrap_or_default().to_owned();
        let hangs = |state: &State| match state.hangs {
            None | Some(Hang::Reads) => false,
            Some(Hang::All) => true,
            Some(Hang::Data) => name == DATA,
        };
        state = self.hang_while(state, hangs);
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

    /// Waits until the disk no longer hangs in this way.
    fn hang_while<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        hangs: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        if hangs(&state) {
            state.is_hanging = true;
            self.0.hanging.notify_all();
            state = self.0.hanging.wait_while(state, |state| hangs(state)).unwrap();
            state.is_hanging = false;
        }
        state
    }
}
