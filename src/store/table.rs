//! The locks of one process, by the rules of [`LockState`]: what the memory store is and the
//! embedded store serves from.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::time::Instant;

use crate::lock::{
    Command, Cursor, FencingToken, Holder, ListLocks, LockName, LockState, Moment, Page, Peek,
    Record,
};

/// A table of locks in memory.
///
/// A lock lives in the shard of its bucket, next to the bucket's fencing counter, so that one
/// short critical section sees all that a step needs. A shard is ordered by name, for listing.
#[derive(Debug)]
pub(super) struct Table {
    start: Instant,
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Debug, Default)]
struct Shard {
    last_fence: FencingToken,
    locks: BTreeMap<LockName, LockState>,
}

/// What a command comes to: what it found, and the lock's new state if that is another.
#[derive(Debug)]
pub(super) struct Step<O> {
    pub(super) outcome: O,
    pub(super) change: Option<LockState>,
}

impl Table {
    /// A table without locks, whose fencing tokens rise above `last_fence`.
    pub(super) fn new(last_fence: FencingToken) -> Self {
        let shard = || Mutex::new(Shard { last_fence, locks: BTreeMap::new() });
        Self { start: Instant::now(), shards: (0..LockName::BUCKETS).map(|_| shard()).collect() }
    }

    /// Carries a command out.
    pub(super) fn run<C: Command>(&self, name: &LockName, command: &C) -> C::Outcome {
        let mut shard = self.shard(name.bucket());
        let moment = self.moment(shard.last_fence);
        let step = step(shard.locks.get(name.as_str()), command, &moment);
        if let Some(state) = step.change {
            shard.install(name, state);
        }
        step.outcome
    }

    /// What a command would come to, with nothing changed.
    pub(super) fn consider<C: Command>(&self, name: &LockName, command: &C) -> Step<C::Outcome> {
        let shard = self.shard(name.bucket());
        let moment = self.moment(shard.last_fence);
        step(shard.locks.get(name.as_str()), command, &moment)
    }

    /// The state of a lock and the moment at which the next command finds it.
    pub(super) fn look(&self, name: &LockName) -> (LockState, Moment) {
        let shard = self.shard(name.bucket());
        let state = shard.locks.get(name.as_str()).cloned().unwrap_or_default();
        (state, self.moment(shard.last_fence))
    }

    /// Makes `state` the lock's.
    pub(super) fn install(&self, name: &LockName, state: LockState) {
        self.shard(name.bucket()).install(name, state);
    }

    /// Lets the bucket's fencing tokens go on above `fence`.
    pub(super) fn raise(&self, bucket: u8, fence: FencingToken) {
        let mut shard = self.shard(bucket);
        shard.last_fence = shard.last_fence.max(fence);
    }

    /// Takes a grant in that an earlier process wrote down.
    pub(super) fn restore(&self, name: &LockName, record: &Record<'_>) {
        self.install(name, LockState::restore(record, self.start.elapsed()));
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

    /// Forgets the expired locks of one bucket.
    pub(super) fn forget_expired(&self, bucket: u8) {
        let now = self.start.elapsed();
        self.shard(bucket).locks.retain(|_, state| !state.is_free(now));
    }

    /// The expired locks of one bucket.
    pub(super) fn expired(&self, bucket: u8) -> Vec<LockName> {
        let now = self.start.elapsed();
        let shard = self.shard(bucket);
        let expired = shard.locks.iter().filter(|(_, state)| state.is_free(now));
        expired.map(|(name, _)| name.clone()).collect()
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
            .filter_map(|(name, state)| {
                step(Some(state), &Peek { name: name.clone() }, &moment).outcome
            });
        locks.extend(matching.take(query.limit - locks.len()));
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
    /// A grant that expired on its way is kept all the same: the sweep forgets it, also on disk.
    fn install(&mut self, name: &LockName, state: LockState) {
        self.last_fence = self.last_fence.max(state.fence().unwrap_or_default());
        if state.record().is_none() {
            self.locks.remove(name.as_str());
        } else if let Some(old) = self.locks.get_mut(name.as_str()) {
            *old = state;
        } else {
            self.locks.insert(name.clone(), state);
        }
    }
}

/// One step of the rules on a lock that is in this state, or in none.
pub(super) fn step<C: Command>(
    state: Option<&LockState>,
    command: &C,
    moment: &Moment,
) -> Step<C::Outcome> {
    let live = state.map(|state| state.live(moment.now)).unwrap_or_default();
    let (after, outcome) = live.apply(command, moment);
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
