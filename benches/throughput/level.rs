//! What a great number of held locks costs, next to a thousand: each request, memory, and a start.
//!
//! The figures of 10,000,000 locks take `--held 10000000`; less is held by default, because it
//! takes minutes. The locks are made by requests for sets of 16. Last a store on disk is opened
//! with all of them after its service was killed, while `/livez` is asked.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::background::Background;
use crate::load::Work;
use crate::processes::{Process, Store};
use crate::table::Table;
use crate::{Bench, Result};

const FEW: usize = 1_000;
/// How often `/livez` is asked.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) fn run(bench: &Bench) -> Result<()> {
    let Bench { machine, held, .. } = bench;
    println!("\nHolding {FEW} and {held} locks on each store; this takes a while.");
    compare(bench, "memory", &[Store::Memory; 2])?;
    let redis = [machine.redis()?, machine.redis()?];
    compare(bench, "Redis", &redis.each_ref().map(Store::Redis))?;
    drop(redis);
    open(bench)
}

/// Measures requests with few and with many locks held.
fn compare(bench: &Bench, name: &str, [few, many]: &[Store<'_>; 2]) -> Result<()> {
    let Bench { machine, load, rounds, held, .. } = bench;
    let (few, many) = (machine.keylatch(*few)?, machine.keylatch(*many)?);
    load.fill(&few, FEW)?;
    let empty = many.resident()?;
    load.fill(&many, *held)?;
    let bytes = (many.resident()? - empty) / *held as f64;
    let names = [FEW, *held].map(|held| format!("{held} held"));
    Table::default()
        .row(&*names[0], || load.measure(&few, &Work::Lock))
        .row(&*names[1], || load.measure(&many, &Work::Lock))
        .of(&names[0])
        .ratio("its µs each", &names[0], |slice| slice.cost())
        .run(&format!("{name}; the service grew by {bytes:.0} bytes a lock."), *rounds)
}

/// Opens a store on disk with many locks.
fn open(Bench { machine, load, held, .. }: &Bench) -> Result<()> {
    let service = machine.keylatch(Store::Embedded("level"))?;
    load.fill(&service, *held)?;
    // Killed, so that the file is opened as after a crash.
    drop(service);
    let size = fs::metadata(machine.directory("level").join("locks.sqlite"))?.len() >> 20;
    let began = Instant::now();
    let service = Arc::new(machine.keylatch(Store::Embedded("level"))?);
    let asked = Arc::clone(&service);
    let asking = Background::start(|is_open| slowest_response(asked, is_open));
    load.create_one(&service)?;
    let opened = began.elapsed();
    let slowest = asking.end()?;
    println!(
        "\nA store with {held} locks on disk ({size} MiB) creates the first lock {opened:.2?} \
         after its start; /livez takes {slowest:.1?} at most meanwhile."
    );
    Ok(())
}

/// How long `/livez` took at most until the store was open.
async fn slowest_response(service: Arc<Process>, is_open: Arc<AtomicBool>) -> Result<Duration> {
    let mut slowest = Duration::ZERO;
    while !is_open.load(Ordering::Relaxed) {
        let began = Instant::now();
        if !service.get("/livez")?.contains(" 200 OK") {
            return Err("/livez is not 200 while the store opens".into());
        }
        slowest = slowest.max(began.elapsed());
        sleep(LOOK).await;
    }
    Ok(slowest)
}
