//! When a lease is renewed and when it is given up: the schedule of every watchdog.
//!
//! A lease is renewed at each third of its TTL. A renewal that fails is tried again after a pause
//! of a twentieth. A quarter of the TTL before the lease ends, at most 10 s, the watchdog gives it
//! up, so that its holder has time to stop. [`LeaseSchedule`] is pure: it reads no clock, so a
//! service counts on tokio's clock and a client on one that runs while its machine is suspended.

use std::time::Duration;

/// The longest notice before the end of a lease.
const NOTICE_MAX: Duration = Duration::from_secs(10);
/// The longest pause before a failed renewal is tried again.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long before the end of its validity a lease of this TTL is given up.
pub fn notice(ttl: Duration) -> Duration {
    (ttl / 4).min(NOTICE_MAX)
}

/// The pause before a failed step on a lease of this TTL is tried again.
pub fn retry_pause(ttl: Duration) -> Duration {
    (ttl / 20).min(PAUSE_MAX)
}

/// When a lease is to be renewed next, and when to give it up. Times are those of the caller's
/// monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseSchedule {
    ttl: Duration,
    valid_until: Duration,
    renew_at: Duration,
}

impl LeaseSchedule {
    /// The schedule of a lease of `ttl` that is valid until then. The first renewal is due when
    /// two thirds of the TTL are left.
    pub fn new(ttl: Duration, valid_until: Duration) -> Self {
        Self { ttl, valid_until, renew_at: valid_until.saturating_sub(ttl * 2 / 3) }
    }

    /// Until when the lease is valid.
    pub fn valid_until(&self) -> Duration {
        self.valid_until
    }

    /// When the lease is to be given up, unless it is renewed.
    pub fn give_up_at(&self) -> Duration {
        self.valid_until.saturating_sub(notice(self.ttl))
    }

    /// When to try a renewal next; never later than the time to give up.
    pub fn next_try(&self) -> Duration {
        self.renew_at.min(self.give_up_at())
    }

    /// How long a renewal that is sent at `now` may take; `None` when it is time to give up.
    pub fn try_limit(&self, now: Duration) -> Option<Duration> {
        let left = self.give_up_at().saturating_sub(now);
        (!left.is_zero()).then(|| left.min(self.ttl / 3))
    }

    /// A renewal that was sent at `sent` succeeded: the lease is valid until then, if that is
    /// later.
    pub fn renewed(&mut self, sent: Duration, valid_until: Duration) {
        self.valid_until = self.valid_until.max(valid_until);
        self.renew_at = sent + self.ttl / 3;
    }

    /// A renewal failed at `now`. The next try is after `pause_min` at the earliest, as the service
    /// may have asked, which leaves time for some more tries in any case.
    pub fn failed(&mut self, now: Duration, pause_min: Duration) {
        self.renew_at = now + retry_pause(self.ttl).max(pause_min.min(self.ttl / 10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn lease_is_renewed_at_each_third_and_given_up_a_quarter_ahead() {
        let mut schedule = LeaseSchedule::new(seconds(12), seconds(112));
        assert_eq!((schedule.next_try(), schedule.give_up_at()), (seconds(104), seconds(109)));
        assert_eq!(schedule.try_limit(seconds(104)), Some(seconds(4)));
        schedule.renewed(seconds(104), seconds(116));
        assert_eq!((schedule.next_try(), schedule.give_up_at()), (seconds(108), seconds(113)));
        schedule.failed(seconds(112), Duration::ZERO);
        assert_eq!(schedule.next_try(), seconds(112) + Duration::from_millis(600));
        assert_eq!(schedule.try_limit(seconds(113)), None);
    }

    #[test]
    fn renewal_that_says_less_does_not_shorten_the_validity() {
        let mut schedule = LeaseSchedule::new(seconds(12), seconds(112));
        schedule.renewed(seconds(104), seconds(110));
        assert_eq!(schedule.valid_until(), seconds(112));
    }
}
