//! What an identity has for a time: each thing under a key, with its end and a weight.
//!
//! The ledger counts what this process gave out, because no store knows identities. A claim comes before the
//! store is asked, so that no two requests take the same room; it becomes an entry when the store has
//! granted it, and is gone where the store has not. What has ended is removed when a claim finds no room,
//! and not before the first end. Invariant: entries and claims together have no more than the limit, except
//! where a limit shrank or where an entry came from another process. Tested here.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A ledger that claims can outlive the borrow of.
#[derive(Debug)]
pub(super) struct Ledger<K>(Mutex<State<K>>);

#[derive(Debug)]
struct State<K> {
    entries: HashMap<K, Entry>,
    /// What the entries weigh together.
    weight: u64,
    claimed: u64,
    /// No entry ends before.
    first_end: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    end: Instant,
    weight: u64,
}

impl<K> Default for Ledger<K> {
    fn default() -> Self {
        Self(Mutex::new(State { entries: HashMap::new(), weight: 0, claimed: 0, first_end: None }))
    }
}

impl<K: Hash + Eq> Ledger<K> {
    /// Room for those of these things that have no entry, if there is so much within `limit`; otherwise when
    /// there may be more.
    pub(super) fn claim(
        self: &Arc<Self>,
        keys: impl Iterator<Item = Option<K>>,
        limit: u64,
    ) -> Result<Claim<K>, Duration> {
        let now = Instant::now();
        let mut state = self.lock();
        let is_new = |key: &Option<K>| key.as_ref().is_none_or(|key| !state.is_live(key, now));
        let wanted = keys.filter(is_new).count() as u64;
        if wanted > 0 && state.count() + wanted > limit {
            state.remove_ended(now);
            if state.count() + wanted > limit {
                return Err(state.first_end.map_or(Duration::ZERO, |end| end - now));
            }
        }
        state.claimed += wanted;
        drop(state);
        Ok(Claim { ledger: Arc::clone(self), count: wanted })
    }

    /// Whether the weights of all entries are within `limit`; otherwise when they may be less.
    pub(super) fn check_weight(&self, limit: u64) -> Result<(), Duration> {
        let mut state = self.lock();
        let now = Instant::now();
        if state.weight >= limit {
            state.remove_ended(now);
        }
        if state.weight < limit {
            return Ok(());
        }
        Err(state.first_end.map_or(Duration::ZERO, |end| end - now))
    }

    /// Notes that there is such a thing for so long, and keeps its weight.
    pub(super) fn note(&self, key: K, lasts: Duration) {
        self.lock().note(key, lasts);
    }

    /// The same with a weight.
    pub(super) fn note_weight(&self, key: K, lasts: Duration, weight: u64) {
        self.lock().insert(key, lasts, weight);
    }

    /// Forgets a thing that is over.
    pub(super) fn remove(&self, key: &K) {
        let mut state = self.lock();
        if let Some(entry) = state.entries.remove(key) {
            state.weight -= entry.weight;
        }
    }

    /// How many there are, and what they weigh.
    pub(super) fn usage(&self) -> (u64, u64) {
        let mut state = self.lock();
        state.remove_ended(Instant::now());
        (state.count(), state.weight)
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq> State<K> {
    fn count(&self) -> u64 {
        self.entries.len() as u64 + self.claimed
    }

    fn is_live(&self, key: &K, now: Instant) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.end > now)
    }

    fn note(&mut self, key: K, lasts: Duration) {
        let weight = self.entries.get(&key).map_or(0, |entry| entry.weight);
        self.insert(key, lasts, weight);
    }

    fn insert(&mut self, key: K, lasts: Duration, weight: u64) {
        let end = Instant::now() + lasts;
        self.first_end = Some(self.first_end.map_or(end, |first| first.min(end)));
        let before = self.entries.insert(key, Entry { end, weight });
        self.weight = self.weight + weight - before.map_or(0, |entry| entry.weight);
    }

    fn remove_ended(&mut self, now: Instant) {
        if self.first_end.is_some_and(|end| end <= now) {
            self.entries.retain(|_, entry| entry.end > now);
            self.weight = self.entries.values().map(|entry| entry.weight).sum();
            self.first_end = self.entries.values().map(|entry| entry.end).min();
        }
    }
}

/// Room in a ledger, until it is an entry or this is dropped.
#[derive(Debug)]
pub(super) struct Claim<K> {
    ledger: Arc<Ledger<K>>,
    count: u64,
}

impl<K: Hash + Eq> Claim<K> {
    /// Makes these entries of it, each for so long.
    pub(super) fn keep(mut self, entries: impl Iterator<Item = (K, Duration)>) {
        let ledger = Arc::clone(&self.ledger);
        let mut state = ledger.lock();
        state.claimed -= std::mem::take(&mut self.count);
        for (key, lasts) in entries {
            state.note(key, lasts);
        }
    }
}

impl<K> Drop for Claim<K> {
    fn drop(&mut self) {
        if self.count > 0 {
            let mut state = self.ledger.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.claimed -= self.count;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn claim(ledger: &Arc<Ledger<u8>>, key: u8) -> Result<Claim<u8>, Duration> {
        ledger.claim(iter::once(Some(key)), 2)
    }

    fn keep(ledger: &Arc<Ledger<u8>>, key: u8, lasts: Duration) {
        claim(ledger, key).unwrap().keep(iter::once((key, lasts)));
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_taken_by_claims_and_entries_and_free_again_after_their_ends() {
        let ledger = Arc::<Ledger<u8>>::default();
        keep(&ledger, 1, SECOND);
        let second = claim(&ledger, 2).unwrap();
        assert_eq!(claim(&ledger, 3).err(), Some(SECOND));
        assert!(claim(&ledger, 1).is_ok(), "what has an entry needs no room");
        drop(second);
        keep(&ledger, 2, 3 * SECOND);
        assert!(claim(&ledger, 3).is_err());
        advance(SECOND).await;
        keep(&ledger, 3, SECOND);
        assert_eq!(claim(&ledger, 1).err(), Some(SECOND), "its entry has ended");
        ledger.remove(&2);
        assert_eq!(ledger.usage(), (1, 0));
        let none = || iter::repeat_n(None, 2);
        assert!(ledger.claim(none(), 2).is_err() && ledger.claim(none(), 3).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn weights_count_until_their_entries_end() {
        let ledger = Ledger::<u8>::default();
        ledger.note_weight(1, SECOND, 70);
        ledger.note_weight(2, 2 * SECOND, 30);
        ledger.note(1, SECOND);
        assert!(ledger.check_weight(101).is_ok());
        assert_eq!(ledger.check_weight(100), Err(SECOND));
        ledger.note_weight(2, 2 * SECOND, 20);
        assert_eq!(ledger.usage(), (2, 90));
        advance(SECOND).await;
        assert_eq!((ledger.check_weight(21), ledger.usage()), (Ok(()), (1, 20)));
        ledger.remove(&2);
        assert_eq!(ledger.usage(), (0, 0));
    }
}
