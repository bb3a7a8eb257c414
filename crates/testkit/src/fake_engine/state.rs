//! What the fake engine keeps: its rows, its clock, and what decides its faults.
//!
//! Every call of the engine is one look at this state or one change of it, under one lock, so what
//! the engine does is atomic however long a call is on its way.

use std::collections::{BTreeMap, BTreeSet};

use keylatch_core::lock::FencingToken;
use keylatch_stores::conditional::{Change, EngineTime, Key, Mark, Row, Version};
use keylatch_stores::floor_row;
use tokio::time::Instant;

use crate::Dice;

#[derive(Debug)]
pub(super) struct State {
    pub(super) dice: Dice,
    pub(super) rows: BTreeMap<Vec<u8>, Row>,
    /// What rows were before they were written last.
    pub(super) before: BTreeMap<Vec<u8>, Row>,
    pub(super) marked: BTreeSet<Vec<u8>>,
    /// Until when a row is kept, and the last fencing token of each bucket, where it forgets rows
    /// by itself.
    pub(super) kept_until: BTreeMap<Vec<u8>, EngineTime>,
    pub(super) given: BTreeMap<u8, FencingToken>,
    /// How many rows, or marks, were handed out.
    pub(super) looks: u64,
    pub(super) last_version: u128,
    pub(super) batches: u64,
    pub(super) clock: Clock,
    /// No call arrives.
    pub(super) is_cut_off: bool,
}

/// Shows the time since 1970, and what a test did to it.
#[derive(Debug)]
pub(super) struct Clock {
    /// What it showed at `since`.
    pub(super) shown: EngineTime,
    pub(super) since: Instant,
    pub(super) is_stopped: bool,
}

impl Clock {
    pub(super) fn now(&self) -> EngineTime {
        if self.is_stopped { self.shown } else { self.shown + self.since.elapsed() }
    }

    pub(super) fn set(&mut self, shown: EngineTime) {
        (self.shown, self.since) = (shown, Instant::now());
    }
}

impl State {
    /// Forgets the rows that nothing is in any more.
    pub(super) fn forget(&mut self) {
        let now = self.clock.now();
        let Self { kept_until, rows, marked, .. } = self;
        kept_until.retain(|key, until| {
            let is_kept = *until > now;
            if !is_kept {
                rows.remove(key);
                marked.remove(key);
            }
            is_kept
        });
    }

    /// The row of a key; of a floor what is known of its bucket.
    pub(super) fn row(&self, key: &Key, is_forgetful: bool) -> Option<Row> {
        match key {
            Key::Floor(bucket) if is_forgetful => {
                self.given.get(bucket).and_then(|last| floor_row(*last).ok())
            }
            _ => self.rows.get(&key.to_bytes()).cloned(),
        }
    }

    pub(super) fn may_carry_out_strictly(&self, change: &Change) -> bool {
        let found = self.rows.get(&change.key.to_bytes()).map(|row| row.version);
        let last = self.given.get(&change.key.bucket()).copied().unwrap_or_default();
        let is_above = change.outline.given.is_none_or(|given| given > last);
        found == change.was && change.guard.allows(self.clock.now()) && is_above
    }

    pub(super) fn may_carry_out(&self, change: &Change, has_clock: bool) -> bool {
        let now = self.clock.now();
        let found = self.rows.get(&change.key.to_bytes()).map(|row| row.version);
        // A row that was removed may be written as if it were there.
        let is_as_named = found == change.was || (has_clock && found.is_none());
        is_as_named && if has_clock { change.guard.allows(now) } else { self.is_above(change) }
    }

    pub(super) fn write(&mut self, change: &Change, has_clock: bool) -> Version {
        let key = change.key.to_bytes();
        self.last_version += 1;
        let version = Version(self.last_version);
        self.mark(&key, change.mark, has_clock);
        let before = self.rows.insert(key.clone(), Row { version, value: change.value.clone() });
        self.before.extend(before.map(|before| (key, before)));
        version
    }

    /// Writes down that a row is marked: as it is from now on, or, as an engine of many nodes does,
    /// only what changes.
    pub(super) fn mark(&mut self, key: &[u8], mark: Mark, is_absolute: bool) {
        if mark.is && (is_absolute || !mark.was) {
            self.marked.insert(key.to_vec());
        } else if !mark.is && (is_absolute || mark.was) {
            self.marked.remove(key);
        }
    }

    /// Whether the floor of a new row is the one that the change names.
    pub(super) fn is_above(&self, change: &Change) -> bool {
        change.above.as_ref().is_none_or(|(floor, version)| {
            self.rows.get(&floor.to_bytes()).map(|row| row.version) == *version
        })
    }
}
