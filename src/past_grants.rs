//! How the latest grants of a lock ended, as this instance saw it: the page of a lock shows its
//! releases.
//!
//! A store keeps the ends that were no release, so that locks that are acquired and released leave
//! nothing there and cost no write (`lock/history.rs` in the core). Releases are therefore those
//! that this instance served, since its start, and in memory.
//!
//! Invariant: the newest [`ENDS`] ends are kept of each of up to [`LOCKS`] locks, and the lock that
//! no grant ended of for the longest time is forgotten first. Tested below, and over HTTP in
//! `tests/api/console.rs`.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use keylatch_core::lock::{GrantEnd, LockName};
use lru::LruCache;

/// How many ends of a lock are kept: as many as a store keeps.
const ENDS: usize = 16;
const LOCKS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// How the latest grants of locks ended.
#[derive(Debug)]
pub(crate) struct PastGrants {
    /// When the instance began to remember them.
    since: Timestamp,
    locks: Mutex<LruCache<LockName, VecDeque<GrantEnd>>>,
}

impl PastGrants {
    pub(crate) fn new() -> Self {
        Self { since: Timestamp::now(), locks: Mutex::new(LruCache::new(LOCKS)) }
    }

    pub(crate) fn since(&self) -> Timestamp {
        self.since
    }

    /// Adds a grant that is over.
    pub(crate) fn add(&self, name: &LockName, end: GrantEnd) {
        let mut locks = self.locks();
        let ends = locks.get_or_insert_mut_ref(name, VecDeque::new);
        if ends.len() == ENDS {
            ends.pop_front();
        }
        ends.push_back(end);
    }

    /// The past grants of a lock, with those that its store keeps: oldest end first.
    pub(crate) fn of(&self, name: &LockName, kept: Vec<GrantEnd>) -> Vec<GrantEnd> {
        let is_kept = |end: &GrantEnd| {
            kept.iter().any(|it| (it.token, it.fencing_token) == (end.token, end.fencing_token))
        };
        let past = self.locks().peek(name).cloned().unwrap_or_default();
        let mut all: Vec<_> = past.into_iter().filter(|end| !is_kept(end)).collect();
        all.extend(kept);
        all.sort_by_key(|end| end.ended_at_millis);
        all
    }

    fn locks(&self) -> MutexGuard<'_, LruCache<LockName, VecDeque<GrantEnd>>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use keylatch_core::lock::{EndCause, FencingToken, Token};

    use super::*;

    fn name(name: &str) -> LockName {
        LockName::parse(name).unwrap()
    }

    fn end(cause: EndCause, fence: u64) -> GrantEnd {
        GrantEnd {
            token: Token::parse("a-token-that-alice-chose").unwrap().hash(),
            fencing_token: FencingToken::new(fence),
            owner: None,
            acquired_at_millis: fence,
            ended_at_millis: fence + 1,
            cause,
        }
    }

    fn release(fence: u64) -> GrantEnd {
        end(EndCause::Release, fence)
    }

    fn expiry(fence: u64) -> GrantEnd {
        end(EndCause::Expiry, fence)
    }

    /// The fencing tokens of the past grants of `of`.
    fn fences(past: &PastGrants, of: &str, kept: Vec<GrantEnd>) -> Vec<u64> {
        past.of(&name(of), kept).iter().map(|end| end.fencing_token.get()).collect()
    }

    #[test]
    fn newest_ends_of_a_lock_are_kept() {
        let past = PastGrants::new();
        (1..=20).for_each(|fence| past.add(&name("a"), release(fence)));
        assert_eq!(fences(&past, "a", vec![]), (5..=20).collect::<Vec<_>>());
        assert_eq!(fences(&past, "b", vec![]), [] as [u64; 0]);
    }

    #[test]
    fn kept_ends_are_between_releases_and_once() {
        let past = PastGrants::new();
        for fence in [1, 4] {
            past.add(&name("a"), release(fence));
        }
        past.add(&name("a"), expiry(3));
        assert_eq!(fences(&past, "a", vec![expiry(2), expiry(3)]), [1, 2, 3, 4]);
        assert_eq!(fences(&past, "a", vec![]), [1, 3, 4], "the store forgot them");
    }

    #[test]
    fn lock_without_an_end_for_the_longest_time_is_forgotten() {
        let past = PastGrants::new();
        let last = LOCKS.get() as u64;
        past.add(&name("a"), release(0));
        for fence in 1..=last {
            past.add(&name("a"), release(fence));
            past.add(&name(&format!("order-{fence}")), release(fence));
        }
        assert_eq!(past.locks().len(), LOCKS.get());
        assert_eq!(fences(&past, "a", vec![]).last(), Some(&last));
        assert_eq!(fences(&past, "order-1", vec![]), [] as [u64; 0]);
        assert_eq!(fences(&past, &format!("order-{last}"), vec![]), [last]);
    }
}
