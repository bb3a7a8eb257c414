//! The registry of waiters: what some in this process wait for, by key.
//!
//! A key has a value, such as a `Notify` or a channel, for as long as a [`WaiterGuard`] of it
//! lives. The guards of a key are counted under the lock of the map, so the last one to go removes
//! the key and no key outlives its waiters, whatever meets whatever. Turns in a queue, ends of runs
//! and changes of a watched lock are three uses of it. A [`WaiterLimit`] bounds the requests that
//! wait, for whatever they do. Tested below.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room for the requests of a process that wait, and perhaps for a part of them within it. Clones
/// share it.
#[derive(Debug, Clone)]
pub struct WaiterLimit(Vec<Arc<Semaphore>>);

impl WaiterLimit {
    /// Room for so many at once.
    pub fn new(requests: usize) -> Self {
        Self(vec![Arc::new(Semaphore::new(requests.min(Semaphore::MAX_PERMITS)))])
    }

    /// Room for so many of them, so that the others find the rest.
    #[must_use]
    pub fn part(mut self, requests: usize) -> Self {
        self.0.append(&mut Self::new(requests).0);
        self
    }

    /// Takes the place of one request, if there is room.
    pub fn enter(&self) -> Option<WaiterPlace> {
        let permits = self.0.iter().map(|room| Arc::clone(room).try_acquire_owned().ok());
        permits.collect::<Option<_>>().map(WaiterPlace)
    }
}

/// The place of a request that waits, until this is dropped.
#[derive(Debug)]
pub struct WaiterPlace(#[expect(dead_code, reason = "it is dropped")] Vec<OwnedSemaphorePermit>);

/// Values by key, each for as long as a task waits for it. Clones share the values.
#[derive(Debug)]
pub struct WaiterRegistry<K, V> {
    shared: Arc<Shared<K, V>>,
}

#[derive(Debug)]
struct Shared<K, V> {
    /// How many keys there are, to find without the lock that there are none.
    len: AtomicUsize,
    waiters: Mutex<HashMap<K, Waiters<V>>>,
}

#[derive(Debug)]
struct Waiters<V> {
    count: usize,
    value: Arc<V>,
}

impl<K: Clone + Eq + Hash, V> WaiterRegistry<K, V> {
    /// One more waiter under `key`; the first one makes the value.
    pub fn join(&self, key: K, value: impl FnOnce() -> V) -> WaiterGuard<K, V> {
        let mut waiters = self.shared.lock();
        let new = || Waiters { count: 0, value: Arc::new(value()) };
        let entry = waiters.entry(key.clone()).or_insert_with(new);
        entry.count += 1;
        let value = Arc::clone(&entry.value);
        self.shared.len.store(waiters.len(), Ordering::Release);
        WaiterGuard { registry: self.clone(), key, value }
    }

    /// The value under `key`, if a task waits for it.
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        if self.is_empty() {
            return None;
        }
        self.shared.lock().get(key).map(|waiters| Arc::clone(&waiters.value))
    }

    /// All values.
    pub fn values(&self) -> Vec<Arc<V>> {
        self.shared.lock().values().map(|waiters| Arc::clone(&waiters.value)).collect()
    }

    /// All keys.
    pub fn keys(&self) -> Vec<K> {
        self.shared.lock().keys().cloned().collect()
    }

    /// Whether no task waits for any key.
    pub fn is_empty(&self) -> bool {
        self.shared.len.load(Ordering::Acquire) == 0
    }
}

impl<K, V> Shared<K, V> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Waiters<V>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, V> Clone for WaiterRegistry<K, V> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K, V> Default for WaiterRegistry<K, V> {
    fn default() -> Self {
        let (len, waiters) = Default::default();
        Self { shared: Arc::new(Shared { len, waiters }) }
    }
}

/// One waiter; the last one of a key removes it.
#[derive(Debug)]
pub struct WaiterGuard<K: Clone + Eq + Hash, V> {
    registry: WaiterRegistry<K, V>,
    key: K,
    value: Arc<V>,
}

impl<K: Clone + Eq + Hash, V> Deref for WaiterGuard<K, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.value
    }
}

impl<K: Clone + Eq + Hash, V> Drop for WaiterGuard<K, V> {
    fn drop(&mut self) {
        let shared = &self.registry.shared;
        let mut waiters = shared.lock();
        if let Some(entry) = waiters.get_mut(&self.key) {
            entry.count -= 1;
            if entry.count == 0 {
                waiters.remove(&self.key);
            }
        }
        shared.len.store(waiters.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_guard_removes_its_key_while_the_value_is_in_use() {
        let registry = WaiterRegistry::<&str, u32>::default();
        let (first, second) = (registry.join("a", || 1), registry.join("a", || 2));
        assert_eq!((*first, *second), (1, 1));
        let in_use = registry.get(&"a");
        drop(first);
        assert_eq!(registry.keys(), ["a"]);
        drop(second);
        assert!(registry.is_empty() && registry.get(&"a").is_none());
        assert_eq!(in_use.as_deref(), Some(&1));
    }
}
