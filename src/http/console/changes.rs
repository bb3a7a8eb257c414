//! The stream by which a console follows the held locks: what changed since the last event, twice a
//! second at most.
//!
//! All consoles share looks at the held locks ([`held_locks`](crate::http::held_locks)), and each
//! stream sends those that are not as it last sent them. So a lock that changes a hundred times
//! between two looks is sent once, changes through other instances are there as well, and no store
//! needs another kind of hint.
//!
//! Invariant: after each event the console has the locks as the look found them, but for [`SLACK`]
//! of the time that is left. Tested below and in `tests/api/console.rs`.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream::{self, Stream, StreamExt as _};
use serde::Serialize;
use tokio::time::Instant;

use crate::http::api::Api;
use crate::http::caller::Caller;
use crate::http::extract::ListQuery;
use crate::http::held_locks::{FoundLock, FoundLocks, SharedLook};
use crate::http::problem::Problem;
use crate::http::revocation::Revocation;
use crate::metrics::StreamKind;
use keylatch_core::lock::LockName;
use keylatch_wire::HeldLock;

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
    let look = api.streams.looks.of(prefix);
    let follower = Follower { api, look, seen: 0, sent: SentLocks::default() };
    stream::unfold(follower, |mut follower| async move {
        let event = follower.next_event().await;
        Some((event, follower))
    })
}

/// One console's way to its locks.
struct Follower {
    api: Arc<Api>,
    look: Arc<SharedLook>,
    /// The number of the last look that it has read.
    seen: u64,
    sent: SentLocks,
}

impl Follower {
    /// What changed, once something has.
    async fn next_event(&mut self) -> Result<Event, axum::Error> {
        loop {
            let look = self.look.after(self.seen, &self.api.locks).await;
            self.seen = look.number;
            match &look.found {
                Some(found) => {
                    if let Some(changes) = self.sent.update(found) {
                        return Event::default().event("changes").json_data(changes);
                    }
                }
                None if self.sent.begin_trouble() => {
                    return Ok(Event::default().event("trouble").data("{}"));
                }
                None => {}
            }
        }
    }
}

/// The locks as a console was sent them.
#[derive(Debug, Default)]
struct SentLocks {
    locks: HashMap<LockName, SentLock>,
    looks: u64,
    more: bool,
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
    digest: u64,
    ends: (Instant, Instant),
    /// The last look that found it held.
    look: u64,
}

impl SentLocks {
    /// Notes that a look failed; whether that is news to the console.
    fn begin_trouble(&mut self) -> bool {
        mem::replace(&mut self.knowledge, Knowledge::Doubt) != Knowledge::Doubt
    }

    /// What changed since the last look; `None` where nothing did. The first look is news in any
    /// case, and so is the first after one that failed.
    fn update(&mut self, found: &FoundLocks) -> Option<Changes> {
        self.looks += 1;
        let look = self.looks;
        let mut changes = Changes { more: found.more, ..Changes::default() };
        for FoundLock { name, lock, digest, ends } in &found.locks {
            let found = SentLock { digest: *digest, ends: *ends, look };
            match self.locks.get_mut(name) {
                Some(before) if !found.is_news_after(before) => before.look = look,
                _ => {
                    self.locks.insert(name.clone(), found);
                    changes.held.push(lock.clone());
                }
            }
        }
        self.locks.retain(|name, lock| {
            if lock.look != look {
                changes.gone.push(name.as_str().to_owned());
            }
            lock.look == look
        });
        let was_certain =
            mem::replace(&mut self.knowledge, Knowledge::Certain) == Knowledge::Certain;
        let had_more = mem::replace(&mut self.more, found.more);
        let is_news = !was_certain
            || had_more != found.more
            || !changes.held.is_empty()
            || !changes.gone.is_empty();
        is_news.then_some(changes)
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

#[cfg(test)]
mod tests {
    use keylatch_core::lock::{FencingToken, Holder, Holding, Limit};

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
        let locks = held.iter().map(|holding| FoundLock::of(holding, now)).collect();
        let name = |lock: HeldLock| match lock {
            HeldLock::Exclusive(lock) => lock.name,
            HeldLock::Shared(lock) => lock.name,
        };
        let changes = sent.update(&FoundLocks { locks, more: false })?;
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
            let locks = vec![FoundLock::of(&holding("a", 1, 60_000), now)];
            sent.update(&FoundLocks { locks, more }).map(|changes| changes.more)
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
