//! What a watch has already reported of a lock.
//!
//! A hint of the store and a look may arrive in another order than what they report happened. Fencing
//! tokens rise, so a cursor tells by them what is older than what it knows. Invariant: it never
//! reports an event twice, and never one that contradicts a later one. Tested below.

use std::time::Duration;

use tokio::time::Instant;

use super::{FencingToken, Holder, WatchEvent};

/// By how much two accounts of the same end may differ: stores count milliseconds.
const SLACK: Duration = Duration::from_millis(2);

/// What a look at a lock found, and between which moments it was taken.
#[derive(Debug)]
pub(super) struct Observation {
    pub(super) holder: Option<Holder>,
    pub(super) asked: Instant,
    pub(super) answered: Instant,
}

/// What the watchers of a lock know of it.
///
/// The reports of a store and of looks may arrive in another order than the changes happened.
/// Fencing tokens rise, so the cursor sees by them which report is older than what it knows.
#[derive(Debug)]
pub(super) struct WatchCursor {
    held: Option<KnownLease>,
    /// The largest fencing token reported.
    last: FencingToken,
}

#[derive(Debug)]
struct KnownLease {
    holder: Holder,
    /// It ends between these two.
    earliest: Instant,
    latest: Instant,
}

impl WatchCursor {
    /// The cursor after a first look, and the snapshot to report.
    pub(super) fn new(look: Observation) -> (Self, WatchEvent) {
        let snapshot = WatchEvent::Snapshot(look.holder.clone());
        let last = look.holder.as_ref().map(|holder| holder.fencing_token).unwrap_or_default();
        let held = look.holder.map(|holder| KnownLease::new(holder, look.asked, look.answered));
        (Self { held, last }, snapshot)
    }

    /// When the known lease has surely ended, unless the holder renews it.
    pub(super) fn ends(&self) -> Option<Instant> {
        self.held.as_ref().map(|lease| lease.latest + SLACK)
    }

    /// The store says that the lock was granted.
    pub(super) fn acquired(&mut self, holder: Holder, now: Instant) -> Vec<WatchEvent> {
        if holder.fencing_token <= self.last {
            return Vec::new();
        }
        self.is_held(KnownLease::new(holder, now, now), now)
    }

    /// The store says that a lease was renewed, which may be less than a look could tell.
    pub(super) fn renewed(&mut self, holder: Holder, now: Instant) -> Vec<WatchEvent> {
        match &mut self.held {
            Some(known) if known.holder.fencing_token == holder.fencing_token => {
                *known = KnownLease::new(holder.clone(), now, now);
                vec![WatchEvent::Renewed(holder)]
            }
            _ => self.is_held(KnownLease::new(holder, now, now), now),
        }
    }

    /// The store reports that a grant was released or withdrawn.
    pub(super) fn released(
        &mut self,
        fencing_token: FencingToken,
        now: Instant,
    ) -> Vec<WatchEvent> {
        if fencing_token < self.last {
            return Vec::new();
        }
        let known = fencing_token == self.last;
        self.last = fencing_token;
        match self.held.take() {
            Some(lease) if known => vec![WatchEvent::Released(lease.holder)],
            lease => lease.into_iter().map(|lease| lease.over(now)).collect(),
        }
    }

    /// A look was taken.
    pub(super) fn looked(&mut self, look: Observation) -> Vec<WatchEvent> {
        match look.holder {
            Some(holder) => {
                self.is_held(KnownLease::new(holder, look.asked, look.answered), look.answered)
            }
            None => self.held.take().into_iter().map(|lease| lease.over(look.answered)).collect(),
        }
    }

    fn is_held(&mut self, lease: KnownLease, now: Instant) -> Vec<WatchEvent> {
        let (fencing_token, holder) = (lease.holder.fencing_token, lease.holder.clone());
        if fencing_token == self.last {
            return match &mut self.held {
                Some(known) if lease.is_another_end(known) => {
                    *known = lease;
                    vec![WatchEvent::Renewed(holder)]
                }
                // An event that is reported already, or a late one of a grant that is over.
                _ => Vec::new(),
            };
        }
        if fencing_token < self.last {
            return Vec::new();
        }
        self.last = fencing_token;
        let before = self.held.replace(lease).map(|lease| lease.over(now));
        before.into_iter().chain([WatchEvent::Acquired(holder)]).collect()
    }
}

impl KnownLease {
    fn new(holder: Holder, asked: Instant, answered: Instant) -> Self {
        let (earliest, latest) = (asked + holder.expires_in, answered + holder.expires_in);
        Self { holder, earliest, latest }
    }

    fn is_another_end(&self, known: &Self) -> bool {
        self.earliest > known.latest + SLACK || self.latest + SLACK < known.earliest
    }

    /// The end of the lease by `now`, when the store reported none.
    fn over(self, now: Instant) -> WatchEvent {
        if now + SLACK >= self.earliest {
            WatchEvent::Expired(self.holder)
        } else {
            WatchEvent::Released(self.holder)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::LockName;

    fn holder(fencing_token: u64, millis: u64) -> Holder {
        Holder {
            name: LockName::parse("a").unwrap(),
            owner: None,
            fencing_token: FencingToken::new(fencing_token),
            acquired_at_millis: 0,
            expires_in: Duration::from_millis(millis),
            waiting: 0,
        }
    }

    fn names(events: &[WatchEvent]) -> Vec<(&'static str, u64)> {
        let name = |event: &WatchEvent| match event {
            WatchEvent::Acquired(holder) => ("acquired", holder.fencing_token.get()),
            WatchEvent::Renewed(holder) => ("renewed", holder.fencing_token.get()),
            WatchEvent::Released(holder) => ("released", holder.fencing_token.get()),
            WatchEvent::Expired(holder) => ("expired", holder.fencing_token.get()),
            other => panic!("{other:?}"),
        };
        events.iter().map(name).collect()
    }

    fn look(holder: Option<Holder>, asked: Instant, answered: Instant) -> Observation {
        Observation { holder, asked, answered }
    }

    #[test]
    fn a_look_that_took_long_is_no_renewal() {
        let now = Instant::now();
        let after = |millis| now + Duration::from_millis(millis);
        let (mut cursor, _) = WatchCursor::new(look(Some(holder(1, 1000)), now, after(1)));
        // Asked at 100, taken by the store at 101, answered at 400.
        let slow = look(Some(holder(1, 899)), after(100), after(400));
        assert_eq!(names(&cursor.looked(slow)), []);
        let renewed = look(Some(holder(1, 999)), after(500), after(501));
        assert_eq!(names(&cursor.looked(renewed)), [("renewed", 1)]);
    }

    #[test]
    fn what_nobody_said_is_known_by_the_time() {
        let now = Instant::now();
        let after = |millis| now + Duration::from_millis(millis);
        let (mut cursor, _) = WatchCursor::new(look(Some(holder(1, 1000)), now, now));
        assert_eq!(names(&cursor.looked(look(None, after(500), after(500)))), [("released", 1)]);
        assert_eq!(names(&cursor.acquired(holder(2, 100), after(600))), [("acquired", 2)]);
        assert_eq!(names(&cursor.looked(look(None, after(701), after(701)))), [("expired", 2)]);
        assert_eq!(names(&cursor.acquired(holder(3, 100), after(800))), [("acquired", 3)]);
        let taken_over = cursor.acquired(holder(5, 100), after(850));
        assert_eq!(names(&taken_over), [("released", 3), ("acquired", 5)]);
        let taken_over = cursor.acquired(holder(6, 100), after(950));
        assert_eq!(names(&taken_over), [("expired", 5), ("acquired", 6)]);
    }

    #[test]
    fn what_is_said_late_is_not_told_again() {
        let now = Instant::now();
        let (mut cursor, _) = WatchCursor::new(look(Some(holder(2, 1000)), now, now));
        assert_eq!(names(&cursor.released(FencingToken::new(1), now)), []);
        assert_eq!(names(&cursor.acquired(holder(1, 5000), now)), []);
        assert_eq!(names(&cursor.acquired(holder(2, 1000), now)), []);
        assert_eq!(names(&cursor.renewed(holder(2, 1000), now)), [("renewed", 2)]);
        assert_eq!(names(&cursor.looked(look(None, now, now))), [("released", 2)]);
        assert_eq!(names(&cursor.renewed(holder(2, 5000), now)), []);
        assert_eq!(names(&cursor.released(FencingToken::new(2), now)), []);
        assert_eq!(names(&cursor.acquired(holder(3, 1000), now)), [("acquired", 3)]);
    }
}
