//! What other processes change, as the watch of the session says.
//!
//! One persistent watch covers the whole tree. Its events name a node and neither its version nor,
//! before ZooKeeper 3.9, a transaction. So each event of a lock is a notice without a version,
//! unless it is of this process's own write; and the timeline learns of the transactions by a look
//! at the node of the last event, at most every [`TICK`]. A connection that was lost and made again
//! may have lost events, and a new session has: both are [`Notice::Missed`]. Tested in
//! `tests/stores/zookeeper`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, OptionFuture};
use tokio::time::{Instant, sleep_until};
use zookeeper_client::{EventType, PersistentWatcher, Stat, WatchedEvent};

use super::session::{Link, Session};
use super::tree::end_of;
use crate::conn::subscription::Source;
use crate::optimistic::conditional::{Key, Notice};

/// How long looks at changed nodes are apart, at least.
const TICK: Duration = Duration::from_millis(50);

/// The watch of a session, and the looks that its events lead to.
pub(super) struct Watch {
    session: Arc<Session>,
    watcher: PersistentWatcher,
    /// The node of the last event whose transaction is not known.
    changed: Option<String>,
    next_look: Instant,
    look: Option<BoxFuture<'static, Option<Stat>>>,
}

impl Source for Arc<Link> {
    type Subscription = Watch;

    async fn subscribe(&self) -> Result<Watch, String> {
        let session = self.session_for_long().await.map_err(|error| error.cause())?;
        Watch::of(Arc::clone(&session)).ok_or_else(|| {
            // Another session is needed for another watch.
            self.leave(&session);
            "the session has no watch".to_owned()
        })
    }

    async fn hear(&self, watch: &mut Watch) -> Option<Vec<Notice>> {
        let event = watch.event(self).await;
        if event.event_type == EventType::Session {
            // The client may reach the member again, and events are lost in any case.
            self.leave(&watch.session);
            return None;
        }
        Some(watch.hear(self, event).into_iter().collect())
    }
}

impl Watch {
    pub(super) fn of(session: Arc<Session>) -> Option<Self> {
        let watcher = session.take_watcher()?;
        Some(Self { session, watcher, changed: None, next_look: Instant::now(), look: None })
    }

    /// The next event. Meanwhile it looks at nodes that changed.
    async fn event(&mut self, link: &Link) -> WatchedEvent {
        loop {
            let Self { session, watcher, changed, next_look, look } = self;
            tokio::select! {
                // Events that come without a pause must not keep the timeline from what it learns.
                biased;
                stat = OptionFuture::from(look.as_mut()), if look.is_some() => {
                    *look = None;
                    if let Some(Some(stat)) = stat {
                        link.timeline.note(end_of(stat.mzxid));
                    }
                }
                () = sleep_until(*next_look), if look.is_none() && changed.is_some() => {
                    *next_look = Instant::now() + TICK;
                    let (session, node) = (Arc::clone(session), changed.take().unwrap_or_default());
                    let asking = async move { session.client.check_stat(&node).await.ok().flatten() };
                    *look = Some(asking.boxed());
                }
                event = watcher.changed() => return event,
            }
        }
    }

    /// Notes an event; gives the notice that it is to other tasks.
    fn hear(&mut self, link: &Link, event: WatchedEvent) -> Option<Notice> {
        // The transaction is that of its row, which has an event of its own, and whose node stays.
        if link.members.tree.is_mark(&event.path) {
            return None;
        }
        let key = link.members.tree.key_of(&event.path);
        if key.as_ref().is_some_and(|key| self.session.takes_as_own(key)) {
            return None;
        }
        if event.zxid == WatchedEvent::NO_ZXID {
            self.changed = Some(event.path);
        } else {
            link.timeline.note(end_of(event.zxid));
        }
        key.filter(|key| matches!(key, Key::Lock(_))).map(|key| Notice::Changed(key, None))
    }
}
