//! The task that runs every command of one kind against the engine: the locks', and the records'.
//!
//! A key has one call of the engine under way at a time, which carries all commands that wait for
//! the key; many keys' changes go in one batch, and so do reads. A change is tried from the last
//! row that this process saw, or from none; a command that changes nothing is answered only from a
//! row that was read after the command came. A conflict makes the row be read, unless the engine
//! says what it found in its place; from the second conflict on the task reads after a random
//! pause. A command leaves when its caller has gone, so the callers' deadlines end every try.
//!
//! Invariants: no two calls of the engine are about one key at once, so what this process sees of a
//! key only goes forward; a reply is given when the engine has confirmed the decision that it
//! belongs to; a lost answer is unknown for every command of its batch. The fake engine's tests and
//! the conformance of every engine hold it.

use std::collections::hash_map::Entry as SlotEntry;
use std::collections::{HashMap, VecDeque};
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, FuturesUnordered, StreamExt as _};
use keylatch_core::lock::{FencingToken, Moment};
use keylatch_core::retry::random_part_of;
use keylatch_core::store::StoreError;
use lru::LruCache;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};

use super::call::{encode, within_limit};
use super::clock::EngineClock;
use super::conditional::{
    Change, ConditionalStore, EngineTime, Guard, Key, Mark, Notice, ReadReply, Row, Version,
    WriteReply,
};
use super::floor::Floors;
use super::reserved::ReservedLocks;
use super::slot::{LastRowState, PendingCommand, RestCause, Slot, fail};
use super::value::{Decision, Kind, Value};
use crate::hints::LocalHints;

/// How many keys one call of the engine has at most.
const BATCH: usize = 64;
/// How many reads are under way at once.
const READS: usize = 2;
/// How many rows a process remembers, over all parts of the engine.
const REMEMBERED: usize = 16 * 1024;
/// How many of its writes a process remembers.
const OWN: NonZero<usize> = NonZero::new(4096).unwrap();
/// For how long a row counts as what the engine has. A sweep removes only rows that nothing changed
/// for longer, so a row that is removed is the one that is remembered; an engine that forgets rows
/// [keeps](super::value::ROW_LINGERS) them longer.
const REMEMBERED_FOR: Duration = Duration::from_secs(10);
/// How many commands the task takes at once.
const ARRIVALS: usize = 1024;
/// From how many conflicts in a row on a key rests before the next try.
const RESTS_FROM: u32 = 2;

/// A value as the engine is to keep it, or why it cannot.
type EncodedRow = Result<Vec<u8>, StoreError>;

pub(super) struct Worker<E: Kind> {
    pub(super) engine: Arc<dyn ConditionalStore>,
    pub(super) hints: Arc<LocalHints>,
    clock: EngineClock,
    floors: Floors,
    /// The keys that have commands, or a call under way.
    pub(super) slots: HashMap<E::Key, Slot<E>>,
    /// The keys whose commands are to be decided from what is remembered.
    pub(super) to_decide: VecDeque<E::Key>,
    pub(super) to_read: VecDeque<E::Key>,
    pub(super) remembered: LruCache<E::Key, LastRow<E>>,
    /// What this process wrote of late of locks that something here waits for or watches, where the
    /// engine does not number its writes: a notice of it may come after the next write.
    pub(super) own: LruCache<(E::Key, Version), ()>,
    /// How often a write met that of another process.
    conflicts: Arc<AtomicU64>,
    /// The locks that no call is to be begun on, and those of them that wait for one.
    reserved: Arc<ReservedLocks>,
    parked: Vec<E::Key>,
    under_way: FuturesUnordered<BoxFuture<'static, Event<E>>>,
    reads: usize,
    writes: usize,
}

/// A row as this process saw it last.
#[derive(Debug)]
pub(super) struct LastRow<E> {
    pub(super) version: Option<Version>,
    pub(super) value: Value<E>,
    pub(super) seen: Instant,
    pub(super) state: LastRowState,
}

impl<E> LastRow<E> {
    /// A row as the engine had it at `seen`.
    pub(super) fn new(version: Option<Version>, value: Value<E>, seen: Instant) -> Self {
        Self { version, value, seen, state: LastRowState::Current }
    }
}

/// A change that is under way, and what depends on it.
struct Write<E: Kind> {
    key: E::Key,
    commands: Vec<PendingCommand<E>>,
    replies: Vec<E::Reply>,
    before: Value<E>,
    after: Value<E>,
    /// There was no row, so that the floor of the bucket counts.
    is_new: bool,
    /// There is no row afterwards, since nothing is in it.
    is_gone: bool,
}

struct ReadKey<E: Kind> {
    key: E::Key,
    /// How many commands waited for it when the read began.
    covered: usize,
    /// Another process changed it.
    is_heard: bool,
}

struct Basis<E> {
    version: Option<Version>,
    before: Value<E>,
    /// When the decision is made, above the floor of the bucket.
    moment: Moment,
    /// Until when the floor holds.
    until: EngineTime,
}

enum Step<E: Kind> {
    Write(Box<(Write<E>, Change)>),
    Read,
    Nothing,
}

enum Event<E: Kind> {
    /// Rows were read, each for so many commands; the floors come after them.
    Read {
        keys: Vec<ReadKey<E>>,
        floors: Vec<u8>,
        sent: Instant,
        result: Result<ReadReply, StoreError>,
    },
    Written {
        writes: Vec<Write<E>>,
        sent: Instant,
        result: Result<WriteReply, StoreError>,
    },
    Rested(E::Key),
    TimedOut(E::Key),
}

impl<E: Kind> Worker<E> {
    pub(super) fn new(
        (engine, hints, conflicts): (Arc<dyn ConditionalStore>, Arc<LocalHints>, Arc<AtomicU64>),
        reserved: Arc<ReservedLocks>,
    ) -> Self {
        let remembered = NonZero::new(REMEMBERED / engine.parts()).unwrap_or(NonZero::<usize>::MIN);
        Self {
            engine,
            hints,
            clock: EngineClock::default(),
            floors: Floors::default(),
            slots: HashMap::new(),
            to_decide: VecDeque::new(),
            to_read: VecDeque::new(),
            remembered: LruCache::new(remembered),
            own: LruCache::new(OWN),
            conflicts,
            reserved,
            parked: Vec::new(),
            under_way: FuturesUnordered::new(),
            reads: 0,
            writes: 0,
        }
    }

    /// Runs until the store is dropped.
    pub(super) async fn run(
        mut self,
        mut arrivals: mpsc::Receiver<PendingCommand<E>>,
        mut notices: BoxStream<'static, Notice>,
    ) {
        let mut arrived = Vec::new();
        loop {
            // Commands that are on their way to this task go with those that are here.
            yield_now().await;
            self.start();
            tokio::select! {
                biased;
                Some(event) = self.under_way.next() => self.finish(event),
                () = self.reserved.released() => self.to_decide.extend(self.parked.drain(..)),
                Some(notice) = notices.next() => self.hear(notice),
                count = arrivals.recv_many(&mut arrived, ARRIVALS) => {
                    if count == 0 {
                        return;
                    }
                    arrived.drain(..).for_each(|waiting| self.receive(waiting));
                }
            }
        }
    }

    fn receive(&mut self, waiting: PendingCommand<E>) {
        match self.slots.entry(waiting.key.clone()) {
            SlotEntry::Occupied(mut slot) => {
                slot.get_mut().waiting.push(waiting);
                if slot.get_mut().wake() {
                    self.to_decide.push_back(slot.key().clone());
                }
            }
            SlotEntry::Vacant(slot) => {
                self.to_decide.push_back(waiting.key.clone());
                slot.insert(Slot::new(vec![waiting]));
            }
        }
    }

    /// Has keys wait on which no call is to be begun now.
    fn park(&mut self) {
        let reserved = self.reserved.names();
        if reserved.is_empty() {
            return;
        }
        let is_reserved =
            |key: &E::Key| E::lock_name(key).is_some_and(|name| reserved.contains(name));
        for keys in [&mut self.to_decide, &mut self.to_read] {
            self.parked.extend(keys.iter().filter(|key| is_reserved(key)).cloned());
            keys.retain(|key| !is_reserved(key));
        }
    }

    /// Begins as many calls as may be under way.
    fn start(&mut self) {
        self.park();
        while self.writes < self.engine.writes_at_once() && !self.to_decide.is_empty() {
            let (mut writes, mut changes) = (Vec::new(), Vec::new());
            while changes.len() < BATCH
                && let Some(key) = self.to_decide.pop_front()
            {
                match self.decide(&key) {
                    Step::Write(decided) => {
                        let (write, change) = *decided;
                        writes.push(write);
                        changes.push(change);
                    }
                    Step::Read => self.to_read.push_back(key),
                    Step::Nothing => {}
                }
            }
            if !changes.is_empty() {
                self.write(writes, changes);
            }
        }
        while self.reads < READS && !self.to_read.is_empty() {
            self.read();
        }
    }

    /// Decides what waits for a key from the row that is remembered.
    fn decide(&mut self, key: &E::Key) -> Step<E> {
        let Some(slot) = self.slots.get_mut(key) else { return Step::Nothing };
        slot.forget_the_gone();
        let (is_idle, has_heard) = (slot.waiting.is_empty(), slot.heard.is_some());
        if has_heard {
            self.catch_up(key);
        }
        if is_idle {
            return self.leave(key);
        }
        if has_heard && self.slots.get(key).is_some_and(|slot| slot.heard.is_some()) {
            return Step::Read;
        }
        match self.basis(key) {
            Some(basis) => self.decide_from(key, basis),
            None => Step::Read,
        }
    }

    fn decide_from(&mut self, key: &E::Key, basis: Basis<E>) -> Step<E> {
        let Basis { version, before, moment, until } = basis;
        let Some(slot) = self.slots.get_mut(key) else { return Step::Nothing };
        let (taken, decision, value) =
            decide_what_fits(&before, key, &slot.waiting, moment, &*self.engine);
        if self.rests(key, &before, &decision) {
            return Step::Nothing;
        }
        let Decision { replies, change, guard, outline, .. } = decision;
        let Some((after, value)) = change.zip(value) else {
            return self.answer_covered(key, replies, guard.from);
        };
        if self.engine.forgets() {
            self.floors.give(E::bucket(key), after.last);
        }
        let guard = self.clock.guard(Guard { until: guard.until.min(until), ..guard });
        let Some(slot) = self.slots.get_mut(key) else { return Step::Nothing };
        let above = version.is_none().then(|| self.floors.row_of(E::bucket(key)));
        let commands = slot.waiting.drain(..taken).collect();
        slot.covered = (0, Duration::ZERO);
        match value {
            Ok(value) => {
                let mark = Mark { was: before.state.is_marked(), is: after.state.is_marked() };
                let (row_key, was, key) = (E::row_key(key), version, key.clone());
                let is_new = version.is_none();
                let is_gone = self.engine.forgets() && outline.lasts.is_zero();
                let change = Change { key: row_key, was, value, mark, guard, above, outline };
                let write = Write { key, commands, replies, before, after, is_new, is_gone };
                Step::Write(Box::new((write, change)))
            }
            Err(error) => {
                fail(commands, &Arc::new(error));
                self.to_decide.push_back(key.clone());
                Step::Nothing
            }
        }
    }

    /// Whether the commands of a key rest before the decision is made again and written.
    fn rests(&mut self, key: &E::Key, before: &Value<E>, decision: &Decision<E>) -> bool {
        let (Some(slot), Some(after)) = (self.slots.get_mut(key), &decision.change) else {
            return false;
        };
        let cause = if decision.only_joins {
            RestCause::Joins
        } else if self.hints.waits_for_turn(key, &before.state, &after.state) {
            if !slot.has_called() {
                // Its command is decided with these, and its grant written with them.
                self.hints.wake(key, &before.state, &after.state);
            }
            RestCause::Call
        } else {
            return false;
        };
        let (rests, timer) = slot.rest(cause);
        if let Some(timer) = timer {
            let key = key.clone();
            self.under_way.push(sleep_until(timer).map(|()| Event::TimedOut(key)).boxed());
        }
        rests
    }

    /// What is left to do for a key that has no command.
    fn leave(&mut self, key: &E::Key) -> Step<E> {
        let heard = self.slots.get(key).and_then(|slot| slot.heard.as_ref());
        if heard.is_some_and(|heard| heard.is_wanted) && self.is_of_interest(key) {
            return Step::Read;
        }
        self.slots.remove(key);
        Step::Nothing
    }

    /// What the engine's clock shows now; `None` before it was read.
    pub(super) fn now(&mut self) -> Option<EngineTime> {
        self.clock.shown(self.engine.timeline())
    }

    /// What is known of a key; `None` where something has to be read first.
    fn basis(&mut self, key: &E::Key) -> Option<Basis<E>> {
        let now = self.now()?;
        let row = self.remembered.get(key).filter(|row| row.seen.elapsed() < REMEMBERED_FOR);
        if row.is_some_and(|row| row.state != LastRowState::Current) {
            return None;
        }
        let forgets = self.engine.forgets();
        let (version, before) = match row {
            Some(row) => (row.version, row.value.clone()),
            None => {
                // What was read is forgotten, because another process changed it since.
                if let Some(slot) = self.slots.get_mut(key) {
                    slot.covered = (0, Duration::ZERO);
                }
                (None, Value::default())
            }
        };
        // A row has a fencing token of its own.
        let (last_fencing_token, until) = match version {
            _ if forgets => (self.floors.known(E::bucket(key)), Duration::MAX),
            Some(_) => (FencingToken::NONE, Duration::MAX),
            None => (self.floors.of(E::bucket(key), now)?, self.floors.lasts(E::bucket(key))),
        };
        let moment = self.clock.moment(now, self.engine.timeline());
        let moment = Moment { last_fencing_token, ..moment };
        Some(Basis { version, before, moment, until })
    }

    /// Answers the commands that came before the row was read, where none changes anything.
    fn answer_covered(
        &mut self,
        key: &E::Key,
        replies: Vec<E::Reply>,
        judged_past: EngineTime,
    ) -> Step<E> {
        let Some(slot) = self.slots.get_mut(key) else { return Step::Nothing };
        let (covered, read_at) = std::mem::take(&mut slot.covered);
        // By the engine's clock it was not over yet when the row was read.
        let covered = if judged_past > read_at { 0 } else { covered.min(replies.len()) };
        for (waiting, reply) in slot.waiting.drain(..covered).zip(replies) {
            // A caller that has gone reads no reply.
            let _ = waiting.reply.send(Ok(reply));
        }
        if slot.waiting.is_empty() && slot.heard.is_none() {
            self.slots.remove(key);
            return Step::Nothing;
        }
        Step::Read
    }

    fn write(&mut self, writes: Vec<Write<E>>, changes: Vec<Change>) {
        let (engine, sent) = (Arc::clone(&self.engine), Instant::now());
        self.writes += 1;
        let writing = async move {
            let result = within_limit(engine.write(&changes)).await;
            Event::Written { writes, sent, result }
        };
        self.under_way.push(writing.boxed());
    }

    /// Reads the rows of keys that wait for it, and the floors that they need.
    fn read(&mut self) {
        let count = self.to_read.len().min(BATCH);
        let mut keys = Vec::with_capacity(count);
        for key in self.to_read.drain(..count) {
            if let Some(slot) = self.slots.get_mut(&key) {
                slot.forget_the_gone();
                let is_heard = slot.heard.take().is_some();
                keys.push(ReadKey { key, covered: slot.waiting.len(), is_heard });
            }
        }
        let now = self.now().unwrap_or_default();
        let buckets = keys.iter().map(|read| E::bucket(&read.key));
        let floors = if self.engine.forgets() {
            self.floors.refused(buckets)
        } else {
            self.floors.to_read(buckets, now)
        };
        let rows = keys.iter().map(|read| E::row_key(&read.key));
        let rows: Vec<Key> = rows.chain(floors.iter().copied().map(Key::Floor)).collect();
        let (engine, sent) = (Arc::clone(&self.engine), Instant::now());
        self.reads += 1;
        // No command is answered from what is read because of a notice, and a change of it names
        // its version.
        let is_peek = floors.is_empty() && keys.iter().all(|read| read.covered == 0);
        let reading = async move {
            let reading = if is_peek { engine.peek(&rows) } else { engine.read(&rows) };
            // A key that no row came for would have no call under way and none to come.
            let result = within_limit(reading).await.and_then(|reading| {
                let is_whole = reading.rows.len() == rows.len();
                let incomplete = || StoreError::Lost("the engine left rows out".into());
                is_whole.then_some(reading).ok_or_else(incomplete)
            });
            Event::Read { keys, floors, sent, result }
        };
        self.under_way.push(reading.boxed());
    }

    fn finish(&mut self, event: Event<E>) {
        match event {
            Event::Rested(key) => self.to_read.push_back(key),
            Event::TimedOut(key) => {
                if self.slots.get_mut(&key).is_some_and(Slot::time_out) {
                    self.to_decide.push_back(key);
                }
            }
            Event::Read { keys, floors, sent, result } => {
                self.reads -= 1;
                match result {
                    Ok(reading) => self.have_read(keys, &floors, sent, reading),
                    // A read changes nothing, so its commands were not executed.
                    Err(error) => {
                        self.fail_covered(keys, &Arc::new(StoreError::Unreachable(error.into())));
                    }
                }
            }
            Event::Written { writes, sent, result } => {
                self.writes -= 1;
                match result {
                    Ok(writing) => self.have_written(writes, sent, writing),
                    Err(error) => self.fail_writes(writes, &Arc::new(error)),
                }
            }
        }
    }

    fn have_read(
        &mut self,
        keys: Vec<ReadKey<E>>,
        floors: &[u8],
        sent: Instant,
        reading: ReadReply,
    ) {
        self.clock.note(reading.now, reading.asked);
        let mut rows = reading.rows;
        let floors = floors.iter().copied().zip(rows.split_off(keys.len().min(rows.len())));
        let unknown = self.floors.note(floors, self.engine.timeline(), (reading.now, sent));
        for (key, row) in keys.into_iter().zip(rows) {
            let row = row.or_else(|| unknown.get(&E::bucket(&key.key)).cloned());
            self.have_row(key, row, (reading.now, sent));
        }
    }

    /// Takes the row of a key as the engine had it at `now`, by a request of `sent`.
    fn have_row(&mut self, read: ReadKey<E>, row: Option<Row>, (now, sent): (EngineTime, Instant)) {
        let ReadKey { key, covered, is_heard } = read;
        let version = row.as_ref().map(|row| row.version);
        let value = row.map(|row| Value::decode(&row, self.engine.timeline())).transpose();
        match value.map(Option::unwrap_or_default) {
            // A peek that is behind what this process knows.
            Ok(_) if covered == 0 && self.is_known_past(&key, version) => {}
            Ok(value) => {
                self.learn(&key, LastRow::new(version, value, sent), is_heard, now);
                if let Some(slot) = self.slots.get_mut(&key) {
                    slot.covered = (covered, now);
                }
            }
            Err(error) => {
                let slot = self.slots.get_mut(&key);
                let commands = slot.map(|slot| std::mem::take(&mut slot.waiting));
                let error = Arc::new(StoreError::Refused(error.into()));
                fail(commands.unwrap_or_default(), &error);
            }
        }
        self.to_decide.push_back(key);
    }

    fn have_written(&mut self, writes: Vec<Write<E>>, sent: Instant, writing: WriteReply) {
        self.clock.note(writing.now, writing.asked);
        let mut failed: HashMap<_, _> = writing.failed.into_iter().collect();
        let mut found: HashMap<_, _> = writing.found.into_iter().collect();
        let mut versions = writing.versions.into_iter();
        for (position, write) in writes.into_iter().enumerate() {
            let version = versions.next().flatten();
            if let Some(error) = failed.remove(&position) {
                self.fail_writes(vec![write], &Arc::new(error));
            } else if let Some(version) = version {
                self.confirm(write, version, writing.now, sent);
            } else if let Some(row) = found.remove(&position) {
                self.meet_row(write, row, (writing.now, sent));
            } else {
                self.meet_conflict(write);
            }
        }
    }

    /// Gives the replies of a change that the engine has carried out.
    fn confirm(&mut self, write: Write<E>, version: Version, now: EngineTime, sent: Instant) {
        let Write { key, commands, replies, before, mut after, is_gone, .. } = write;
        for (waiting, reply) in commands.into_iter().zip(replies) {
            // A caller that has gone reads no reply.
            let _ = waiting.reply.send(Ok(reply));
        }
        self.hints.report(&key, &before.state, &after.state, now);
        self.hints.report_ends(&key, &before.state, &after.state);
        self.hints.wake(&key, &before.state, &after.live(now));
        if self.engine.timeline().is_some() {
            after.settle(version);
        } else if self.is_of_interest(&key) {
            self.own.put((key.clone(), version), ());
        }
        let row = Some(version).filter(|_| !is_gone);
        let seen = LastRow::new(row, after, sent);
        self.remembered.put(key.clone(), seen);
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.succeed(version, self.engine.timeline().is_some());
        }
        self.to_decide.push_back(key);
    }

    /// Decides again from the row that a change found in the place of its own, as if it had been
    /// read.
    fn meet_row(&mut self, write: Write<E>, row: Option<Row>, at: (EngineTime, Instant)) {
        let (covered, version) = (write.commands.len(), row.as_ref().map(|row| row.version));
        let (key, slot) = self.reclaim(write);
        if slot.conflicts >= RESTS_FROM {
            return self.rest(key);
        }
        let is_heard = slot.heard.take_if(|heard| heard.version == version).is_some();
        self.have_row(ReadKey { key, covered, is_heard }, row, at);
    }

    /// Has a row read that another process changed, or that the engine's clock judges in another
    /// way.
    fn meet_conflict(&mut self, write: Write<E>) {
        self.outdate(&write.key, LastRowState::Outdated);
        if write.is_new {
            self.floors.forget(E::bucket(&write.key));
        }
        self.floors.refuse(E::bucket(&write.key));
        let (key, slot) = self.reclaim(write);
        if slot.conflicts >= RESTS_FROM {
            self.rest(key);
        } else if slot.heard.as_ref().is_some_and(|heard| heard.row.is_some()) {
            self.to_decide.push_back(key);
        } else {
            self.to_read.push_back(key);
        }
    }

    /// Has the commands of a change that was not carried out wait before those that came since.
    fn reclaim(&mut self, write: Write<E>) -> (E::Key, &mut Slot<E>) {
        let Write { key, commands, .. } = write;
        let slot = self.slots.entry(key.clone()).or_insert_with(|| Slot::new(Vec::new()));
        slot.conflicts += 1;
        self.conflicts.fetch_add(1, Ordering::Relaxed);
        let newer = std::mem::replace(&mut slot.waiting, commands);
        slot.waiting.extend(newer);
        (key, slot)
    }

    /// Reads the row of a key after a random pause.
    fn rest(&mut self, key: E::Key) {
        let rest = random_part_of(self.clock.round_trip() * 2);
        self.under_way.push(sleep(rest).map(|()| Event::Rested(key)).boxed());
    }

    fn fail_writes(&mut self, writes: Vec<Write<E>>, error: &Arc<StoreError>) {
        for Write { key, commands, .. } in writes {
            self.remembered.pop(&key);
            fail(commands, error);
            self.to_decide.push_back(key);
        }
    }

    fn fail_covered(&mut self, keys: Vec<ReadKey<E>>, error: &Arc<StoreError>) {
        for ReadKey { key, covered, .. } in keys {
            if let Some(slot) = self.slots.get_mut(&key) {
                let covered = covered.min(slot.waiting.len());
                fail(slot.waiting.drain(..covered).collect(), error);
            }
            self.to_decide.push_back(key);
        }
    }
}

/// Decides the first of the commands that wait, as many as fit into a row: how many, what they come
/// to, and the new row if there is one.
fn decide_what_fits<E: Kind>(
    before: &Value<E>,
    key: &E::Key,
    waiting: &[PendingCommand<E>],
    moment: Moment,
    engine: &dyn ConditionalStore,
) -> (usize, Decision<E>, Option<EncodedRow>) {
    let (timeline, limit) = (engine.timeline(), engine.profile().limits.bytes);
    let mut taken = waiting.len();
    loop {
        let commands = waiting[..taken].iter().map(|waiting| &waiting.command);
        let decision = before.decide(key, commands, moment, engine.replicates());
        match decision.change.as_ref().map(|after| encode(after, timeline, limit)) {
            Some(Err(StoreError::TooLarge { .. })) if taken > 1 => taken /= 2,
            value => return (taken, decision, value),
        }
    }
}
