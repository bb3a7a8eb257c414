//! What is under way for a key, and what waits for it.
//!
//! A decision rests where nothing is lost by it. One that only adds and keeps queue entries behind
//! others rests for [`JOINS_REST`], so that it goes with the next write of the row, in place of a
//! write of its own that meets another instance's. One by which the turn of a waiter of this
//! process comes rests for [`CALL_REST`], so that the waiter's grant goes with the release. Each
//! command that comes meanwhile has all of them decided again.
//!
//! Invariant: a slot that rests has no call under way, and a timer that ends its rest. The tests in
//! `tests/stores/contention.rs` count what rests save.

use std::sync::Arc;
use std::time::Duration;

use keylatch_core::store::StoreError;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::call::shared;
use super::conditional::{EngineTime, Row, Version};
use super::value::Kind;

/// How long queue entries behind others wait for a write that takes them along.
const JOINS_REST: Duration = Duration::from_millis(20);
/// How long a release waits for the command of the waiter of this process that is next.
const CALL_REST: Duration = Duration::from_millis(2);

/// A command whose caller waits for the reply.
#[derive(Debug)]
pub(super) struct PendingCommand<E: Kind> {
    pub(super) key: E::Key,
    pub(super) command: E::Command,
    pub(super) reply: oneshot::Sender<Result<E::Reply, StoreError>>,
}

/// What is under way for a key, and what waits for it.
#[derive(Debug)]
pub(super) struct Slot<E: Kind> {
    pub(super) waiting: Vec<PendingCommand<E>>,
    /// How many of them came before the row was read, and what the engine's clock showed then.
    pub(super) covered: (usize, EngineTime),
    pub(super) conflicts: u32,
    /// What the row became while a call was under way, perhaps by that call.
    pub(super) heard: Option<HeardRow>,
    /// Until when the commands rest. No call is under way then.
    resting: Option<Instant>,
    /// When the timer of the earliest end of a rest fires.
    timer: Option<Instant>,
    /// Until when the queue entries rest since the last write.
    joins_rest: Option<Instant>,
    /// Until when the waiter that was called is waited for since the last write.
    call_rest: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct HeardRow {
    /// Its version, if the notice says which.
    pub(super) version: Option<Version>,
    pub(super) row: Option<Row>,
    /// Whether anything in this process depends on it.
    pub(super) is_wanted: bool,
    /// What the row that is remembered counts as from now on.
    pub(super) outdated: LastRowState,
}

/// Whether a row is still what the engine has, as far as this process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LastRowState {
    Current,
    /// Another process has changed it.
    Outdated,
    /// Other processes may have changed it several times. By none of the changes came the turn of a
    /// waiter of this process.
    Unwatched,
    /// Other processes may have changed it several times.
    Unfollowed,
}

/// Why a decision may rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RestCause {
    /// It only adds and keeps queue entries behind others.
    Joins,
    /// The turn of a waiter of this process comes by it.
    Call,
}

impl<E: Kind> Slot<E> {
    pub(super) fn new(waiting: Vec<PendingCommand<E>>) -> Self {
        Self {
            waiting,
            covered: (0, Duration::ZERO),
            conflicts: 0,
            heard: None,
            resting: None,
            timer: None,
            joins_rest: None,
            call_rest: None,
        }
    }

    /// Whether the waiter that is next was called since the last write.
    pub(super) fn has_called(&self) -> bool {
        self.call_rest.is_some()
    }

    /// Has the commands rest, unless they did for as long as they may. Whether they do, and when a
    /// timer has to fire for it.
    pub(super) fn rest(&mut self, cause: RestCause) -> (bool, Option<Instant>) {
        let now = Instant::now();
        let until = match cause {
            RestCause::Joins => *self.joins_rest.get_or_insert(now + JOINS_REST),
            RestCause::Call => *self.call_rest.get_or_insert(now + CALL_REST),
        };
        if until <= now {
            return (false, None);
        }
        // What is decided after the rest is not decided from what was read before it.
        self.covered = (0, Duration::ZERO);
        self.resting = Some(until);
        let is_timed = self.timer.is_some_and(|timer| timer <= until);
        self.timer = if is_timed { self.timer } else { Some(until) };
        (true, Some(until).filter(|_| !is_timed))
    }

    /// Ends the rest. Whether there was one: the slot has to be decided or read then.
    pub(super) fn wake(&mut self) -> bool {
        self.resting.take().is_some()
    }

    /// Takes note of a timer that fired. Whether the rest is over by it.
    pub(super) fn time_out(&mut self) -> bool {
        let now = Instant::now();
        self.timer = self.timer.filter(|timer| *timer > now);
        self.resting.is_some() && self.wake()
    }

    /// Takes note of what was heard of the row: the latest, where the engine numbers its writes.
    /// Where it does not, a row that comes during a call may be older than what the call finds.
    /// Whether the slot rested.
    pub(super) fn hear(&mut self, heard: HeardRow, is_numbered: bool) -> bool {
        let is_wanted = heard.is_wanted || self.heard.as_ref().is_some_and(|old| old.is_wanted);
        let is_older = |old: &HeardRow| {
            is_numbered && heard.version.is_some_and(|version| old.version > Some(version))
        };
        let outdated =
            self.heard.as_ref().map_or(heard.outdated, |old| heard.outdated.max(old.outdated));
        let latest = self.heard.take().filter(is_older).unwrap_or(heard);
        let row = latest.row.filter(|_| is_numbered);
        self.heard = Some(HeardRow { version: latest.version, row, is_wanted, outdated });
        self.wake()
    }

    /// A change of the row was carried out.
    pub(super) fn succeed(&mut self, version: Version, is_numbered: bool) {
        self.conflicts = 0;
        let is_past = |heard: Version| heard == version || is_numbered && heard < version;
        self.heard.take_if(|heard| heard.version.is_some_and(is_past));
        (self.joins_rest, self.call_rest) = (None, None);
    }

    /// Leaves out the commands whose callers have gone: nothing of them is under way.
    pub(super) fn forget_the_gone(&mut self) {
        let (covered, _) = &mut self.covered;
        let before = *covered;
        let mut position = 0;
        self.waiting.retain(|waiting| {
            let is_gone = waiting.reply.is_closed();
            if is_gone && position < before {
                *covered -= 1;
            }
            position += 1;
            !is_gone
        });
    }
}

pub(super) fn fail<E: Kind>(commands: Vec<PendingCommand<E>>, error: &Arc<StoreError>) {
    for waiting in commands {
        // A caller that has gone reads no error.
        let _ = waiting.reply.send(Err(shared(error)));
    }
}
