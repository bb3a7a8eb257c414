//! The locks and records of one process, by the rules of [`LockState`] and [`RecordState`]: what the
//! memory store is and the embedded store serves from.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::time::Instant;

use super::turns::Turns;
use super::watched::Watched;
use keylatch_core::idempotency::{RecordKey, RecordState};
use keylatch_core::lock::{
    Changes, Cursor, FencingToken, Holder, ListLocks, LockName, LockState, Moment, Page, Peek,
    TokenHash, Turn,
};

/// A table of locks and records in memory.
///
/// Each lives in the shard of its bucket, next to the bucket's fencing counter, so that one short
/// critical section sees all that a step needs. A shard is ordered by name, for listing.
#[derive(Debug)]
pub(super) struct Table {
    start: Instant,
    turns: Turns,
    watched: Watched,
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Debug, Default)]
pub(super) struct Shard {
    last_fence: FencingToken,
    locks: BTreeMap<LockName, LockState>,
    records: BTreeMap<RecordKey, RecordState>,
}

/// What the table keeps under a key: a lock under its name, a record under its own.
pub(super) trait Entry: Clone + Default + PartialEq {
    type Key: Clone + Ord;

    fn bucket(key: &Self::Key) -> u8;
    fn all(shard: &Shard) -> &BTreeMap<Self::Key, Self>;
    fn all_mut(shard: &mut Shard) -> &mut BTreeMap<Self::Key, Self>;
    /// What it still says at `moment`.
    fn live(&self, moment: &Moment) -> Self;
    /// Whether that is another than what was written.
    fn is_stale(&self, now: Duration) -> bool;
    /// The last fencing token that it gave.
    fn fence(&self) -> Option<FencingToken>;
    /// Whether there is nothing to keep, be it expired or not.
    fn is_empty(&self) -> bool;
    /// Whose turn at which lock it is now, if somebody waits for one.
    fn turn(key: &Self::Key, state: &Self) -> Option<(LockName, TokenHash)>;
    /// What those who watch it are told when it becomes `after`.
    fn tell(&self, key: &Self::Key, after: &Self, now: Duration, watched: &Watched);
}

impl Entry for LockState {
    type Key = LockName;

    fn bucket(name: &LockName) -> u8 {
        name.bucket()
    }

    fn all(shard: &Shard) -> &BTreeMap<LockName, Self> {
        &shard.locks
    }

    fn all_mut(shard: &mut Shard) -> &mut BTreeMap<LockName, Self> {
        &mut shard.locks
    }

    fn live(&self, moment: &Moment) -> Self {
        self.live(moment.now)
    }

    fn is_stale(&self, now: Duration) -> bool {
        self.is_stale(now)
    }

    fn fence(&self) -> Option<FencingToken> {
        self.fence()
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }

    fn turn(name: &LockName, state: &Self) -> Option<(LockName, TokenHash)> {
        state.next().map(|token| (name.clone(), *token))
    }

    fn tell(&self, name: &LockName, after: &Self, now: Duration, watched: &Watched) {
        if let Some(change) = self.change(after, name, now) {
            watched.tell(name, change);
        }
    }
}

impl Entry for RecordState {
    type Key = RecordKey;

    fn bucket(key: &RecordKey) -> u8 {
        key.bucket()
    }

    fn all(shard: &Shard) -> &BTreeMap<RecordKey, Self> {
        &shard.records
    }

    fn all_mut(shard: &mut Shard) -> &mut BTreeMap<RecordKey, Self> {
        &mut shard.records
    }

    fn live(&self, moment: &Moment) -> Self {
        self.live(moment)
    }

    fn is_stale(&self, now: Duration) -> bool {
        self.is_stale(now)
    }

    fn fence(&self) -> Option<FencingToken> {
        self.fence()
    }

    fn is_empty(&self) -> bool {
        self.record().is_none()
    }

    fn turn(_: &RecordKey, _: &Self) -> Option<(LockName, TokenHash)> {
        None
    }

    fn tell(&self, _: &RecordKey, _: &Self, _: Duration, _: &Watched) {}
}

/// What a rule comes to: what it found, and the entry's new state if that is another.
#[derive(Debug)]
pub(super) struct Step<E, O> {
    pub(super) outcome: O,
    pub(super) change: Option<E>,
}

impl Table {
    /// A table without locks and records, whose fencing tokens rise above `last_fence`.
    pub(super) fn new(last_fence: FencingToken) -> Self {
        let shard = || Mutex::new(Shard { last_fence, ..Shard::default() });
        let shards = (0..LockName::BUCKETS).map(|_| shard()).collect();
        let (turns, watched) = (Turns::default(), Watched::default());
        Self { start: Instant::now(), turns, watched, shards }
    }

    /// Carries a rule out, such as `|state, moment| state.apply(&command, moment)`.
    pub(super) fn run<E: Entry, O>(
        &self,
        key: &E::Key,
        rule: impl FnOnce(&E, &Moment) -> (E, O),
    ) -> O {
        let mut shard = self.shard(E::bucket(key));
        let moment = self.moment(shard.last_fence);
        let step = step(E::all(&shard).get(key), rule, &moment);
        let turn = step.change.and_then(|state| self.put(&mut shard, key, state));
        drop(shard);
        self.call(turn);
        step.outcome
    }

    /// What a rule would come to, with nothing changed.
    pub(super) fn consider<E: Entry, O>(
        &self,
        key: &E::Key,
        rule: impl FnOnce(&E, &Moment) -> (E, O),
    ) -> Step<E, O> {
        let shard = self.shard(E::bucket(key));
        let moment = self.moment(shard.last_fence);
        step(E::all(&shard).get(key), rule, &moment)
    }

    /// An entry and the moment at which the next command finds it.
    pub(super) fn look<E: Entry>(&self, key: &E::Key) -> (E, Moment) {
        let shard = self.shard(E::bucket(key));
        let state = E::all(&shard).get(key).cloned().unwrap_or_default();
        (state, self.moment(shard.last_fence))
    }

    /// Makes `state` the entry's.
    pub(super) fn install<E: Entry>(&self, key: &E::Key, state: E) {
        let turn = self.put(&mut self.shard(E::bucket(key)), key, state);
        self.call(turn);
    }

    /// Resolves when it may be `token`'s turn.
    pub(super) fn turn(&self, name: &LockName, token: &TokenHash) -> Turn {
        self.turns.wait(name, token)
    }

    /// How a lock changes from now on.
    pub(super) fn changes(&self, name: &LockName) -> Changes {
        self.watched.changes(name)
    }

    /// Lets the bucket's fencing tokens go on above `fence`.
    pub(super) fn raise(&self, bucket: u8, fence: FencingToken) {
        let mut shard = self.shard(bucket);
        shard.last_fence = shard.last_fence.max(fence);
    }

    /// Takes in what an earlier process wrote down, by what it comes to now.
    pub(super) fn restore<E: Entry>(&self, key: &E::Key, state: impl FnOnce(Duration) -> E) {
        self.install(key, state(self.start.elapsed()));
    }

    /// A page of the held locks; `None` for a cursor that no listing gave.
    pub(super) fn list(&self, query: &ListLocks) -> Option<Page> {
        let after = match &query.cursor {
            None => None,
            Some(cursor) => Some(decode_cursor(cursor)?),
        };
        let mut locks = Vec::new();
        let first = after.as_ref().map_or(0, LockName::bucket);
        for bucket in first..=u8::MAX {
            let after = after.as_ref().filter(|_| bucket == first);
            self.list_bucket(bucket, after, query, &mut locks);
            if locks.len() == query.limit {
                break;
            }
        }
        let full = locks.len() == query.limit;
        let next = locks.last().filter(|_| full).and_then(|last| encode_cursor(&last.name));
        Some(Page { locks, next })
    }

    /// Forgets what has expired in one bucket, and writes down what has ended by itself.
    pub(super) fn forget_expired<E: Entry>(&self, bucket: u8) {
        let mut shard = self.shard(bucket);
        let moment = self.moment(shard.last_fence);
        for key in shard.stale::<E>(moment.now) {
            let live = E::all(&shard).get(&key).map(|state| state.live(&moment));
            let turn = self.put(&mut shard, &key, live.unwrap_or_default());
            self.call(turn);
        }
    }

    /// What has expired or ended by itself in one bucket.
    pub(super) fn expired<E: Entry>(&self, bucket: u8) -> Vec<E::Key> {
        self.shard(bucket).stale::<E>(self.start.elapsed())
    }

    /// How many locks the table remembers, expired ones included.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        (0..=u8::MAX).map(|bucket| self.shard(bucket).locks.len()).sum()
    }

    /// The locks of one bucket that `query` asks for, after `after`, until `locks` is full.
    fn list_bucket(
        &self,
        bucket: u8,
        after: Option<&LockName>,
        query: &ListLocks,
        locks: &mut Vec<Holder>,
    ) {
        let shard = self.shard(bucket);
        let moment = self.moment(shard.last_fence);
        let from = match after {
            Some(name) if name.as_str() >= query.prefix.as_str() => Bound::Excluded(name.as_str()),
            _ => Bound::Included(query.prefix.as_str()),
        };
        let matching = shard
            .locks
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(name, _)| name.as_str().starts_with(&query.prefix))
            .filter_map(|(name, state)| state.apply(&Peek { name: name.clone() }, &moment).1);
        locks.extend(matching.take(query.limit - locks.len()));
    }

    /// Makes `state` the entry's, and tells those who watch it in the order in which it happens.
    fn put<E: Entry>(
        &self,
        shard: &mut Shard,
        key: &E::Key,
        state: E,
    ) -> Option<(LockName, TokenHash)> {
        if self.watched.any() {
            let none = E::default();
            let before = E::all(shard).get(key).unwrap_or(&none);
            before.tell(key, &state, self.start.elapsed(), &self.watched);
        }
        shard.install(key, state)
    }

    fn call(&self, turn: Option<(LockName, TokenHash)>) {
        if let Some((name, token)) = turn {
            self.turns.call(&name, &token);
        }
    }

    fn moment(&self, last_fence: FencingToken) -> Moment {
        Moment { now: self.start.elapsed(), unix_micros: unix_micros(), last_fence }
    }

    fn shard(&self, bucket: u8) -> MutexGuard<'_, Shard> {
        // A shard changes only after everything that could panic, so a poisoned one is whole.
        self.shards[usize::from(bucket)].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn stale<E: Entry>(&self, now: Duration) -> Vec<E::Key> {
        let stale = E::all(self).iter().filter(|(_, state)| state.is_stale(now));
        stale.map(|(key, _)| key.clone()).collect()
    }

    /// A grant that expired on its way is kept all the same: the sweep forgets it, also on disk.
    /// Gives whose turn it is now.
    fn install<E: Entry>(&mut self, key: &E::Key, state: E) -> Option<(LockName, TokenHash)> {
        let turn = E::turn(key, &state);
        self.last_fence = self.last_fence.max(state.fence().unwrap_or_default());
        let all = E::all_mut(self);
        if state.is_empty() {
            all.remove(key);
        } else if let Some(old) = all.get_mut(key) {
            *old = state;
        } else {
            all.insert(key.clone(), state);
        }
        turn
    }
}

/// One step of the rules on an entry that is in this state, or in none.
pub(super) fn step<E: Entry, O>(
    state: Option<&E>,
    rule: impl FnOnce(&E, &Moment) -> (E, O),
    moment: &Moment,
) -> Step<E, O> {
    let live = state.map(|state| state.live(moment)).unwrap_or_default();
    let (after, outcome) = rule(&live, moment);
    Step { outcome, change: (after != live).then_some(after) }
}

fn unix_micros() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX)
}

fn encode_cursor(name: &LockName) -> Option<Cursor> {
    Cursor::parse(&URL_SAFE_NO_PAD.encode(name.as_str())).ok()
}

fn decode_cursor(cursor: &Cursor) -> Option<LockName> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor.as_str()).ok()?;
    LockName::parse(std::str::from_utf8(&bytes).ok()?).ok()
}
