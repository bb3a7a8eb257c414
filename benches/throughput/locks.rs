//! Locks next to what they are built on: a bare handler, Redis alone, and the disk.
//!
//! The disk's own rate is that of a page that is written and synced, measured in the same rounds,
//! because a rate of the embedded store alone would be one of the machine.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use crate::load::{CONNECTIONS, Work};
use crate::processes::Store;
use crate::redis_alone::RedisAlone;
use crate::slice::{Cpu, Slice, nanoseconds};
use crate::table::Table;
use crate::{Bench, Result};

/// What one write of the disk's own rate writes.
const PAGE: [u8; 4096] = [0xA5; 4096];

pub(crate) fn run(bench: &Bench) -> Result<()> {
    let Bench { machine, load, rounds, .. } = bench;
    let redis = machine.redis()?;
    let alone = RedisAlone::new(machine, &redis, load.window)?;
    let bare = machine.bare()?;
    let memory = machine.keylatch(Store::Memory)?;
    let embedded = machine.keylatch(Store::Embedded("locks"))?;
    let on_redis = machine.keylatch(Store::Redis(&redis))?;
    let raw = File::create(machine.directory("raw"))?;
    let mut table = Table::default().row("bare handler", || load.measure(&bare, &Work::Lock));
    for (name, service) in [("memory", &memory), ("embedded", &embedded), ("Redis", &on_redis)] {
        for count in [1, 8, CONNECTIONS] {
            let measure = move || load.measure_on(count, &[service], &Work::Lock);
            table = table.row(format!("{name}, {count} connections"), measure);
        }
    }
    table
        .row("Redis alone", || alone.measure())
        .row("a write and a sync", || write_and_sync(&raw, load.window))
        .of("bare handler")
        .of("Redis alone")
        .of("memory, 64 connections")
        .of("a write and a sync")
        .run("Locks. Times of Redis alone are of the slower of SET and script.", *rounds)
}

/// The machine's own rate of writing a page and syncing it.
fn write_and_sync(file: &File, window: Duration) -> Result<Slice> {
    let (started, mut latencies) = (Instant::now(), Vec::new());
    while started.elapsed() < window {
        let before = Instant::now();
        file.write_all_at(&PAGE, 0)?;
        file.sync_data()?;
        latencies.push(nanoseconds(before.elapsed()));
    }
    Slice::new(latencies, started.elapsed(), Cpu::default())
}
