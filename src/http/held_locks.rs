//! Looks at the held locks, which the consoles share.
//!
//! A look lists all held locks below a prefix. The consoles of one prefix share it: the first that
//! wants a newer one looks for all of them. All looks take turns, and one that took long is
//! followed by a pause that is [`SHARE`] times as long: consoles take a small share of one core,
//! however many consoles and locks there are. Tested in `tests/api/console.rs`.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, sleep_until};

use super::body::held_lock;
use keylatch_core::lock::{Holding, LockName, LockService};
use keylatch_core::store::ListLocks;
use keylatch_wire::HeldLock;

/// The least time between two looks at the locks below one prefix.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause after a look.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How many times as long as a look the pause after it is: looks take a twentieth of a core.
const SHARE: u32 = 19;
/// How many locks a console has at most. It says when there are more, and a longer prefix shows the
/// others.
const LOCKS_MAX: usize = 20_000;
/// How many locks a page of the list has.
const PAGE: usize = 1000;

/// The looks of all consoles.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    by_prefix: Mutex<HashMap<String, Weak<SharedLook>>>,
    turn: Turn,
}

/// When the next look may begin. Who looks has it locked.
type Turn = Arc<AsyncMutex<Option<Instant>>>;

/// The last look at the locks below one prefix, for every console that follows them.
#[derive(Debug)]
pub(super) struct SharedLook {
    prefix: String,
    turn: Turn,
    /// Locked by the one console that looks for all.
    looking: AsyncMutex<()>,
    last: Mutex<LastLook>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct LastLook {
    /// Counts the looks, from 1.
    pub(super) number: u64,
    ended: Option<Instant>,
    /// `None` where the store could not be asked.
    pub(super) found: Option<Arc<FoundLocks>>,
}

/// The locks that a look found held.
#[derive(Debug, Default)]
pub(super) struct FoundLocks {
    pub(super) locks: Vec<FoundLock>,
    /// Whether there are more than a console has.
    pub(super) more: bool,
}

#[derive(Debug)]
pub(super) struct FoundLock {
    pub(super) name: LockName,
    pub(super) lock: HeldLock,
    /// Of all that a console shows beside the ends of the leases.
    pub(super) digest: u64,
    /// When the first of its leases ends, and when the last of those that are known.
    pub(super) ends: (Instant, Instant),
}

impl Looks {
    /// The look of this prefix, which lasts for as long as a console follows it.
    pub(super) fn of(&self, prefix: String) -> Arc<SharedLook> {
        let mut all = self.by_prefix.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(look) = all.get(&prefix).and_then(Weak::upgrade) {
            return look;
        }
        all.retain(|_, look| look.strong_count() > 0);
        let look = Arc::new(SharedLook {
            prefix: prefix.clone(),
            turn: Arc::clone(&self.turn),
            looking: AsyncMutex::default(),
            last: Mutex::default(),
        });
        all.insert(prefix, Arc::downgrade(&look));
        look
    }
}

impl SharedLook {
    /// The first look after that with this number. One of the consoles that wait looks for all.
    pub(super) async fn after(&self, seen: u64, locks: &LockService) -> LastLook {
        if let Some(last) = self.newer(seen) {
            return last;
        }
        let _looking = self.looking.lock().await;
        if let Some(last) = self.newer(seen) {
            return last;
        }
        let ended = self.last().ended;
        sleep_until(ended.map_or_else(Instant::now, |ended| ended + PAUSE)).await;
        let mut turn = self.turn.lock().await;
        sleep_until(turn.unwrap_or_else(Instant::now)).await;
        let began = Instant::now();
        let found = self.look(locks).await;
        let ended = Instant::now();
        // What took long where there is none was the silence of the store.
        *turn = found.as_ref().map(|_| ended + ((ended - began) * SHARE).min(PAUSE_MAX));
        let look = LastLook { number: seen + 1, ended: Some(ended), found };
        *self.last() = look.clone();
        look
    }

    fn newer(&self, seen: u64) -> Option<LastLook> {
        let last = self.last();
        (last.number != seen).then(|| last.clone())
    }

    fn last(&self) -> MutexGuard<'_, LastLook> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at all locks below the prefix.
    async fn look(&self, locks: &LockService) -> Option<Arc<FoundLocks>> {
        let mut found = FoundLocks::default();
        let (mut cursor, mut is_second) = (None, false);
        loop {
            let query = ListLocks { prefix: self.prefix.clone(), limit: PAGE, cursor };
            let page = match locks.list(&query).await {
                Ok(Some(page)) => page,
                // The store does not know the cursor any more.
                Ok(None) if !is_second => {
                    (found, cursor, is_second) = (FoundLocks::default(), None, true);
                    continue;
                }
                Ok(None) => return None,
                Err(error) => {
                    tracing::debug!(%error, "the locks of a console cannot be listed");
                    return None;
                }
            };
            let now = Instant::now();
            found.locks.extend(page.entries.iter().map(|holding| FoundLock::of(holding, now)));
            cursor = page.next;
            found.more = cursor.is_some();
            if !found.more || found.locks.len() >= LOCKS_MAX {
                return Some(Arc::new(found));
            }
        }
    }
}

impl FoundLock {
    pub(super) fn of(holding: &Holding, now: Instant) -> Self {
        Self {
            name: holding.first.name.clone(),
            lock: held_lock(holding),
            digest: digest(holding),
            ends: ends(holding, now),
        }
    }
}

fn digest(holding: &Holding) -> u64 {
    let mut hasher = DefaultHasher::new();
    (holding.count, holding.first.waiting).hash(&mut hasher);
    for holder in holding.holders() {
        let owner = holder.owner.as_ref().map(|owner| owner.as_str());
        let id = (holder.fencing_token.get(), holder.slot, holder.broken.is_some());
        (id, owner, holder.acquired_at_millis).hash(&mut hasher);
    }
    hasher.finish()
}

fn ends(holding: &Holding, now: Instant) -> (Instant, Instant) {
    let last = holding.holders().map(|holder| holder.expires_in).max();
    (now + holding.first.expires_in, now + last.unwrap_or_default())
}
