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
use keylatch_core::lock::{FencingToken, GrantEnd, GrantSpan, LockName, Owner, Release};
use lru::LruCache;

/// How many ends of a lock are kept: as many as a store keeps.
const ENDS: usize = 16;
const LOCKS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// How the latest grants of locks ended.
#[derive(Debug)]
pub(crate) struct PastGrants {
    /// When the instance began to remember them.
    since: Timestamp,
    locks: Mutex<LruCache<LockName, VecDeque<PastGrant>>>,
}

/// A grant that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PastGrant {
    /// A client released it.
    Release { fencing_token: FencingToken, owner: Option<Owner>, span: GrantSpan },
    /// It ended otherwise. As a rule grants are released, and it takes no memory in these.
    End(Box<GrantEnd>),
}

impl PastGrants {
    pub(crate) fn new() -> Self {
        Self { since: Timestamp::now(), locks: Mutex::new(LruCache::new(LOCKS)) }
    }

    pub(crate) fn since(&self) -> Timestamp {
        self.since
    }

    /// Adds the grant that a release ended, unless the store does not say which one, or tells its
    /// end itself.
    pub(crate) fn add_release(&self, name: &LockName, release: &Release) {
        let Release { fencing_token: Some(fencing_token), owner, span: Some(span) } = release
        else {
            return;
        };
        let (fencing_token, owner, span) = (*fencing_token, owner.clone(), *span);
        self.add(name, PastGrant::Release { fencing_token, owner, span });
    }

    /// Adds a grant that ended otherwise.
    pub(crate) fn add_end(&self, name: &LockName, end: GrantEnd) {
        self.add(name, PastGrant::End(Box::new(end)));
    }

    /// The past grants of a lock, with those that its store keeps: oldest end first.
    pub(crate) fn of(&self, name: &LockName, kept: Vec<GrantEnd>) -> Vec<PastGrant> {
        let is_kept = |past: &PastGrant| match past {
            PastGrant::Release { .. } => false,
            PastGrant::End(end) => {
                kept.iter().any(|it| (it.token, it.fencing_token) == (end.token, end.fencing_token))
            }
        };
        let past = self.locks().peek(name).cloned().unwrap_or_default();
        let mut all: Vec<_> = past.into_iter().filter(|past| !is_kept(past)).collect();
        all.extend(kept.into_iter().map(Box::new).map(PastGrant::End));
        all.sort_by_key(PastGrant::ended_at_millis);
        all
    }

    fn add(&self, name: &LockName, past: PastGrant) {
        let mut locks = self.locks();
        let grants = locks.get_or_insert_mut_ref(name, VecDeque::new);
        if grants.len() == ENDS {
            grants.pop_front();
        }
        grants.push_back(past);
    }

    fn locks(&self) -> MutexGuard<'_, LruCache<LockName, VecDeque<PastGrant>>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PastGrant {
    fn ended_at_millis(&self) -> u64 {
        match self {
            Self::Release { span, .. } => span.ended_at_millis,
            Self::End(end) => end.ended_at_millis,
        }
    }
}

#[cfg(test)]
mod tests {
    use keylatch_core::lock::{EndCause, Token};

    use super::*;

    fn name(name: &str) -> LockName {
        LockName::parse(name).unwrap()
    }

    fn release(fence: u64) -> Release {
        let span = GrantSpan { acquired_at_millis: fence, ended_at_millis: fence + 1 };
        let fencing_token = Some(FencingToken::new(fence));
        Release { fencing_token, owner: None, span: Some(span) }
    }

    fn expiry(fence: u64) -> GrantEnd {
        GrantEnd {
            token: Token::parse("a-token-that-alice-chose").unwrap().hash(),
            fencing_token: FencingToken::new(fence),
            owner: None,
            acquired_at_millis: fence,
            ended_at_millis: fence + 1,
            cause: EndCause::Expiry,
        }
    }

    /// The fencing tokens of the past grants of `of`.
    fn fences(past: &PastGrants, of: &str, kept: Vec<GrantEnd>) -> Vec<u64> {
        let fence = |grant: &PastGrant| match grant {
            PastGrant::Release { fencing_token, .. } => fencing_token.get(),
            PastGrant::End(end) => end.fencing_token.get(),
        };
        past.of(&name(of), kept).iter().map(fence).collect()
    }

    #[test]
    fn newest_ends_of_a_lock_are_kept() {
        let past = PastGrants::new();
        (1..=20).for_each(|fence| past.add_release(&name("a"), &release(fence)));
        assert_eq!(fences(&past, "a", vec![]), (5..=20).collect::<Vec<_>>());
        assert_eq!(fences(&past, "b", vec![]), [] as [u64; 0]);
    }

    #[test]
    fn kept_ends_are_between_releases_and_once() {
        let past = PastGrants::new();
        for fence in [1, 4] {
            past.add_release(&name("a"), &release(fence));
        }
        past.add_end(&name("a"), expiry(3));
        assert_eq!(fences(&past, "a", vec![expiry(2), expiry(3)]), [1, 2, 3, 4]);
        assert_eq!(fences(&past, "a", vec![]), [1, 3, 4], "the store forgot them");
    }

    #[test]
    fn lock_without_an_end_for_the_longest_time_is_forgotten() {
        let past = PastGrants::new();
        let last = LOCKS.get() as u64;
        past.add_release(&name("a"), &release(0));
        for fence in 1..=last {
            past.add_release(&name("a"), &release(fence));
            past.add_release(&name(&format!("order-{fence}")), &release(fence));
        }
        assert_eq!(past.locks().len(), LOCKS.get());
        assert_eq!(fences(&past, "a", vec![]).last(), Some(&last));
        assert_eq!(fences(&past, "order-1", vec![]), [] as [u64; 0]);
        assert_eq!(fences(&past, &format!("order-{last}"), vec![]), [last]);
    }
}
