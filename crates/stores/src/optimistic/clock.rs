//! What the engine's clock shows now, as far as this process can tell.
//!
//! Each response of the engine says what its clock showed between the sending of the request and
//! the response. The estimate counts from the sending, on this process's monotonic clock, so it is
//! never behind the engine's clock by more than the two drift apart in [`SAMPLE_LASTS`]: a lease
//! that begins by the estimate never ends early. It may be ahead by a round trip; then the engine
//! refuses the decision by its guard, and the decision is made again. So is one by an estimate that
//! is ahead because the clock was set back. Invariant: nothing is granted by the estimate alone.
//!
//! Fencing tokens rise by the other bound, which is never ahead of the engine's clock: a token that
//! is ahead could be given once more by an engine that took over and has lost the counter.

use std::time::Duration;

use keylatch_core::lock::Moment;
use tokio::time::Instant;

use super::conditional::{EngineTime, Guard, Timeline};

/// For how long the sample with the shortest round trip is used.
const SAMPLE_LASTS: Duration = Duration::from_secs(5);

/// By how much the estimate may be ahead and wait. What is refused waits as long.
const LEAD_MAX: Duration = Duration::from_millis(250);

/// By how much two clocks drift apart within [`SAMPLE_LASTS`] at most.
const DRIFT: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
pub(super) struct EngineClock {
    sample: Option<Sample>,
    /// What the estimate showed last.
    latest: EngineTime,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    shown: EngineTime,
    /// When the request was sent that read it.
    sent: Instant,
    round_trip: Duration,
}

impl EngineClock {
    /// Notes what the clock showed in the response to a request that was sent at `sent` and
    /// answered now.
    pub(super) fn note(&mut self, shown: EngineTime, sent: Instant) {
        let sample = Sample { shown, sent, round_trip: sent.elapsed() };
        let is_set = self.sample.is_some_and(|old| !old.agrees_with(sample));
        let is_better = |old: Sample| {
            is_set || sample.round_trip <= old.round_trip || old.sent.elapsed() > SAMPLE_LASTS
        };
        if self.sample.is_none_or(is_better) {
            self.sample = Some(sample);
        }
        let most = sample.shown + sample.round_trip;
        if is_set || self.latest > most + LEAD_MAX {
            // The estimate so far was of the clock before, or of an engine that stood still before
            // it answered.
            self.latest = EngineTime::ZERO;
        }
    }

    /// What the clock shows now; `None` before the first response. It does not go back when a
    /// better sample shows that it was ahead, and waits; only a clock that was set back takes it
    /// along, and an engine that responds again after it stood still.
    fn now(&mut self) -> Option<EngineTime> {
        let sample = self.sample?;
        self.latest = self.latest.max(sample.shown + sample.sent.elapsed());
        Some(self.latest)
    }

    /// What the clock shows now, or the timeline of an engine that has none; `None` before it was
    /// read.
    pub(super) fn shown(&mut self, timeline: Option<&Timeline>) -> Option<EngineTime> {
        timeline.map_or_else(|| self.now(), |timeline| Some(timeline.now()))
    }

    /// The guard of a decision by the estimate. A clock that does not show yet what it must show by
    /// now was set back: a lease that the decision grants would last for longer than its TTL, by as
    /// much as that.
    pub(super) fn guard(&self, guard: Guard) -> Guard {
        let least = self.at_least().unwrap_or_default().saturating_sub(DRIFT);
        Guard { from: guard.from.max(least), ..guard }
    }

    /// The moment at which the clock shows `now`; an engine without a clock has a timeline.
    pub(super) fn moment(&self, now: EngineTime, timeline: Option<&Timeline>) -> Moment {
        let micros = |time: EngineTime| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let least = self.at_least().unwrap_or(now);
        let [unix_micros, least_micros] = match timeline {
            Some(timeline) => [timeline.unix_micros(); 2],
            None => [now, least].map(micros),
        };
        Moment { now, unix_micros, least_micros, ..Moment::default() }
    }

    fn at_least(&self) -> Option<EngineTime> {
        let sample = self.sample?;
        Some(sample.shown + sample.sent.elapsed().saturating_sub(sample.round_trip))
    }

    pub(super) fn round_trip(&self) -> Duration {
        self.sample.map_or(Duration::ZERO, |sample| sample.round_trip)
    }
}

impl Sample {
    /// Whether a later sample shows what this one leads to expect, within both round trips.
    fn agrees_with(self, later: Self) -> bool {
        let expected = self.shown + later.sent.saturating_duration_since(self.sent);
        let slack = self.round_trip + later.round_trip + DRIFT;
        expected.abs_diff(later.shown) <= slack
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn estimate_is_not_behind_the_engine() {
        let mut clock = EngineClock::default();
        assert_eq!(clock.now(), None);
        let (start, sent) = (Duration::from_secs(1000), Instant::now());
        tokio::time::advance(Duration::from_millis(10)).await;
        // The engine read its clock somewhere within the 10 ms.
        clock.note(start + Duration::from_millis(4), sent);
        assert!(clock.now().is_some_and(|now| now >= start + Duration::from_millis(10)));
    }

    #[tokio::test(start_paused = true)]
    async fn lower_bound_is_not_ahead_of_the_engine() {
        let mut clock = EngineClock::default();
        let (start, sent) = (Duration::from_secs(1000), Instant::now());
        tokio::time::advance(Duration::from_millis(700)).await;
        // The engine read its clock as soon as the request was sent, or just before the response
        // came.
        for shown in [0, 700] {
            clock.note(start + Duration::from_millis(shown), sent);
            let engine = start + Duration::from_millis(shown);
            assert!(clock.at_least().is_some_and(|least| least <= engine), "{shown}");
            assert!(clock.now().is_some_and(|now| now >= engine), "{shown}");
        }
    }

    /// The only fresh sample after a stall has the stall as its round trip, until the next response
    /// comes.
    #[tokio::test(start_paused = true)]
    async fn estimate_is_no_more_ahead_after_a_stall_than_the_next_round_trip() {
        let mut clock = EngineClock::default();
        let (start, begun) = (Duration::from_secs(1000), Instant::now());
        for (pause, round_trip) in [(0, 2), (1000, 4700), (0, 2)] {
            tokio::time::advance(Duration::from_millis(pause)).await;
            let sent = Instant::now();
            // The engine looked at its clock when it had the request, and then stood still.
            let shown = start + begun.elapsed();
            tokio::time::advance(Duration::from_millis(round_trip)).await;
            clock.note(shown, sent);
            let ahead = clock.now().map(|now| now - (start + begun.elapsed()));
            assert!(ahead <= Some(Duration::from_millis(round_trip)), "{ahead:?} ahead");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn shorter_round_trip_and_set_clock_replace_the_sample() {
        let mut clock = EngineClock::default();
        let (start, begun) = (Duration::from_secs(1000), Instant::now());
        let take = async |clock: &mut EngineClock, shift: u64, round_trip: u64| {
            let sent = Instant::now();
            tokio::time::advance(Duration::from_millis(round_trip)).await;
            clock.note(start + begun.elapsed() + Duration::from_secs(shift), sent);
        };
        take(&mut clock, 0, 10).await;
        take(&mut clock, 0, 2).await;
        assert_eq!(clock.round_trip(), Duration::from_millis(2), "a better sample was not taken");
        take(&mut clock, 0, 50).await;
        assert_eq!(clock.round_trip(), Duration::from_millis(2), "a worse sample was taken");
        take(&mut clock, 3600, 50).await;
        let ahead = clock.now().map(|now| now.abs_diff(start + begun.elapsed()).as_secs());
        assert_eq!(ahead, Some(3600), "the clock was set, and the old sample is used");
    }
}
