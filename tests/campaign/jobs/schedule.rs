//! One schedule: a job of three machines whose clocks differ, at midnight, and what befalls them.
//!
//! Goal: each machine runs the line of a crontab when its own clock says so.
//!
//! Method: the clocks are ahead of each other by up to 30 s, and so the machine whose clock is
//! ahead fires first. All make the key of their own date. While a command runs, its machine or
//! another one suffers. In the end a machine that nothing befalls runs the line once more.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use keylatch_testkit::{Dice, Exit, WallClock};

use super::TTL;
use super::fleet::Fleet;
use super::ledger::Ledger;
use super::machine::{FAULTS, Fault, Machine, Running, millis};
use super::verdict::{History, Outcome};
use crate::locks::pass;

/// How far two clocks are apart at most.
const APART: u64 = 30_000;
/// How long after midnight cron comes to a line.
const LATER: Duration = Duration::from_secs(1);
const DAY: u64 = 24 * 60 * 60;
/// How many machines there are. The next one comes when all is over.
const MACHINES: usize = 3;
/// How long it may take from the begin of a schedule to that of a command.
const LIMIT: Duration = Duration::from_secs(120);
/// How often it is looked whether all machines have ended.
const LOOK: Duration = Duration::from_millis(100);

/// What is to happen.
#[derive(Debug)]
pub(super) struct Schedule {
    number: u64,
    is_rerun: bool,
    waits: bool,
    /// How long the command takes.
    takes: Duration,
    /// When it is midnight by the clock of each machine.
    fires: [Duration; MACHINES],
    /// What is done while a command runs for the first time, and for the second.
    faults: Vec<Fault>,
    dice: Dice,
}

/// What has happened before the last machine came.
#[derive(Debug)]
pub(super) struct Played {
    schedule: Schedule,
    ledger: Ledger,
    line: String,
    last: Machine,
    outcomes: Vec<Outcome>,
}

impl Schedule {
    pub(super) fn of(number: u64, mut dice: Dice) -> Self {
        let apart = [500, 5000, APART][dice.below(3) as usize];
        let first = dice.below(APART - apart + 1);
        let fires = [(); MACHINES].map(|()| millis(first + dice.below(apart)));
        let is_rerun = dice.below(2) == 0;
        let faults = (0..dice.below(3)).map(|_| FAULTS[dice.below(6) as usize]).collect();
        let (waits, takes) = (is_rerun || dice.below(2) == 0, millis(200 + dice.below(3000)));
        Self { number, is_rerun, waits, takes, fires, faults, dice }
    }

    /// Plays it, up to the last machine.
    pub(super) async fn play(mut self, fleet: Arc<Fleet>, clock: WallClock) -> Played {
        let mut machines = self.machines(&fleet, &clock).await;
        let last = machines.pop().expect("a machine");
        let (ledger, line) = (Ledger::new(), self.line(TTL, self.waits));
        let run = ledger.script(&self.script());
        let running: [OnceLock<Running>; MACHINES] = Default::default();
        let fire = machines.iter().zip(&running).zip(self.fires).map(|((machine, running), at)| {
            let (line, run) = (&line, &run);
            async move {
                pass(at).await;
                running.set(machine.start(line, run)).expect("it fires once");
            }
        });
        let (_, suffered) = tokio::join!(join_all(fire), self.befall(&machines, &running, &ledger));
        let ended = running.into_iter().map(|it| it.into_inner().expect("it has fired").ended());
        let ended = join_all(ended).await;
        let outcomes = ended.into_iter().enumerate().map(|(number, exit)| {
            let of = |kind: fn(Fault) -> bool| {
                suffered.iter().any(|(machine, fault)| *machine == number && kind(*fault))
            };
            outcome(exit, of(Fault::is_kill), of(|fault| fault == Fault::Pause))
        });
        // A machine that is late loses no lease then.
        let line = self.line(TTL * 10, true);
        Played { outcomes: outcomes.collect(), schedule: self, ledger, line, last }
    }

    /// The machines, and the last one, with their clocks set.
    async fn machines(&self, fleet: &Fleet, clock: &WallClock) -> Vec<Machine> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let midnight = Duration::from_secs(DAY - now % DAY) + LATER;
        let mut machines = Vec::new();
        for number in 0..=MACHINES {
            let clock = clock.another(&format!("clock-{}-{number}", self.number));
            let fires = self.fires.get(number).copied().unwrap_or_default();
            clock.set(midnight.saturating_sub(fires));
            machines.push(Machine::new(number, fleet.address_for(number), clock).await);
        }
        machines
    }

    /// Lets a machine suffer when a command has begun, for the first time and for the second; says
    /// which, and how.
    async fn befall(
        &mut self,
        machines: &[Machine],
        running: &[OnceLock<Running>],
        ledger: &Ledger,
    ) -> Vec<(usize, Fault)> {
        let mut suffered = Vec::new();
        for (number, fault) in self.faults.clone().into_iter().enumerate() {
            let begin = tokio::select! {
                begin = ledger.begun(number, LIMIT) => begin,
                () = all_ended(running) => None,
            };
            let Some(begin) = begin else { break };
            pass(millis(self.dice.below(self.takes.as_millis() as u64))).await;
            let other = self.dice.below(4 * MACHINES as u64) as usize;
            let whose = if other < MACHINES { other } else { begin.machine };
            let runs = running.get(whose).and_then(OnceLock::get);
            let runs = runs.filter(|running| !running.has_ended());
            if let (Some(machine), Some(running)) = (machines.get(whose), runs) {
                suffered.push((whose, fault));
                let (short, long) = (millis(300), TTL + millis(500));
                let is_long = fault == Fault::Pause || self.dice.below(2) == 0;
                let time = if is_long { long } else { short } + millis(self.dice.below(1000));
                machine.suffer(fault, running, time).await;
            }
        }
        suffered
    }

    /// The line of the crontab.
    fn line(&self, ttl: Duration, waits: bool) -> String {
        let Self { number, is_rerun, .. } = self;
        let on_crash = if *is_rerun { "rerun" } else { "unknown" };
        let wait = if waits && !is_rerun { "--wait 1m" } else { "" };
        let ttl = ttl.as_millis();
        format!(
            "exec \"$0\" once --ttl {ttl}ms --on-crash {on_crash} {wait} \
             \"nightly-{number}-$(date -u +%F)\" -- sh -c \"$1\""
        )
    }

    fn script(&self) -> String {
        let seconds = self.takes.as_secs_f64();
        format!("note begin; sleep {seconds}; fenced effect; note end; exit 5")
    }
}

impl Played {
    /// Lets the last machine fire; gives all that has happened.
    pub(super) async fn end(self) -> (u64, History) {
        let Self { schedule, ledger, line, last, mut outcomes } = self;
        let exit = last.start(&line, &ledger.script(&schedule.script())).ended().await;
        outcomes.push(outcome(exit, false, false));
        let (notes, overlaps) = (ledger.notes(), ledger.overlaps());
        let Schedule { number, is_rerun, waits, .. } = schedule;
        (number, History { is_rerun, waits, notes, overlaps, outcomes })
    }
}

fn outcome(exit: Exit, was_killed: bool, was_paused: bool) -> Outcome {
    let is_unkept = exit.stderr.contains("is not kept for the others");
    let is_in_doubt = exit.stderr.contains("gave no response");
    Outcome { code: exit.code, was_killed, was_paused, is_unkept, is_in_doubt, said: exit.stderr }
}

/// Waits until all machines have fired, and what they run has ended.
async fn all_ended(running: &[OnceLock<Running>]) {
    while !running.iter().all(|running| running.get().is_some_and(Running::has_ended)) {
        pass(LOOK).await;
    }
}
