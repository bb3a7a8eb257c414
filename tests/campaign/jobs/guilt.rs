//! Goal: the judges of jobs and elections report every kind of violation and nothing else.
//!
//! Method: histories that are guilty of one thing each, innocent ones beside them, and commands
//! that run without `keylatch`.

use std::time::Duration;

use keylatch_testkit::RunningCommand;

use super::TTL;
use super::ledger::{Ledger, Note, Step};
use super::machine::{Fault, millis};
use super::terms::{self, Saying};
use super::verdict::{DONE, History, Outcome};

fn note(step: Step, fencing_token: u64, machine: usize) -> Note {
    Note { step, fencing_token, machine, at: Duration::from_secs(10 * fencing_token) }
}

fn run(fencing_token: u64, machine: usize) -> [Note; 3] {
    [Step::Begin, Step::Effect, Step::End].map(|step| note(step, fencing_token, machine))
}

fn ended(code: i32) -> Outcome {
    Outcome { code: Some(code), ..Outcome::default() }
}

fn killed() -> Outcome {
    Outcome { was_killed: true, ..Outcome::default() }
}

/// One run on the first machine, whose exit code all machines have.
fn done(is_rerun: bool) -> History {
    let outcomes = vec![ended(DONE); 4];
    History { is_rerun, waits: true, notes: run(1, 0).into(), overlaps: vec![], outcomes }
}

/// The first machine is killed while it runs the command, and the second one runs it again if it
/// may.
fn crashed(is_rerun: bool) -> History {
    let mut history = done(is_rerun);
    history.notes.truncate(1);
    history.notes.extend(run(2, 1).into_iter().filter(|_| is_rerun));
    let rest = ended(if is_rerun { DONE } else { 65 });
    history.outcomes = vec![killed(), rest.clone(), rest.clone(), rest];
    history
}

type Change<T> = fn(&mut T);

#[test]
fn judge_of_jobs_accepts_what_is_right() {
    let right: [(bool, Change<History>); 6] = [
        (false, |_| {}),
        (false, |it| (it.waits, it.outcomes[1]) = (false, ended(0))),
        (false, |it| (it.waits, it.outcomes[2]) = (false, ended(69))),
        (false, |it| *it = crashed(false)),
        (true, |it| *it = crashed(true)),
        (true, |it| {
            *it = crashed(true);
            (it.outcomes[0], it.overlaps) = (ended(75), vec![2]);
            it.outcomes[0].was_paused = true;
        }),
    ];
    for (is_rerun, change) in right {
        let mut history = done(is_rerun);
        change(&mut history);
        history.judge().unwrap_or_else(|guilt| panic!("{guilt}"));
    }
}

#[test]
fn judge_of_jobs_reports_each_kind_of_violation() {
    let wrong: [(&str, History, Change<History>); 14] = [
        ("ran twice", done(false), |it| it.notes.extend(run(2, 1))),
        ("ran twice", done(true), |it| it.notes.extend(run(2, 1))),
        ("ran twice", crashed(false), |it| it.notes.extend(run(2, 1))),
        ("token of an earlier one", crashed(true), |it| it.notes[1].fencing_token = 1),
        ("two ran at once", crashed(true), |it| it.overlaps = vec![2]),
        ("did not end", done(false), |it| it.notes.truncate(2)),
        ("did not end", crashed(true), |it| it.notes.truncate(3)),
        ("no machine has crashed", done(false), |it| it.outcomes[1] = ended(65)),
        ("kept is lost", crashed(false), |it| {
            it.notes = run(1, 1).into();
            it.outcomes[1] = ended(DONE);
        }),
        ("waits was left out", done(false), |it| it.outcomes[1] = ended(0)),
        ("waits was left out", done(true), |it| it.outcomes[1] = ended(69)),
        ("cannot be", done(true), |it| it.outcomes[1] = ended(143)),
        ("cannot be", done(true), |it| it.outcomes[1].code = None),
        ("it was left out", crashed(true), |it| it.outcomes[3] = ended(75)),
    ];
    for (guilt, mut history, change) in wrong {
        change(&mut history);
        let found = history.judge().expect_err(guilt);
        assert!(found.contains(guilt), "{guilt}: {found}");
    }
}

/// A leader that is killed, and the next one.
fn election() -> terms::History {
    let [first, next] = [1, 2].map(|term| note(Step::Begin, term, term as usize));
    let said = |fencing_token, after: Duration| {
        let sent = Duration::from_secs(10 * fencing_token) + after;
        Saying { fencing_token, sent, read: sent + millis(10) }
    };
    let (died, late) = (next.at - TTL, Duration::ZERO);
    let (first_said, next_said) = (said(1, millis(100)), said(2, millis(100)));
    terms::History {
        notes: vec![first, next],
        overlaps: vec![],
        said: vec![first_said, said(1, millis(500)), next_said],
        ways: vec![(first, died, Fault::KillMachine)],
        restarts: vec![],
        late,
    }
}

#[test]
fn judge_of_elections_reports_each_kind_of_violation() {
    assert_eq!(election().judge().expect("one leads after the other"), 2);
    let wrong: [(&str, Change<terms::History>); 6] = [
        ("token of an earlier one", |it| it.notes[1].fencing_token = 1),
        ("commands ran at once", |it| it.overlaps = vec![2]),
        ("two lead at once", |it| it.said[1].sent = it.said[2].read + millis(50)),
        ("none leads after", |it| it.notes.truncate(1)),
        ("leads late", |it| it.notes[1].at += millis(1501)),
        ("leads late", |it| it.ways[0].2 = Fault::AskToEnd),
    ];
    for (guilt, change) in wrong {
        let mut history = election();
        change(&mut history);
        let found = history.judge().expect_err(guilt);
        assert!(found.contains(guilt), "{guilt}: {found}");
    }
    let mut history = election();
    (history.overlaps, history.ways[0].2) = (vec![2], Fault::Pause);
    history.judge().unwrap_or_else(|guilt| panic!("a paused machine: {guilt}"));
    // The lease lasts from the restart that another election made.
    let (mut history, again) = (election(), millis(3000));
    history.restarts = vec![history.ways[0].1 + again];
    history.notes[1].at += again + millis(1499);
    history.judge().unwrap_or_else(|guilt| panic!("a restart: {guilt}"));
    history.notes[1].at += millis(2);
    history.judge().expect_err("it is late after the restart as well");
}

/// The notes of two commands that nothing keeps apart are guilty.
#[tokio::test]
async fn ledger_shows_what_runs_without_keylatch() {
    let ledger = Ledger::new();
    // Each ends when it is the turn of its end.
    let script = ledger.script(
        "note begin; until grep -q \"$AFTER\" ledger; do sleep 0.1; done; fenced effect; note end",
    );
    let start = |fencing_token: &str, machine: &str, after: &str| {
        let token = ("KEYLATCH_FENCING_TOKEN", fencing_token);
        let environment = [token, ("MACHINE", machine), ("AFTER", after)];
        RunningCommand::of(&["sh", "-c", &script], &environment)
    };
    let first = start("7", "0", "begin 8");
    ledger.begun(0, TTL).await.expect("it begins");
    let next = start("8", "1", "end 7");
    let (first, next) = (first.ended().await, next.ended().await);
    assert_eq!((first.stderr.as_str(), next.stderr.as_str()), ("", ""));
    assert_eq!(ledger.overlaps(), [8]);
    let history = History { notes: ledger.notes(), overlaps: ledger.overlaps(), ..done(true) };
    assert_eq!(history.notes.len(), 6, "{history:?}");
    assert!(history.judge().is_err_and(|guilt| guilt.contains("ran twice")));
    // A command with a lower fencing token changes nothing any more.
    start("6", "2", "end 8").ended().await;
    let effects = ledger.notes().into_iter().filter(|note| note.step == Step::Effect);
    assert_eq!(effects.map(|note| note.fencing_token).collect::<Vec<_>>(), [7, 8]);
}
