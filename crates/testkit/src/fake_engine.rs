//! An engine of conditional writes in memory, which does all that the contract lets an engine do.
//!
//! Calls take their time, and overtake each other. By its [`Faults`] the engine refuses changes
//! that it could make, loses the answer of a batch that it carried out, carries a batch out after
//! it answered that the answer was lost, and loses, repeats and delays notices. Its clock may be
//! moved, set back and stopped, and it may have none. It may [forget](FakeEngine::forgetful) rows
//! by itself, as Redis does, fail to replicate what clients rely on, and have
//! [parts](FakeEngine::of_parts). A seed decides all of it. Clones are one engine: each store over
//! a clone is a process, whose wall clock is its own.

mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use keylatch_core::store::{EntryLimits, StoreError, StoreHealth, StoreProfile, Tier};
use keylatch_stores::conditional::{
    Change, ConditionalStore, Key, Listing, Notice, ReadReply, Removal, Row, TOGETHER, Timeline,
    Version, WriteReply,
};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use self::state::{Clock, State};
use crate::Dice;

/// How many notices wait for a store that is slow.
const BACKLOG: usize = 256;
/// How long after its answer a late batch is carried out, at most, in milliseconds.
const LATE_MILLIS: u64 = 4000;

/// How often an engine does what, in a thousand, and how far it goes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// A call takes up to so many milliseconds on its way, and as many back.
    pub delay_millis: u64,
    /// A change is refused that could be made.
    pub conflict: u64,
    /// A batch is carried out, and its answer is lost.
    pub lost_answer: u64,
    /// A batch is lost on its way, as its answer is.
    pub lost_batch: u64,
    /// A batch is carried out after its answer was given up.
    pub late: u64,
    /// A read fails.
    pub failed_read: u64,
    /// A peek finds a row as it was before it was written last.
    pub stale_peek: u64,
    /// A notice is lost.
    pub lost_notice: u64,
    /// A notice comes twice.
    pub repeated_notice: u64,
    /// What a client relies on is carried out, and may not be replicated. Of an engine that
    /// forgets.
    pub unreplicated: u64,
    /// The wall clocks of the processes are up to so many seconds behind.
    pub behind_seconds: u64,
    /// Every notice names the waiters whose turn comes, as those of PostgreSQL do.
    pub names_turns: bool,
}

impl Faults {
    /// What costs a store time and changes no answer.
    pub const HARMLESS: Self = Self {
        delay_millis: 0,
        conflict: 150,
        repeated_notice: 100,
        lost_answer: 0,
        lost_batch: 0,
        late: 0,
        failed_read: 0,
        stale_peek: 0,
        lost_notice: 0,
        unreplicated: 0,
        behind_seconds: 0,
        names_turns: false,
    };
}

/// An engine in memory.
#[derive(Debug)]
pub struct FakeEngine {
    engine: Arc<Engine>,
    /// Of the process that has this clone, if the engine has no clock.
    timeline: Option<Arc<Timeline>>,
    limits: EntryLimits,
}

impl Clone for FakeEngine {
    fn clone(&self) -> Self {
        let timeline = self.timeline.as_ref().map(|_| self.engine.timeline());
        Self { engine: Arc::clone(&self.engine), timeline, limits: self.limits }
    }
}

#[derive(Debug)]
struct Engine {
    faults: Faults,
    /// Into how many parts the buckets fall, if it forgets rows by itself.
    forgetful: Option<usize>,
    state: Mutex<State>,
    notices: broadcast::Sender<Notice>,
    hold: watch::Sender<Hold>,
}

/// What is carried out as a whole or not at all.
#[derive(Debug, Clone, Copy)]
enum Unit {
    Change,
    Batch,
}

/// What becomes of a batch that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    No,
    /// The next one waits.
    Next,
    /// One waits.
    One,
}

impl FakeEngine {
    /// An empty engine; it has to be made within a tokio runtime.
    pub fn new(faults: Faults, seed: u64) -> Self {
        Self::of_nature(faults, seed, None)
    }

    /// An empty engine that removes rows by itself, and has other machines copy what clients rely
    /// on.
    pub fn forgetful(faults: Faults, seed: u64) -> Self {
        Self::of_nature(faults, seed, Some(1))
    }

    /// The same whose buckets fall into so many parts, and which writes no rows together.
    pub fn of_parts(parts: usize, faults: Faults, seed: u64) -> Self {
        Self::of_nature(faults, seed, Some(parts))
    }

    fn of_nature(faults: Faults, seed: u64, forgetful: Option<usize>) -> Self {
        let shown = SystemTime::UNIX_EPOCH.elapsed().expect("a clock after 1970");
        let clock = Clock { shown, since: Instant::now(), is_stopped: false };
        let state = State {
            dice: Dice(seed),
            rows: BTreeMap::new(),
            before: BTreeMap::new(),
            marked: BTreeSet::new(),
            kept_until: BTreeMap::new(),
            given: BTreeMap::new(),
            looks: 0,
            last_version: 0,
            batches: 0,
            clock,
            is_cut_off: false,
        };
        let notices = broadcast::Sender::new(BACKLOG);
        let (state, hold) = (Mutex::new(state), watch::Sender::new(Hold::No));
        let engine = Arc::new(Engine { faults, forgetful, state, notices, hold });
        Self { engine, timeline: None, limits: EntryLimits::NONE }
    }

    /// An empty engine that has no clock.
    pub fn without_clock(faults: Faults, seed: u64) -> Self {
        let Self { engine, .. } = Self::new(faults, seed);
        let timeline = Some(engine.timeline());
        Self { engine, timeline, limits: EntryLimits::NONE }
    }

    /// The engine, which takes no value of more bytes than this.
    pub fn with_limit(self, bytes: usize) -> Self {
        Self { limits: EntryLimits { bytes, ..EntryLimits::NONE }, ..self }
    }

    /// Moves the engine's clock forward.
    pub fn advance(&self, by: Duration) {
        let mut state = self.engine.state();
        let now = state.clock.now();
        state.clock.set(now + by);
    }

    /// Sets the engine's clock back.
    pub fn set_back(&self, by: Duration) {
        let mut state = self.engine.state();
        let now = state.clock.now();
        state.clock.set(now - by);
    }

    /// Stops the engine's clock, or lets it run again.
    pub fn stop_clock(&self, is_stopped: bool) {
        let mut state = self.engine.state();
        let now = state.clock.now();
        state.clock.set(now);
        state.clock.is_stopped = is_stopped;
    }

    fn note(&self, notice: Notice) -> Notice {
        if let Some(timeline) = &self.timeline {
            match &notice {
                Notice::Changed(_, Some(version)) | Notice::Turns(_, version, _) => {
                    timeline.note(*version);
                }
                Notice::Row(_, row) => timeline.note(row.version),
                _ => {}
            }
        }
        notice
    }

    /// Lets no call arrive any more, or lets them arrive again.
    pub fn cut_off(&self, is_cut_off: bool) {
        self.engine.state().is_cut_off = is_cut_off;
    }

    /// Lets the next batch that arrives wait until [`Self::release_batch`].
    pub fn hold_next_batch(&self) {
        self.engine.hold.send_replace(Hold::Next);
    }

    /// Carries the batch out that waits, whether or not its caller does.
    pub fn release_batch(&self) {
        self.engine.hold.send_replace(Hold::No);
    }

    /// Another process, whose wall clock is behind.
    pub fn process_behind(&self, by: Duration) -> Self {
        let timeline = Some(Arc::new(Timeline::of_wall_clock_behind(by)));
        Self { engine: Arc::clone(&self.engine), timeline, limits: self.limits }
    }

    /// How many batches were carried out.
    pub fn batches(&self) -> u64 {
        self.engine.state().batches
    }

    /// How many rows and marks were read or listed.
    pub fn looks(&self) -> u64 {
        self.engine.state().looks
    }

    /// How many rows are marked.
    pub fn marked_rows(&self) -> usize {
        self.engine.state().marked.len()
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.engine.state().rows.len()
    }
}

impl FakeEngine {
    async fn write_as(&self, changes: &[Change], unit: Unit) -> Result<WriteReply, StoreError> {
        let (engine, asked) = (&*self.engine, Instant::now());
        engine.reach()?;
        engine.travel().await;
        if engine.happens(engine.faults.lost_batch) {
            return Err(lost("a batch"));
        }
        let has_clock = self.timeline.is_none();
        if engine.happens(engine.faults.late) {
            let (engine, changes) = (Arc::clone(&self.engine), changes.to_vec());
            tokio::spawn(async move {
                sleep(engine.part_of(LATE_MILLIS)).await;
                engine.carry_out(&changes, unit, asked, has_clock);
            });
            return Err(lost("sight of a batch"));
        }
        let is_held = engine.hold.send_if_modified(|hold| {
            let is_next = *hold == Hold::Next;
            *hold = if is_next { Hold::One } else { *hold };
            is_next
        });
        let (mut writing, revision) = if is_held {
            let (engine, changes) = (Arc::clone(&self.engine), changes.to_vec());
            let later = tokio::spawn(async move {
                // The engine itself keeps the sender.
                let _ = engine.hold.subscribe().wait_for(|hold| *hold == Hold::No).await;
                engine.carry_out(&changes, unit, asked, has_clock)
            });
            later.await.map_err(|error| StoreError::Lost(error.into()))?
        } else {
            engine.carry_out(changes, unit, asked, has_clock)
        };
        if engine.happens(engine.faults.lost_answer) {
            return Err(lost("an answer"));
        }
        engine.travel().await;
        if let Some(timeline) = &self.timeline {
            writing.now = timeline.note_answer(revision, asked);
        }
        Ok(writing)
    }
}

impl Engine {
    /// Without the rows that it has forgotten by now.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.forgetful.is_some() {
            state.forget();
        }
        state
    }

    /// All keys of a call are of one part.
    fn check_part<'a>(&self, mut keys: impl Iterator<Item = &'a Key>) {
        let part = |key: &Key| usize::from(key.bucket()) % self.forgetful.unwrap_or(1);
        let first = keys.next().map(part);
        assert!(keys.all(|key| Some(part(key)) == first), "a call is about several parts");
    }

    /// Whether it happens this time.
    fn happens(&self, in_a_thousand: u64) -> bool {
        self.state().dice.below(1000) < in_a_thousand
    }

    /// A part of `millis`, in microseconds.
    fn part_of(&self, millis: u64) -> Duration {
        Duration::from_micros(self.state().dice.below(millis * 1000 + 1))
    }

    /// The timeline of a process.
    fn timeline(&self) -> Arc<Timeline> {
        let mut state = self.state();
        let behind = Duration::from_secs(state.dice.below(self.faults.behind_seconds + 1));
        Arc::new(Timeline::of_wall_clock_behind(behind))
    }

    fn reach(&self) -> Result<(), StoreError> {
        let cut = || StoreError::Unreachable("the fake engine is cut off".into());
        if self.state().is_cut_off { Err(cut()) } else { Ok(()) }
    }

    async fn travel(&self) {
        let delay = self.part_of(self.faults.delay_millis);
        if delay.is_zero() { tokio::task::yield_now().await } else { sleep(delay).await }
    }

    fn carry_out(
        &self,
        changes: &[Change],
        unit: Unit,
        asked: Instant,
        has_clock: bool,
    ) -> (WriteReply, Version) {
        let mut state = self.state();
        state.batches += 1;
        let now = state.clock.now();
        let (mut versions, mut failed, mut found) = (Vec::new(), Vec::new(), Vec::new());
        let units = match unit {
            Unit::Change => changes.chunks(1),
            Unit::Batch => changes.chunks(changes.len().max(1)),
        };
        for unit in units {
            let is_refused = state.dice.below(1000) < self.faults.conflict;
            let may = unit.iter().all(|change| self.may_carry_out(&state, change, has_clock));
            for change in unit {
                if is_refused || !may {
                    let row = state.row(&change.key, false);
                    let is_other = row.as_ref().map(|row| row.version) != change.was;
                    if self.forgetful.is_some() && is_other {
                        found.push((versions.len(), row));
                    }
                    versions.push(None);
                    continue;
                }
                let version = self.write(&mut state, change, has_clock);
                let is_copied = state.dice.below(1000) >= self.faults.unreplicated;
                if change.outline.is_promise && !is_copied {
                    failed.push((versions.len(), lost("sight of the replicas")));
                }
                versions.push(Some(version));
            }
        }
        let revision = Version(state.last_version);
        (WriteReply { versions, failed, found, asked, now }, revision)
    }

    fn may_carry_out(&self, state: &State, change: &Change, has_clock: bool) -> bool {
        match self.forgetful {
            Some(_) => state.may_carry_out_strictly(change),
            None => state.may_carry_out(change, has_clock),
        }
    }

    /// Writes a row, and says so.
    fn write(&self, state: &mut State, change: &Change, has_clock: bool) -> Version {
        let version = state.write(change, has_clock);
        let mut notice = Notice::Changed(change.key.clone(), Some(version));
        if self.forgetful.is_some() {
            if let Some(given) = change.outline.given {
                let last = state.given.entry(change.key.bucket()).or_default();
                *last = given.max(*last);
            }
            state.kept_until.insert(change.key.to_bytes(), change.outline.lasts);
        }
        match state.dice.below(3) {
            _ if self.faults.names_turns => {
                notice = Notice::Turns(change.key.clone(), version, change.outline.turns.clone());
            }
            0 if self.forgetful.is_some() || !has_clock => {
                let row = Row { version, value: change.value.clone() };
                notice = Notice::Row(change.key.clone(), row);
            }
            1 => {
                notice = Notice::Turns(change.key.clone(), version, change.outline.turns.clone());
            }
            _ => {}
        }
        // Without a store there is no receiver.
        let _ = self.notices.send(notice);
        version
    }
}

#[expect(clippy::disallowed_methods, reason = "an engine takes its time")]
async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

fn lost(what: &str) -> StoreError {
    StoreError::Lost(format!("the fake engine lost {what}").into())
}

#[async_trait]
impl ConditionalStore for FakeEngine {
    async fn read(&self, keys: &[Key]) -> Result<ReadReply, StoreError> {
        let (engine, asked) = (&*self.engine, Instant::now());
        engine.check_part(keys.iter());
        engine.reach()?;
        engine.travel().await;
        if engine.happens(engine.faults.failed_read) {
            return Err(lost("a read"));
        }
        let (mut reading, revision) = {
            let mut state = engine.state();
            state.looks += keys.len() as u64;
            let rows = keys.iter().map(|key| state.row(key, engine.forgetful.is_some()));
            let reading = ReadReply { rows: rows.collect(), asked, now: state.clock.now() };
            (reading, Version(state.last_version))
        };
        engine.travel().await;
        if let Some(timeline) = &self.timeline {
            reading.now = timeline.note_answer(revision, asked);
        }
        Ok(reading)
    }

    async fn peek(&self, keys: &[Key]) -> Result<ReadReply, StoreError> {
        let (engine, asked) = (&*self.engine, Instant::now());
        engine.reach()?;
        engine.travel().await;
        let (rows, now) = {
            let mut state = engine.state();
            state.looks += keys.len() as u64;
            let rows = keys.iter().map(|key| {
                let before = state.before.get(&key.to_bytes()).cloned();
                let is_behind =
                    before.is_some() && state.dice.below(1000) < engine.faults.stale_peek;
                if is_behind { before } else { state.row(key, engine.forgetful.is_some()) }
            });
            (rows.collect(), state.clock.now())
        };
        engine.travel().await;
        let now = self.timeline.as_ref().map_or(now, |timeline| timeline.now());
        Ok(ReadReply { rows, asked, now })
    }

    async fn write(&self, changes: &[Change]) -> Result<WriteReply, StoreError> {
        self.engine.check_part(changes.iter().map(|change| &change.key));
        self.write_as(changes, Unit::Change).await
    }

    async fn write_all(&self, changes: &[Change]) -> Result<WriteReply, StoreError> {
        assert!(changes.len() <= TOGETHER, "{} changes together", changes.len());
        assert!(self.parts() == 1, "it writes no rows together");
        let mut writing = self.write_as(changes, Unit::Batch).await?;
        match writing.failed.pop() {
            Some((_, error)) => Err(error),
            None => Ok(writing),
        }
    }

    async fn list(
        &self,
        prefix: &[u8],
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Listing, StoreError> {
        let (engine, asked) = (&*self.engine, Instant::now());
        engine.travel().await;
        let mut state = engine.state();
        let from = match after.map(Key::to_bytes) {
            Some(after) if after.as_slice() >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix.to_vec()),
        };
        let rows = state.rows.range((from, Bound::Unbounded));
        let rows = rows.take_while(|(key, _)| key.starts_with(prefix)).take(limit);
        let rows = rows.filter_map(|(key, row)| Some((Key::from_bytes(key)?, row.clone())));
        let rows: Vec<_> = rows.collect();
        state.looks += rows.len() as u64;
        let revision = Version(state.last_version);
        let noted = self.timeline.as_ref().map(|timeline| timeline.note_answer(revision, asked));
        Ok(Listing { rows, now: noted.unwrap_or_else(|| state.clock.now()) })
    }

    async fn remove(&self, rows: &[Removal]) -> Result<(), StoreError> {
        let engine = &*self.engine;
        engine.travel().await;
        let mut state = engine.state();
        for Removal { key, version, is_marked } in rows {
            let key = key.to_bytes();
            if state.rows.get(&key).is_some_and(|row| row.version == *version) {
                state.rows.remove(&key);
                if *is_marked {
                    state.marked.remove(&key);
                }
            }
        }
        Ok(())
    }

    async fn marked(&self, after: Option<&Key>, limit: usize) -> Result<Vec<Key>, StoreError> {
        let engine = &*self.engine;
        engine.travel().await;
        if engine.happens(engine.faults.failed_read) {
            return Err(lost("a read"));
        }
        let mut state = engine.state();
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.to_bytes()));
        let keys = state.marked.range((from, Bound::Unbounded)).take(limit);
        let keys: Vec<_> = keys.filter_map(|key| Key::from_bytes(key)).collect();
        state.looks += keys.len() as u64;
        Ok(keys)
    }

    fn notices(&self) -> BoxStream<'static, Notice> {
        // The notices are of the same process.
        let engine = Self {
            engine: Arc::clone(&self.engine),
            timeline: self.timeline.clone(),
            limits: self.limits,
        };
        let start = (engine, self.engine.notices.subscribe(), None);
        stream::unfold(start, async |(engine, mut receiver, again)| {
            if let Some(notice) = again {
                return Some((notice, (engine, receiver, None)));
            }
            loop {
                let notice = match receiver.recv().await {
                    Ok(_) if engine.engine.happens(engine.engine.faults.lost_notice) => continue,
                    Ok(notice) => engine.note(notice),
                    Err(broadcast::error::RecvError::Lagged(_)) => Notice::Missed,
                    Err(broadcast::error::RecvError::Closed) => return None,
                };
                let is_repeated = engine.engine.happens(engine.engine.faults.repeated_notice);
                let again = is_repeated.then(|| notice.clone());
                return Some((notice, (engine, receiver, again)));
            }
        })
        .boxed()
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        Ok(StoreHealth {
            id: None,
            tier: Tier::Process,
            facts: BTreeMap::new(),
            advice: Vec::new(),
            is_full: false,
        })
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("fake", self.limits)
    }

    fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_deref()
    }

    fn forgets(&self) -> bool {
        self.engine.forgetful.is_some()
    }

    fn replicates(&self) -> bool {
        self.engine.forgetful.is_some()
    }

    fn writes_at_once(&self) -> usize {
        match (&self.timeline, self.forgets()) {
            (Some(_), _) => 4,
            // As many as Redis, and they overtake each other.
            (None, true) => 2,
            (None, false) => 1,
        }
    }

    fn parts(&self) -> usize {
        self.engine.forgetful.unwrap_or(1)
    }
}
