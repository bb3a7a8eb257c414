//! The judge of a key: a pure function from its runs and its answers to a verdict.
//!
//! Goal: work is done once, unless its route allows more, and no stored answer is lost or changed.
//!
//! Method: the judge compares the ledger's runs with the shopper's answers, and counts where kills
//! fell. It accepts an unknown outcome only where a kill or the upstream can cause one. `guilt.rs`
//! tests it on one history for each kind of violation, and on correct ones.

use super::key::{Key, Kind};
use super::ledger::Run;
use super::shopper::{History, ReadAnswer};

/// What the keys of a campaign came to.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Tally {
    pub(super) keys: u64,
    pub(super) answers: u64,
    /// Tries that a kill broke off.
    pub(super) broken: u64,
    pub(super) left: u64,
    /// Killed between the beginning and the effect.
    pub(super) begun: u64,
    /// Killed between the effect and the keeping of its answer.
    pub(super) performed: u64,
    /// Killed between the keeping and the telling.
    pub(super) kept: u64,
    /// Run more than once, where the route says so.
    pub(super) rerun: u64,
    /// ReadAnswer, and said not to be kept, because the lease was over.
    pub(super) unkept: u64,
    /// Outcomes left unknown, by kills and by upstreams that fail.
    pub(super) unknown: u64,
}

impl Tally {
    /// Whether a kill came at every step, and work ran again where its route says so.
    pub(super) fn reaches_every_step(&self) -> bool {
        [self.begun, self.performed, self.kept, self.rerun].iter().all(|reached| *reached > 0)
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, one: Self) {
        self.keys += one.keys;
        self.answers += one.answers;
        self.broken += one.broken;
        self.left += one.left;
        self.begun += one.begun;
        self.performed += one.performed;
        self.kept += one.kept;
        self.rerun += one.rerun;
        self.unkept += one.unkept;
        self.unknown += one.unknown;
    }
}

/// What was done and answered under one key.
#[derive(Debug)]
pub(super) struct Case<'a> {
    pub(super) key: Key,
    pub(super) runs: &'a [Run],
    pub(super) history: &'a History,
}

impl Case<'_> {
    /// Whether the work was done once, and every answer was true.
    pub(super) fn judge(&self) -> Result<Tally, String> {
        self.runs()
            .and_then(|()| self.history.told.iter().try_for_each(|told| self.answer(told)))
            .and_then(|()| self.kept())
            .and_then(|()| self.end())
            .map(|()| self.tally())
            .map_err(|guilt| format!("{guilt}: {self:#?}"))
    }

    /// No effect twice, unless the route says so, and then under a fence that has risen.
    fn runs(&self) -> Result<(), String> {
        let begun = self.runs.iter().filter(|run| !matches!(run.answer, Some((429, _)))).count();
        if !self.key.is_rerun() && (begun > 1 || self.effects().count() > 1) {
            return guilty("it was run twice");
        }
        let mut last = None;
        for run in self.runs.iter().filter(|run| !run.stale) {
            // The resource refuses what is smaller, so what is left is the same fence twice.
            if last >= Some(run.fencing_token) {
                return guilty("a run has the fence of an earlier one");
            }
            last = Some(run.fencing_token);
        }
        Ok(())
    }

    /// The answer is one that this key may have, and says what was done.
    fn answer(&self, told: &ReadAnswer) -> Result<(), String> {
        let kind = self.key.kind();
        let late = self.runs.iter().any(|run| run.late);
        let may_be = match (told.status, told.code.as_deref()) {
            (409, Some("request-in-progress")) | (503, Some(_)) => true,
            (409, Some("outcome-unknown")) => !self.key.is_rerun() || kind.is_doubtful() || late,
            (500, None) => matches!(kind, Kind::FailsBefore | Kind::FailsAfter),
            (504, Some("outcome-unknown")) => {
                matches!(kind, Kind::ResetBefore | Kind::ResetAfter) || late
            }
            (429, None) => kind == Kind::Busy,
            (201 | 422 | 409, None) => self.run_of(told).is_some(),
            _ => false,
        };
        let effect = self.effects().any(|effect| *effect == told.body);
        if !may_be || (told.status < 300 && !effect) {
            return Err(format!("an answer that cannot be: {told:?}"));
        }
        Ok(())
    }

    /// The store keeps the answer of the last run, and every later answer is that one.
    fn kept(&self) -> Result<(), String> {
        let Some(kept) = self.history.told.iter().find(|told| told.is_kept()) else {
            return Ok(());
        };
        let largest = self.runs.iter().map(|run| run.fencing_token).max();
        if self.run_of(kept).map(|run| run.fencing_token) != largest {
            return guilty("what is kept is not the answer of the run with the largest fence");
        }
        for told in &self.history.told {
            let same = told.status == kept.status && told.body == kept.body;
            if told.is_kept() && !same {
                return Err(format!("two answers are kept, and one is {told:?}"));
            }
            let after =
                self.history.told.iter().any(|kept| kept.is_kept() && kept.read < told.sent);
            if after && !(same && told.replayed) && told.status != 503 {
                return Err(format!("an answer that was kept is lost: {told:?}"));
            }
        }
        Ok(())
    }

    /// After the last restart every answer is final.
    fn end(&self) -> Result<(), String> {
        let Some(last) = self.history.told.last().filter(|told| told.is_final()) else {
            return guilty("there is no end to it");
        };
        // Where the route says so, a request may run again when its answer was read and not kept.
        // The service frees a key whose run did nothing, also after others have read that it is
        // unknown, because its lease was over.
        let mut earlier = self.runs.iter().rev().skip(1);
        let did_nothing = earlier.all(|run| matches!(run.answer, Some((429, _))));
        let is_unavailable = |told: &ReadAnswer| told.status == 503;
        let is_freed = did_nothing
            && (self.runs.len() > 1
                || self.history.left > 0
                || self.history.told.iter().any(is_unavailable));
        let is_over = |told: &ReadAnswer| {
            told.is_final()
                && (told.kept || !self.key.is_rerun())
                && !(is_freed && told.is_unknown())
        };
        let again = !last.replayed && !last.is_unknown();
        if again && self.history.told.iter().rev().skip(1).any(is_over) {
            return guilty("it was forgotten and done again");
        }
        // An answer that came too late to be kept was read all the same, and must be true.
        let told = self.history.told.iter().filter(|told| told.status < 300);
        let lost = told.filter(|told| told.body != last.body);
        if !self.key.is_rerun() && !last.is_unknown() && lost.count() > 0 {
            return guilty("two clients read two different answers");
        }
        Ok(())
    }

    fn tally(&self) -> Tally {
        let told = &self.history.told;
        let one = u64::from;
        let unknown = told.last().is_some_and(ReadAnswer::is_unknown);
        let interrupted = unknown && !self.key.kind().is_doubtful();
        let (first, done) = (told.iter().any(|told| told.is_kept() && !told.replayed), !unknown);
        let unheard = done && !first && self.history.left == 0 && self.history.broken > 0;
        Tally {
            keys: 1,
            answers: told.len() as u64,
            broken: self.history.broken as u64,
            left: self.history.left as u64,
            begun: one(interrupted && self.effects().count() == 0),
            performed: one(interrupted && self.effects().count() > 0),
            kept: one(unheard),
            rerun: one(self.key.is_rerun() && self.effects().count() > 1),
            unkept: told.iter().filter(|told| told.status < 300 && !told.kept).count() as u64,
            unknown: one(unknown),
        }
    }

    fn effects(&self) -> impl Iterator<Item = &String> {
        self.runs.iter().filter_map(|run| run.effect.as_ref())
    }

    /// The run whose answer this is.
    fn run_of(&self, told: &ReadAnswer) -> Option<&Run> {
        let is_its = |run: &&Run| {
            run.answer.as_ref().is_some_and(|(status, body)| {
                (*status, body.as_str()) == (told.status, told.body.as_str())
            })
        };
        self.runs.iter().find(is_its)
    }
}

impl ReadAnswer {
    /// Whether it is the upstream's answer, and kept.
    fn is_kept(&self) -> bool {
        self.kept && self.code.is_none() && self.status < 500
    }
}

fn guilty(what: &str) -> Result<(), String> {
    Err(what.to_owned())
}
