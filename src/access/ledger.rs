//! What an identity has for a time: each thing under a key, with its end and a weight.
//!
//! The ledger counts what this process gave out, because no store knows identities. A claim comes
//! before the store is asked, so that no two requests take the same room; it becomes an entry when
//! the store has granted it, and is gone where the store has not. An entry lasts for as long as the
//! store may keep the thing, until this process hears of its end. What has ended is removed when a
//! claim finds no room, and not before the first end. Invariant: entries and claims together have
//! no more than the limits, except where a limit shrank or where an entry came from another
//! process. Tested in `tests/api/quotas.rs`.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A ledger that claims can outlive the borrow of.
#[derive(Debug)]
pub(super) struct Ledger<K>(Mutex<State<K>>);

/// How many things there are, and how much they weigh together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    pub(super) count: u64,
    pub(super) weight: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Full {
    /// Whether by weight, and not by number.
    pub(super) by_weight: bool,
    /// When there may be more.
    pub(super) after: Duration,
}

#[derive(Debug)]
struct State<K> {
    entries: HashMap<K, Entry>,
    weight: u64,
    claimed: Load,
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
        let (entries, claimed) = (HashMap::new(), Load::default());
        Self(Mutex::new(State { entries, weight: 0, claimed, first_end: None }))
    }
}

impl<K: Hash + Eq + Clone> Ledger<K> {
    /// Room for those of these things that have no entry, each of this weight, if there is so much
    /// within `limit`; otherwise when there may be more.
    pub(super) fn claim(
        self: &Arc<Self>,
        keys: impl Iterator<Item = Option<K>>,
        weight: u64,
        limit: Load,
    ) -> Result<Claim<K>, Full> {
        let now = Instant::now();
        let mut state = self.lock();
        let is_new = |key: &Option<K>| key.as_ref().is_none_or(|key| !state.is_live(key, now));
        let count = keys.filter(is_new).count() as u64;
        let wanted = Load { count, weight: count * weight };
        if state.excess(wanted, limit).is_some() {
            state.remove_ended(now);
            if let Some(by_weight) = state.excess(wanted, limit) {
                let after = state.first_end.map_or(Duration::ZERO, |end| end - now);
                return Err(Full { by_weight, after });
            }
        }
        state.claimed.count += wanted.count;
        state.claimed.weight += wanted.weight;
        drop(state);
        Ok(Claim { ledger: Arc::clone(self), load: wanted })
    }

    /// Notes that there is such a thing for so long, and keeps its weight.
    pub(super) fn note(&self, key: K, lasts: Duration) {
        self.lock().note(key, lasts);
    }

    /// Changes a thing, if it is here: for how long it is there, and its weight.
    pub(super) fn change(&self, key: &K, lasts: Duration, weight: u64) {
        let mut state = self.lock();
        if state.entries.contains_key(key) {
            state.insert(key.clone(), lasts, weight);
        }
    }

    /// Forgets a thing that is over.
    pub(super) fn remove(&self, key: &K) {
        let mut state = self.lock();
        if let Some(entry) = state.entries.remove(key) {
            state.weight -= entry.weight;
        }
    }

    pub(super) fn keys(&self) -> Vec<K> {
        self.lock().entries.keys().cloned().collect()
    }

    pub(super) fn usage(&self) -> Load {
        let mut state = self.lock();
        state.remove_ended(Instant::now());
        state.load()
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq> State<K> {
    fn load(&self) -> Load {
        Load {
            count: self.entries.len() as u64 + self.claimed.count,
            weight: self.weight + self.claimed.weight,
        }
    }

    /// Whether what is wanted is too much, and then whether by weight.
    fn excess(&self, wanted: Load, limit: Load) -> Option<bool> {
        let load = self.load();
        let is_above = |has: u64, more: u64, most: u64| more > 0 && has + more > most;
        let too_many = is_above(load.count, wanted.count, limit.count).then_some(false);
        too_many.or(is_above(load.weight, wanted.weight, limit.weight).then_some(true))
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
    load: Load,
}

impl<K: Hash + Eq + Clone> Claim<K> {
    /// Makes these entries of it, each for so long.
    pub(super) fn keep(mut self, entries: impl Iterator<Item = (K, Duration)>) {
        let ledger = Arc::clone(&self.ledger);
        let (now, load) = (Instant::now(), std::mem::take(&mut self.load));
        let mut state = ledger.lock();
        state.claimed.count -= load.count;
        state.claimed.weight -= load.weight;
        for (key, lasts) in entries {
            if load.count == 0 || state.is_live(&key, now) {
                state.note(key, lasts);
            } else {
                state.insert(key, lasts, load.weight / load.count);
            }
        }
    }
}

impl<K> Drop for Claim<K> {
    fn drop(&mut self) {
        if self.load.count > 0 {
            let mut state = self.ledger.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.claimed.count -= self.load.count;
            state.claimed.weight -= self.load.weight;
        }
    }
}
