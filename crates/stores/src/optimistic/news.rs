//! What a worker learns of rows that other processes wrote, and what of it is worth a read.
//!
//! A notice that has the row is as good as a read of it, but for a refusal. One that says whose
//! turn it is costs a read only in the process in which that waiter is, or where the lock is
//! watched. Else the row that is remembered counts as outdated: the next command reads first.
//!
//! Invariants: of an engine that numbers its writes no row is replaced by an older one; what a
//! notice says is taken up only when no call about its key is under way. The fake engine's tests
//! hold both.

use tokio::time::Instant;

use super::conditional::{EngineTime, Notice, Row, Version};
use super::slot::{HeardRow, LastRowState, Slot};
use super::value::{Kind, Value};
use super::worker::{LastRow, Worker};

impl<E: Kind> Worker<E> {
    /// Takes up that another process changed a row, as far as anything here depends on it.
    pub(super) fn hear(&mut self, notice: Notice) {
        let (row_key, version, row, turns) = match notice {
            Notice::Changed(row_key, version) => (row_key, version, None, None),
            Notice::Turns(row_key, version, turns) => (row_key, Some(version), None, Some(turns)),
            Notice::Row(row_key, row) => (row_key, Some(row.version), Some(row), None),
            Notice::Missed => {
                self.remembered.clear();
                self.hints.miss();
                return;
            }
        };
        let Some(key) = E::key_of(&row_key) else { return };
        if !self.is_news(&key, version) {
            return;
        }
        let is_wanted = E::lock_name(&key).is_some_and(|name| match &turns {
            Some(turns) => self.hints.is_for_one_here(name, turns),
            None => self.hints.is_of_interest(name),
        });
        let outdated = match turns {
            _ if is_wanted => LastRowState::Outdated,
            // What waits here hears of its turn.
            Some(_) if self.is_of_interest(&key) => LastRowState::Unwatched,
            _ => LastRowState::Unfollowed,
        };
        let heard = HeardRow { version, row, is_wanted, outdated };
        let is_numbered = self.engine.timeline().is_some();
        let Some(slot) = self.slots.get_mut(&key) else { return self.hear_at_rest(key, heard) };
        if slot.hear(heard, is_numbered) {
            self.to_decide.push_back(key);
        }
    }

    /// Takes up what was heard of a row while neither a command nor a call is about its key.
    fn hear_at_rest(&mut self, key: E::Key, heard: HeardRow) {
        if !heard.is_wanted {
            return self.outdate(&key, heard.outdated);
        }
        if !heard.row.as_ref().is_some_and(|row| self.take_row(&key, row)) {
            self.to_read.push_back(key.clone());
            self.slots.entry(key).or_insert_with(|| Slot::new(Vec::new())).heard = Some(heard);
        }
    }

    /// Takes up what was heard of a row while a call was under way. What has to be read stays
    /// heard.
    pub(super) fn catch_up(&mut self, key: &E::Key) {
        let Some(heard) = self.slots.get_mut(key).and_then(|slot| slot.heard.take()) else {
            return;
        };
        if !self.is_news(key, heard.version)
            || heard.row.as_ref().is_some_and(|row| self.take_row(key, row))
        {
            return;
        }
        self.outdate(key, heard.outdated);
        if let Some(slot) = self.slots.get_mut(key) {
            slot.heard = Some(heard);
        }
    }

    /// Whether a version of a row may be one that this process has not seen.
    fn is_news(&self, key: &E::Key, version: Option<Version>) -> bool {
        let known = self.remembered.peek(key).and_then(|row| row.version);
        match (known, version) {
            (Some(known), Some(version)) if self.engine.timeline().is_some() => known < version,
            (known, Some(version)) => {
                known != Some(version) && !self.own.contains(&(key.clone(), version))
            }
            (_, None) => true,
        }
    }

    /// Whether a version of a row is older than that which is remembered, of an engine that numbers
    /// its writes.
    pub(super) fn is_known_past(&self, key: &E::Key, version: Option<Version>) -> bool {
        let known = self.remembered.peek(key).and_then(|row| row.version);
        self.engine.timeline().is_some() && version.is_some() && version < known
    }

    /// Has the row be read before it is a basis again.
    pub(super) fn outdate(&mut self, key: &E::Key, state: LastRowState) {
        if let Some(row) = self.remembered.peek_mut(key) {
            row.state = row.state.max(state);
        }
    }

    /// Takes a row that another process wrote as if it had been read; whether it can be understood.
    /// It may be older than what was read meanwhile: then a change that is tried from it is
    /// refused.
    fn take_row(&mut self, key: &E::Key, row: &Row) -> bool {
        let (Some(now), Ok(value)) = (self.now(), Value::decode(row, self.engine.timeline()))
        else {
            return false;
        };
        let is_gone = self.engine.forgets() && E::is_empty(&value.state);
        let version = Some(row.version).filter(|_| !is_gone);
        self.learn(key, LastRow::new(version, value, Instant::now()), true, now);
        true
    }

    /// Remembers a row that was read, and tells what it says to waiters and watchers here.
    pub(super) fn learn(
        &mut self,
        key: &E::Key,
        seen: LastRow<E>,
        is_heard: bool,
        now: EngineTime,
    ) {
        let (version, new) = (seen.version, seen.value.clone());
        let old = self.remembered.put(key.clone(), seen);
        if old.as_ref().is_some_and(|old| old.version == version) {
            return;
        }
        match old.as_ref().filter(|old| old.state <= LastRowState::Outdated) {
            Some(old) => self.hints.report(key, &old.value.state, &new.state, now),
            // It changed, and nothing here knows from what.
            None if is_heard => {
                if let Some(name) = E::lock_name(key) {
                    self.hints.report_missed_of(name);
                }
            }
            None => {}
        }
        let old = old.filter(|old| old.state <= LastRowState::Unwatched);
        let before = old.map(|old| old.value.state).unwrap_or_default();
        self.hints.wake(key, &before, &new.live(now));
    }

    pub(super) fn is_of_interest(&self, key: &E::Key) -> bool {
        E::lock_name(key).is_some_and(|name| self.hints.is_of_interest(name))
    }
}
