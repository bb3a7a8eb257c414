//! How many records there are by state, for `/metrics` and the console.
//!
//! Few records are unfinished, and the store has an index of them; the done ones are counted where
//! the store keeps them in this process. A count takes at most [`COUNT_LIMIT`], and says of each
//! number whether it is known.
//!
//! Invariant: however many consoles look and whoever scrapes, the store is asked once in
//! [`RecordCounter::KEPT_FOR`]. Tested in `tests/api/console_keys.rs`.

use std::time::Duration;

use futures_util::future::join;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::metrics::RecordCounts;
use keylatch_core::idempotency::{IdempotencyService, PhaseName, RecordFilter};
use keylatch_core::store::ListRecords;

/// How long a count waits for the store.
pub(crate) const COUNT_LIMIT: Duration = Duration::from_secs(1);
/// How many records of a state, and how many locks, are counted at most.
pub(crate) const MAX_COUNT: usize = 1000;

/// The last count of unknown records and of those in flight.
#[derive(Debug, Default)]
pub struct RecordCounter {
    last: Mutex<Option<(Instant, [Option<usize>; 2])>>,
}

impl RecordCounter {
    /// How old a count may be.
    const KEPT_FOR: Duration = Duration::from_secs(2);

    /// The counts, of which those of unfinished records may be of a moment ago. Those who come
    /// meanwhile wait for the same count.
    pub(crate) async fn counts(&self, records: &IdempotencyService) -> RecordCounts {
        let mut last = self.last.lock().await;
        let [unknown, in_flight] = match *last {
            Some((at, counts)) if at.elapsed() < Self::KEPT_FOR => counts,
            _ => {
                let counts = count_unfinished(records).await;
                *last = Some((Instant::now(), counts));
                counts
            }
        };
        let (done, kept_bytes) = (records.done_records(), records.kept_bytes());
        RecordCounts { unknown, in_flight, done, kept_bytes }
    }
}

async fn count_unfinished(records: &IdempotencyService) -> [Option<usize>; 2] {
    let count = |phase| timeout(COUNT_LIMIT, count_in(records, phase));
    let (unknown, in_flight) = join(count(PhaseName::Unknown), count(PhaseName::InFlight)).await;
    [unknown.ok().flatten(), in_flight.ok().flatten()]
}

async fn count_in(records: &IdempotencyService, phase: PhaseName) -> Option<usize> {
    let filter = RecordFilter { phase: Some(phase), ..RecordFilter::default() };
    let mut query = ListRecords { filter, limit: MAX_COUNT, cursor: None };
    let mut count = 0;
    loop {
        let page = records.list(&query).await.ok()??;
        count += page.entries.len();
        query.cursor = page.next;
        if count >= MAX_COUNT || query.cursor.is_none() {
            return Some(count.min(MAX_COUNT));
        }
    }
}
