//! The stream by which a console follows the held locks: what changed since the last event, twice a second at
//! most.
//!
//! The stream looks at all held locks below its prefix and sends those that are not as it last sent them. So a
//! lock that changes a hundred times between two looks is sent once, changes through other instances are
//! there as well, and no store needs another kind of hint. A look that took long is followed by a pause that
//! is [`SHARE`] times as long: a console takes a small share of one core, however many locks there are. The
//! stream looks when its client has read the event before.
//!
//! Invariant: after each event the console has the locks as the look found them, but for [`SLACK`] of the time
//! that is left. Tested below and in `tests/api/console.rs`.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream::{self, Stream, StreamExt as _};
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use crate::http::api::Api;
use crate::http::body::held_lock;
use crate::http::caller::Caller;
use crate::http::extract::ListQuery;
use crate::http::problem::Problem;
use crate::http::revocation::Revocation;
use crate::metrics::StreamKind;
use keylatch_core::lock::{Holding, LockName};
use keylatch_core::store::{Cursor, ListLocks, StoreError};
use keylatch_wire::HeldLock;

/// The least time between two looks.
const PAUSE: Duration = Duration::from_millis(500);
/// The most.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How many times as long as a look the pause after it is: looks take a twentieth of a core.
const SHARE: u32 = 19;
/// How many locks a console has at most. It says when there are more, and a longer prefix shows the others.
const LOCKS_MAX: usize = 20_000;
/// How many locks a page of the list has.
const PAGE: usize = 1000;
/// How much the end of a lease may move before it is news.
const SLACK: Duration = Duration::from_millis(200);

/// What a console is sent.
#[derive(Debug, Default, Serialize)]
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
    caller: Caller,
    revocation: Revocation,
    ListQuery(query): ListQuery,
) -> Result<Response, Problem> {
    caller.check_list(&query.prefix)?;
    let permit = api.streams.open(StreamKind::Console, caller.enter_stream(&[])?)?;
    let closing = api.closing.clone();
    let prefix = query.prefix.clone();
    let revoked = revocation.of(move |caller| caller.check_list(&prefix));
    let events = follow(api, query.prefix).take_until(closing.cancelled_owned());
    Ok(permit.respond(events.take_until(revoked)))
}

fn follow(api: Arc<Api>, prefix: String) -> impl Stream<Item = Result<Event, axum::Error>> + Send {
    let follower = Follower { api, prefix, sent: SentLocks::default(), next: Instant::now() };
    stream::unfold(follower, |mut follower| async move {
        let event = follower.next_event().await;
        Some((event, follower))
    })
}

/// One console's way to its locks.
struct Follower {
    api: Arc<Api>,
    prefix: String,
    sent: SentLocks,
    /// When to look next.
    next: Instant,
}

impl Follower {
    /// What changed, once something has.
    async fn next_event(&mut self) -> Result<Event, axum::Error> {
        loop {
            sleep_until(self.next).await;
            let began = Instant::now();
            let changes = self.look().await;
            self.next = Instant::now() + PAUSE.max(began.elapsed() * SHARE).min(PAUSE_MAX);
            match changes {
                Ok(Some(changes)) => return Event::default().event("changes").json_data(changes),
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "the locks of a console cannot be listed");
                    // What took long was the silence of the store.
                    self.next = Instant::now() + PAUSE;
                    if self.sent.begin_trouble() {
                        return Ok(Event::default().event("trouble").data("{}"));
                    }
                }
            }
        }
    }

    /// Looks at all locks below the prefix.
    async fn look(&mut self) -> Result<Option<Changes>, StoreError> {
        let mut look = self.sent.begin_look();
        let mut cursor: Option<Cursor> = None;
        loop {
            let query = ListLocks { prefix: self.prefix.clone(), limit: PAGE, cursor };
            // A cursor that the store does not know any more ends this look, and the next begins again.
            let Some(page) = self.api.locks.list(&query).await? else { return Ok(None) };
            let now = Instant::now();
            for holding in &page.entries {
                look.see(holding, now);
            }
            cursor = page.next;
            if cursor.is_none() || look.is_full() {
                break;
            }
        }
        Ok(look.end(cursor.is_some()))
    }
}

/// The locks as a console was sent them, or is about to be.
#[derive(Debug, Default)]
struct SentLocks {
    locks: HashMap<LockName, SentLock>,
    looks: u64,
    /// What is to be sent at the end of the look, or of the next one where a look fails.
    unsent: Changes,
    knowledge: Knowledge,
}

/// What a console knows of the locks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Knowledge {
    /// Nothing, before the first look.
    #[default]
    None,
    /// How they were at the last look.
    Certain,
    /// That the last look failed.
    Doubt,
}

/// What of a lock was sent, as far as it tells whether there is news.
#[derive(Debug)]
struct SentLock {
    /// Of all that a console shows beside the ends of the leases.
    digest: u64,
    /// When the first of its leases ends, and when the last of those that are known.
    ends: (Instant, Instant),
    /// The last look that found it held.
    look: u64,
}

/// A look at all locks, which is under way.
#[derive(Debug)]
struct Look<'a> {
    sent: &'a mut SentLocks,
    seen: usize,
}

impl SentLocks {
    /// Notes that a look failed; whether that is news to the console.
    fn begin_trouble(&mut self) -> bool {
        mem::replace(&mut self.knowledge, Knowledge::Doubt) != Knowledge::Doubt
    }

    fn begin_look(&mut self) -> Look<'_> {
        self.looks += 1;
        Look { sent: self, seen: 0 }
    }
}

impl Look<'_> {
    /// A lock is held.
    fn see(&mut self, holding: &Holding, now: Instant) {
        self.seen += 1;
        let found =
            SentLock { digest: digest(holding), ends: ends(holding, now), look: self.sent.looks };
        let before = self.sent.locks.get_mut(&holding.first.name);
        match before {
            Some(before) if !found.is_news_after(before) => before.look = found.look,
            before => {
                match before {
                    Some(before) => *before = found,
                    None => drop(self.sent.locks.insert(holding.first.name.clone(), found)),
                }
                self.sent.unsent.held.push(held_lock(holding));
            }
        }
    }

    /// Whether a console has no room for more.
    fn is_full(&self) -> bool {
        self.seen >= LOCKS_MAX
    }

    /// What changed since the last look; `None` where nothing did. The first look is news in any case, and so
    /// is the first after one that failed.
    fn end(self, more: bool) -> Option<Changes> {
        let SentLocks { locks, looks, unsent, knowledge } = self.sent;
        locks.retain(|name, lock| {
            if lock.look != *looks {
                unsent.gone.push(name.as_str().to_owned());
            }
            lock.look == *looks
        });
        let was_certain = mem::replace(knowledge, Knowledge::Certain) == Knowledge::Certain;
        let is_news = !was_certain
            || unsent.more != more
            || !unsent.held.is_empty()
            || !unsent.gone.is_empty();
        unsent.more = more;
        is_news.then(|| mem::replace(unsent, Changes { more, ..Changes::default() }))
    }
}

impl SentLock {
    fn is_news_after(&self, before: &Self) -> bool {
        let moved = |one: Instant, other: Instant| {
            one.saturating_duration_since(other).max(other.saturating_duration_since(one)) > SLACK
        };
        self.digest != before.digest
            || moved(self.ends.0, before.ends.0)
            || moved(self.ends.1, before.ends.1)
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

    /// What a look at these locks sends: the held and the gone names.
    fn look(
        sent: &mut SentLocks,
        now: Instant,
        held: &[Holding],
    ) -> Option<(Vec<String>, Vec<String>)> {
        let mut look = sent.begin_look();
        held.iter().for_each(|holding| look.see(holding, now));
        let name = |lock: HeldLock| match lock {
            HeldLock::Exclusive(lock) => lock.name,
            HeldLock::Shared(lock) => lock.name,
        };
        let changes = look.end(false)?;
        Some((changes.held.into_iter().map(name).collect(), changes.gone))
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn only_what_changed_is_sent() {
        let (mut sent, now) = (SentLocks::default(), Instant::now());
        let later = now + Duration::from_secs(10);
        assert_eq!(look(&mut sent, now, &[]), Some((names(&[]), names(&[]))));
        let both = [holding("a", 1, 60_000), holding("b", 2, 60_000)];
        assert_eq!(look(&mut sent, now, &both), Some((names(&["a", "b"]), names(&[]))));
        let same = [holding("a", 1, 50_010), holding("b", 2, 49_990)];
        assert_eq!(look(&mut sent, later, &same), None, "time that passed is no news");
        let renewed = [holding("a", 1, 60_000), holding("b", 2, 50_000)];
        assert_eq!(look(&mut sent, later, &renewed), Some((names(&["a"]), names(&[]))));
        let taken = [holding("a", 1, 60_000), holding("b", 3, 50_000)];
        assert_eq!(look(&mut sent, later, &taken), Some((names(&["b"]), names(&[]))));
        assert_eq!(look(&mut sent, later, &taken[..1]), Some((names(&[]), names(&["b"]))));
        assert_eq!(look(&mut sent, later, &taken[..1]), None);
    }

    #[test]
    fn console_that_is_full_is_told_once_that_there_are_more() {
        let (mut sent, now) = (SentLocks::default(), Instant::now());
        let mut look = |more| {
            let mut look = sent.begin_look();
            look.see(&holding("a", 1, 60_000), now);
            look.end(more).map(|changes| changes.more)
        };
        assert_eq!(
            [look(true), look(true), look(false), look(false)],
            [Some(true), None, Some(false), None]
        );
    }

    #[test]
    fn look_that_failed_loses_nothing() {
        let (mut sent, now) = (SentLocks::default(), Instant::now());
        look(&mut sent, now, &[]);
        sent.begin_look().see(&holding("a", 1, 60_000), now);
        assert!(sent.begin_trouble());
        assert!(!sent.begin_trouble(), "it was said before");
        let both = [holding("a", 1, 60_000), holding("b", 2, 60_000)];
        assert_eq!(look(&mut sent, now, &both), Some((names(&["a", "b"]), names(&[]))));
    }

    #[test]
    fn queue_that_grows_is_sent() {
        let (mut sent, now) = (SentLocks::default(), Instant::now());
        let mut lock = holding("a", 1, 60_000);
        look(&mut sent, now, std::slice::from_ref(&lock));
        lock.first.waiting = 3;
        assert_eq!(
            look(&mut sent, now, std::slice::from_ref(&lock)),
            Some((names(&["a"]), names(&[])))
        );
    }
}
