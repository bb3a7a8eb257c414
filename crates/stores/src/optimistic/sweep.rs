//! Removing rows that nothing needs: walks over all rows, a second each at most, in two steps.
//!
//! A row is dead when nothing has been under its key for [`IDLE`]. The walk raises the floor of its
//! bucket above its last fencing token, and a later walk removes it, if it is still the same row.
//! Every process walks; each step is conditional, so that two at once do no harm. Why the pause
//! between the steps is long enough is in `floor.rs`.
//!
//! Where the engine has no clock, a process that starts takes every row for new. So that a record
//! is not kept for ever where processes start again each day, the walk writes a row's age into it
//! every [`AGE_AFTER`].

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use keylatch_core::idempotency::RecordState;
use keylatch_core::lock::{FencingToken, LockState};
use keylatch_core::store::StoreError;
use tokio::time::Instant;

use super::conditional::{
    Change, ConditionalStore, EngineTime, Guard, Key, Listing, Mark, Outline, Removal, Version,
};
use super::floor::{REMOVAL_PAUSE, floor_of, floor_value};
use super::value::{DECISION_LASTS, Kind, Value};
use crate::sweeper::Sweeper;

/// For how long nothing has been under a key whose row is removed: longer than any process
/// remembers one.
const IDLE: Duration = Duration::from_secs(30);
/// For how long a process observes a row before it writes down how old the row is.
const AGE_AFTER: Duration = Duration::from_secs(6 * 60 * 60);
/// How long the write may take from which ages are counted: so much younger may a row become.
const MARK_LIMIT: Duration = Duration::from_secs(1);
/// How many rows get their age written at once.
const AGES_AT_ONCE: usize = 64;
/// How many rows are read at once, and removed at once: a round trip and a commit for many of them,
/// since a service that gives each lock a new name leaves a thousand rows a second. Not more,
/// because a step on a lock waits behind them.
const PAGE: RangeInclusive<usize> = 64..=256;
/// How large the rows of a page may be together, where they are more than the fewest: a record may
/// have half a megabyte.
const PAGE_BYTES: usize = 256 * 1024;
/// How long a walk may take. The next one begins where this one stopped.
const WALK_LIMIT: Duration = Duration::from_secs(1);
/// How many rows wait for their removal at most; a walk finds the others again.
const CONDEMNED_MAX: usize = 64 * 1024;

/// The walks over the rows of an engine that forgets none by itself.
#[derive(Debug)]
pub(super) struct RowSweeper {
    engine: Arc<dyn ConditionalStore>,
    locks: Sweep<LockState>,
    records: Sweep<RecordState>,
}

impl RowSweeper {
    pub(super) fn of(engine: &Arc<dyn ConditionalStore>) -> Self {
        Self { engine: Arc::clone(engine), locks: Sweep::default(), records: Sweep::default() }
    }
}

impl Sweeper for RowSweeper {
    async fn sweep(&mut self, records: bool) -> Result<usize, StoreError> {
        self.locks.walk(&*self.engine).await?;
        if records {
            self.records.walk(&*self.engine).await?;
        }
        Ok(0)
    }
}

#[derive(Debug)]
struct Sweep<E> {
    /// The last row that was looked at; `None` at the start of a walk.
    after: Option<Key>,
    page: usize,
    /// Rows below their bucket's floor, and since when.
    condemned: BTreeMap<Key, (EngineTime, Removal)>,
    kind: PhantomData<fn() -> E>,
}

impl<E> Default for Sweep<E> {
    fn default() -> Self {
        Self { after: None, page: *PAGE.start(), condemned: BTreeMap::new(), kind: PhantomData }
    }
}

impl<E: Kind> Sweep<E> {
    /// Looks at rows until all were looked at or it has taken too long. After an error the next
    /// walk begins with the same rows.
    async fn walk(&mut self, engine: &dyn ConditionalStore) -> Result<(), StoreError> {
        let started = Instant::now();
        loop {
            self.step(engine).await?;
            if self.after.is_none() || started.elapsed() >= WALK_LIMIT {
                return Ok(());
            }
        }
    }

    /// Looks at the next rows, and removes those that were dead long enough ago. After an error the
    /// next step tries the same rows again.
    async fn step(&mut self, engine: &dyn ConditionalStore) -> Result<(), StoreError> {
        let listing = engine.list(E::PREFIX, self.after.as_ref(), self.page).await?;
        let now = listing.now;
        self.remove_condemned(engine, now).await?;
        let (last, is_end) =
            (listing.rows.last().map(|(key, _)| key.clone()), listing.rows.len() < self.page);
        let next_page = page_like(&listing);
        self.condemn(engine, listing).await?;
        (self.after, self.page) = (last.filter(|_| !is_end), next_page);
        Ok(())
    }

    async fn remove_condemned(
        &mut self,
        engine: &dyn ConditionalStore,
        now: EngineTime,
    ) -> Result<(), StoreError> {
        let due = self.condemned.iter().filter(|(_, (since, _))| *since + REMOVAL_PAUSE <= now);
        let rows = due.map(|(_, (_, row))| row.clone()).take(self.page);
        let rows: Vec<_> = rows.collect();
        for Removal { key, .. } in &rows {
            self.condemned.remove(key);
        }
        if rows.is_empty() { Ok(()) } else { engine.remove(&rows).await }
    }

    /// Raises the floors above the dead rows, and writes down the age of old ones.
    async fn condemn(
        &mut self,
        engine: &dyn ConditionalStore,
        listing: Listing,
    ) -> Result<(), StoreError> {
        let mut floors: BTreeMap<u8, FencingToken> = BTreeMap::new();
        let (mut dead, mut aging) = (Vec::new(), Vec::new());
        for (key, row) in listing.rows {
            let Ok(value) = Value::<E>::decode(&row, engine.timeline()) else { continue };
            if value.is_dead(listing.now, IDLE) {
                if self.condemned.len() < CONDEMNED_MAX && !self.condemned.contains_key(&key) {
                    let floor = floors.entry(key.bucket()).or_default();
                    *floor = value.last.max(*floor);
                    let is_marked = value.state.is_marked();
                    dead.push(Removal { key, version: row.version, is_marked });
                }
            } else if value.written + AGE_AFTER <= listing.now && value.is_stamped() {
                aging.push((key, row.version, value));
            }
        }
        for rows in aging.chunks_mut(AGES_AT_ONCE) {
            write_ages(engine, rows).await?;
        }
        let (raised, now) = raise(engine, &floors).await?;
        let below = dead.into_iter().filter(|row| raised.contains(&row.key.bucket()));
        self.condemned.extend(below.map(|row| (row.key.clone(), (now, row))));
        Ok(())
    }
}

/// How many rows of the size of these are a page.
fn page_like(listing: &Listing) -> usize {
    let bytes: usize = listing.rows.iter().map(|(_, row)| row.value.len()).sum();
    let fit = PAGE_BYTES * listing.rows.len() / bytes.max(1);
    fit.clamp(*PAGE.start(), *PAGE.end())
}

/// Writes down how old rows are, on an engine without a clock.
///
/// The first row is written as it is. That gives a version of which this process knows when it was
/// written, and the times of all rows are counted from it. So it does not matter how long the
/// second write takes.
async fn write_ages<E: Kind>(
    engine: &dyn ConditionalStore,
    rows: &mut [(Key, Version, Value<E>)],
) -> Result<(), StoreError> {
    let Some(timeline) = engine.timeline() else { return Ok(()) };
    let Some((key, version, value)) = rows.first_mut() else { return Ok(()) };
    let sent = timeline.now();
    let change = |key: &Key, was: Version, value: &Value<E>| {
        let guard = Guard { from: Duration::ZERO, until: sent + DECISION_LASTS };
        let is_marked = value.state.is_marked();
        let mark = Mark { was: is_marked, is: is_marked };
        let bytes = value.encode(Some(timeline)).ok()?;
        let (key, was, outline) = (key.clone(), Some(was), Outline::default());
        Some(Change { key, was, value: bytes, mark, guard, above: None, outline })
    };
    let Some(mark) = change(key, *version, value) else { return Ok(()) };
    let writing = engine.write(&[mark]).await?;
    let Some(mark) = writing.versions.first().copied().flatten() else { return Ok(()) };
    if timeline.now() > sent + MARK_LIMIT {
        return Ok(());
    }
    *version = mark;
    let changes = rows
        .iter()
        .filter_map(|(key, version, value)| change(key, *version, &value.counted_from(mark, sent)));
    let changes: Vec<_> = changes.collect();
    engine.write(&changes).await.map(drop)
}

/// Raises floors; gives the buckets whose floor is high enough, and what the engine's clock showed
/// last.
async fn raise(
    engine: &dyn ConditionalStore,
    floors: &BTreeMap<u8, FencingToken>,
) -> Result<(Vec<u8>, EngineTime), StoreError> {
    let keys: Vec<_> = floors.keys().copied().map(Key::Floor).collect();
    if keys.is_empty() {
        return Ok((Vec::new(), Duration::ZERO));
    }
    let reading = engine.read(&keys).await?;
    let guard = Guard { from: Duration::ZERO, until: reading.now + DECISION_LASTS };
    let (mut raised, mut changes, mut now) = (Vec::new(), Vec::new(), reading.now);
    for ((bucket, last), row) in floors.iter().zip(&reading.rows) {
        let known = floor_of(row.as_ref(), engine.timeline());
        // Without a clock, only a new version of the floor refuses a creation that is still on its
        // way.
        if engine.timeline().is_none() && known.is_some_and(|known| known >= *last) {
            raised.push(*bucket);
        } else if let Some(known) = known
            && let Ok(value) = floor_value(known.max(*last), reading.now).encode(engine.timeline())
        {
            let was = row.as_ref().map(|row| row.version);
            let (key, mark) = (Key::Floor(*bucket), Mark::default());
            let outline = Outline::default();
            changes.push(Change { key, was, value, mark, guard, above: None, outline });
        }
    }
    if !changes.is_empty() {
        let writing = engine.write(&changes).await?;
        let written = changes.iter().zip(writing.versions).filter(|(_, version)| version.is_some());
        raised.extend(written.map(|(change, _)| change.key.bucket()));
        now = writing.now;
    }
    Ok((raised, now))
}
