//! This build next to another one, such as the one before a change.
//!
//! Both run at the same time and are measured in turn, round by round, so that noise hits both
//! alike. The guarded requests go to the bare handler behind both.

use std::path::Path;

use crate::load::{CONNECTIONS, Work};
use crate::processes::{Process, Store, guard};
use crate::table::Table;
use crate::{Bench, Result};

pub(crate) fn run(bench: &Bench, other: &Path) -> Result<()> {
    println!("\nThe other build is {}.", other.display());
    let Bench { machine, .. } = bench;
    let (redis, upstream) = (machine.redis()?, machine.bare()?);
    let guard = guard(&upstream, "", "");
    for (name, [store, of_other]) in [
        ("memory", [Store::Memory; 2]),
        ("embedded", [Store::Embedded("this"), Store::Embedded("other")]),
        ("Redis", [Store::Redis(&redis); 2]),
    ] {
        let this = machine.keylatch_with(store, &guard)?;
        let other = machine.build_with(other, of_other, &guard)?;
        for count in [1, 8, CONNECTIONS] {
            let title = format!("locks, {name}, {count} connections");
            compare(bench, &title, &this, &other, count, &Work::Lock)?;
        }
        for (what, work) in [("first run", Work::FirstRun), ("replay", Work::Replay)] {
            compare(bench, &format!("{what}, {name}"), &this, &other, CONNECTIONS, &work)?;
        }
    }
    Ok(())
}

fn compare(
    Bench { load, rounds, .. }: &Bench,
    title: &str,
    this: &Process,
    other: &Process,
    count: usize,
    work: &Work,
) -> Result<()> {
    Table::default()
        .row("this build", || load.measure_on(count, &[this], work))
        .row("the other", || load.measure_on(count, &[other], work))
        .of("the other")
        .ratio("its µs each", "the other", |slice| slice.cost())
        .ratio("its p99", "the other", |slice| slice.p99)
        .run(title, *rounds)
}
