//! Hints between processes, over Redis's Pub/Sub, and which locks are watched.
//!
//! A batch that leaves a lock free for a waiter, or changes a lock that is watched, publishes the
//! lock and its row on `PREFIX:changes`; any other change costs nothing. Each process announces on
//! the same channel the locks that it watches, and every process notes them for a while. Each store
//! has one connection that subscribes. All databases of a Redis share the channel, so a message may
//! be about another store's lock; what is decided from it is refused.
//!
//! Invariants: a message is only a hint. After each gap in the subscription all waiters are woken
//! and all watchers read the state again. A lock that a process watches is noted by all processes
//! within one announcement, and stays so over one that is lost ([`WATCHED_FOR`] is more than two
//! [`ANNOUNCE_PERIOD`]s). Tested over real servers, by the tests of queues and of watches across
//! instances.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::row::{parse_string, row_bytes};
use super::script::Keys;
use crate::conn::locked;
use crate::optimistic::conditional::{Key, Notice, Version};
use keylatch_core::lock::LockName;
use keylatch_core::store::Hints;
use keylatch_core::waiters::WaiterRegistry;

/// How often a process announces the locks that it watches.
const ANNOUNCE_PERIOD: Duration = Duration::from_secs(2);
/// For how long a lock counts as watched after an announcement: one announcement may be lost.
const WATCHED_FOR: Duration = Duration::from_secs(5);
/// How many locks one command announces.
pub(super) const ANNOUNCE_BATCH: usize = 500;
/// How long a value is at most that is published with its lock. Else each process that waits reads
/// it.
const ROW_MAX: usize = 64 * 1024;

/// What a change of a lock says: its key and its row, or the version alone of a row that is long.
pub(super) fn row_message(key: &str, version: Version, value: &[u8]) -> Vec<u8> {
    if value.len() > ROW_MAX {
        return format!("changed\n{:032x}\n{key}", version.0).into_bytes();
    }
    [b"row\n", key.as_bytes(), b"\n", &*row_bytes(version, value)].concat()
}

/// A message of a script: fields with a line feed between them, which no key has.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PubSubMessage {
    /// A process watches the lock.
    Watched(LockName),
    /// The lock's row has another version now, or is another.
    Notice(Notice),
}

impl PubSubMessage {
    /// A message of a script; `None` for any other.
    pub(super) fn parse(keys: &Keys, message: &[u8]) -> Option<Self> {
        let mut fields = message.splitn(3, |byte| *byte == b'\n');
        let (kind, first, second) = (fields.next()?, fields.next()?, fields.next());
        match (kind, second) {
            (b"watched", None) => keys.lock_name(first).map(Self::Watched),
            (b"changed", Some(key)) => {
                let version = u128::from_str_radix(std::str::from_utf8(first).ok()?, 16).ok()?;
                let key = Key::Lock(keys.lock_name(key)?);
                Some(Self::Notice(Notice::Changed(key, Some(Version(version)))))
            }
            (b"row", Some(row)) => {
                let key = Key::Lock(keys.lock_name(first)?);
                Some(Self::Notice(Notice::Row(key, parse_string(row))))
            }
            _ => None,
        }
    }
}

/// The locks that are watched, here and by other processes.
#[derive(Debug, Default)]
pub(super) struct Watches {
    pub(super) here: WaiterRegistry<LockName, ()>,
    /// The locks that any process watches, and until when that counts.
    anywhere: Mutex<HashMap<LockName, Instant>>,
    /// Has the announcement made at once.
    announce_now: Notify,
}

impl Watches {
    /// The hints about `name`, which is watched until they are dropped.
    pub(super) fn watch(&self, name: LockName, hints: Hints) -> Hints {
        let guard = self.here.join(name.clone(), || ());
        self.note_watched(name);
        self.announce_now.notify_one();
        Box::pin(hints.inspect(move |_| {
            // The stream keeps the guard.
            let _ = &guard;
        }))
    }

    /// Whether a command on `name` publishes its change.
    pub(super) fn is_watched(&self, name: &LockName) -> bool {
        locked(&self.anywhere).get(name).is_some_and(|until| *until > Instant::now())
    }

    /// Notes that a process watches `name`.
    pub(super) fn note_watched(&self, name: LockName) {
        let mut anywhere = locked(&self.anywhere);
        if anywhere.is_empty() {
            self.announce_now.notify_one();
        }
        anywhere.insert(name, Instant::now() + WATCHED_FOR);
    }

    /// Waits until it is time to announce: at once after a new watch, and then each period. Where
    /// no process watches a lock, there is no time for that, and an idle process does not wake.
    pub(super) async fn until_due(&self) {
        let announced = self.announce_now.notified();
        if self.here.is_empty() && locked(&self.anywhere).is_empty() {
            announced.await;
        } else {
            let _ = timeout(ANNOUNCE_PERIOD, announced).await;
        }
    }

    pub(super) fn forget_expired(&self) {
        locked(&self.anywhere).retain(|_, until| *until > Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimistic::conditional::Row;

    fn parsed(message: &str) -> Option<PubSubMessage> {
        PubSubMessage::parse(&Keys::new("keylatch"), message.as_bytes())
    }

    fn key_of(name: &LockName) -> String {
        Keys::new("keylatch").lock(name.bucket(), name)
    }

    #[test]
    fn change_names_the_lock_and_the_version() {
        let (name, version) = (LockName::parse("jobs").unwrap(), Version(u128::MAX - 7));
        let parsed_bytes = |bytes: &[u8]| PubSubMessage::parse(&Keys::new("keylatch"), bytes);
        let message = row_message(&key_of(&name), version, b"a\nb\xff");
        let row = Row { version, value: b"a\nb\xff".to_vec() };
        let notice = |notice| Some(PubSubMessage::Notice(notice));
        let key = Key::Lock(name.clone());
        assert_eq!(parsed_bytes(&message), notice(Notice::Row(key.clone(), row)));
        let message = row_message(&key_of(&name), version, &[0; ROW_MAX + 1]);
        assert_eq!(parsed_bytes(&message), notice(Notice::Changed(key, Some(version))));
        let message = format!("watched\n{}", key_of(&name));
        assert_eq!(parsed(&message), Some(PubSubMessage::Watched(name)));
    }

    #[tokio::test(start_paused = true)]
    async fn process_that_watches_nothing_and_hears_of_no_watch_does_not_wake() {
        let watches = Watches::default();
        let idle = timeout(1000 * ANNOUNCE_PERIOD, watches.until_due()).await;
        assert!(idle.is_err(), "it woke");
        watches.note_watched(LockName::parse("jobs").unwrap());
        for _ in 0..2 {
            timeout(2 * ANNOUNCE_PERIOD, watches.until_due()).await.expect("it is due");
        }
    }

    #[test]
    fn message_of_another_program_is_ignored() {
        let name = LockName::parse("jobs").unwrap();
        for fields in ["", "hello\n", "changed\n", "changed\nx\n", "row\n", "released\n42\n"] {
            assert_eq!(parsed(&format!("{fields}{}", key_of(&name))), None, "{fields:?}");
        }
        assert_eq!(parsed("watched\nother:{00}:lock:jobs"), None);
    }
}
