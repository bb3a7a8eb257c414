//! Guarded requests, run for the first time and replayed, next to what they are built on.
//!
//! The service that runs them is the bare handler, alone, behind the guard, behind a keylatch that
//! passes what no guard names, and behind an nginx that keeps its connections. A first run on Redis
//! stands beside two plain writes of a record, and a replay beside a plain read.

use crate::load::{CONNECTIONS, Work};
use crate::one_core::nginx;
use crate::processes::{Machine, Process, Store, guard};
use crate::redis_alone::Plain;
use crate::table::Table;
use crate::{Bench, Result};

/// The row of a record with what is kept of the response has about so many bytes.
const RECORD: usize = 512;

pub(crate) fn run(bench: &Bench) -> Result<()> {
    let Bench { machine, load, rounds, .. } = bench;
    let (redis, alone, upstream) = (machine.redis()?, machine.redis()?, machine.bare()?);
    let record = "x".repeat(RECORD);
    let set = ["SET", "record-__rand_int__", &record, "PX", "30000"];
    let write = Plain::new(machine, &alone, &set, load.window)?;
    write.scripts.cli(&["SET", "record", &record])?;
    let read = Plain::new(machine, &alone, &["GET", "record"], load.window)?;
    let start = |store| machine.keylatch_with(store, &guard(&upstream, "", ""));
    let (memory, embedded) = (start(Store::Memory)?, start(Store::Embedded("orders"))?);
    let on_redis = start(Store::Redis(&redis))?;
    let [proxy, passing] = proxies(machine, &upstream)?;
    let mut table = Table::default();
    for (name, service, work) in [
        ("bare handler", &upstream, &Work::FirstRun),
        ("behind nginx", &proxy, &Work::FirstRun),
        ("past every guard", &passing, &Work::FirstRun),
        ("memory, first run", &memory, &Work::FirstRun),
        ("embedded, first run", &embedded, &Work::FirstRun),
        ("Redis, first run", &on_redis, &Work::FirstRun),
        ("memory, replay", &memory, &Work::Replay),
        ("embedded, replay", &embedded, &Work::Replay),
        ("Redis, replay", &on_redis, &Work::Replay),
    ] {
        table = table.row(name, move || load.measure(service, work));
    }
    let write_twice = || {
        let writes = write.measure()?;
        // What was written would be in the way of what is measured next.
        write.scripts.cli(&["FLUSHALL", "SYNC"])?;
        write.scripts.cli(&["SET", "record", &record])?;
        Ok(writes.by(2.0))
    };
    table
        .row("two plain SET", write_twice)
        .row("plain GET", || read.measure())
        .of("bare handler")
        .of("behind nginx")
        .of("two plain SET")
        .of("plain GET")
        .run("An order is submitted: a guarded POST to the bare handler.", *rounds)
}

/// An nginx that keeps its connections to the upstream, and a keylatch without a guard.
fn proxies(machine: &Machine, upstream: &Process) -> Result<[Process; 2]> {
    let address = upstream.address;
    let shop = format!("upstream shop {{ server {address}; keepalive {CONNECTIONS}; }}");
    let pass = "proxy_pass http://shop; proxy_http_version 1.1; proxy_set_header Connection \"\";";
    let passes = format!(
        "[gateway]\nupstream = \"http://{address}\"\n[[listener]]\naddress = \"LISTEN\"\n\
         serves = [\"guards\"]\n"
    );
    Ok([nginx(machine, &shop, pass)?, machine.keylatch_with(Store::Memory, &passes)?])
}
