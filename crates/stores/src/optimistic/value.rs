//! What a row holds, and what a run of commands makes of it: the pure half of the adapter.
//!
//! A decision takes the commands on one key that wait, one after the other, and comes to their
//! replies and to at most one new value. Its [`Guard`] has every end that it judged, so that the
//! engine's clock confirms the judgement at the moment of the step. A value keeps the last fencing
//! token, so that grants rise over a release; a row is removed only when the floor of its bucket is
//! above that. Invariant: a decision that an engine carries out is a step of the core's rules at
//! that moment. The differential tests over the fake engine hold it.
//!
//! In memory all times are those of the engine's clock. A row of an engine without one has
//! [`Stamp`]s in their places, which each process reads on its own [`Timeline`].

use std::collections::BTreeMap;
use std::time::Duration;

use keylatch_core::entry::Entry;
use keylatch_core::idempotency::{
    BeginReply, CompleteReply, EraseReply, RecordReply, RecordState, ResolveReply, RunRenewal,
};
use keylatch_core::lock::{
    AcquireReply, BreakReply, FencingToken, LockName, LockReply, LockState, Moment, RenewReply,
};
use keylatch_core::snapshot::{SnapshotError, deserialize_time};
use serde::{Deserialize, Serialize};

use super::conditional::{EngineTime, Guard, Key, Outline, Row, Timeline, Version};
use crate::hints::{HintedEntry, new_turns};

/// The format of a value with the times of the engine's clock, and of one with stamps. The formats
/// 1 and 2 were those of builds before the first release.
const FORMAT: u8 = 3;
const STAMPED_FORMAT: u8 = 4;
/// How long after a decision an engine may carry it out.
pub(super) const DECISION_LASTS: Duration = Duration::from_secs(2);

/// How long an engine that forgets rows keeps one after all in it has ended: longer than a process
/// remembers a row. So a step finds there how a lease ended, and a row that is gone was emptied by
/// another process.
pub(super) const ROW_LINGERS: Duration = Duration::from_secs(15);

/// A kind of entry that rows hold.
pub(crate) trait Kind: HintedEntry {
    /// What the bytes of every key of the kind begin with.
    const PREFIX: &[u8];

    /// Where the engine keeps the entry.
    fn row_key(key: &Self::Key) -> Key;
    /// The entry that an engine keeps there.
    fn key_of(row_key: &Key) -> Option<Self::Key>;
    /// Whether nothing happened to an entry in which others wait, but that some joined them or
    /// stay.
    fn has_only_joins(&self, after: &Self) -> bool;
    /// Whether the engine is to find it among the few that are marked.
    fn is_marked(&self) -> bool;
    /// Whether a reply says to its caller what is left of a lease that the caller has.
    fn is_of_own_lease(reply: &Self::Reply) -> bool;
    /// Whether a client relies on what a reply says to last.
    fn is_promise(reply: &Self::Reply) -> bool;
}

impl Kind for LockState {
    const PREFIX: &[u8] = Key::LOCKS;

    fn row_key(name: &LockName) -> Key {
        Key::Lock(name.clone())
    }

    fn key_of(row_key: &Key) -> Option<LockName> {
        if let Key::Lock(name) = row_key { Some(name.clone()) } else { None }
    }

    fn has_only_joins(&self, after: &Self) -> bool {
        let (before, queue) = (self.queue().entries(), after.queue().entries());
        let stay = before.iter().zip(queue).all(|(before, after)| before.token == after.token);
        let is_queue = !before.is_empty() && before.len() <= queue.len() && stay;
        is_queue && self.holders().eq(after.holders()) && self.history() == after.history()
    }

    fn is_marked(&self) -> bool {
        false
    }

    fn is_of_own_lease(reply: &LockReply) -> bool {
        match reply {
            LockReply::Acquire(AcquireReply::Repeated(_)) => true,
            // Some of the locks may have been the caller's already.
            LockReply::Acquire(AcquireReply::Granted(leases)) => leases.len() > 1,
            _ => false,
        }
    }

    fn is_promise(reply: &LockReply) -> bool {
        use AcquireReply::{Granted, Repeated};
        matches!(
            reply,
            LockReply::Acquire(Granted(_) | Repeated(_))
                | LockReply::Renew(RenewReply::Renewed(_))
                | LockReply::Break(BreakReply::Broken { .. })
        )
    }
}

impl Kind for RecordState {
    const PREFIX: &[u8] = Key::RECORDS;

    fn row_key(key: &Self::Key) -> Key {
        Key::Record(*key)
    }

    fn key_of(row_key: &Key) -> Option<Self::Key> {
        if let Key::Record(key) = row_key { Some(*key) } else { None }
    }

    fn has_only_joins(&self, _: &Self) -> bool {
        false
    }

    fn is_marked(&self) -> bool {
        self.is_unfinished()
    }

    fn is_of_own_lease(reply: &RecordReply) -> bool {
        matches!(reply, RecordReply::Begin(BeginReply::Again(_)))
    }

    fn is_promise(reply: &RecordReply) -> bool {
        use BeginReply::{Again, Started};
        use ResolveReply::{Completed, Freed};
        matches!(
            reply,
            RecordReply::Begin(Started(_) | Again(_))
                | RecordReply::Renew(RunRenewal::Extended)
                | RecordReply::Complete(CompleteReply::Done(_))
                | RecordReply::Resolve(Completed(_) | Freed(_))
                | RecordReply::Erase(EraseReply::Done(_))
        )
    }
}

/// What a row holds: an entry, with what outlives it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Value<E> {
    /// The lock or the record.
    pub(crate) state: E,
    /// The last fencing token that was given under the key.
    pub(super) last: FencingToken,
    /// When it was written.
    pub(super) written: EngineTime,
    /// What the times in `state` are in the row, where they are not of this process's own writing;
    /// none where the engine has a clock.
    pub(super) stamps: BTreeMap<EngineTime, Stamp>,
}

/// A time as the row of an engine without a clock has it: so long before the write of a version.
///
/// It stays the same when another process writes the row again, so that no rewriting makes a lease
/// younger than each process saw it itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    /// The version; `None` for that of the row itself, which its writer cannot know.
    version: Option<Version>,
    #[serde(deserialize_with = "deserialize_time")]
    age: Duration,
}

/// What a run of commands comes to.
#[derive(Debug)]
pub(super) struct Decision<E: Entry> {
    /// The reply to each command, if the decision holds.
    pub(super) replies: Vec<E::Reply>,
    /// The new value; `None` if no command changes anything.
    pub(super) change: Option<Value<E>>,
    /// When it holds.
    pub(super) guard: Guard,
    /// What the engine may know of the new value.
    pub(super) outline: Outline,
    /// Whether the commands only joined a queue of others, or stay in it.
    pub(super) only_joins: bool,
}

/// What a run of steps makes of an entry, step by step.
#[derive(Debug)]
pub(super) struct Draft<'a, E> {
    before: &'a Value<E>,
    live: E,
    /// The entry after the steps so far.
    pub(super) state: E,
    /// When the steps are, above the fencing tokens that were given so far.
    pub(super) moment: Moment,
    last_before: FencingToken,
    /// Whether a promise that is repeated has to be written.
    writes_repeated: bool,
    /// What the steps so far do, one or the other.
    seen: StepTraits,
}

/// What a step does beside changing the entry.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepTraits {
    /// It undoes another command, which may still be on its way.
    pub(super) is_undo: bool,
    /// Its caller reads what is left of a lease that the caller had.
    pub(super) is_told: bool,
    /// Its caller relies on what the reply says to last.
    pub(super) is_promise: bool,
}

impl StepTraits {
    /// Those of a step with this reply.
    pub(super) fn of<E: Kind>(command: &E::Command, reply: &E::Reply) -> Self {
        let (is_told, is_promise) = (E::is_of_own_lease(reply), E::is_promise(reply));
        Self { is_undo: E::is_undo(command), is_told, is_promise }
    }
}

impl<E: Kind> Draft<'_, E> {
    /// Takes a step to `after`. Whether it has to be written.
    pub(super) fn step(&mut self, after: E, traits: StepTraits) -> bool {
        let is_change = self.state != after;
        self.state = after;
        self.seen.is_undo |= traits.is_undo;
        // What a holder relies on is what this process saw of its lease; another process may have
        // seen the lease earlier, and has to learn to wait as long.
        self.seen.is_told |= traits.is_told && !self.before.stamps.is_empty();
        self.seen.is_promise |= traits.is_promise;
        let given = self.state.fencing_token().unwrap_or_default();
        self.moment.last_fencing_token = self.moment.last_fencing_token.max(given);
        is_change || self.is_written_in_any_case()
    }

    /// Whether the steps have to be written even if they change nothing. What undoes another
    /// command is: the other, if it is still on its way, then finds another version.
    fn is_written_in_any_case(&self) -> bool {
        let is_repeated = self.seen.is_promise && self.writes_repeated;
        self.seen.is_undo || self.seen.is_told || is_repeated
    }

    /// The fencing token that the steps gave, if they gave one.
    fn given(&self) -> Option<FencingToken> {
        let last = self.moment.last_fencing_token;
        (last > self.last_before).then_some(last)
    }

    /// The time within which the steps may be carried out.
    pub(super) fn guard(&self) -> Guard {
        self.before.guard(self.moment.now)
    }

    /// What the engine may know of the new value.
    pub(super) fn outline(&self) -> Outline {
        let kept = self.state.kept_until().map_or(Duration::ZERO, |end| end + ROW_LINGERS);
        // For as long as the other command may still be carried out.
        let undone = self.moment.now + 2 * DECISION_LASTS;
        Outline {
            given: self.given(),
            lasts: if self.seen.is_undo { kept.max(undone) } else { kept },
            is_promise: self.seen.is_promise,
            turns: new_turns(&self.before.state, &self.state),
        }
    }

    /// Whether the steps only joined a queue of others, or stay in it, and nothing else has
    /// happened.
    fn has_only_joins(&self) -> bool {
        let is_more = self.given().is_some() || self.is_written_in_any_case();
        !is_more && self.before.state.has_only_joins(&self.state)
    }

    /// The new value; `None` if no step changes anything.
    pub(super) fn change(self) -> Option<Value<E>> {
        // A token that was given is written even if its grant is over already: its holder has read
        // it, and no later one may be below.
        let is_changed = self.given().is_some() || self.state != self.live;
        (is_changed || self.is_written_in_any_case()).then(|| self.into_value())
    }

    /// The new value, changed or not.
    pub(super) fn into_value(self) -> Value<E> {
        let stamps = if self.seen.is_told { BTreeMap::new() } else { self.before.stamps.clone() };
        let (last, written) = (self.moment.last_fencing_token, self.moment.now);
        Value { state: self.state, last, written, stamps }
    }
}

#[derive(Serialize, Deserialize)]
struct Parts<'a> {
    last: u64,
    #[serde(deserialize_with = "deserialize_time")]
    written: Duration,
    state: &'a [u8],
}

/// The parts of a row of an engine without a clock. A time in `state` is the number of its stamp.
#[derive(Serialize, Deserialize)]
struct StampedParts<'a> {
    last: u64,
    stamps: Vec<Stamp>,
    state: &'a [u8],
}

/// The moment at which an engine's clock shows this.
pub(crate) fn moment_at(now: EngineTime) -> Moment {
    let unix_micros = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    let least_micros = unix_micros;
    Moment { now, unix_micros, least_micros, ..Moment::default() }
}

impl<E: Kind> Value<E> {
    /// What the commands make of the entry at `moment`, one after the other, with fencing tokens
    /// above its last. Where repeated promises are written, one that changes nothing is a change.
    pub(super) fn decide<'a>(
        &self,
        key: &E::Key,
        commands: impl Iterator<Item = &'a E::Command>,
        mut moment: Moment,
        writes_repeated: bool,
    ) -> Decision<E> {
        while self.has_stamp_of(moment.now) {
            moment.now += Duration::from_nanos(1);
        }
        let mut draft = self.draft(moment, writes_repeated);
        let replies = commands.map(|command| {
            let (after, reply) = draft.state.apply(key, command, &draft.moment);
            draft.step(after, StepTraits::of::<E>(command, &reply));
            reply
        });
        let replies = replies.collect();
        let (guard, outline) = (draft.guard(), draft.outline());
        let only_joins = draft.has_only_joins();
        Decision { replies, guard, outline, only_joins, change: draft.change() }
    }

    /// Whether a time of the value has this number already: what begins now gets a stamp of its
    /// own.
    pub(super) fn has_stamp_of(&self, now: EngineTime) -> bool {
        self.stamps.contains_key(&now)
    }

    /// The entry at `moment`, for steps on it with fencing tokens above its last. Where repeated
    /// promises are written, one that changes nothing is a change.
    pub(super) fn draft(&self, mut moment: Moment, writes_repeated: bool) -> Draft<'_, E> {
        moment.last_fencing_token = moment.last_fencing_token.max(self.last);
        let live = self.state.live(&moment);
        let last_before = moment.last_fencing_token;
        let state = live.clone();
        let seen = StepTraits::default();
        Draft { before: self, live, state, moment, last_before, writes_repeated, seen }
    }

    /// The time around `now` within which the entry stays what it is then.
    fn guard(&self, now: EngineTime) -> Guard {
        let none = Guard { from: Duration::ZERO, until: now + DECISION_LASTS };
        self.state.ends().fold(none, |guard, end| {
            if end <= now {
                Guard { from: guard.from.max(end), ..guard }
            } else {
                Guard { until: guard.until.min(end), ..guard }
            }
        })
    }

    /// The entry at `now`.
    pub(crate) fn live(&self, now: EngineTime) -> E {
        self.state.live(&Moment { last_fencing_token: self.last, ..moment_at(now) })
    }

    /// Whether nothing has been under the key for `idle` at `now`.
    pub(super) fn is_dead(&self, now: EngineTime, idle: Duration) -> bool {
        let ends = self.state.ends().fold(self.written, Duration::max);
        ends + idle <= now && self.live(now).is_empty()
    }

    /// Whether the row has times, as versions of an engine without a clock.
    pub(super) fn is_stamped(&self) -> bool {
        !self.stamps.is_empty()
    }

    /// The value with its times counted from the write of `mark`, which this process sent at
    /// `sent`: the age that they had then does not begin again where a process starts.
    #[must_use]
    pub(super) fn counted_from(&self, mark: Version, sent: EngineTime) -> Self {
        let stamp = |time| Stamp { version: Some(mark), age: sent.saturating_sub(time) };
        let stamps = self.stamps.keys().map(|time| (*time, stamp(*time))).collect();
        Self { stamps, ..self.clone() }
    }

    /// The value as bytes, for an engine that has this timeline or a clock. The codec fails on no
    /// value that the rules reach.
    pub(super) fn encode(&self, timeline: Option<&Timeline>) -> Result<Vec<u8>, SnapshotError> {
        if timeline.is_some() {
            return self.encode_stamped();
        }
        let state = self.state.encode()?;
        let parts = Parts { last: self.last.get(), written: self.written, state: &state };
        Ok(postcard::to_extend(&parts, vec![FORMAT])?)
    }

    fn encode_stamped(&self) -> Result<Vec<u8>, SnapshotError> {
        let mut stamps = Vec::new();
        let state = self.state.map_times(|time| {
            stamps.push(self.stamp_of(time, None));
            Duration::from_nanos(stamps.len() as u64 - 1)
        });
        let state = state.encode()?;
        let parts = StampedParts { last: self.last.get(), stamps, state: &state };
        Ok(postcard::to_extend(&parts, vec![STAMPED_FORMAT])?)
    }

    /// What a time of this value is in the row, if the value was written with `version`.
    fn stamp_of(&self, time: EngineTime, version: Option<Version>) -> Stamp {
        let own = || Stamp { version, age: self.written.saturating_sub(time) };
        self.stamps.get(&time).copied().unwrap_or_else(own)
    }

    /// Notes the version that the engine gave to this value, for the stamps of what writes it
    /// again.
    pub(super) fn settle(&mut self, version: Version) {
        let mut stamps = BTreeMap::new();
        self.state.map_times(|time| {
            stamps.insert(time, self.stamp_of(time, Some(version)));
            time
        });
        self.stamps = stamps;
    }

    /// The value that [`Value::encode`] wrote to a row.
    pub(crate) fn decode(row: &Row, timeline: Option<&Timeline>) -> Result<Self, SnapshotError> {
        let (format, parts) = row.value.split_first().ok_or(SnapshotError::Foreign)?;
        match (*format, timeline) {
            (FORMAT, None) => {
                let Parts { last, written, state } = postcard::from_bytes(parts)?;
                let (state, last) = (E::decode(state)?, FencingToken::new(last));
                Ok(Self { state, last, written, stamps: BTreeMap::new() })
            }
            (STAMPED_FORMAT, Some(timeline)) => {
                Self::decode_stamped(&postcard::from_bytes(parts)?, row.version, timeline)
            }
            _ => Err(SnapshotError::Foreign),
        }
    }

    fn decode_stamped(
        parts: &StampedParts<'_>,
        version: Version,
        timeline: &Timeline,
    ) -> Result<Self, SnapshotError> {
        let state = E::decode(parts.state)?;
        let (mut stamps, mut is_malformed) = (BTreeMap::new(), false);
        let state = state.map_times(|number| {
            let stamp = usize::try_from(number.as_nanos()).ok().and_then(|at| parts.stamps.get(at));
            let Some(stamp) = stamp else {
                is_malformed = true;
                return number;
            };
            let stamp = Stamp { version: stamp.version.or(Some(version)), ..*stamp };
            let seen = timeline.time_of(stamp.version.unwrap_or(version));
            let mut time = seen.saturating_sub(stamp.age);
            // Each time stands for one stamp; to count as later by this makes nothing end early.
            while stamps.get(&time).is_some_and(|other| *other != stamp) {
                time += Duration::from_nanos(1);
            }
            stamps.insert(time, stamp);
            time
        });
        let (last, written) = (FencingToken::new(parts.last), timeline.time_of(version));
        if is_malformed {
            return Err(SnapshotError::Malformed);
        }
        Ok(Self { state, last, written, stamps })
    }
}

#[cfg(test)]
mod tests {
    use keylatch_core::lock::{AcquireCommand, Attempt, LockCommand, TokenHash, Ttl};

    use super::*;

    fn token(number: u8) -> TokenHash {
        TokenHash::from_bytes([number; 32])
    }

    /// A lease that is released and granted again in the instant in which this process first saw
    /// it.
    #[tokio::test(start_paused = true)]
    async fn lease_of_the_same_instant_is_not_as_old_as_the_one_before() {
        let name = LockName::parse("deploy").unwrap();
        let acquire = |number| {
            let command = AcquireCommand::new(token(number), Ttl::DEFAULT, Attempt::new(1));
            LockCommand::Acquire(command)
        };
        let (here, there) = (Timeline::default(), Timeline::default());
        let moment = |timeline: &Timeline| Moment {
            now: timeline.now(),
            unix_micros: 1,
            least_micros: 1,
            ..Moment::default()
        };
        let first =
            Value::<LockState>::default().decide(&name, [acquire(1)].iter(), moment(&here), false);
        let value = first.change.unwrap().encode(Some(&here)).unwrap();
        let row = Row { version: Version(1), value };
        there.note(Version(1));
        tokio::time::advance(Duration::from_secs(20)).await;
        here.note(Version(1));
        let seen = Value::<LockState>::decode(&row, Some(&here)).unwrap();
        let commands = [LockCommand::Release { token: token(1), entry: None }, acquire(2)];
        let second = seen.decide(&name, commands.iter(), moment(&here), false);
        let value = second.change.unwrap().encode(Some(&here)).unwrap();
        there.note(Version(2));
        let row = Row { version: Version(2), value };
        let seen = Value::<LockState>::decode(&row, Some(&there)).unwrap();
        let holder = seen.live(there.now()).holding(&name, there.now(), 1).unwrap();
        assert_eq!(holder.first.expires_in, Ttl::DEFAULT.get());
    }
}
