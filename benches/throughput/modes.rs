//! What many holders of one lock cost, next to one, and how a long queue gets several slots.
//!
//! A thousand holders share one lock while one more comes and leaves, and a thousand waiters get 50
//! slots. A request is here a grant, and the release after it; its times are from sending the
//! request to reading the 201.

use crate::load::{WAITING, Work};
use crate::processes::Store;
use crate::table::Table;
use crate::{Bench, Result};

/// How many hold the lock where many do, the one that is measured among them.
const HOLDERS: usize = 1000;
/// How many wait in the long line.
const WAITERS: usize = 1000;
const SHARE: &str = r#"{"mode":"shared"}"#;
const FIFTY_PLACES: &str = r#"{"wait_ms":60000,"mode":"shared","limit":50}"#;

pub(crate) fn run(bench: &Bench) -> Result<()> {
    let Bench { machine, load, rounds, .. } = bench;
    let start = || machine.keylatch(Store::Memory);
    let (free, shared, line, places) = (start()?, start()?, start()?, start()?);
    load.share(&shared, HOLDERS - 1)?;
    let turns = |count, body, service| load.measure_on(count, &[service], &Work::Turns(body));
    Table::default()
        .row("first share", || turns(1, SHARE, &free))
        .row("1,000th share", || turns(1, SHARE, &shared))
        .row("1,000 for one place", || turns(WAITERS, WAITING, &line))
        .row("1,000 for 50 places", || turns(WAITERS, FIFTY_PLACES, &places))
        .ratio("p50 of first share", "first share", |slice| slice.p50)
        .of("1,000 for one place")
        .run("Many holders, and many waiters, of one lock in memory.", *rounds)
}
