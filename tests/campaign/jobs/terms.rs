//! The judge of an election: a pure function from what commands noted and machines said.
//!
//! Goal: no two machines lead at a time, and the next one leads as soon as it may.
//!
//! Method: a machine that says twice that it leads, under one fencing token, has led in between.
//! Leaders are compared with those of higher fencing tokens. `guilt.rs` tests the judge on a
//! history for each violation.

use std::time::Duration;

use super::TTL;
use super::ledger::{Note, Step};
use super::machine::Fault;

/// By how much a time that was noted may be wrong, twice.
const PRECISION: Duration = Duration::from_millis(20);
/// How long it may take from the end of a lease to the begin of the next leader's command.
const GRACE: Duration = Duration::from_millis(1500);

/// What happened in an election.
#[derive(Debug, Clone)]
pub(super) struct History {
    pub(super) notes: Vec<Note>,
    /// The fencing tokens of those that began while another one ran.
    pub(super) overlaps: Vec<u64>,
    pub(super) said: Vec<Saying>,
    /// How leaders came to their end, and when.
    pub(super) ways: Vec<(Note, Duration, Fault)>,
    /// When leases began again with the service, in order: elections share one.
    pub(super) restarts: Vec<Duration>,
    /// How much longer anything may take, because the machine of the test is late.
    pub(super) late: Duration,
}

/// A machine has said that it leads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Saying {
    pub(super) fencing_token: u64,
    /// When it was asked, and when its response was read.
    pub(super) sent: Duration,
    pub(super) read: Duration,
}

impl History {
    /// How many have led, if no two did at a time.
    pub(super) fn judge(&self) -> Result<usize, String> {
        self.tokens()
            .and_then(|()| self.commands())
            .and_then(|()| self.sayings())
            .and_then(|()| self.ways.iter().try_for_each(|way| self.next(way)))
            .map(|()| self.terms().count())
            .map_err(|guilt| format!("{guilt}: {self:#?}"))
    }

    fn tokens(&self) -> Result<(), String> {
        let tokens = self.terms().map(|note| note.fencing_token);
        let rise = tokens.is_sorted_by(|one, next| one < next);
        if rise { Ok(()) } else { guilty("a leader has the fencing token of an earlier one") }
    }

    /// Two commands run at once only where the earlier machine slept through the end of its lease.
    fn commands(&self) -> Result<(), String> {
        let slept = |later: &u64| {
            let slept = |(note, _, way): &(Note, Duration, Fault)| {
                *way == Fault::Pause && note.fencing_token < *later
            };
            self.ways.iter().any(slept)
        };
        if self.overlaps.iter().all(slept) { Ok(()) } else { guilty("two commands ran at once") }
    }

    /// None says that it leads once a later leader has said so.
    fn sayings(&self) -> Result<(), String> {
        let overlap = self.said.iter().find(|later| {
            let earlier = self.said.iter().filter(|one| one.fencing_token < later.fencing_token);
            earlier.map(|one| one.sent).max() > Some(later.read + PRECISION)
        });
        overlap.map_or(Ok(()), |later| Err(format!("two lead at once, one by {later:?}")))
    }

    /// The next one leads when the lease of the one before is over.
    fn next(&self, (leader, at, way): &(Note, Duration, Fault)) -> Result<(), String> {
        let lease = if *way == Fault::AskToEnd { Duration::ZERO } else { TTL };
        let begun = self.restarts.iter().fold(*at, |begun, again| {
            if (begun..=begun + lease + GRACE).contains(again) { *again } else { begun }
        });
        let mut later = self.terms().filter(|note| note.fencing_token > leader.fencing_token);
        match later.next() {
            None => Err(format!("none leads after {leader:?}")),
            Some(next) if next.at > begun + lease + GRACE + self.late => {
                Err(format!("{next:?} leads late after {leader:?} of {way:?} at {at:?}"))
            }
            Some(_) => Ok(()),
        }
    }

    /// The leaders, as their commands began.
    fn terms(&self) -> impl Iterator<Item = &Note> {
        self.notes.iter().filter(|note| note.step == Step::Begin)
    }
}

fn guilty(what: &str) -> Result<(), String> {
    Err(what.to_owned())
}
