//! Hints between processes, over Redis's Pub/Sub, and which locks are watched.
//!
//! A script that leaves a lock free publishes the first waiter of its queue on `PREFIX:turns`; a script
//! that changes a watched lock publishes the change on `PREFIX:changes`, and an unwatched lock costs
//! nothing. Each process announces on the same channel the locks that it watches, and every process
//! notes them for a while. Each store has one connection that subscribes to both channels. All databases
//! of a Redis share them, so a message may be about another store's lock; it wakes no waiter here.
//!
//! Invariants: a message is only a hint. After each gap in the subscription all waiters are woken and
//! all watchers read the state again. A lock that a process watches is noted by all processes within
//! one announcement, and stays so over one that is lost ([`WATCHED_FOR`] is more than two
//! [`ANNOUNCE_PERIOD`]s). Tested over real servers, by the tests of queues and of watches across instances.

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bb8_redis::redis::aio::PubSubStream;
use futures_util::StreamExt as _;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::reply::ScriptReply;
use super::script::{Keys, Scripts};
use super::topology::Topology;
use crate::RedisSettings;
use crate::hints::{ChangeWatchers, Wakeups};
use keylatch_core::lock::{FencingToken, Holder, HolderId, Limit, LockName, Owner, TokenHash};
use keylatch_core::store::{Change, Hints};

/// The pause before a lost subscription is made again.
const RESUBSCRIBE_PAUSE: Duration = Duration::from_millis(250);
/// How often a process announces the locks that it watches.
const ANNOUNCE_PERIOD: Duration = Duration::from_secs(2);
/// For how long a lock counts as watched after an announcement: one announcement may be lost.
const WATCHED_FOR: Duration = Duration::from_secs(5);
/// How many locks one command announces.
const ANNOUNCE_BATCH: usize = 500;

/// The messages of a server and the token that is cancelled when it is retired, or why there are
/// none.
pub(super) type SubscribeResult =
    Result<(PubSubStream, CancellationToken), Box<dyn Error + Send + Sync>>;

/// The one subscription of a store, for wakeups and for changes of watched locks.
#[derive(Debug)]
pub(super) struct Subscription {
    topology: Arc<Topology>,
    timeout: Duration,
    keys: Arc<Keys>,
    wakeups: Arc<Wakeups>,
    watches: Arc<Watches>,
}

impl Subscription {
    /// A subscription that is yet to be made.
    pub(super) fn new(
        topology: &Arc<Topology>,
        settings: &RedisSettings,
        keys: &Arc<Keys>,
        wakeups: &Arc<Wakeups>,
        watches: &Arc<Watches>,
    ) -> Self {
        let (keys, wakeups, watches) = (Arc::clone(keys), Arc::clone(wakeups), Arc::clone(watches));
        let topology = Arc::clone(topology);
        Self { topology, timeout: settings.connect_timeout(), keys, wakeups, watches }
    }

    /// Passes on messages, for ever, beginning with the `first` subscription. Messages that are
    /// published while there is no connection are lost; waiters and watchers then ask the store.
    pub(super) async fn listen(self, first: SubscribeResult) {
        let (mut has_failed, mut subscribed) = (false, first);
        for attempt in 1.. {
            match subscribed {
                Ok((messages, retired)) => {
                    has_failed = false;
                    // Any message may have been lost.
                    self.wakeups.wake_all();
                    self.watches.report_missed();
                    retired.run_until_cancelled(self.pass_on(messages)).await;
                }
                Err(error) if has_failed => {
                    tracing::debug!(%error, "there is still no subscription");
                }
                Err(error) => {
                    has_failed = true;
                    tracing::warn!(%error, "no subscription: waiters and watchers poll the store");
                }
            }
            sleep(RESUBSCRIBE_PAUSE).await;
            subscribed = self.subscribe(attempt).await;
        }
    }

    /// One attempt to subscribe.
    pub(super) async fn subscribe(&self, attempt: usize) -> SubscribeResult {
        let subscribing = async {
            let publisher = self.topology.publisher(attempt).ok_or("no master is known yet")?;
            let mut connection = publisher.client.get_async_pubsub().await?;
            connection.subscribe(&[self.keys.wakeup_channel(), self.keys.change_channel()]).await?;
            Ok((connection.into_on_message(), publisher.retired))
        };
        timeout(self.timeout, subscribing).await?
    }

    /// Passes on messages until the connection is lost.
    async fn pass_on(&self, mut messages: PubSubStream) {
        while let Some(message) = messages.next().await {
            match PubSubMessage::parse(&self.keys, message.get_payload_bytes()) {
                Some(PubSubMessage::Wakeup(name, token)) => self.wakeups.wake(&name, &token),
                Some(PubSubMessage::Watched(name)) => self.watches.note_watched(name),
                Some(PubSubMessage::Changed(name, change)) => self.watches.report(&name, change),
                None => {}
            }
        }
    }
}

/// A message of a script: for a wakeup the token's hash and the key of the lock; for others fields
/// with a line feed between them, the key of the lock at the end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PubSubMessage {
    /// The turn of this token may have come.
    Wakeup(LockName, TokenHash),
    /// A process watches the lock.
    Watched(LockName),
    /// A command changed a watched lock.
    Changed(LockName, Change),
}

impl PubSubMessage {
    /// A message of a script; `None` for any other.
    pub(super) fn parse(keys: &Keys, message: &[u8]) -> Option<Self> {
        if let Some((name, token)) = keys.parse_wakeup(message) {
            return Some(Self::Wakeup(name, token));
        }
        let text = std::str::from_utf8(message).ok()?;
        let (fields, key) = text.rsplit_once('\n')?;
        let name = keys.lock_name(key.as_bytes())?;
        let fields: Vec<_> = fields.split('\n').collect();
        let change = match fields[..] {
            ["watched"] => return Some(Self::Watched(name)),
            ["released", fencing_token] => {
                let fencing_token = FencingToken::new(fencing_token.parse().ok()?);
                Change::Released(HolderId { fencing_token, slot: 0 })
            }
            [kind, fencing_token, expires_in, acquired_at, waiting, owner] => {
                let holder = Holder {
                    name: name.clone(),
                    owner: Owner::parse(owner).ok()?,
                    fencing_token: FencingToken::new(fencing_token.parse().ok()?),
                    acquired_at_millis: acquired_at.parse().ok()?,
                    expires_in: Duration::from_millis(expires_in.parse().ok()?),
                    waiting: waiting.parse().ok()?,
                    limit: Limit::Exclusive,
                    slot: 0,
                    broken: None,
                };
                match kind {
                    "acquired" => Change::Acquired(holder),
                    "renewed" => Change::Renewed(holder),
                    _ => return None,
                }
            }
            _ => return None,
        };
        Some(Self::Changed(name, change))
    }
}

/// The locks that are watched, here and by other processes.
#[derive(Debug, Default)]
pub(super) struct Watches {
    here: ChangeWatchers,
    /// How many locks are below, read without the mutex.
    count: AtomicUsize,
    /// The locks that any process watches, and until when that counts.
    anywhere: Mutex<HashMap<LockName, Instant>>,
    /// Has the announcement made at once.
    announce_now: Notify,
}

impl Watches {
    /// The changes of `name` from now on.
    pub(super) fn subscribe(&self, name: LockName) -> Hints {
        let hints = self.here.subscribe(name.clone());
        self.note_watched(name);
        self.announce_now.notify_one();
        hints
    }

    /// Whether a command on `name` publishes its change.
    pub(super) fn is_watched(&self, name: &LockName) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.anywhere().get(name).is_some_and(|until| *until > Instant::now())
    }

    /// Notes that a process watches `name`.
    fn note_watched(&self, name: LockName) {
        let mut anywhere = self.anywhere();
        anywhere.insert(name, Instant::now() + WATCHED_FOR);
        self.count.store(anywhere.len(), Ordering::Release);
    }

    /// Reports a change of `name` to its watchers here.
    fn report(&self, name: &LockName, change: Change) {
        self.here.report(name, change);
    }

    /// Reports to all watchers here that messages may have been lost.
    fn report_missed(&self) {
        self.here.report_missed();
    }

    /// Announces the locks that are watched here, for ever.
    pub(super) async fn announce(
        self: Arc<Self>,
        topology: Arc<Topology>,
        keys: Arc<Keys>,
        scripts: Arc<Scripts>,
    ) {
        loop {
            // A new watch is announced at once.
            let _ = timeout(ANNOUNCE_PERIOD, self.announce_now.notified()).await;
            self.forget_expired();
            for names in self.here.names().chunks(ANNOUNCE_BATCH) {
                let mut call = scripts.announce.prepare_invoke();
                call.arg(keys.change_channel());
                for name in names {
                    call.arg(keys.lock(name.bucket(), name));
                }
                // The script has no keys, and every server passes on its messages.
                let any_bucket = names.first().map_or(0, LockName::bucket);
                if let Err(error) = topology.run::<ScriptReply>(any_bucket, &call).await {
                    tracing::debug!(%error, "watched locks could not be announced");
                }
            }
        }
    }

    fn forget_expired(&self) {
        let now = Instant::now();
        let mut anywhere = self.anywhere();
        anywhere.retain(|_, until| *until > now);
        self.count.store(anywhere.len(), Ordering::Release);
    }

    fn anywhere(&self) -> MutexGuard<'_, HashMap<LockName, Instant>> {
        self.anywhere.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(message: &str) -> Option<PubSubMessage> {
        PubSubMessage::parse(&Keys::new("keylatch"), message.as_bytes())
    }

    fn key_of(name: &LockName) -> String {
        Keys::new("keylatch").lock(name.bucket(), name)
    }

    #[test]
    fn wakeup_names_the_lock_and_the_token() {
        let (name, token) = (LockName::parse("jobs").unwrap(), TokenHash::from_bytes([7; 32]));
        let message = format!("{}{}", super::super::script::token(&token), key_of(&name));
        assert_eq!(parsed(&message), Some(PubSubMessage::Wakeup(name, token)));
    }

    #[test]
    fn change_carries_the_holder_whose_owner_may_be_empty() {
        let name = LockName::parse("jobs").unwrap();
        let Some(PubSubMessage::Changed(_, Change::Acquired(holder))) =
            parsed(&format!("acquired\n42\n60000\n5\n3\n\n{}", key_of(&name)))
        else {
            panic!("not an acquired lock");
        };
        assert_eq!((holder.fencing_token.get(), holder.owner, holder.waiting), (42, None, 3));
        let fencing_token = FencingToken::new(42);
        let released = Change::Released(HolderId { fencing_token, slot: 0 });
        let message = format!("released\n42\n{}", key_of(&name));
        assert_eq!(parsed(&message), Some(PubSubMessage::Changed(name.clone(), released)));
        let message = format!("watched\n{}", key_of(&name));
        assert_eq!(parsed(&message), Some(PubSubMessage::Watched(name)));
    }

    #[test]
    fn message_of_another_program_is_ignored() {
        let name = LockName::parse("jobs").unwrap();
        for fields in ["", "hello\n", "released\n", "released\nx\n", "stolen\n1\n1\n1\n1\n\n"] {
            assert_eq!(parsed(&format!("{fields}{}", key_of(&name))), None, "{fields:?}");
        }
        assert_eq!(parsed("watched\nother:{00}:lock:jobs"), None);
    }
}
