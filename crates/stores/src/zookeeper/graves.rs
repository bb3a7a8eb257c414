//! Removing rows in two steps: first a row is emptied, and later its node is deleted.
//!
//! A node that is made again begins with the data version 0. So a change that names a data version of the
//! old node could hit the new one, if the row was read just before it was removed. A node without data is
//! no row. Emptying gives the node another data version, so a change that was decided from the row fails;
//! and nothing is decided from an empty node. The node is deleted when no such change can be on its way
//! any more: a process remembers a row for 10 s, waits 5 s for a call, and what it sent is carried out
//! within its session or not at all. A row that is written in an empty node has the next data version.
//!
//! Invariant: no change that names a version of a removed row is carried out. Its writer read the row
//! before the emptying, and [`Graves::rest`] later it has no session in which the change could still come.
//! What is written in an empty node names the data version of the parent besides, which each deletion
//! raises. What empties or deletes a node compares its whole version, and names the data version of the
//! parent, too: a walk may have seen the node long ago. Tested in `tests/stores/zookeeper`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::optimistic::conditional::{Key, Version};

/// For how long a process may take a row as what the ensemble has, and wait for the call that changes it.
const IN_USE: Duration = Duration::from_secs(15);
/// How many empty nodes a process keeps in mind; a later walk finds the others again.
const CAPACITY: usize = 16 * 1024;
/// How many are deleted at once.
const BATCH: usize = 256;

/// The empty nodes that this process knows of.
#[derive(Debug, Default)]
pub(super) struct Graves {
    known: Mutex<HashMap<Key, Grave>>,
}

#[derive(Debug, Clone, Copy)]
struct Grave {
    version: Version,
    since: Instant,
}

impl Graves {
    /// For how long a node stays empty before it is deleted, where sessions have this time limit.
    pub(super) fn rest(session_timeout: Duration) -> Duration {
        // The client gives up a session that it cannot reach after 7/5 of its time.
        IN_USE + 2 * session_timeout
    }

    /// Notes that a node was seen empty, with this version.
    pub(super) fn note(&self, key: Key, version: Version) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = known.get(&key).map(|grave| grave.version == version);
        if is_known.unwrap_or(known.len() >= CAPACITY) {
            return;
        }
        known.insert(key, Grave { version, since: Instant::now() });
    }

    /// Some of the nodes that were empty for `rest`, with their versions. They are forgotten.
    pub(super) fn take_due(&self, rest: Duration) -> Vec<(Key, Version)> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let due = known.extract_if(|_, grave| grave.since.elapsed() >= rest).take(BATCH);
        due.map(|(key, grave)| (key, grave.version)).collect()
    }
}

#[cfg(test)]
mod tests {
    use keylatch_core::lock::LockName;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn node_is_due_when_it_was_empty_long_enough() {
        let (graves, rest) = (Graves::default(), Graves::rest(Duration::from_secs(6)));
        let key = Key::Lock(LockName::parse("a").unwrap());
        graves.note(key.clone(), Version(3));
        tokio::time::advance(rest / 2).await;
        graves.note(key.clone(), Version(3));
        tokio::time::advance(rest / 2).await;
        assert_eq!(graves.take_due(rest), [(key.clone(), Version(3))], "it was empty all the time");
        graves.note(key.clone(), Version(3));
        tokio::time::advance(rest / 2).await;
        graves.note(key.clone(), Version(5));
        tokio::time::advance(rest / 2).await;
        assert_eq!(graves.take_due(rest), [], "there was a row in between");
        tokio::time::advance(rest / 2).await;
        assert_eq!(graves.take_due(rest), [(key, Version(5))]);
    }
}
