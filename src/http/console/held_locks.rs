//! The stream by which a console follows the held locks: what changed since the last event, twice a
//! second at most.
//!
//! A look lists all held locks below a prefix. The consoles of one prefix share it: the first that
//! wants a newer one looks for all of them, and each stream sends what is not as it last sent it.
//! So a lock that changes a hundred times between two looks is sent once, changes through other
//! instances are there as well, and no store needs another kind of hint. All looks take turns, and
//! one that took long is followed by a pause that is [`SHARE`] times as long: consoles take a small
//! share of one core, however many consoles and locks there are.
//!
//! Invariant: after each event the console has the locks as the look found them, but for twice
//! [`SLACK`] of the time that is left. Tested below and in `tests/api/console.rs`.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream::{self, Stream, StreamExt as _};
use serde::Serialize;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::time::{Instant, sleep_until};

use crate::http::api::Api;
use crate::http::api::body::held_lock;
use crate::http::caller::Caller;
use crate::http::extract::ListQuery;
use crate::http::problem::Problem;
use crate::http::revocation::Revocation;
use crate::metrics::StreamKind;
use keylatch_core::lock::{Holding, LockName, LockService};
use keylatch_core::store::ListLocks;
use keylatch_wire::HeldLock;

/// How much the end of a lease may move before it is news.
const SLACK: Duration = Duration::from_millis(200);
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

/// What a console is sent.
#[derive(Debug, Serialize)]
struct Changes {
    /// The locks that are held, and were not or otherwise.
    held: Vec<HeldLock>,
    /// The names of those that are held no longer.
    gone: Vec<String>,
    /// Whether there are more locks than a console has.
    more: bool,
}

/// The console's locks, from now on.
pub(super) async fn locks(
    State(api): State<Arc<Api>>,
    Extension(looks): Extension<Arc<Looks>>,
    caller: Caller,
    revocation: Revocation,
    ListQuery(query): ListQuery,
) -> Result<Response, Problem> {
    caller.check_list(&query.prefix)?;
    let permit = api.streams.open(StreamKind::Console, caller.enter_stream(&[])?)?;
    let closing = api.closing.clone();
    let prefix = query.prefix.clone();
    let revoked = revocation.of(move |caller| caller.check_list(&prefix));
    let events = follow(api, looks.of(query.prefix)).take_until(closing.cancelled_owned());
    Ok(permit.respond(events.take_until(revoked)))
}

fn follow(
    api: Arc<Api>,
    look: Arc<SharedLook>,
) -> impl Stream<Item = Result<Event, axum::Error>> + Send {
    let follower = Follower { api, look, seen: None, sent: None, is_in_doubt: false };
    stream::unfold(follower, |mut follower| async move {
        let event = follower.next_event().await;
        Some((event, follower))
    })
}

/// One console's way to its locks.
struct Follower {
    api: Arc<Api>,
    look: Arc<SharedLook>,
    /// When the last look ended that it has read.
    seen: Option<Instant>,
    /// The locks as the console has them.
    sent: Option<Arc<FoundLocks>>,
    /// Whether the console knows that the last look failed.
    is_in_doubt: bool,
}

impl Follower {
    /// What changed, once something has. The first look is news in any case, and so is the first
    /// after one that failed.
    async fn next_event(&mut self) -> Result<Event, axum::Error> {
        loop {
            let look = self.look.after(self.seen, &self.api.locks).await;
            self.seen = look.ended;
            let was_in_doubt = mem::replace(&mut self.is_in_doubt, look.has_failed);
            if look.has_failed {
                if was_in_doubt {
                    continue;
                }
                return Ok(Event::default().event("trouble").data("{}"));
            }
            let (found, before) = (&look.found, self.sent.replace(Arc::clone(&look.found)));
            let is_first = before.is_none();
            let (changes, is_news) = found.changes_after(&before.unwrap_or_default());
            if is_news || is_first || was_in_doubt {
                return Event::default().event("changes").json_data(changes);
            }
        }
    }
}

/// The looks of all consoles.
#[derive(Debug, Default)]
pub(super) struct Looks {
    by_prefix: Mutex<HashMap<String, Weak<SharedLook>>>,
    turn: Turn,
}

/// When the next look may begin. Who looks has it locked.
type Turn = Arc<AsyncMutex<Option<Instant>>>;

impl Looks {
    /// The look of this prefix, which lasts for as long as a console follows it.
    fn of(&self, prefix: String) -> Arc<SharedLook> {
        let mut all = self.by_prefix.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(look) = all.get(&prefix).and_then(Weak::upgrade) {
            return look;
        }
        all.retain(|_, look| look.strong_count() > 0);
        let look = Arc::new(SharedLook {
            prefix: prefix.clone(),
            turn: Arc::clone(&self.turn),
            looking: AsyncMutex::default(),
            last: watch::Sender::default(),
        });
        all.insert(prefix, Arc::downgrade(&look));
        look
    }
}

/// The last look at the locks below one prefix, for every console that follows them.
#[derive(Debug)]
struct SharedLook {
    prefix: String,
    turn: Turn,
    /// Locked by the one console that looks for all.
    looking: AsyncMutex<()>,
    last: watch::Sender<Look>,
}

#[derive(Debug, Clone, Default)]
struct Look {
    ended: Option<Instant>,
    /// Whether the store could not be asked. What an earlier look found stays.
    has_failed: bool,
    found: Arc<FoundLocks>,
}

impl SharedLook {
    /// A look that ended after the one that is `seen`. One of the consoles that wait looks for all.
    async fn after(&self, seen: Option<Instant>, locks: &LockService) -> Look {
        let newer = || Some(self.last.borrow().clone()).filter(|last| last.ended != seen);
        if let Some(last) = newer() {
            return last;
        }
        let _looking = self.looking.lock().await;
        if let Some(last) = newer() {
            return last;
        }
        let before = self.last.borrow().clone();
        sleep_until(before.ended.map_or_else(Instant::now, |ended| ended + PAUSE)).await;
        let mut turn = self.turn.lock().await;
        sleep_until(turn.unwrap_or_else(Instant::now)).await;
        let began = Instant::now();
        let found = self.look(locks, &before.found).await;
        let ended = Instant::now();
        // What took long where there is none was the silence of the store.
        *turn = found.as_ref().map(|_| ended + ((ended - began) * SHARE).min(PAUSE_MAX));
        let has_failed = found.is_none();
        let found = found.map_or(before.found, Arc::new);
        let look = Look { ended: Some(ended), has_failed, found };
        self.last.send_replace(look.clone());
        look
    }

    /// Looks at all locks below the prefix; `None` where the store cannot be asked.
    async fn look(&self, locks: &LockService, before: &FoundLocks) -> Option<FoundLocks> {
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
            found.add(&page.entries, before, Instant::now());
            cursor = page.next;
            found.more = cursor.is_some();
            if !found.more || found.locks.len() >= LOCKS_MAX {
                return Some(found);
            }
        }
    }
}

/// The locks that a look found held.
#[derive(Debug, Default)]
struct FoundLocks {
    locks: BTreeMap<LockName, FoundLock>,
    /// Whether there are more than a console has.
    more: bool,
}

#[derive(Debug)]
struct FoundLock {
    lock: HeldLock,
    /// Of all that a console shows beside the ends of the leases.
    digest: u64,
    /// When the first of its leases ends, and when the last of those that are known. An end that
    /// moved by less than [`SLACK`] since the last look is the same.
    ends: [Instant; 2],
}

impl FoundLocks {
    /// Adds what is held `now`, after the look that found what was held `before`.
    fn add(&mut self, held: &[Holding], before: &Self, now: Instant) {
        for holding in held {
            let (name, mut ends) = (&holding.first.name, ends(holding, now));
            if let Some(before) = before.locks.get(name)
                && ends.iter().zip(before.ends).all(|(end, before)| is_near(*end, before))
            {
                ends = before.ends;
            }
            let found = FoundLock { lock: held_lock(holding), digest: digest(holding), ends };
            self.locks.insert(name.clone(), found);
        }
    }

    /// What is otherwise than a console has it, and whether anything is.
    fn changes_after(&self, sent: &Self) -> (Changes, bool) {
        let is_news = |name, lock: &FoundLock| {
            let before = sent.locks.get(name);
            before.is_none_or(|before| (before.digest, before.ends) != (lock.digest, lock.ends))
        };
        let held = self.locks.iter().filter(|(name, lock)| is_news(*name, lock));
        let held: Vec<_> = held.map(|(_, found)| found.lock.clone()).collect();
        let gone = sent.locks.keys().filter(|name| !self.locks.contains_key(*name));
        let gone: Vec<_> = gone.map(|name| name.as_str().to_owned()).collect();
        let is_news = !held.is_empty() || !gone.is_empty() || sent.more != self.more;
        (Changes { held, gone, more: self.more }, is_news)
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

fn ends(holding: &Holding, now: Instant) -> [Instant; 2] {
    let last = holding.holders().map(|holder| holder.expires_in).max();
    [now + holding.first.expires_in, now + last.unwrap_or_default()]
}

fn is_near(one: Instant, other: Instant) -> bool {
    one.saturating_duration_since(other).max(other.saturating_duration_since(one)) <= SLACK
}

#[cfg(test)]
mod tests {
    use keylatch_core::lock::{FencingToken, Holder, Limit};

    use super::*;

    fn holding(name: &str, fencing_token: u64, millis: u64) -> Holding {
        Holding::by_one(Holder {
            name: LockName::parse(name).unwrap(),
            owner: None,
            fencing_token: FencingToken::new(fencing_token),
            acquired_at_millis: 0,
            expires_in: Duration::from_millis(millis),
            waiting: 0,
            limit: Limit::Exclusive,
            slot: 0,
            broken: None,
        })
    }

    /// What a look at these locks sends: the names of the held, and those of the gone.
    fn look(sent: &mut FoundLocks, now: Instant, held: &[Holding]) -> Option<(String, String)> {
        let mut found = FoundLocks::default();
        found.add(held, sent, now);
        let (changes, is_news) = found.changes_after(sent);
        *sent = found;
        let name = |lock: HeldLock| match lock {
            HeldLock::Exclusive(lock) => lock.name,
            HeldLock::Shared(lock) => lock.name,
        };
        is_news.then(|| (changes.held.into_iter().map(name).collect(), changes.gone.concat()))
    }

    #[test]
    fn only_what_changed_is_sent() {
        let (mut sent, now) = (FoundLocks::default(), Instant::now());
        let later = now + Duration::from_secs(10);
        let news = |held: &str, gone: &str| Some((held.to_owned(), gone.to_owned()));
        let both = [holding("a", 1, 60_000), holding("b", 2, 60_000)];
        assert_eq!(look(&mut sent, now, &both), news("ab", ""));
        let same = [holding("a", 1, 50_010), holding("b", 2, 49_990)];
        assert_eq!(look(&mut sent, later, &same), None, "time that passed is no news");
        let renewed = [holding("a", 1, 60_000), holding("b", 2, 50_000)];
        assert_eq!(look(&mut sent, later, &renewed), news("a", ""));
        let mut taken = [holding("a", 1, 60_000), holding("b", 3, 50_000)];
        assert_eq!(look(&mut sent, later, &taken), news("b", ""));
        taken[0].first.waiting = 3;
        assert_eq!(look(&mut sent, later, &taken), news("a", ""), "its queue grew");
        assert_eq!(look(&mut sent, later, &taken[..1]), news("", "b"));
        assert_eq!(look(&mut sent, later, &taken[..1]), None);
    }

    #[test]
    fn console_is_told_once_that_there_are_more() {
        let full = || FoundLocks { more: true, ..FoundLocks::default() };
        let told = [FoundLocks::default(), full()].map(|sent| full().changes_after(&sent).1);
        assert_eq!(told, [true, false]);
    }
}
