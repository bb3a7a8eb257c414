//! The judge of a schedule: a pure function from what commands noted and machines ended with.
//!
//! Goal: no command runs twice unless a crash came before and the caller said so, none is left out
//! where a machine was there, and each machine ends as it should.
//!
//! Method: a machine that was killed, or whose lease was lost, has crashed. All that a machine
//! without a crash says has to agree with the notes. `guilt.rs` tests the judge on a history for
//! each violation.

use super::ledger::{Note, Step};

/// What happened to the machines of one key. The last machine came when all was over.
#[derive(Debug, Clone)]
pub(super) struct History {
    /// Whether a crash is to be followed by another run.
    pub(super) is_rerun: bool,
    /// Whether the machines wait for a run of another one.
    pub(super) waits: bool,
    pub(super) notes: Vec<Note>,
    /// The fencing tokens of those that began while another one ran.
    pub(super) overlaps: Vec<u64>,
    /// By the number of the machine.
    pub(super) outcomes: Vec<Outcome>,
}

/// How a machine ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    /// `None` where it was killed.
    pub(super) code: Option<i32>,
    /// The campaign killed or stopped it, if it was still there.
    pub(super) was_killed: bool,
    pub(super) was_paused: bool,
    /// It said that its exit code is not kept.
    pub(super) is_unkept: bool,
    /// It got no response to something: a run may have begun, and nobody knew of it.
    pub(super) is_in_doubt: bool,
    #[expect(dead_code, reason = "the text of a violation shows it")]
    pub(super) said: String,
}

/// The exit code of the command.
pub(super) const DONE: i32 = 5;
const RUNS_ELSEWHERE: i32 = 0;
const UNKNOWN: i32 = 65;
const UNREACHABLE: i32 = 69;
const LOST: i32 = 75;

/// What schedules came to.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Tally {
    pub(super) schedules: u64,
    pub(super) done: u64,
    pub(super) unknown: u64,
    /// Run again after a crash.
    pub(super) rerun: u64,
    pub(super) killed: u64,
    pub(super) lost: u64,
    /// Told at once that another machine runs it.
    pub(super) told: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, one: Self) {
        self.schedules += one.schedules;
        self.done += one.done;
        self.unknown += one.unknown;
        self.rerun += one.rerun;
        self.killed += one.killed;
        self.lost += one.lost;
        self.told += one.told;
    }
}

impl History {
    pub(super) fn judge(&self) -> Result<Tally, String> {
        self.runs()
            .and_then(|()| self.overlaps())
            .and_then(|()| (0..self.outcomes.len()).try_for_each(|machine| self.exit(machine)))
            .and_then(|()| self.end())
            .map(|()| self.tally())
            .map_err(|guilt| format!("{guilt}: {self:#?}"))
    }

    /// A run comes after another one only after its crash, under a higher fencing token.
    fn runs(&self) -> Result<(), String> {
        let runs: Vec<_> = self.of(Step::Begin).collect();
        for pair in runs.windows(2) {
            let [earlier, later] = pair else { continue };
            if !self.is_rerun || !self.outcomes[earlier.machine].has_crashed() {
                return guilty("it ran twice");
            }
            if earlier.fencing_token >= later.fencing_token {
                return guilty("a run has the fencing token of an earlier one");
            }
        }
        Ok(())
    }

    /// Two run at once only where the earlier one's machine slept through the end of its lease.
    fn overlaps(&self) -> Result<(), String> {
        let slept = |later: &u64| {
            let mut earlier = self.of(Step::Begin).filter(|note| note.fencing_token < *later);
            earlier.any(|note| self.outcomes[note.machine].was_paused)
        };
        if self.overlaps.iter().all(slept) { Ok(()) } else { guilty("two ran at once") }
    }

    /// A machine ends as what ran says.
    fn exit(&self, machine: usize) -> Result<(), String> {
        let outcome = &self.outcomes[machine];
        let ran = self.of(Step::Begin).any(|note| note.machine == machine);
        let has_ended = |of: Option<usize>| {
            self.of(Step::End).any(|note| of.is_none_or(|machine| note.machine == machine))
        };
        match outcome.code {
            None if outcome.was_killed => Ok(()),
            Some(LOST) => Ok(()),
            Some(DONE) if has_ended(ran.then_some(machine)) => Ok(()),
            Some(DONE) => guilty("an exit code of what did not end"),
            Some(UNKNOWN) if self.is_rerun || !self.has_crash() => {
                guilty("unknown, and no machine has crashed")
            }
            Some(UNKNOWN) if self.is_kept() => guilty("an exit code that was kept is lost"),
            Some(UNKNOWN) => Ok(()),
            // The time to wait may be over before the service responds.
            Some(UNREACHABLE) if !self.is_rerun && !ran => Ok(()),
            Some(RUNS_ELSEWHERE) if !self.waits && !ran => Ok(()),
            Some(RUNS_ELSEWHERE | UNREACHABLE) => guilty("a machine that waits was left out"),
            _ => guilty("an exit that cannot be"),
        }
    }

    /// In the end all is known, unless a machine has crashed and nobody said that it may run again.
    fn end(&self) -> Result<(), String> {
        let last = self.outcomes.last().and_then(|last| last.code);
        let may_be_unknown = !self.is_rerun && self.has_crash() && !self.is_kept();
        match last {
            Some(DONE) => Ok(()),
            Some(UNKNOWN) if may_be_unknown => Ok(()),
            _ => guilty("it was left out"),
        }
    }

    fn tally(&self) -> Tally {
        let count = |is: &dyn Fn(&Outcome) -> bool| {
            self.outcomes.iter().filter(|outcome| is(outcome)).count() as u64
        };
        let last = self.outcomes.last().and_then(|last| last.code);
        Tally {
            schedules: 1,
            done: u64::from(last == Some(DONE)),
            unknown: u64::from(last == Some(UNKNOWN)),
            rerun: u64::from(self.of(Step::Begin).count() > 1),
            killed: count(&|outcome| outcome.code.is_none()),
            lost: count(&|outcome| outcome.code == Some(LOST)),
            told: count(&|outcome| outcome.code == Some(RUNS_ELSEWHERE)),
        }
    }

    fn of(&self, step: Step) -> impl Iterator<Item = &Note> {
        self.notes.iter().filter(move |note| note.step == step)
    }

    /// Whether a run may have begun that did not end.
    fn has_crash(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.has_crashed() || outcome.is_in_doubt)
    }

    /// Whether a machine ended with the exit code of its own run, and it was kept.
    fn is_kept(&self) -> bool {
        self.of(Step::End).any(|note| {
            let outcome = &self.outcomes[note.machine];
            outcome.code == Some(DONE) && !outcome.is_unkept
        })
    }
}

impl Outcome {
    /// Whether it ended without keeping what its run came to, if it began one: one that cannot
    /// reach the service may have begun it all the same.
    fn has_crashed(&self) -> bool {
        matches!(self.code, None | Some(LOST | UNREACHABLE)) || self.is_unkept
    }
}

fn guilty(what: &str) -> Result<(), String> {
    Err(what.to_owned())
}
