//! A batch of requests to the writer: each finds the table as those before it in the batch leave
//! it.
//!
//! The rules run here, and nothing is written: what the batch comes to is the table's only when it
//! is on disk. The tests of `batches` hold it.

use std::slice;

use super::row::AgeRow;
use super::tables::BatchChanges;
use crate::table::{Draft, Table, TableEntry, step};
use keylatch_core::entry::{Entry as _, Few};
use keylatch_core::idempotency::{RecordKey, RecordState};
use keylatch_core::lock::{FencingToken, LockName, LockState};
use keylatch_core::store::{Command, Reply};

/// Entries that a sweep has found.
#[derive(Debug, Default)]
pub(super) struct SweptKeys {
    pub(super) locks: Vec<LockName>,
    pub(super) records: Vec<RecordKey>,
    /// Records that have become older.
    pub(super) aged: Vec<RecordKey>,
}

impl SweptKeys {
    pub(super) fn len(&self) -> usize {
        self.locks.len() + self.records.len() + self.aged.len()
    }
}

/// What the requests so far would make of the table.
pub(super) struct Batch<'a> {
    table: &'a Table,
    changes: BatchChanges,
}

impl<'a> Batch<'a> {
    pub(super) fn on(table: &'a Table) -> Self {
        Self { table, changes: BatchChanges::default() }
    }

    pub(super) fn run(&mut self, command: &Command) -> Reply {
        match command {
            Command::Lock(names, command) => {
                Reply::Lock(self.step::<LockState>(names.names(), command))
            }
            Command::Record(key, command) => {
                Reply::Record(self.step::<RecordState>(slice::from_ref(key), command))
            }
        }
    }

    /// All entries of the step change in this batch, or none does: so a crash leaves no part of the
    /// step.
    fn step<E: TableEntry>(&mut self, keys: &[E::Key], command: &E::Command) -> E::Reply {
        let drafts = keys.iter().map(|key| self.draft::<E>(key));
        let mut drafts: Few<_> = drafts.collect();
        let now = drafts.iter().map(|draft| draft.moment.now).max().unwrap_or_default();
        drafts.iter_mut().for_each(|draft| draft.moment.now = now);
        let reply = step(keys, &mut drafts, command);
        for (key, Draft { before, after, moment }) in keys.iter().zip(drafts) {
            if before != after {
                self.change(key, after, moment.last_fencing_token);
            }
        }
        reply
    }

    /// An entry as the requests so far leave it, at the moment at which the next one finds it.
    fn draft<E: TableEntry>(&self, key: &E::Key) -> Draft<E> {
        let (state, mut moment) = self.table.look::<E>(key);
        let state = E::all(&self.changes.entries).get(key).cloned().unwrap_or(state);
        let given = self.changes.fences.get(&E::bucket(key)).copied().unwrap_or_default();
        moment.last_fencing_token = moment.last_fencing_token.max(given);
        Draft::of(state, moment)
    }

    fn change<E: TableEntry>(&mut self, key: &E::Key, after: E, last: FencingToken) {
        let given = after.fencing_token().unwrap_or_default().max(last);
        let given_before = self.changes.fences.entry(E::bucket(key)).or_default();
        *given_before = given.max(*given_before);
        E::all_mut(&mut self.changes.entries).insert(key.clone(), after);
    }

    pub(super) fn sweep(&mut self, swept: &SweptKeys) {
        for name in &swept.locks {
            self.expire::<LockState>(name);
        }
        for key in &swept.records {
            self.expire::<RecordState>(key);
        }
        for key in &swept.aged {
            let (state, moment) = self.table.look::<RecordState>(key);
            self.changes.ages.extend(AgeRow::of(&state, moment.now).map(|age| (*key, age)));
        }
    }

    /// What the batch comes to, and the runs that are no longer the last ones of their records. The
    /// age of a record that the batch changes is of an outcome before.
    pub(super) fn finish(self) -> BatchChanges {
        let mut changes = self.changes;
        changes.ages.retain(|key, _| !changes.entries.records.contains_key(key));
        let last_run = |(key, after): (&RecordKey, &RecordState)| {
            let before = self.table.look::<RecordState>(key).0.fencing_token()?;
            (after.fencing_token() != Some(before)).then_some((*key, before))
        };
        changes.last_runs = changes.entries.records.iter().filter_map(last_run).collect();
        changes
    }

    fn expire<E: TableEntry>(&mut self, key: &E::Key) {
        let (state, moment) = self.table.look::<E>(key);
        let changed = E::all_mut(&mut self.changes.entries);
        let state = changed.get(key).unwrap_or(&state);
        if state.is_stale(&moment) {
            let live = state.live(&moment);
            changed.insert(key.clone(), live);
        }
    }
}
