//! The clock of an engine that has none: when this process first saw each of the engine's
//! revisions.
//!
//! etcd and ZooKeeper number their writes, and tell no time. So a row says by revisions when things
//! in it began, and each process asks its own monotonic clock how long ago it first saw such a
//! revision. A process never sees a write before it happened: what lasts from a revision on never
//! ends early here, whatever wall clocks show, and no two clocks are compared. A process that
//! starts sees every revision for the first time, so it gives every lease its time again.
//!
//! Invariant: [`Timeline::time_of`] is never before the revision was written, and never before the
//! start of this timeline. Where there are too many samples, they are thinned by their age; a
//! revision between two of them counts as seen at the later one, which makes it a hundredth younger
//! at most. Tested here, and with the fake engine without a clock.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use keylatch_core::time::unix_micros;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// Which value a row has: no two values of a key have the same. An engine without a clock numbers
/// all its writes, and a later one has a greater version, whatever its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version(pub u128);

/// What the engine's clock shows: the time since 1970, from which it never goes far. Of an engine
/// without a clock it is what its [`Timeline`] shows.
pub type EngineTime = Duration;

/// How far apart samples are at least.
const GRAIN: Duration = Duration::from_millis(2);
/// Which part of its age a sample may be from the one before it, and be left out.
const THINNING: u32 = 512;
/// How many samples there are before the old ones are thinned, which leaves half of them at most.
const SAMPLES_MAX: usize = 16 * 1024;

/// When this process first saw which revision of an engine.
///
/// The time that it shows is the wall clock's of the start, and from there on the monotonic clock
/// moves it.
#[derive(Debug)]
pub struct Timeline {
    start: Instant,
    shown_at_start: EngineTime,
    /// How far the wall clock is behind that of the machine, for tests.
    behind: Duration,
    samples: Mutex<Samples>,
}

/// Revisions and when they were seen, both rising.
#[derive(Debug, Default)]
struct Samples {
    seen: VecDeque<(Version, EngineTime)>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self::of_wall_clock_behind(Duration::ZERO)
    }
}

impl Timeline {
    /// A timeline that has seen no revision, of a process whose wall clock is `behind` that of its
    /// machine.
    pub fn of_wall_clock_behind(behind: Duration) -> Self {
        let now = Duration::from_micros(unix_micros()).saturating_sub(behind);
        let samples = Mutex::default();
        Self { start: Instant::now(), shown_at_start: now, behind, samples }
    }

    /// The process's wall clock, in microseconds since 1970: for what people read, and the floor of
    /// fencing tokens. No lease depends on it.
    pub(super) fn unix_micros(&self) -> u64 {
        unix_micros().saturating_sub(u64::try_from(self.behind.as_micros()).unwrap_or(u64::MAX))
    }

    /// The time on this timeline.
    pub fn now(&self) -> EngineTime {
        self.at(Instant::now())
    }

    /// Notes that the engine has reached a revision, which it said unasked or of a row.
    pub fn note(&self, revision: Version) {
        self.samples().note(revision, self.now());
    }

    /// Notes the revision that the engine had when it answered what it was asked at `asked`, and
    /// gives the time. An engine that has gone back was restored from a backup: all that was seen
    /// is forgotten, so that no new revision counts as an old one of the same number.
    pub fn note_answer(&self, revision: Version, asked: Instant) -> EngineTime {
        let (now, asked) = (self.now(), self.at(asked));
        let mut samples = self.samples();
        let known = samples.seen.partition_point(|(_, seen)| *seen < asked);
        let is_behind = known > 0 && samples.seen[known - 1].0 > revision;
        if is_behind {
            *samples = Samples::default();
        }
        samples.note(revision, now);
        now
    }

    /// Whether a revision was seen that is beyond this one.
    pub fn has_seen_beyond(&self, revision: Version) -> bool {
        self.samples().seen.back().is_some_and(|(last, _)| *last > revision)
    }

    /// Forgets all that was seen, because what the engine says from now on may be of another
    /// history.
    pub fn forget(&self) {
        *self.samples() = Samples::default();
    }

    /// When this process first saw the revision; now, if it has not.
    pub(super) fn time_of(&self, revision: Version) -> EngineTime {
        let samples = self.samples();
        let position = samples.seen.partition_point(|(seen, _)| *seen < revision);
        samples.seen.get(position).map_or_else(|| self.now(), |(_, seen)| *seen)
    }

    fn at(&self, moment: Instant) -> EngineTime {
        self.shown_at_start + moment.saturating_duration_since(self.start)
    }

    fn samples(&self) -> MutexGuard<'_, Samples> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Samples {
    fn note(&mut self, revision: Version, now: EngineTime) {
        if self.seen.back().is_some_and(|(last, _)| *last >= revision) {
            return;
        }
        // What is seen in one grain is one sample, at its end.
        let before = self.seen.len().checked_sub(2).map(|index| self.seen[index].1);
        if before.is_some_and(|before| now < before + GRAIN) {
            self.seen.pop_back();
        }
        self.seen.push_back((revision, now));
        if self.seen.len() >= SAMPLES_MAX {
            self.thin(now);
        }
    }

    /// Leaves out a sample whose successor is close enough for its age.
    fn thin(&mut self, now: EngineTime) {
        let mut kept: VecDeque<(Version, EngineTime)> = VecDeque::new();
        while let Some(sample) = self.seen.pop_back() {
            let grain = GRAIN.max((now.saturating_sub(sample.1)) / THINNING);
            if kept.front().is_none_or(|next| sample.1 + grain <= next.1) {
                kept.push_front(sample);
            }
        }
        self.seen = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn version(revision: u64) -> Version {
        Version(u128::from(revision))
    }

    #[tokio::test(start_paused = true)]
    async fn revision_is_as_old_as_its_first_sight() {
        let timeline = Timeline::default();
        timeline.note(version(10));
        let first = timeline.now();
        tokio::time::advance(SECOND).await;
        timeline.note(version(20));
        tokio::time::advance(SECOND).await;
        timeline.note(version(20));
        assert_eq!(timeline.time_of(version(3)), first, "before the start is as old as the start");
        assert_eq!(timeline.time_of(version(10)), first);
        assert_eq!(timeline.time_of(version(11)), first + SECOND, "seen by then, and not before");
        assert_eq!(timeline.time_of(version(20)), first + SECOND);
        assert_eq!(timeline.time_of(version(21)), first + 2 * SECOND, "not seen yet");
    }

    #[tokio::test(start_paused = true)]
    async fn engine_that_went_back_is_seen_anew() {
        let timeline = Timeline::default();
        timeline.note_answer(version(100), Instant::now());
        let overtaken = Instant::now();
        tokio::time::advance(SECOND).await;
        timeline.note_answer(version(200), Instant::now());
        // A response that was overtaken says less than is known, and nothing is wrong.
        timeline.note_answer(version(150), overtaken);
        assert_eq!(timeline.time_of(version(200)), timeline.now());
        assert_eq!(timeline.time_of(version(100)), timeline.now() - SECOND);
        tokio::time::advance(SECOND).await;
        timeline.note_answer(version(150), Instant::now());
        assert_eq!(
            timeline.time_of(version(100)),
            timeline.now(),
            "an old revision is another one now"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn late_sample_makes_no_earlier_one_younger() {
        let timeline = Timeline::default();
        for (revision, pause) in [(1, 0), (2, 1), (3, 60_000)] {
            tokio::time::advance(Duration::from_millis(pause)).await;
            timeline.note(version(revision));
        }
        assert_eq!(timeline.time_of(version(2)), timeline.now() - 60 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn thin_samples_make_nothing_older_and_stay_few() {
        let timeline = Timeline::default();
        let start = timeline.now();
        for revision in 0..200_000 {
            timeline.note(version(revision));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let now = timeline.now();
        for revision in (0..200_000).step_by(997) {
            let (seen, written) =
                (timeline.time_of(version(revision)), start + Duration::from_millis(revision));
            assert!(seen >= written, "{revision} counts as older than it is");
            let slack = 2 * GRAIN + (now - written) / 100;
            assert!(seen <= written + slack, "{revision} counts as {:?} younger", seen - written);
        }
        assert!(timeline.samples().seen.len() < SAMPLES_MAX, "{}", timeline.samples().seen.len());
    }
}
