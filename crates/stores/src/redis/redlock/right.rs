use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::redis::server::Life;

/// By how much the whole seconds of two readings of a clock may miss the time between them.
const WHOLE_SECONDS: Duration = Duration::from_secs(1);

/// Whether a node may vote.
///
/// A node that lost its memory in a crash would give a lock again that is held. So it does not vote
/// until every lease that it may have forgotten is over, unless it is one that forgets nothing.
///
/// A process that came up is known by its connections: they end with it, and each new one is told
/// which process it leads to, and for how long that one has been up.
#[derive(Debug)]
pub(super) struct VoteRight {
    silence: Duration,
    known: Mutex<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    run_id: String,
    from: Instant,
}

impl VoteRight {
    /// The right of a node that may have forgotten leases of at most `max_ttl`.
    pub(super) fn new(max_ttl: Duration) -> Self {
        let drift = max_ttl / 100 + Duration::from_millis(2);
        Self { silence: max_ttl + drift + WHOLE_SECONDS, known: Mutex::default() }
    }

    /// From when on the node may vote whose connection leads to this process.
    pub(super) fn from(&self, life: &Life) -> Instant {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = match &*known {
            Some(known) if known.run_id == life.run_id => return known.from,
            _ if life.forgets_nothing => Duration::ZERO,
            // The node's own word, by its wall clock, is all there is.
            None => self.silence.saturating_sub(life.uptime),
            // Here this process's clock knows better; and what was put in the place of another
            // server may have been up for long, without its locks.
            Some(_) => self.silence,
        };
        if !rest.is_zero() {
            tracing::info!(silent = ?rest, "a node that came up lately does not vote yet");
        }
        let from = life.seen + rest;
        *known = Some(Known { run_id: life.run_id.clone(), from });
        from
    }
}
