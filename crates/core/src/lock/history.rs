//! How grants ended that were not released: a lease was broken, or it expired. And which waits were
//! ended.
//!
//! Only such ends are kept, and a store writes them with a step that it writes anyway, so locks
//! that are acquired and released leave nothing. An expiry is kept for as long as the lock has
//! anything else to keep, and a break for [`BREAK_KEPT`], because its holder reads the reason at
//! its next renewal and people ask later. The full story is the stream of a watch.
//!
//! Invariant: the newest [`ENDS_MAX`] ends are kept, in the order in which they ended.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{FencingToken, Moment, Owner, Reason, TokenHash};
use crate::snapshot::deserialize_time;

/// How long a break is kept after the lease has ended.
pub(super) const BREAK_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the end of a wait is kept, until the waiter has asked again.
const WAIT_END_KEPT: Duration = Duration::from_secs(60);
/// How many ends a lock keeps.
const ENDS_MAX: usize = 16;

/// Why a lease ends and cannot be renewed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Break {
    /// The reason, for people and for the holder.
    pub reason: Reason,
    /// The label of the one who broke it.
    pub by: Option<Owner>,
    /// When it was broken by the store's wall clock, in milliseconds since 1970.
    pub at_millis: u64,
}

/// How a grant ended, or a wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantEnd {
    /// The proof of the grant, so that its holder can be told.
    pub token: TokenHash,
    /// The grant's fencing token, or the number of the wait.
    pub fencing_token: FencingToken,
    /// The holder's label.
    pub owner: Option<Owner>,
    /// When the lock was granted by the store's wall clock, in milliseconds since 1970.
    pub acquired_at_millis: u64,
    /// When the grant ended by the same clock.
    pub ended_at_millis: u64,
    /// How it ended.
    pub cause: EndCause,
}

/// How a grant ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum EndCause {
    /// Its lease expired.
    Expiry,
    /// Its lease was broken.
    Break {
        /// The reason, and the client that broke it.
        why: Arc<Break>,
        /// When the grant ended, on the store's monotonic clock.
        #[serde(deserialize_with = "deserialize_time")]
        since: Duration,
    },
    /// No grant ended: a client broke off the wait of another.
    WaitEnd {
        /// The reason, and the client that broke it off.
        why: Arc<Break>,
        /// When, on the store's monotonic clock.
        #[serde(deserialize_with = "deserialize_time")]
        since: Duration,
    },
    /// Its client released it. No store keeps such an end.
    #[serde(skip)]
    Release,
}

impl GrantEnd {
    /// How long the grant lasted by the store's wall clock.
    pub fn held_for(&self) -> Duration {
        Duration::from_millis(self.ended_at_millis.saturating_sub(self.acquired_at_millis))
    }

    /// Why the lease was broken; `None` where it was not, and of a wait.
    pub fn broken(&self) -> Option<&Arc<Break>> {
        match &self.cause {
            EndCause::Break { why, .. } => Some(why),
            _ => None,
        }
    }

    /// Until when the end itself keeps its lock from being forgotten; `None` for an expiry.
    pub(super) fn kept_until(&self) -> Option<Duration> {
        match self.cause {
            EndCause::Expiry | EndCause::Release => None,
            EndCause::Break { since, .. } => Some(since + BREAK_KEPT),
            EndCause::WaitEnd { since, .. } => Some(since + WAIT_END_KEPT),
        }
    }

    /// The same end with its moments on another clock.
    pub fn map_times(&self, mut on_other: impl FnMut(Duration) -> Duration) -> Self {
        let mut end = self.clone();
        if let EndCause::Break { since, .. } | EndCause::WaitEnd { since, .. } = &mut end.cause {
            *since = on_other(*since);
        }
        end
    }

    /// Whether a wait ended, and no grant.
    pub(super) fn is_of_wait(&self) -> bool {
        matches!(self.cause, EndCause::WaitEnd { .. })
    }

    /// When the lease ended, on the store's monotonic clock; `None` where it was not broken.
    pub fn broken_at(&self) -> Option<Duration> {
        if let EndCause::Break { since, .. } = self.cause { Some(since) } else { None }
    }

    fn is_over(&self, moment: &Moment) -> bool {
        self.kept_until().is_some_and(|until| until <= moment.now)
            || self.broken_at().is_some_and(|ended| ended < moment.breaks_from)
    }
}

/// The ends of a lock's grants that were not released, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// As a rule there are none, and they take no memory.
    ends: Option<Arc<Vec<GrantEnd>>>,
}

impl History {
    /// The ends, oldest first.
    pub fn ends(&self) -> &[GrantEnd] {
        self.ends.as_deref().map_or(&[], Vec::as_slice)
    }

    /// The ends of grants, oldest first.
    pub fn grants(&self) -> impl DoubleEndedIterator<Item = &GrantEnd> {
        self.ends().iter().filter(|end| !end.is_of_wait())
    }

    /// The ends of grants that `earlier` did not have.
    pub fn ends_after<'a>(&'a self, earlier: &'a Self) -> impl Iterator<Item = &'a GrantEnd> {
        let is_of = |end: &GrantEnd, other: &GrantEnd| {
            (end.token, end.fencing_token) == (other.token, other.fencing_token)
        };
        let is_new = move |end: &&GrantEnd| earlier.ends().iter().all(|it| !is_of(end, it));
        self.grants().filter(move |end| is_new(end))
    }

    /// Adds ends, and forgets the oldest of too many.
    pub(super) fn extend(&mut self, ends: impl IntoIterator<Item = GrantEnd>) {
        let mut ends = ends.into_iter().peekable();
        if ends.peek().is_some() {
            let kept = Arc::make_mut(self.ends.get_or_insert_default());
            kept.extend(ends);
            kept.drain(..kept.len().saturating_sub(ENDS_MAX));
        }
    }

    /// Whether there is an end that the lock is kept for.
    pub(super) fn keeps_lock(&self) -> bool {
        self.ends().iter().any(|end| end.kept_until().is_some())
    }

    /// The history with each of its times on another clock.
    pub(super) fn map_times(&self, mut on_other: impl FnMut(Duration) -> Duration) -> Self {
        self.ends().iter().map(|end| end.map_times(&mut on_other)).collect()
    }

    /// Why the grant of `token` was broken, if it was.
    pub(super) fn find_break(&self, token: &TokenHash) -> Option<&Arc<Break>> {
        self.grants().rev().find(|end| end.token == *token).and_then(GrantEnd::broken)
    }

    /// Why the wait of `token` was ended, if it was.
    pub(super) fn find_wait_end(&self, token: &TokenHash) -> Option<&Arc<Break>> {
        self.ends().iter().rev().find_map(|end| match &end.cause {
            EndCause::WaitEnd { why, .. } if end.token == *token => Some(why),
            _ => None,
        })
    }

    /// Whether [`History::settle`] takes anything away at `moment`.
    pub(super) fn is_stale(&self, moment: &Moment) -> bool {
        self.ends().iter().any(|end| end.is_over(moment))
    }

    /// Takes away the breaks that were kept for long enough.
    pub(super) fn settle(&mut self, moment: &Moment) {
        if self.is_stale(moment) {
            *self = self.ends().iter().filter(|end| !end.is_over(moment)).cloned().collect();
        }
    }
}

impl FromIterator<GrantEnd> for History {
    fn from_iter<I: IntoIterator<Item = GrantEnd>>(ends: I) -> Self {
        let ends: Vec<_> = ends.into_iter().collect();
        Self { ends: (!ends.is_empty()).then(|| Arc::new(ends)) }
    }
}
