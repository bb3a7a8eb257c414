//! How the latest grants of a lock ended, as this instance saw it: the page of a lock shows its
//! releases.
//!
//! A store keeps the ends that were no release, so that locks that are acquired and released leave
//! nothing there and cost no write (`lock/history.rs` in the core). Releases are therefore those
//! that this instance served, since its start, and in memory. A lock is known here by a keyed hash
//! of its name, and is in a bucket of [`WAYS`] by that hash. So a release costs one look at a few
//! numbers, and no client can choose whose history it replaces.
//!
//! Invariant: the newest [`ENDS`] ends are kept of each of up to [`BUCKETS`] × [`WAYS`] locks, and
//! a bucket that is full forgets the lock that no grant ended of for the longest time. Tested
//! below, and over HTTP in `tests/api/console.rs`.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use keylatch_core::lock::{GrantEnd, LockName};

/// How many ends of a lock are kept: as many as a store keeps.
const ENDS: usize = 16;
/// How many locks a bucket has room for.
const WAYS: usize = 4;
const BUCKETS: usize = 1024;

/// How the latest grants of locks ended.
pub(crate) struct PastGrants {
    /// When the instance began to remember them.
    since: Timestamp,
    hashes: RandomState,
    buckets: Box<[Mutex<Bucket>]>,
}

/// The keyed hash of a lock's name. Two locks with the same hash would share a history. One of the
/// few other locks in a bucket has the hash of a lock with a chance of one in 2^52.
type NameHash = u64;

/// Locks with their past grants; that of the latest end is the last.
#[derive(Default)]
struct Bucket(Vec<(NameHash, VecDeque<GrantEnd>)>);

impl PastGrants {
    pub(crate) fn new() -> Self {
        let buckets = (0..BUCKETS).map(|_| Mutex::default()).collect();
        Self { since: Timestamp::now(), hashes: RandomState::new(), buckets }
    }

    pub(crate) fn since(&self) -> Timestamp {
        self.since
    }

    /// Adds a grant that is over.
    pub(crate) fn add(&self, name: &LockName, end: GrantEnd) {
        let hash = self.hash(name);
        self.bucket(hash).add(hash, end);
    }

    /// The past grants of a lock, with those that its store keeps: oldest end first.
    pub(crate) fn of(&self, name: &LockName, kept: Vec<GrantEnd>) -> Vec<GrantEnd> {
        let is_kept = |end: &GrantEnd| {
            kept.iter().any(|it| (it.token, it.fencing_token) == (end.token, end.fencing_token))
        };
        let hash = self.hash(name);
        let mut all = self.bucket(hash).find(hash);
        all.retain(|end| !is_kept(end));
        all.extend(kept);
        all.sort_by_key(|end| end.ended_at_millis);
        all
    }

    fn hash(&self, name: &LockName) -> NameHash {
        self.hashes.hash_one(name.as_str())
    }

    fn bucket(&self, hash: NameHash) -> MutexGuard<'_, Bucket> {
        let bucket = &self.buckets[hash as usize % BUCKETS];
        bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PastGrants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PastGrants").field("since", &self.since).finish_non_exhaustive()
    }
}

impl Bucket {
    fn add(&mut self, lock: NameHash, past: GrantEnd) {
        let locks = &mut self.0;
        match locks.iter().position(|(of, _)| *of == lock) {
            Some(found) => locks[found..].rotate_left(1),
            None if locks.len() < WAYS => locks.push((lock, VecDeque::new())),
            None => {
                locks.rotate_left(1);
                if let Some((of, grants)) = locks.last_mut() {
                    // Its memory is kept, since names that come once each would ask for it again
                    // and again.
                    *of = lock;
                    grants.clear();
                }
            }
        }
        if let Some((_, grants)) = locks.last_mut() {
            if grants.len() == ENDS {
                grants.pop_front();
            }
            grants.push_back(past);
        }
    }

    fn find(&self, lock: NameHash) -> Vec<GrantEnd> {
        let found = self.0.iter().find(|(of, _)| *of == lock);
        found.map(|(_, grants)| grants.iter().cloned().collect()).unwrap_or_default()
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
    fn full_bucket_forgets_the_lock_without_an_end_for_the_longest_time() {
        let mut bucket = Bucket::default();
        let [a, b, c, d, e] = [1, 2, 3, 4, 5];
        for (lock, fence) in [(a, 1), (b, 2), (c, 3), (d, 4), (a, 5), (e, 6)] {
            bucket.add(lock, expiry(fence));
        }
        assert_eq!(bucket.find(a), [expiry(1), expiry(5)]);
        assert_eq!(bucket.find(b), []);
        assert_eq!(bucket.find(e), [expiry(6)]);
    }

    #[test]
    fn locks_of_any_number_take_bounded_memory() {
        let past = PastGrants::new();
        for fence in 0..2 * (BUCKETS * WAYS) as u64 {
            past.add(&name(&format!("order-{fence}")), release(fence));
        }
        let locks: usize = past.buckets.iter().map(|it| it.lock().unwrap().0.len()).sum();
        assert!(locks <= BUCKETS * WAYS, "{locks}");
        let last = 2 * (BUCKETS * WAYS) as u64 - 1;
        assert_eq!(fences(&past, &format!("order-{last}"), vec![]), [last]);
    }
}
