//! Steps on several keys at once: one batch under way, which carries all that wait.
//!
//! A batch claims its keys: the task begins no other call about one of them, and has the batch read
//! each row once the call that is under way has ended. Then the steps are taken one after the
//! other, and what came of them is written together or not at all. So each step is atomic, and 200
//! waiting sets on ten locks keep their entries with one write of ten rows. A batch that meets
//! changes of other processes over and over lets go of its keys now and then.
//!
//! Invariants: a row that a step depends on is compared in the write that carries the step out,
//! changed or not; a step that changes nothing is answered only from rows that were read after it
//! came; a lost answer is unknown for every step of its batch. The conformance of sets and the fake
//! engine's tests hold it.

use std::collections::hash_map::Entry as SlotEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use keylatch_core::entry::{Entry, Few, Found};
use keylatch_core::lock::Moment;
use keylatch_core::retry::random_part_of;
use keylatch_core::store::StoreError;
use tokio::time::{Instant, sleep};

use super::call::{encode, within_limit};
use super::conditional::{Change, TOGETHER, WriteReply};
use super::slot::{PendingCommand, Progress, SetBatch, SetTurn, Slot, fail};
use super::value::{Draft, Kind};
use super::worker::{Event, Worker, Write};

/// How many batches follow one another before other commands on their keys have a turn.
const IN_A_ROW: u32 = 2;
/// From how many conflicts in a row on a batch rests before the next try.
const RESTS_FROM: u32 = 2;
/// For how many tries at once a batch has its keys to itself within this process.
const CLAIMED_TRIES: u32 = 8;
/// How often the rest doubles with further conflicts, so that of many processes one gets through.
const DOUBLINGS: u32 = 4;

/// What the steps of a batch come to: replies, and a change of each row that has to be written.
type SetDecision<E> = (Vec<<E as Entry>::Reply>, Vec<(Write<E>, Change)>);

impl<E: Kind> Worker<E> {
    /// Begins the next batch where none is under way.
    pub(super) fn start_set(&mut self) {
        if !matches!(self.set, SetTurn::None) {
            return;
        }
        if self.sets.is_empty() || self.sets_in_a_row == IN_A_ROW {
            self.sets_in_a_row = 0;
            return;
        }
        self.sets_in_a_row += 1;
        self.sets.retain(|step| !step.reply.is_closed());
        let count = that_fit_together(&self.sets);
        let steps = self.sets.drain(..count).collect();
        self.claim(SetBatch { steps, keys: BTreeMap::new(), conflicts: 0 });
    }

    /// Claims the keys of a batch, and has those read that no call is about.
    pub(super) fn claim(&mut self, mut batch: SetBatch<E>) {
        // Nothing of those whose callers have gone is under way.
        batch.steps.retain(|step| !step.reply.is_closed());
        if batch.steps.is_empty() {
            return self.end_set(batch, Ok(Vec::new()));
        }
        let keys: BTreeSet<_> = batch.steps.iter().flat_map(|step| step.keys.clone()).collect();
        for key in keys {
            let is_free = match self.slots.entry(key.clone()) {
                SlotEntry::Vacant(slot) => {
                    slot.insert(Slot::new(Vec::new()));
                    true
                }
                SlotEntry::Occupied(mut slot) => {
                    batch.keys.contains_key(&key) || slot.get_mut().wake()
                }
            };
            if is_free {
                self.to_read.push_back(key.clone());
            }
            batch.keys.insert(key, if is_free { Progress::Reading } else { Progress::Busy });
        }
        self.set = SetTurn::Claims(batch);
        self.take_claimed();
    }

    /// Takes the keys of the batch of which no call is under way any more.
    pub(super) fn take_claimed(&mut self) {
        let SetTurn::Claims(batch) = &mut self.set else { return };
        for key in &self.to_read {
            if let Some(progress) = batch.keys.get_mut(key) {
                *progress = Progress::Reading;
            }
        }
        self.to_decide.retain(|key| match batch.keys.get_mut(key) {
            Some(progress @ Progress::Busy) => {
                *progress = Progress::Reading;
                self.to_read.push_back(key.clone());
                false
            }
            Some(progress) => {
                *progress = Progress::Ready;
                false
            }
            None => true,
        });
    }

    /// Whether a row is read for the batch.
    pub(super) fn is_read_for_set(&self, key: &E::Key) -> bool {
        let SetTurn::Claims(batch) = &self.set else { return false };
        batch.keys.get(key) == Some(&Progress::Reading)
    }

    /// Tries to carry out the batch, once all of its rows are read.
    pub(super) fn try_set(&mut self) {
        let batch = match mem::replace(&mut self.set, SetTurn::None) {
            SetTurn::Claims(batch) if batch.keys.values().all(|it| *it == Progress::Ready) => batch,
            other => return self.set = other,
        };
        match self.decide_set(&batch) {
            Some(Ok((replies, changes))) if changes.is_empty() => self.end_set(batch, Ok(replies)),
            Some(Ok((replies, changes))) => self.write_set(batch, replies, changes),
            Some(Err(error)) => self.fail_or_halve(batch, error),
            None => self.claim(batch),
        }
    }

    /// What the steps come to; `None` where a row or a floor has to be read again.
    fn decide_set(&mut self, batch: &SetBatch<E>) -> Option<Result<SetDecision<E>, StoreError>> {
        let mut now = self.now()?;
        let mut bases = BTreeMap::new();
        for key in batch.keys.keys() {
            // It is forgotten where notices were missed since it was read.
            self.remembered.peek(key)?;
            bases.insert(key, self.basis(key, now)?);
        }
        while bases.values().any(|basis| basis.before.has_stamp_of(now)) {
            now += Duration::from_nanos(1);
        }
        let writes_repeated = self.engine.replicates();
        let drafts = bases.iter().map(|(key, basis)| {
            (*key, basis.before.draft(Moment { now, ..basis.moment }, writes_repeated))
        });
        let (mut drafts, mut changed) = (drafts.collect::<BTreeMap<_, _>>(), BTreeSet::new());
        let steps = batch.steps.iter();
        let replies = steps.map(|waiting| step(waiting, &mut drafts, &mut changed)).collect();
        // What was not over yet when the rows were read is for the engine's clock to judge, even
        // where no step changes the row.
        let is_judged_ahead = |key: &E::Key, draft: &Draft<'_, E>| {
            self.slots.get(key).is_some_and(|slot| draft.guard().from > slot.covered.1)
        };
        drafts.retain(|key, draft| changed.contains(*key) || is_judged_ahead(key, draft));
        let drafts = drafts.into_iter().map(|(key, draft)| {
            let decided = (draft.guard(), draft.outline());
            let after = draft.into_value();
            Ok((key, encode(&after, &*self.engine)?, after, decided))
        });
        let drafts = match drafts.collect::<Result<Vec<_>, _>>() {
            Ok(drafts) => drafts,
            Err(error) => return Some(Err(error)),
        };
        let changes = drafts.into_iter().filter_map(|(key, value, after, decided)| {
            Some(self.change_of(key, bases.remove(key)?, (after, value), decided))
        });
        Some(Ok((replies, changes.collect())))
    }

    fn write_set(
        &mut self,
        batch: SetBatch<E>,
        replies: Vec<E::Reply>,
        changes: Vec<(Write<E>, Change)>,
    ) {
        let (writes, changes): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
        let (engine, sent) = (Arc::clone(&self.engine), Instant::now());
        let writing = async move {
            let result = within_limit(engine.write_all(&changes)).await;
            Event::SetWritten { batch, writes, replies, sent, result }
        };
        self.under_way.push(writing.boxed());
        self.set = SetTurn::Away;
    }

    pub(super) fn have_written_set(
        &mut self,
        batch: SetBatch<E>,
        writes: Vec<Write<E>>,
        replies: Vec<E::Reply>,
        (sent, result): (Instant, Result<WriteReply, StoreError>),
    ) {
        let writing = match result {
            Ok(writing) => writing,
            Err(error) => {
                for write in &writes {
                    self.remembered.pop(&write.key);
                }
                return self.fail_or_halve(batch, error);
            }
        };
        self.clock.note(writing.now, writing.asked);
        let versions = writing.versions.iter().copied().collect::<Option<Vec<_>>>();
        let Some(versions) = versions.filter(|versions| versions.len() == writes.len()) else {
            return self.meet_set(batch, &writes);
        };
        for (write, version) in writes.into_iter().zip(versions) {
            self.confirm(write, version, writing.now, sent);
        }
        self.end_set(batch, Ok(replies));
    }

    /// Has the next try of a batch meet no call of this process, and after some conflicts none of
    /// other processes.
    fn meet_set(&mut self, mut batch: SetBatch<E>, writes: &[Write<E>]) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
        for write in writes {
            self.refuse(write);
        }
        batch.conflicts += 1;
        if batch.conflicts.is_multiple_of(CLAIMED_TRIES) {
            self.let_go(mem::take(&mut batch.keys));
        }
        let Some(doublings) = batch.conflicts.checked_sub(RESTS_FROM) else {
            return self.claim(batch);
        };
        let rest = self.clock.round_trip() * (2 << doublings.min(DOUBLINGS));
        let resting = sleep(random_part_of(rest)).map(|()| Event::SetRested(batch));
        self.under_way.push(resting.boxed());
        self.set = SetTurn::Away;
    }

    /// Fails the batch for which a row was to be read.
    pub(super) fn fail_set_of(&mut self, key: &E::Key, error: StoreError) {
        if self.is_read_for_set(key)
            && let SetTurn::Claims(batch) = mem::replace(&mut self.set, SetTurn::None)
        {
            self.end_set(batch, Err(error));
        }
    }

    /// Of steps that are too large together some may fit.
    fn fail_or_halve(&mut self, mut batch: SetBatch<E>, error: StoreError) {
        if !matches!(error, StoreError::TooLarge { .. }) || batch.steps.len() < 2 {
            return self.end_set(batch, Err(error));
        }
        let rest = batch.steps.split_off(batch.steps.len() / 2);
        self.sets.splice(..0, rest);
        self.claim(batch);
    }

    fn end_set(&mut self, batch: SetBatch<E>, result: Result<Vec<E::Reply>, StoreError>) {
        match result {
            Ok(replies) => {
                for (waiting, reply) in batch.steps.into_iter().zip(replies) {
                    // A caller that has gone reads no reply.
                    let _ = waiting.reply.send(Ok(reply));
                }
            }
            Err(error) => fail(batch.steps, &Arc::new(error)),
        }
        self.let_go(batch.keys);
        self.set = SetTurn::None;
    }

    /// Has other commands on these keys decided. A call about one that is not ready is under way,
    /// and ends with that.
    fn let_go(&mut self, keys: BTreeMap<E::Key, Progress>) {
        let ready = keys.into_iter().filter(|(_, progress)| *progress == Progress::Ready);
        self.to_decide.extend(ready.map(|(key, _)| key));
    }
}

/// Takes one step, and notes all of its keys if it changes anything.
fn step<'a, E: Kind>(
    PendingCommand { keys, command, .. }: &'a PendingCommand<E>,
    drafts: &mut BTreeMap<&'a E::Key, Draft<'_, E>>,
    changed: &mut BTreeSet<&'a E::Key>,
) -> E::Reply {
    let of_set = keys.iter().filter_map(|key| drafts.get(key));
    let mut after: Few<_> = of_set.map(|draft| (draft.state.clone(), draft.moment)).collect();
    let found = keys.iter().zip(&mut after);
    let found = found.map(|(key, (state, moment))| Found { key, state, moment: *moment });
    let reply = E::step(&mut found.collect::<Few<_>>(), command);
    let traits = E::traits(command, &reply);
    let mut is_change = false;
    for (key, (after, _)) in keys.iter().zip(after) {
        if let Some(draft) = drafts.get_mut(key) {
            is_change |= draft.step(after, traits);
        }
    }
    if is_change {
        changed.extend(keys);
    }
    reply
}

/// How many of the steps, the first ones, are on no more keys than one write has.
fn that_fit_together<E: Kind>(waiting: &[PendingCommand<E>]) -> usize {
    let mut keys = BTreeSet::new();
    let fit = waiting.iter().take_while(|step| {
        keys.extend(&step.keys);
        keys.len() <= TOGETHER
    });
    fit.count()
}
