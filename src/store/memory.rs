//! The store that keeps nothing: locks in the memory of one process.

use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::time::Instant;

use crate::lock::{
    Acquire, Acquisition, Attempt, Command, Cursor, FencingToken, Holder, ListLocks, LockName,
    LockState, LockStore, Moment, Page, Peek, Release, Renew, Renewal, Return, StoreError,
    StoreHealth, Tier, TokenHash, Ttl, Withdraw,
};

/// A [`LockStore`] in memory, by the rules of [`LockState`].
///
/// A lock lives in the shard of its bucket, next to the bucket's fencing counter, so that one
/// short critical section sees all that a step needs. A shard is ordered by name, for listing.
#[derive(Debug)]
pub struct MemoryStore {
    start: Instant,
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Debug, Default)]
struct Shard {
    last_fence: FencingToken,
    locks: BTreeMap<LockName, LockState>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            shards: (0..LockName::BUCKETS).map(|_| Mutex::default()).collect(),
        }
    }

    fn step<C: Command>(&self, name: &LockName, command: &C) -> C::Outcome {
        let mut shard = self.shard(name.bucket());
        let moment = Moment {
            now: self.start.elapsed(),
            unix_micros: unix_micros(),
            last_fence: shard.last_fence,
        };
        let (fence, outcome) = match shard.locks.entry(name.clone()) {
            btree_map::Entry::Occupied(mut entry) => {
                let (state, outcome) = entry.get().apply(command, &moment);
                let fence = state.fence();
                if state.is_free(moment.now) {
                    entry.remove();
                } else {
                    entry.insert(state);
                }
                (fence, outcome)
            }
            btree_map::Entry::Vacant(entry) => {
                let (state, outcome) = LockState::default().apply(command, &moment);
                let fence = state.fence();
                if !state.is_free(moment.now) {
                    entry.insert(state);
                }
                (fence, outcome)
            }
        };
        shard.last_fence = shard.last_fence.max(fence.unwrap_or_default());
        outcome
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
        let now = self.start.elapsed();
        let moment = Moment { now, unix_micros: 0, last_fence: shard.last_fence };
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

    fn shard(&self, bucket: u8) -> MutexGuard<'_, Shard> {
        // A step changes a shard only after everything that could panic, so a poisoned shard is
        // whole.
        self.shards[usize::from(bucket)].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl LockStore for MemoryStore {
    async fn acquire(&self, ask: &Acquire) -> Result<Acquisition, StoreError> {
        Ok(self.step(&ask.name, ask))
    }

    async fn withdraw(
        &self,
        name: &LockName,
        token: &TokenHash,
        attempt: Attempt,
    ) -> Result<(), StoreError> {
        self.step(name, &Withdraw { token: *token, attempt });
        Ok(())
    }

    async fn renew(
        &self,
        name: &LockName,
        token: &TokenHash,
        ttl: Ttl,
    ) -> Result<Renewal, StoreError> {
        Ok(self.step(name, &Renew { token: *token, ttl }))
    }

    async fn release(&self, name: &LockName, token: &TokenHash) -> Result<Release, StoreError> {
        Ok(self.step(name, &Return { token: *token }))
    }

    async fn get(&self, name: &LockName) -> Result<Option<Holder>, StoreError> {
        Ok(self.step(name, &Peek { name: name.clone() }))
    }

    async fn list(&self, query: &ListLocks) -> Result<Option<Page>, StoreError> {
        let after = match query.cursor.as_ref().map(decode_cursor) {
            None => None,
            Some(Some(name)) => Some(name),
            Some(None) => return Ok(None),
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
        Ok(Some(Page { locks, next }))
    }

    async fn ping(&self) -> Result<StoreHealth, StoreError> {
        Ok(StoreHealth { tier: Tier::Process, facts: BTreeMap::new() })
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        for bucket in 0..=u8::MAX {
            let now = self.start.elapsed();
            self.shard(bucket).locks.retain(|_, state| !state.is_free(now));
            tokio::task::yield_now().await;
        }
        Ok(())
    }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sweep_forgets_expired_locks_and_keeps_the_rest() {
        let store = MemoryStore::new();
        for (name, millis) in [("short", 1000), ("long", 60_000)] {
            let ask = Acquire {
                name: LockName::parse(name).unwrap(),
                token: crate::lock::Token::generate().unwrap().hash(),
                ttl: Ttl::from_millis(millis).unwrap(),
                owner: None,
                attempt: Attempt::new(1),
            };
            store.acquire(&ask).await.unwrap();
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        let kept =
            || store.shards.iter().map(|shard| shard.lock().unwrap().locks.len()).sum::<usize>();
        assert_eq!(kept(), 2);
        store.sweep().await.unwrap();
        assert_eq!(kept(), 1);
    }
}
