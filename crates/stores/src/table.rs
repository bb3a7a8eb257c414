//! The locks and records of one process, by the rules of [`LockState`] and [`RecordState`]: what
//! the memory store is and the embedded store serves from.
//!
//! Each entry lives in the shard of its bucket, next to the bucket's fencing counter, so that one
//! short critical section sees all that a step needs. A shard is ordered by name, for listing
//! (`list.rs`), and has an index of its unfinished records, and a bound of what is due for sweeps
//! (`sweep.rs`). Invariants: a waiter is woken, and a watcher told of a change, by the very step
//! that made it; the index has the unfinished records and no other.

#[cfg(feature = "embedded")]
mod fill;
mod list;
mod sweep;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::hints::{HintedEntry, LocalHints};
#[cfg(feature = "embedded")]
pub(crate) use fill::Fill;
use keylatch_core::entry::{Entry, Few, Found};
#[cfg(feature = "test-medium")]
use keylatch_core::idempotency::StoredResponse;
use keylatch_core::idempotency::{RecordKey, RecordRoom, RecordState};
use keylatch_core::lock::{FencingToken, GrantEnd, LockName, LockState, Moment};
use keylatch_core::store::{Command, EntryCounts, Hints, Reply, StoreGauges, Topic};
use keylatch_core::time::unix_micros;
pub(crate) use sweep::{Due, Sweep};

/// What the table's clock shows when it starts: more than the age of any entry that a file holds.
const CLOCK_ORIGIN: Duration = Duration::from_secs(2 * 366 * 24 * 60 * 60);

/// How many breaks a shard remembers: 10,240 in all. They are advice, and whoever may break can
/// make any number.
const BREAKS_MAX: usize = 40;

#[derive(Debug)]
pub(super) struct Table {
    start: Instant,
    hints: LocalHints,
    shards: Box<[Mutex<Shard>]>,
    counts: TableCounts,
}

#[derive(Debug, Default)]
pub(super) struct TableCounts {
    held_locks: AtomicU64,
    done_records: AtomicU64,
    room: Arc<RecordRoom>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Entries {
    pub(super) locks: BTreeMap<LockName, LockState>,
    pub(super) records: BTreeMap<RecordKey, RecordState>,
}

#[derive(Debug, Default)]
pub(super) struct Shard {
    last_fencing_token: FencingToken,
    entries: Entries,
    /// The records that are in flight or unknown.
    unfinished: BTreeSet<RecordKey>,
    /// Before what time none of the locks ends by itself.
    locks_due: Due,
    /// When the latest broken leases ended, oldest first: the shard remembers so many breaks.
    breaks: VecDeque<Duration>,
    breaks_from: Duration,
}

pub(super) trait TableEntry: HintedEntry {
    fn all(entries: &Entries) -> &BTreeMap<Self::Key, Self>;
    fn all_mut(entries: &mut Entries) -> &mut BTreeMap<Self::Key, Self>;
    /// The bound of when the first of them ends by itself, if the shard has one.
    fn due(_: &mut Shard) -> Option<&mut Due> {
        None
    }
    /// Keeps what the shard knows of such entries, when it becomes `after`.
    fn index(&self, _after: &Self, _: &Self::Key, _: &mut Shard) {}
    /// Counts it when it becomes `after`.
    fn count(&self, after: &Self, counts: &TableCounts);
}

/// Counts an entry that did or did not count, and does or does not now.
fn count(counter: &AtomicU64, was: bool, is: bool) {
    if was != is {
        counter.fetch_add(u64::from(is).wrapping_sub(was.into()), Ordering::Relaxed);
    }
}

impl TableEntry for LockState {
    fn all(entries: &Entries) -> &BTreeMap<LockName, Self> {
        &entries.locks
    }

    fn all_mut(entries: &mut Entries) -> &mut BTreeMap<LockName, Self> {
        &mut entries.locks
    }

    fn due(shard: &mut Shard) -> Option<&mut Due> {
        Some(&mut shard.locks_due)
    }

    fn index(&self, after: &Self, _: &LockName, shard: &mut Shard) {
        let new = after.history().ends_after(self.history()).filter_map(GrantEnd::broken_at);
        shard.breaks.extend(new);
        let too_many = shard.breaks.len().saturating_sub(BREAKS_MAX);
        for oldest in shard.breaks.drain(..too_many) {
            shard.breaks_from = shard.breaks_from.max(oldest + Duration::from_nanos(1));
            shard.locks_due.add(oldest);
        }
    }

    fn count(&self, after: &Self, counts: &TableCounts) {
        let is_held = |state: &Self| state.holders().len() > 0;
        count(&counts.held_locks, is_held(self), is_held(after));
    }
}

impl TableEntry for RecordState {
    fn all(entries: &Entries) -> &BTreeMap<RecordKey, Self> {
        &entries.records
    }

    fn all_mut(entries: &mut Entries) -> &mut BTreeMap<RecordKey, Self> {
        &mut entries.records
    }

    fn index(&self, after: &Self, key: &RecordKey, shard: &mut Shard) {
        if after.is_unfinished() {
            shard.unfinished.insert(*key);
        } else {
            shard.unfinished.remove(key);
        }
    }

    fn count(&self, after: &Self, counts: &TableCounts) {
        let is_listed = |state: &Self| state.record().is_some_and(|one| !one.scope.is_internal());
        let is_done = |state: &Self| is_listed(state) && !state.is_unfinished();
        count(&counts.done_records, is_done(self), is_done(after));
        counts.room.count(self.room_use(), after.room_use());
    }
}

/// The shards of a step's entries, each locked once.
struct LockedShards<'a> {
    shards: Few<MutexGuard<'a, Shard>>,
    /// Of each entry which of the shards it is in.
    places: Few<usize>,
}

/// An entry as a step finds it and leaves it. The rules change a copy, so that a rule that panics
/// leaves the entry whole.
#[derive(Debug)]
pub(super) struct Draft<E> {
    pub(super) before: E,
    pub(super) after: E,
    pub(super) moment: Moment,
}

/// The reply to a command that changes nothing.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) reply: Reply,
    /// Something of the entry has ended by itself, and nobody has written that down.
    pub(super) has_lapsed: bool,
}

impl Table {
    /// A table without locks and records, whose fencing tokens rise above `last_fencing_token`.
    pub(super) fn new(last_fencing_token: FencingToken) -> Self {
        let shard = || Mutex::new(Shard { last_fencing_token, ..Shard::default() });
        let shards = (0..LockName::BUCKETS).map(|_| shard()).collect();
        Self {
            start: Instant::now(),
            hints: LocalHints::default(),
            shards,
            counts: TableCounts::default(),
        }
    }

    pub(super) fn step(&self, command: &Command) -> Reply {
        match command {
            Command::Lock(names, command) => {
                Reply::Lock(self.run::<LockState>(names.names(), command))
            }
            Command::Record(key, command) => {
                Reply::Record(self.run::<RecordState>(slice::from_ref(key), command))
            }
        }
    }

    /// The reply to a command that would change nothing; `None` where it would.
    pub(super) fn refuse(&self, command: &Command) -> Option<Refusal> {
        match command {
            Command::Lock(names, command) => {
                let (reply, has_lapsed) = self.refuse_step::<LockState>(names.names(), command)?;
                Some(Refusal { reply: Reply::Lock(reply), has_lapsed })
            }
            Command::Record(key, command) => {
                let key = slice::from_ref(key);
                let (reply, has_lapsed) = self.refuse_step::<RecordState>(key, command)?;
                Some(Refusal { reply: Reply::Record(reply), has_lapsed })
            }
        }
    }

    fn refuse_step<E: TableEntry>(
        &self,
        keys: &[E::Key],
        command: &E::Command,
    ) -> Option<(E::Reply, bool)> {
        let (_, drafts, reply) = self.consider::<E>(keys, command);
        let is_unchanged = |Draft { before, after, moment }: &Draft<E>| {
            after == before || *after == before.live(moment)
        };
        let has_lapsed = drafts.iter().any(|draft| draft.before.has_lapsed(&draft.moment));
        drafts.iter().all(is_unchanged).then_some((reply, has_lapsed))
    }

    fn run<E: TableEntry>(&self, keys: &[E::Key], command: &E::Command) -> E::Reply {
        let (mut shards, drafts, reply) = self.consider::<E>(keys, command);
        for ((key, place), Draft { before, after, .. }) in
            keys.iter().zip(&shards.places).zip(drafts)
        {
            if before != after {
                self.put(&mut shards.shards[*place], key, &before, after);
            }
        }
        reply
    }

    /// What a command comes to. The step is one, because all shards are locked before it and until
    /// its end.
    fn consider<E: TableEntry>(
        &self,
        keys: &[E::Key],
        command: &E::Command,
    ) -> (LockedShards<'_>, Few<Draft<E>>, E::Reply) {
        let (locked, now) = (self.shards_of::<E>(keys), self.clocks());
        let drafts = keys.iter().zip(&locked.places).map(|(key, place)| {
            let shard = &locked.shards[*place];
            Draft::of(shard.state(key), shard.moment(now))
        });
        let mut drafts: Few<_> = drafts.collect();
        let reply = step(keys, &mut drafts, command);
        (locked, drafts, reply)
    }

    /// The shards of some entries. They are locked in the order of their buckets, so that no two
    /// steps wait for each other.
    fn shards_of<E: TableEntry>(&self, keys: &[E::Key]) -> LockedShards<'_> {
        let of_keys: Few<_> = keys.iter().map(E::bucket).collect();
        let mut buckets = of_keys.clone();
        buckets.sort_unstable();
        buckets.dedup();
        let place = |bucket| buckets.partition_point(|other| other < bucket);
        let places = of_keys.iter().map(place).collect();
        LockedShards { shards: buckets.iter().map(|bucket| self.shard(*bucket)).collect(), places }
    }

    /// An entry and the moment at which the next command finds it.
    pub(super) fn look<E: TableEntry>(&self, key: &E::Key) -> (E, Moment) {
        let shard = self.shard(E::bucket(key));
        (shard.state(key), self.moment(&shard))
    }

    pub(super) fn install<E: TableEntry>(&self, key: &E::Key, state: E) {
        let mut shard = self.shard(E::bucket(key));
        let before = shard.state(key);
        self.put(&mut shard, key, &before, state);
    }

    pub(super) fn subscribe(&self, topic: Topic) -> Hints {
        self.hints.subscribe(topic)
    }

    /// Lets the bucket's fencing tokens rise above `fencing_token`.
    pub(super) fn raise(&self, bucket: u8, fencing_token: FencingToken) {
        let mut shard = self.shard(bucket);
        shard.last_fencing_token = shard.last_fencing_token.max(fencing_token);
    }

    /// What its records take and how many entries of each kind there are, those that expired since
    /// the last sweep included.
    pub(super) fn gauges(&self) -> StoreGauges {
        let entries = EntryCounts {
            held_locks: self.counts.held_locks.load(Ordering::Relaxed),
            done_records: self.counts.done_records.load(Ordering::Relaxed),
        };
        let room = Some(Arc::clone(&self.counts.room));
        StoreGauges { room, entries: Some(entries), ..StoreGauges::default() }
    }

    pub(super) fn now(&self) -> Duration {
        CLOCK_ORIGIN + self.start.elapsed()
    }

    /// How many bytes of answers the table itself has.
    #[cfg(feature = "test-medium")]
    pub(super) fn answer_bytes_in_memory(&self) -> u64 {
        let of_shard = |bucket| {
            let shard = self.shard(bucket);
            let whole = shard
                .entries
                .records
                .values()
                .filter(|state| !matches!(state.kept(), None | Some(StoredResponse::Stub(_))));
            whole.map(RecordState::kept_bytes).sum::<u64>()
        };
        (0..=u8::MAX).map(of_shard).sum()
    }

    /// How many locks the table remembers, expired ones included.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        (0..=u8::MAX).map(|bucket| self.shard(bucket).entries.locks.len()).sum()
    }

    /// Makes an entry that was `before` the one `after`, and tells waiters and watchers of that in
    /// the order in which it happens. A grant that expired on its way is kept all the same: the
    /// sweep forgets it, also on disk.
    fn put<E: TableEntry>(&self, shard: &mut Shard, key: &E::Key, before: &E, after: E) {
        self.hints.report(key, before, &after, self.now());
        self.hints.report_ends(key, before, &after);
        self.hints.wake(key, before, &after);
        before.count(&after, &self.counts);
        shard.note(key, before, &after);
        if after.is_empty() {
            E::all_mut(&mut shard.entries).remove(key);
        } else {
            E::all_mut(&mut shard.entries).insert(key.clone(), after);
        }
    }

    fn moment(&self, shard: &Shard) -> Moment {
        shard.moment(self.clocks())
    }

    /// The moment that both clocks show.
    fn clocks(&self) -> Moment {
        let (now, unix_micros) = (self.now(), unix_micros());
        Moment { now, unix_micros, least_micros: unix_micros, ..Moment::default() }
    }

    fn shard(&self, bucket: u8) -> MutexGuard<'_, Shard> {
        // A shard changes only after everything that could panic, so a poisoned one is whole.
        self.shards[usize::from(bucket)].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn moment(&self, now: Moment) -> Moment {
        let Self { last_fencing_token, breaks_from, .. } = *self;
        Moment { last_fencing_token, breaks_from, ..now }
    }

    fn state<E: TableEntry>(&self, key: &E::Key) -> E {
        E::all(&self.entries).get(key).cloned().unwrap_or_default()
    }

    /// Notes what the shard knows of all its entries together, when one that was `before` becomes
    /// `after`.
    fn note<E: TableEntry>(&mut self, key: &E::Key, before: &E, after: &E) {
        if let Some(due) = E::due(self)
            && let Some(end) = after.ends().min()
        {
            due.add(end);
        }
        self.last_fencing_token =
            self.last_fencing_token.max(after.fencing_token().unwrap_or_default());
        before.index(after, key, self);
    }
}

/// Takes one step of the rules. What has ended by itself is a change too, so that it does not come
/// back once a client was told of the end.
pub(super) fn step<E: Entry>(
    keys: &[E::Key],
    drafts: &mut [Draft<E>],
    command: &E::Command,
) -> E::Reply {
    let found = keys.iter().zip(drafts);
    let found =
        found.map(|(key, draft)| Found { key, state: &mut draft.after, moment: draft.moment });
    E::step(&mut found.collect::<Few<_>>(), command)
}

impl<E: Entry> Draft<E> {
    pub(super) fn of(state: E, moment: Moment) -> Self {
        Self { after: state.clone(), before: state, moment }
    }
}
