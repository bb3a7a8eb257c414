//! The requests of this process that wait for locks, for people who want to know who waits.
//!
//! A store keeps no label of a waiter, because each waiter writes its queue entry again and again. So an
//! instance knows the labels of its own waiters alone. A request is noted when it has found a lock taken, and
//! those that are granted at once cost nothing. Invariant: a note lasts as long as the wait of its request.
//! Tested over HTTP in `tests/api/console.rs`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::{Limit, LockName, Owner};

/// A request that waits for a lock, alone or among others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingRequest {
    /// The label of its client.
    pub owner: Option<Owner>,
    /// Since when it waits.
    pub since: Instant,
    /// How many may hold the lock together with the client, once it holds it.
    pub limit: Limit,
}

/// The requests that wait now, in the order in which they began to.
#[derive(Debug, Default)]
pub(super) struct WaitingRequests(Mutex<Notes>);

#[derive(Debug, Default)]
struct Notes {
    last: u64,
    requests: BTreeMap<u64, (Vec<LockName>, WaitingRequest)>,
}

/// Notes a request for as long as it lives.
#[derive(Debug)]
pub(super) struct WaitingNote<'a> {
    all: &'a WaitingRequests,
    number: u64,
}

impl WaitingRequests {
    /// Notes that a request waits for these locks, from now on.
    pub(super) fn note(
        &self,
        names: &[LockName],
        owner: Option<Owner>,
        limit: Limit,
    ) -> WaitingNote<'_> {
        let request = WaitingRequest { owner, since: Instant::now(), limit };
        let mut notes = self.lock();
        notes.last += 1;
        let number = notes.last;
        notes.requests.insert(number, (names.to_vec(), request));
        WaitingNote { all: self, number }
    }

    /// Those that wait for this lock, first come first.
    pub(super) fn of(&self, name: &LockName) -> Vec<WaitingRequest> {
        let notes = self.lock();
        let waiting = notes.requests.values().filter(|(names, _)| names.contains(name));
        waiting.map(|(_, request)| request.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WaitingNote<'_> {
    fn drop(&mut self) {
        self.all.lock().requests.remove(&self.number);
    }
}
