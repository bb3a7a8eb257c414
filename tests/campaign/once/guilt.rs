//! Goal: the check of the ledger reports every kind of violation and nothing else.
//!
//! Method: histories that are guilty of one thing each, and innocent ones beside them.

use super::key::{Key, Kind};
use super::ledger::Run;
use super::shopper::{History, ReadAnswer};
use super::verdict::{Case, Tally};

type Change = fn(&mut Vec<Run>, &mut Vec<ReadAnswer>);

#[test]
fn checker_accepts_a_correct_history() {
    for rerun in [false, true] {
        judge(rerun, |_, _| {}).expect("a run and its repeat");
        let tally = judge(rerun, |_, told| told[0].kept = false).expect("too late to be kept");
        assert_eq!(tally.unkept, 1);
    }
    let again = |runs: &mut Vec<Run>, told: &mut Vec<ReadAnswer>| {
        runs.push(ran(2));
        told[0].kept = false;
        told[1] = ReadAnswer { body: body(2), replayed: false, ..told[1].clone() };
    };
    assert_eq!(judge(true, again).expect("run again, since it could not be kept").rerun, 1);
    judge(false, |_, told| (told[0].kept, told[1]) = (false, unknown()))
        .expect("told, and too late to be kept");
}

#[test]
fn checker_reports_each_kind_of_violation() {
    let cases: [(bool, &str, Change); 10] = [
        (false, "run twice", |runs, _| runs.push(ran(2))),
        (true, "fence of an earlier one", |runs, _| runs.push(ran(1))),
        (true, "largest fence", |runs, _| runs.push(ran(2))),
        (false, "cannot be", |runs, _| runs[0].effect = None),
        (false, "cannot be", |_, told| told[0].body = "another".to_owned()),
        (true, "cannot be", |_, told| told[1] = unknown()),
        (false, "is lost", |_, told| told[1] = unknown()),
        (false, "is lost", |_, told| told[1].replayed = false),
        (false, "done again", |_, told| (told[0].kept, told[1].replayed) = (false, false)),
        (false, "no end", |_, told| told.clear()),
    ];
    for (rerun, guilt, change) in cases {
        let found = judge(rerun, change).expect_err(guilt);
        assert!(found.contains(guilt), "{guilt}: {found}");
    }
}

/// The verdict on a run and its repeat, after a change of what was done and told.
fn judge(
    rerun: bool,
    change: impl FnOnce(&mut Vec<Run>, &mut Vec<ReadAnswer>),
) -> Result<Tally, String> {
    let of_kind =
        |key: &Key| key.kind() == Kind::Plain && key.is_rerun() == rerun && !key.is_by_calls();
    let key = (0..).map(|number| Key { number }).find(of_kind).expect("such a key");
    let first =
        ReadAnswer { status: 201, body: body(1), kept: true, read: 1, ..ReadAnswer::default() };
    let repeat = ReadAnswer { replayed: true, sent: 2, read: 3, ..first.clone() };
    let (mut runs, mut told) = (vec![ran(1)], vec![first, repeat]);
    change(&mut runs, &mut told);
    let history = History { told, ..History::default() };
    Case { key, runs: &runs, history: &history }.judge()
}

fn ran(fencing_token: u64) -> Run {
    let answer = Some((201, body(fencing_token)));
    Run { fencing_token, effect: Some(body(fencing_token)), answer, ..Run::default() }
}

fn body(fencing_token: u64) -> String {
    format!("fence {fencing_token}")
}

fn unknown() -> ReadAnswer {
    let code = Some("outcome-unknown".to_owned());
    ReadAnswer { status: 409, code, kept: true, sent: 2, read: 3, ..ReadAnswer::default() }
}
