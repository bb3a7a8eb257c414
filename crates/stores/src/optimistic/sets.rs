//! The task that runs the steps on several locks at once: one batch under way, which carries all
//! that wait.
//!
//! The rows of all locks that the steps of a batch are on are read together, the steps are taken
//! one after the other, and what came of them is written together or not at all. So each step is
//! atomic, and 200 waiting sets on ten locks keep their entries with one write of ten rows. To the
//! task of the single locks (`worker.rs`) this one is as another process: the versions of the rows
//! decide between them, and it says there which rows it wrote, so that waiters and watchers here
//! hear of it. A batch that met another change has its locks to itself within this process
//! (`reserved.rs`).
//!
//! Invariants: a row that a step depends on is compared in the write that carries the step out,
//! changed or not; a step that changes nothing is answered only from rows that were read after it
//! came; a lost answer is unknown for every step of its batch. The conformance of sets and the fake
//! engine's tests hold it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keylatch_core::entry::{Entry as _, Few, Found};
use keylatch_core::lock::{
    FencingToken, LockCommand, LockName, LockReply, LockSet, LockState, Moment,
};
use keylatch_core::retry::random_part_of;
use keylatch_core::store::StoreError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use super::call::{encode, shared, within_limit};
use super::clock::EngineClock;
use super::conditional::{
    Change, ConditionalStore, EngineTime, Guard, Key, Mark, Notice, ReadReply, TOGETHER, Version,
};
use super::floor::Floors;
use super::reserved::ReservedLocks;
use super::value::{Draft, Kind, StepTraits, Value};
use crate::hints::LocalHints;

/// How many steps the task takes at once.
const ARRIVALS: usize = 1024;
/// From how many conflicts in a row on the task rests before the next try.
const RESTS_FROM: u32 = 2;
/// For how many tries at once a batch has its locks to itself within this process.
const RESERVED_TRIES: u32 = 8;
/// How often the rest doubles with further conflicts, so that of many processes one gets through.
const DOUBLINGS: u32 = 4;

/// A step whose caller waits for the reply.
#[derive(Debug)]
pub(super) struct PendingSet {
    pub(super) names: LockSet,
    pub(super) command: LockCommand,
    pub(super) reply: oneshot::Sender<Result<LockReply, StoreError>>,
}

impl PendingSet {
    /// Whether it lets others have the locks: such a step rests for a quarter of the time.
    fn frees(&self) -> bool {
        matches!(self.command, LockCommand::Release { .. } | LockCommand::Withdraw { .. })
    }
}

/// The task's state.
#[derive(Debug)]
pub(super) struct SetWorker {
    engine: Arc<dyn ConditionalStore>,
    hints: Arc<LocalHints>,
    clock: EngineClock,
    /// Hears which rows were written.
    written: mpsc::UnboundedSender<Notice>,
    /// How often a write met that of another process.
    met: Arc<AtomicU64>,
    /// The locks that the task of the single locks leaves alone.
    reserved: Arc<ReservedLocks>,
}

/// What became of a try.
enum Try {
    /// It is carried out, or there was nothing to carry out.
    Done(Vec<LockReply>),
    /// Another process changed a row, or the engine's clock judges in another way.
    Conflict,
}

/// Rows as they were read together.
struct Rows {
    values: BTreeMap<LockName, (Option<Version>, Value<LockState>)>,
    floors: Floors,
    /// What the engine's clock showed then.
    read_at: EngineTime,
}

/// What the steps of a batch come to.
struct SetDecision {
    replies: Vec<LockReply>,
    changes: Vec<Change>,
    /// The locks that change, and as what.
    after: Vec<(LockName, LockState)>,
}

impl SetWorker {
    pub(super) fn new(
        engine: Arc<dyn ConditionalStore>,
        (hints, met, reserved): (Arc<LocalHints>, Arc<AtomicU64>, Arc<ReservedLocks>),
        written: mpsc::UnboundedSender<Notice>,
    ) -> Self {
        Self { engine, hints, clock: EngineClock::default(), written, met, reserved }
    }

    /// Runs until the store is dropped.
    pub(super) async fn run(mut self, mut arrivals: mpsc::Receiver<PendingSet>) {
        let mut waiting = VecDeque::new();
        let (mut most, mut conflicts) = (usize::MAX, 0_u32);
        while gather(&mut arrivals, &mut waiting).await {
            let taken = that_fit_together(&waiting).min(most);
            let batch = waiting.make_contiguous().get(..taken).unwrap_or_default();
            if batch.is_empty() {
                self.reserved.release();
                continue;
            }
            match self.carry_out(batch).await {
                Ok(Try::Done(replies)) => {
                    for (waiting, reply) in waiting.drain(..taken).zip(replies) {
                        // A caller that has gone reads no reply.
                        let _ = waiting.reply.send(Ok(reply));
                    }
                }
                Ok(Try::Conflict) => {
                    conflicts += 1;
                    self.meet(batch, conflicts).await;
                    continue;
                }
                // Some of the steps may fit.
                Err(StoreError::TooLarge { .. }) if taken > 1 => {
                    most = taken / 2;
                    continue;
                }
                Err(error) => {
                    let error = Arc::new(error);
                    for waiting in waiting.drain(..taken) {
                        let _ = waiting.reply.send(Err(shared(&error)));
                    }
                }
            }
            self.reserved.release();
            (most, conflicts) = (usize::MAX, 0);
        }
    }

    /// Has the next try of a batch meet no call of this process, and after some conflicts none of
    /// other processes.
    async fn meet(&self, batch: &[PendingSet], conflicts: u32) {
        self.met.fetch_add(1, Ordering::Relaxed);
        if conflicts.is_multiple_of(RESERVED_TRIES) {
            self.reserved.release();
        } else {
            self.reserved.reserve(names_of(batch));
        }
        if let Some(doublings) = conflicts.checked_sub(RESTS_FROM) {
            let rest = self.clock.round_trip() * (2 << doublings.min(DOUBLINGS));
            let is_urgent = batch.iter().any(PendingSet::frees);
            sleep(random_part_of(if is_urgent { rest / 4 } else { rest })).await;
        }
    }

    /// Tries to carry out all steps of a batch together.
    async fn carry_out(&mut self, batch: &[PendingSet]) -> Result<Try, StoreError> {
        let rows = self.read(batch).await?;
        let Some(now) = self.clock.shown(self.engine.timeline()) else {
            return Ok(Try::Conflict);
        };
        let Some(SetDecision { replies, changes, after }) = self.decide(batch, &rows, now)? else {
            return Ok(Try::Conflict);
        };
        if changes.is_empty() {
            return Ok(Try::Done(replies));
        }
        let writing = within_limit(self.engine.write_all(&changes)).await?;
        let versions = writing.versions.iter().copied().collect::<Option<Vec<_>>>();
        let Some(versions) = versions.filter(|versions| versions.len() == changes.len()) else {
            return Ok(Try::Conflict);
        };
        self.clock.note(writing.now, writing.asked);
        for (name, after) in &after {
            if let Some((_, before)) = rows.values.get(name) {
                self.hints.report_ends(name, &before.state, after);
            }
        }
        for (change, version) in changes.into_iter().zip(versions) {
            // Where the task of the single locks has ended, the store is closed.
            let _ = self.written.send(Notice::Changed(change.key, Some(version)));
        }
        Ok(Try::Done(replies))
    }

    /// Reads the rows of all locks of a batch, and the floors of their buckets.
    async fn read(&mut self, batch: &[PendingSet]) -> Result<Rows, StoreError> {
        let names = names_of(batch);
        let buckets: BTreeSet<_> = names.iter().map(|name| name.bucket()).collect();
        let of_names = names.iter().map(|name| LockState::row_key(name));
        let keys: Vec<_> = of_names.chain(buckets.iter().copied().map(Key::Floor)).collect();
        let sent = Instant::now();
        // A read changes nothing, so its steps were not executed.
        let reading = within_limit(self.engine.read(&keys)).await;
        let ReadReply { mut rows, asked, now } =
            reading.map_err(|error| StoreError::Unreachable(error.into()))?;
        if rows.len() != keys.len() {
            return Err(StoreError::Unreachable("the engine left rows out".into()));
        }
        self.clock.note(now, asked);
        let timeline = self.engine.timeline();
        let (of_buckets, mut floors) = (rows.split_off(names.len()), Floors::default());
        let unknown = floors.note(buckets.into_iter().zip(of_buckets), timeline, (now, sent));
        let mut values = BTreeMap::new();
        for (name, row) in names.into_iter().zip(rows) {
            let version = row.as_ref().map(|row| row.version);
            let row = row.or_else(|| unknown.get(&name.bucket()).cloned());
            let value = row.map(|row| Value::decode(&row, timeline)).transpose();
            let value = value.map_err(|error| StoreError::Refused(error.into()))?;
            values.insert(name.clone(), (version, value.unwrap_or_default()));
        }
        Ok(Rows { values, floors, read_at: now })
    }

    /// What the steps come to; `None` where a floor has to be read again.
    fn decide(
        &self,
        batch: &[PendingSet],
        rows: &Rows,
        mut now: EngineTime,
    ) -> Result<Option<SetDecision>, StoreError> {
        while rows.values.values().any(|(_, value)| value.has_stamp_of(now)) {
            now += Duration::from_nanos(1);
        }
        let moment = self.clock.moment(now, self.engine.timeline());
        let mut drafts = BTreeMap::new();
        for (name, (version, value)) in &rows.values {
            let floor = match version {
                // The engine judges, and its clock may be ahead of the floor's age.
                _ if self.engine.forgets() => Some(rows.floors.known(name.bucket())),
                // A row has a fencing token of its own.
                Some(_) => Some(FencingToken::NONE),
                None => rows.floors.of(name.bucket(), now),
            };
            let Some(last_fencing_token) = floor else { return Ok(None) };
            let moment = Moment { last_fencing_token, ..moment };
            drafts.insert(name, value.draft(moment, self.engine.replicates()));
        }
        let mut changed = BTreeSet::new();
        let replies =
            batch.iter().map(|waiting| step(waiting, &mut drafts, &mut changed)).collect();
        // What was not over yet when the rows were read is for the engine's clock to judge, even
        // where no step changes the row.
        let is_judged_ahead = |draft: &Draft<'_, LockState>| draft.guard().from > rows.read_at;
        drafts.retain(|name, draft| changed.contains(*name) || is_judged_ahead(draft));
        let after = drafts.iter().map(|(name, draft)| ((*name).clone(), draft.state.clone()));
        let after = after.collect();
        let changes = drafts.into_iter().map(|(name, draft)| self.change(name, draft, rows));
        let changes = changes.collect::<Result<_, _>>()?;
        Ok(Some(SetDecision { replies, changes, after }))
    }

    fn change(
        &self,
        name: &LockName,
        draft: Draft<'_, LockState>,
        rows: &Rows,
    ) -> Result<Change, StoreError> {
        let (timeline, limit) = (self.engine.timeline(), self.engine.profile().limits.bytes);
        let was = rows.values.get(name).and_then(|(version, _)| *version);
        let mut guard = self.clock.guard(draft.guard());
        let above = was.is_none().then(|| rows.floors.row_of(name.bucket()));
        if was.is_none() && !self.engine.forgets() {
            guard = Guard { until: guard.until.min(rows.floors.lasts(name.bucket())), ..guard };
        }
        let outline = draft.outline();
        let value = encode(&draft.into_value(), timeline, limit)?;
        let (key, mark) = (LockState::row_key(name), Mark::default());
        Ok(Change { key, was, value, mark, guard, above, outline })
    }
}

/// Takes one step, and notes all locks of its set if it changes anything.
fn step<'a>(
    PendingSet { names, command, .. }: &'a PendingSet,
    drafts: &mut BTreeMap<&'a LockName, Draft<'_, LockState>>,
    changed: &mut BTreeSet<&'a LockName>,
) -> LockReply {
    let of_set = names.names().iter().filter_map(|name| drafts.get(name));
    let mut after: Few<_> = of_set.map(|draft| (draft.state.clone(), draft.moment)).collect();
    let found = names.names().iter().zip(&mut after);
    let found = found.map(|(key, (state, moment))| Found { key, state, moment: *moment });
    let reply = LockState::step(&mut found.collect::<Few<_>>(), command);
    let traits = StepTraits::of::<LockState>(command, &reply);
    let mut is_change = false;
    for (name, (after, _)) in names.names().iter().zip(after) {
        if let Some(draft) = drafts.get_mut(name) {
            is_change |= draft.step(after, traits);
        }
    }
    if is_change {
        changed.extend(names.names());
    }
    reply
}

/// Has the steps that came wait with the others, and waits for one where there is none. Whether
/// there may be any.
async fn gather(
    arrivals: &mut mpsc::Receiver<PendingSet>,
    waiting: &mut VecDeque<PendingSet>,
) -> bool {
    let (room, mut arrived) = (ARRIVALS.saturating_sub(waiting.len()), Vec::new());
    if !waiting.is_empty() {
        arrived.extend(std::iter::from_fn(|| arrivals.try_recv().ok()).take(room));
    } else if arrivals.recv_many(&mut arrived, room).await == 0 {
        return false;
    }
    waiting.extend(arrived);
    // Nothing of those whose callers have gone is under way.
    waiting.retain(|waiting| !waiting.reply.is_closed());
    true
}

/// The locks of a batch, each once.
fn names_of<'a>(batch: impl IntoIterator<Item = &'a PendingSet>) -> Vec<&'a LockName> {
    let names: BTreeSet<_> = batch.into_iter().flat_map(|waiting| waiting.names.names()).collect();
    names.into_iter().collect()
}

/// How many of the steps, the first ones, are on no more locks than one write has.
fn that_fit_together(waiting: &VecDeque<PendingSet>) -> usize {
    let (mut names, mut count) = (BTreeSet::new(), 0);
    for waiting in waiting {
        names.extend(waiting.names.names());
        if names.len() > TOGETHER {
            break;
        }
        count += 1;
    }
    count
}
