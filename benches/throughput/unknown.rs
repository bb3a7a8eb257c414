//! What it costs to find 100 unknown outcomes among a million records, beside a thousand in another
//! store.
//!
//! The list goes by the store's index, so the cost is to be that of the 100. The records are made
//! over HTTP, on memory and on Redis. A request is here a list.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::load::STUCK;
use crate::processes::{Process, Store, guard};
use crate::slice::{Meter, Slice, nanoseconds};
use crate::table::Table;
use crate::{Bench, Result};

const FEW: usize = 1_000;
const MANY: usize = 1_000_000;
/// How many outcomes are unknown.
const UNKNOWN: usize = 100;
/// How often a round asks for the list of these.
const ASKS: u32 = 50;
const LIST: &str = "/v1/idempotency?state=unknown&limit=1000";

pub(crate) fn run(bench: &Bench) -> Result<()> {
    println!("\n{UNKNOWN} unknown outcomes among {FEW} and {MANY} records; this takes a while.");
    compare(bench, "memory", &[Store::Memory; 2])?;
    let redis = [bench.machine.redis()?, bench.machine.redis()?];
    compare(bench, "Redis", &redis.each_ref().map(Store::Redis))
}

fn compare(bench: &Bench, name: &str, stores: &[Store<'_>; 2]) -> Result<()> {
    let Bench { machine, load, rounds, .. } = bench;
    let upstream = machine.bare()?;
    let settings = guard(&upstream, "", "");
    let start = |store, records| {
        let service = machine.keylatch_with(store, &settings)?;
        begin_unknown(&service)?;
        load.order(&service, records)?;
        Result::Ok(service)
    };
    let (few, many) = (start(stores[0], FEW)?, start(stores[1], MANY)?);
    Table::default()
        .row("1,000 records", || list(&few))
        .row("1,000,000 records", || list(&many))
        .ratio("p50 of 1,000 records", "1,000 records", |slice| slice.p50)
        .run(&format!("Lists of {UNKNOWN} unknown outcomes, {name}."), *rounds)
}

/// Begins runs of which nothing is heard again.
fn begin_unknown(service: &Process) -> Result<()> {
    for number in 0..UNKNOWN {
        let path = format!("/v1/idempotency/unknown-{number}?method=POST&path=/v1/orders");
        service.post(&path, r#"{"lease_ms":100}"#)?;
    }
    let began = Instant::now();
    while count_unknown(service)? < UNKNOWN {
        if began.elapsed() > STUCK {
            return Err("the outcomes did not become unknown".into());
        }
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn list(service: &Process) -> Result<Slice> {
    let (services, mut latencies) = ([service], Vec::new());
    let meter = Meter::start(&services)?;
    for _ in 0..ASKS {
        let began = Instant::now();
        let found = count_unknown(service)?;
        latencies.push(nanoseconds(began.elapsed()));
        if found != UNKNOWN {
            return Err(format!("the list has {found} records").into());
        }
    }
    let (elapsed, spent) = meter.read()?;
    Slice::new(latencies, elapsed, spent)
}

fn count_unknown(service: &Process) -> Result<usize> {
    Ok(service.get(LIST)?.matches(r#""state":"unknown""#).count())
}
