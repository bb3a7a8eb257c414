use std::collections::BTreeMap;
use std::marker::PhantomData;

use tokio::sync::oneshot;

use super::engine::{Changes, Failure};
use crate::table::{Entry, Table, step};
use keylatch_core::idempotency::{RecordKey, RecordState};
use keylatch_core::lock::{LockName, LockState, Moment, StoreError};

/// Something that waits for the writer.
pub(super) trait Job: Send {
    /// Runs it against the table as the batch would leave it.
    fn stage(&mut self, batch: &mut Batch<'_>);
    /// Answers it once the batch is on disk, or is not.
    fn answer(self: Box<Self>, kept: &Result<(), Failure>);
}

/// What the jobs staged so far would make of the table.
pub(super) struct Batch<'a> {
    pub(super) table: &'a Table,
    pub(super) changes: Changes,
    /// Somebody wants to know whether writing works.
    pub(super) probing: bool,
    /// Somebody wants the file to be made smaller.
    pub(super) tidying: bool,
}

/// What is kept on disk as well: a lock or a record.
pub(super) trait Durable: Entry<Key: Send> + Send + 'static {
    /// What a batch makes of those that it changes.
    fn changed(changes: &mut Changes) -> &mut BTreeMap<Self::Key, Self>;
    /// Whether the disk says the same of both: who is in line is nothing that outlives the process.
    fn is_written_as(&self, other: &Self) -> bool;
}

impl Durable for LockState {
    fn changed(changes: &mut Changes) -> &mut BTreeMap<LockName, Self> {
        &mut changes.locks
    }

    fn is_written_as(&self, other: &Self) -> bool {
        self.record() == other.record()
    }
}

impl Durable for RecordState {
    fn changed(changes: &mut Changes) -> &mut BTreeMap<RecordKey, Self> {
        &mut changes.records
    }

    fn is_written_as(&self, other: &Self) -> bool {
        self == other
    }
}

impl Batch<'_> {
    fn run<E: Durable, O>(&mut self, key: &E::Key, rule: impl FnOnce(&E, &Moment) -> (E, O)) -> O {
        let (state, mut moment) = self.table.look::<E>(key);
        let state = E::changed(&mut self.changes).get(key).unwrap_or(&state).clone();
        let bucket = E::bucket(key);
        let fence = self.changes.fences.get(&bucket).copied().unwrap_or_default();
        moment.last_fence = moment.last_fence.max(fence);
        let step = step(Some(&state), rule, &moment);
        if let Some(after) = step.change {
            let fence = after.fence().unwrap_or_default().max(moment.last_fence);
            self.changes.fences.insert(bucket, fence);
            E::changed(&mut self.changes).insert(key.clone(), after);
        }
        step.outcome
    }

    fn forget<E: Durable>(&mut self, key: &E::Key) {
        let (state, moment) = self.table.look::<E>(key);
        let changed = E::changed(&mut self.changes);
        let state = changed.get(key).unwrap_or(&state);
        if state.is_stale(moment.now) {
            let live = state.live(&moment);
            changed.insert(key.clone(), live);
        }
    }
}

pub(super) struct Run<E: Durable, O, F> {
    pub(super) key: E::Key,
    pub(super) rule: F,
    pub(super) state: PhantomData<E>,
    pub(super) outcome: Option<O>,
    pub(super) answer: oneshot::Sender<Result<O, StoreError>>,
}

impl<E, O, F> Job for Run<E, O, F>
where
    E: Durable,
    O: Send,
    F: Fn(&E, &Moment) -> (E, O) + Send,
{
    fn stage(&mut self, batch: &mut Batch<'_>) {
        self.outcome = Some(batch.run(&self.key, &self.rule));
    }

    fn answer(self: Box<Self>, kept: &Result<(), Failure>) {
        let staged = self.outcome.ok_or_else(|| StoreError::Refused("it was not tried".into()));
        send(self.answer, kept, staged);
    }
}

pub(super) struct Forget<E: Durable> {
    pub(super) keys: Vec<E::Key>,
    pub(super) answer: oneshot::Sender<Result<(), StoreError>>,
}

impl<E: Durable> Job for Forget<E> {
    fn stage(&mut self, batch: &mut Batch<'_>) {
        for key in &self.keys {
            batch.forget::<E>(key);
        }
    }

    fn answer(self: Box<Self>, kept: &Result<(), Failure>) {
        send(self.answer, kept, Ok(()));
    }
}

pub(super) struct Tidy {
    pub(super) answer: oneshot::Sender<Result<(), StoreError>>,
}

impl Job for Tidy {
    fn stage(&mut self, batch: &mut Batch<'_>) {
        batch.tidying = true;
    }

    fn answer(self: Box<Self>, kept: &Result<(), Failure>) {
        send(self.answer, kept, Ok(()));
    }
}

pub(super) struct Probe {
    pub(super) writes: bool,
    pub(super) answer: oneshot::Sender<Result<(), StoreError>>,
}

impl Job for Probe {
    fn stage(&mut self, batch: &mut Batch<'_>) {
        batch.probing |= self.writes;
    }

    fn answer(self: Box<Self>, kept: &Result<(), Failure>) {
        send(self.answer, kept, Ok(()));
    }
}

/// Tells whoever asked; one who no longer listens is not missed.
fn send<T>(
    answer: oneshot::Sender<Result<T, StoreError>>,
    kept: &Result<(), Failure>,
    staged: Result<T, StoreError>,
) {
    let result = match kept {
        Ok(()) => staged,
        Err(Failure::NotKept(error)) => Err(StoreError::Refused(error.clone().into())),
        Err(Failure::InDoubt(error)) => Err(StoreError::Lost(error.clone().into())),
    };
    drop(answer.send(result));
}
