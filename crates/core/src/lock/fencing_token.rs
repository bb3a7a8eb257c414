//! The number by which a resource refuses a late holder, and the moment at which a command runs.
//!
//! A fencing token is above the bucket's last and never below the store's wall clock in
//! microseconds, so it rises also when the counter was lost.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A number for the resource to compare: that of a grant is larger than that of every earlier grant
/// of the lock that it cannot be held together with.
///
/// It fits in 53 bits, so that JavaScript reads it exactly. The idea is from Kleppmann, "How to
/// do distributed locking" (2016), after Chubby's sequencers (Burrows, OSDI 2006).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Below every token that is ever given.
    pub const NONE: Self = Self(0);

    /// A token that a store kept.
    pub fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The token after `self`, at a store whose clock shows `unix_micros` at least.
    ///
    /// The time is a floor: it keeps tokens rising when the counter was lost.
    #[must_use]
    pub fn next(self, unix_micros: u64) -> Self {
        Self((self.0 + 1).max(unix_micros))
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// When and after which fencing token a command is applied, as its store sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moment {
    /// The store's monotonic clock: the time since some start that never changes.
    pub now: Duration,
    /// The store's wall clock, in microseconds since 1970, as `now` is.
    pub unix_micros: u64,
    /// What that clock shows at least. Fencing tokens take this, because `now` may be an estimate
    /// that is ahead, and a store that takes over from another one could give a token that is ahead
    /// once more.
    pub least_micros: u64,
    /// The last fencing token that the lock's bucket gave.
    pub last_fencing_token: FencingToken,
    /// Breaks of leases that ended before are forgotten, because as many are newer as the store
    /// remembers.
    pub breaks_from: Duration,
}

impl Moment {
    /// The date at which the monotonic clock showed `then`, which is not after `now`: in
    /// milliseconds since 1970, and the same at every moment at which both clocks have run on
    /// alike.
    pub(crate) fn date_of(&self, then: Duration) -> u64 {
        let ago = u64::try_from(self.now.saturating_sub(then).as_micros()).unwrap_or(u64::MAX);
        self.unix_micros.saturating_sub(ago) / 1000
    }
}
