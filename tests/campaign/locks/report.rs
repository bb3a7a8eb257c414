//! What a campaign was and what came of it, as Markdown: printed, and written to
//! `target/campaign/`.
//!
//! It only reads the history that the checker judges, and judges nothing itself.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;

use super::history::{Event, Fault, History, LockAnswer, Micros};
use super::place::Store;
use super::verdict::{Invariant, Violation};

/// Prints the report, and writes it to a file that is named after the test.
#[expect(clippy::print_stdout, reason = "the figures of a campaign are for people to read")]
pub(super) fn report(
    store: Store,
    tier: &str,
    seed: u64,
    history: &History,
    violations: &[Violation],
) {
    let text = table(store, tier, seed, history, violations);
    println!("{text}");
    let test = std::thread::current().name().unwrap_or("campaign").replace("::", "-");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("campaign");
    fs::create_dir_all(&directory).expect("a directory for reports");
    fs::write(directory.join(format!("{test}-seed-{seed}.md")), text).expect("room for a report");
}

fn table(
    store: Store,
    tier: &str,
    seed: u64,
    history: &History,
    violations: &[Violation],
) -> String {
    let (first, last) = (
        history.events.iter().map(|event| event.sent).min(),
        history.events.iter().map(|event| event.read).max(),
    );
    let seconds = last.zip(first).map_or(0, |(last, first)| (last - first) / 1_000_000);
    let mut text = format!(
        "## {store:?}\n\nTier `{tier}`, {seconds} s, seed {seed}: {} requests, {} grants, \
         {} faults.\n",
        history.events.len(),
        history.grants().len(),
        history.faults.len()
    );
    text += &operations(history);
    text += &faults(history);
    text += &verdicts(violations);
    text
}

fn operations(history: &History) -> String {
    let mut told = BTreeMap::<_, BTreeMap<_, u64>>::new();
    for event in &history.events {
        *told.entry(name(&event.ask)).or_default().entry(name(&event.told)).or_default() += 1;
    }
    let taken = history.writes.iter().filter(|write| write.taken).count() as u64;
    let refused = history.writes.len() as u64 - taken;
    let writes = [("refused", refused), ("taken", taken)].map(|(told, n)| (told.to_owned(), n));
    told.insert("write to the resource".to_owned(), BTreeMap::from(writes));
    let mut text = "\n| operation | number | answers |\n| --- | --- | --- |\n".to_owned();
    for (ask, answers) in told {
        let all: u64 = answers.values().sum();
        let answers: Vec<_> = answers.iter().map(|(told, n)| format!("{told} {n}")).collect();
        let _ = writeln!(text, "| {ask} | {all} | {} |", answers.join(", "));
    }
    text
}

/// What a request or an answer is called, without what it has.
fn name(value: &impl fmt::Debug) -> String {
    format!("{value:?}").split(['(', ' ']).next().unwrap_or_default().to_owned()
}

fn faults(history: &History) -> String {
    let mut kinds = BTreeMap::<_, (u64, u64, Micros, &str)>::new();
    let changes = changes(history);
    for fault in &history.faults {
        let (seen, skipped, pause, how) = kinds.entry(fault.kind).or_default();
        match &fault.seen {
            Ok(found) => {
                *pause = longest_pause(&changes, fault).max(*pause);
                (*seen, *how) = (*seen + 1, found);
            }
            Err(why) => {
                *skipped += 1;
                if *seen == 0 {
                    *how = why;
                }
            }
        }
    }
    let mut text = "\n| fault | seen | skipped | longest without a change | such as |\n\
                    | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for (kind, (seen, skipped, pause, how)) in kinds {
        let pause = pause / 1000;
        let _ = writeln!(text, "| {kind:?} | {seen} | {skipped} | {pause} ms | {how} |");
    }
    text
}

/// When clients read that a change was made, in order.
fn changes(history: &History) -> Vec<Micros> {
    let is_change =
        |event: &&Event| event.told.lease().is_some() || event.told == LockAnswer::Released;
    let mut changes: Vec<_> = history.events.iter().filter(is_change).map(|one| one.read).collect();
    changes.sort_unstable();
    changes
}

/// The longest time that began by the end of a fault and in which no client read of a change, from
/// the beginning of the fault on.
fn longest_pause(changes: &[Micros], fault: &Fault) -> Micros {
    let pauses = changes.windows(2).map(|pair| (pair[0].max(fault.from), pair[1]));
    let pauses = pauses.filter(|(begun, over)| *begun <= fault.to && begun < over);
    pauses.map(|(begun, over)| over - begun).max().unwrap_or_default()
}

fn verdicts(violations: &[Violation]) -> String {
    let mut text =
        "\n| invariant | violations | under which faults |\n| --- | --- | --- |\n".to_owned();
    for invariant in Invariant::ALL {
        let of = || violations.iter().filter(|violation| violation.invariant == invariant);
        let mut under = BTreeMap::<_, u64>::new();
        for violation in of() {
            *under.entry(violation.faults.join(" + ")).or_default() += 1;
        }
        let under: Vec<_> = under.iter().map(|(faults, n)| format!("{n}: {faults}")).collect();
        let forgotten = of().filter(|violation| violation.by_forgetting).count();
        let number = match (of().count(), forgotten) {
            (all, 0) => all.to_string(),
            (all, forgotten) => format!("{all}, {forgotten} where a node may have forgotten"),
        };
        let _ = writeln!(text, "| {} | {number} | {} |", invariant.name(), under.join("; "));
    }
    text
}
