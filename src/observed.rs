//! What the guards that only observe have seen at this instance, today and since its start.
//!
//! A payments team reads from it what enforcing would change. The counters of `/metrics` are
//! others, and have no day. Invariant: today is the day in UTC on which somebody looks. Tested
//! below, and in `tests/api/observed_guards.rs`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use keylatch_axum::Observed;
use keylatch_wire::ObservedGuard;

/// The counts of all guards that observe, by path.
#[derive(Debug, Default)]
pub(crate) struct ObservedGuards(Mutex<DayCounts>);

#[derive(Debug, Default)]
struct DayCounts {
    /// In days since 1970.
    day: u64,
    guards: BTreeMap<String, ObservedGuard>,
}

impl ObservedGuards {
    /// Has a guard among them from now on.
    pub(crate) fn add(&self, guard: &str) {
        self.on(today()).guards.entry(guard.to_owned()).or_default();
    }

    pub(crate) fn count(&self, guard: &str, observed: Observed) {
        if let Some(counts) = self.on(today()).guards.get_mut(guard) {
            for counts in [&mut counts.today, &mut counts.since_start] {
                *counts.entry(<&str>::from(observed).into()).or_default() += 1;
            }
        }
    }

    pub(crate) fn counts(&self) -> BTreeMap<String, ObservedGuard> {
        self.on(today()).guards.clone()
    }

    fn on(&self, day: u64) -> MutexGuard<'_, DayCounts> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.day != day {
            counts.day = day;
            counts.guards.values_mut().for_each(|guard| guard.today.clear());
        }
        counts
    }
}

fn today() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_day_begins_at_zero() {
        let observed = ObservedGuards::default();
        observed.add("/orders");
        observed.count("/orders", Observed::Replayed);
        let tomorrow = observed.on(today() + 1).guards["/orders"].clone();
        assert_eq!((tomorrow.today.len(), tomorrow.since_start["replayed"]), (0, 1));
    }
}
