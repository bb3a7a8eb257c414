//! What the commands of a campaign did, as they noted it themselves.
//!
//! Goal: the judge learns what really ran from no part of keylatch.
//!
//! Method: a command appends a line to a file at each step, with its fencing token and the time
//! since the machine started. It holds an `flock` for as long as it lives, and what it does counts
//! only if no command with a higher fencing token was there before.

use std::fs;
use std::time::Duration;

use keylatch_testkit::ScriptDirectory;
use tokio::time::timeout;

use crate::locks::pass;

/// How commands note what they do.
const NOTE: &str = "
    note() {
        read -r up rest </proc/uptime
        echo \"$1 $KEYLATCH_FENCING_TOKEN $MACHINE $up\" >>ledger
    }
    fenced() (
        exec 8>resource; flock 8
        [ ! -e top ] || read -r top <top
        [ \"$KEYLATCH_FENCING_TOKEN\" -ge \"${top:-0}\" ] || exit 0
        echo \"$KEYLATCH_FENCING_TOKEN\" >top; note \"$1\"
    )
";
/// How often the file is looked at.
const LOOK: Duration = Duration::from_millis(80);

/// What commands have noted.
#[derive(Debug)]
pub(super) struct Ledger(ScriptDirectory);

/// A step of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) step: Step,
    pub(super) fencing_token: u64,
    pub(super) machine: usize,
    /// When, since the machine of the test started.
    pub(super) at: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It runs.
    Begin,
    /// It has changed what it is about.
    Effect,
    /// It ends by itself.
    End,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self(ScriptDirectory::new())
    }

    /// A script that can say `note STEP`, and `fenced STEP` where a stale one changes nothing.
    pub(super) fn script(&self, script: &str) -> String {
        self.0.script(&format!("{NOTE}\n{script}"))
    }

    pub(super) fn notes(&self) -> Vec<Note> {
        self.0
            .read("ledger")
            .lines()
            .map(|line| note(line).expect("a line of the ledger"))
            .collect()
    }

    /// The fencing tokens of those that began while another one ran.
    pub(super) fn overlaps(&self) -> Vec<u64> {
        let overlaps = self.0.read("overlaps");
        overlaps.lines().map(|line| line.parse().expect("a fencing token")).collect()
    }

    /// The begin with this number, counted from 0, if it comes in time.
    pub(super) async fn begun(&self, number: usize, limit: Duration) -> Option<Note> {
        let begun = async {
            loop {
                let mut begun = self.notes().into_iter().filter(|note| note.step == Step::Begin);
                match begun.nth(number) {
                    Some(note) => return note,
                    None => pass(LOOK).await,
                }
            }
        };
        timeout(limit, begun).await.ok()
    }
}

fn note(line: &str) -> Option<Note> {
    let mut words = line.split(' ');
    let step = match words.next()? {
        "begin" => Step::Begin,
        "effect" => Step::Effect,
        "end" => Step::End,
        _ => return None,
    };
    let (fencing_token, machine) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let at = Duration::from_secs_f64(words.next()?.parse().ok()?);
    Some(Note { step, fencing_token, machine, at })
}

/// The time since the machine of the test started, as commands note it.
pub(super) fn now() -> Duration {
    let uptime = fs::read_to_string("/proc/uptime").expect("a clock");
    let seconds = uptime.split(' ').next().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs_f64(seconds.expect("a number"))
}
