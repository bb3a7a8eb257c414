//! The checker: a pure function from what was written down to what is wrong with it.
//!
//! It knows no store and no clock, only requests with the moments at which they were sent and
//! answered. The invariants are those of `internals/testing.md`. It is tested on histories that are
//! guilty (`guilt.rs`) and by mutants.

use std::collections::{BTreeMap, BTreeSet};

use super::exclusion;
use super::history::{Ask, Event, Grant, GrantKey, History, LockAnswer, Micros};
use super::mode::{Mode, Share};

/// What the campaign holds every store to; the first one only those of the tier `strict`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Invariant {
    /// I1: no more are certain at once than may hold the lock together.
    Exclusive,
    /// I2: a fencing token is above those of all earlier grants that cannot be held together with
    /// its own.
    Rising,
    /// I3: the fenced resource takes nothing lower after something higher.
    Fenced,
    /// I4: what was released or broken is so, and a wrong token frees nothing.
    Released,
    /// I5: a renewal that succeeded had no gap.
    Gapless,
    /// I6: after healing, every lock can be had.
    Live,
    /// I7: the service reports an ambiguous outcome as one.
    Honest,
}

impl Invariant {
    pub(super) const ALL: [Self; 7] = [
        Self::Exclusive,
        Self::Rising,
        Self::Fenced,
        Self::Released,
        Self::Gapless,
        Self::Live,
        Self::Honest,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "I1 no more while certain than may hold it",
            Self::Rising => "I2 fencing tokens rise",
            Self::Fenced => "I3 the resource takes nothing lower",
            Self::Released => "I4 released or broken, and then not held",
            Self::Gapless => "I5 renewed without a gap",
            Self::Live => "I6 had or refused again after healing",
            Self::Honest => "I7 ambiguity is reported",
        }
    }
}

/// A promise that was broken.
#[derive(Debug, Clone)]
pub(super) struct Violation {
    pub(super) invariant: Invariant,
    /// The grants that it is about, for telling one violation from another.
    pub(super) about: Vec<GrantKey>,
    pub(super) at: Micros,
    pub(super) what: String,
    /// A store that forgets the last that it answered does this, and may have forgotten it then:
    /// asynchronous replication forgets a grant, and as well a release or a renewal.
    pub(super) by_forgetting: bool,
    /// The faults that were there meanwhile.
    pub(super) faults: Vec<String>,
}

/// All that is wrong with a history.
pub(super) fn judge(history: &History) -> Vec<Violation> {
    let grants = history.grants();
    let mut by_token = BTreeMap::<_, Vec<_>>::new();
    for key in grants.keys() {
        by_token.entry((key.lock, key.token)).or_default().push(*key);
    }
    let case = Case { history, grants: &grants, by_token, seen: GrantTimes::of(history) };
    let mut found = exclusion::contradictions(history, &grants);
    found.extend(case.rising());
    found.extend(case.fenced());
    found.extend(case.released());
    found.extend(case.broken());
    found.extend(case.gapless());
    found.extend(case.live());
    found.extend(case.honest());
    found.sort_by_key(|violation| (violation.invariant, violation.at));
    found
}

/// Which grants had been seen of a lock when.
struct GrantTimes(BTreeMap<usize, BTreeMap<Share, Micros>>);

impl GrantTimes {
    fn of(history: &History) -> Self {
        let mut seen = BTreeMap::<usize, BTreeMap<Share, Micros>>::new();
        for event in &history.events {
            for share in event.shares() {
                let read = seen.entry(event.lock).or_default().entry(share).or_insert(event.read);
                *read = event.read.min(*read);
            }
        }
        Self(seen)
    }

    /// The grants that a client had read of before a moment.
    fn before(&self, lock: usize, moment: Micros) -> impl Iterator<Item = (&Share, Micros)> {
        let seen = self.0.get(&lock).into_iter().flatten().map(|(share, read)| (share, *read));
        seen.filter(move |(_, read)| *read < moment)
    }
}

pub(super) struct Case<'a> {
    pub(super) history: &'a History,
    pub(super) grants: &'a BTreeMap<GrantKey, Grant>,
    by_token: BTreeMap<(usize, u64), Vec<GrantKey>>,
    seen: GrantTimes,
}

impl Case<'_> {
    fn rising(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut last: Option<(&GrantKey, &Grant)> = None;
        for (key, grant) in self.grants {
            let mut wrong = |what: &str, by_forgetting: bool| {
                let wrong = self.wrong(Invariant::Rising, *key, grant.read, what);
                found.push(Violation { by_forgetting, ..wrong });
            };
            // They are sorted by lock and fence.
            let is_same = |(other, it): &(&GrantKey, &Grant)| {
                (other.lock, other.fencing_token) == (key.lock, key.fencing_token)
                    && (it.share.mode, grant.share.mode) != (Mode::Shared, Mode::Shared)
            };
            if let Some((last, _)) = last.filter(is_same) {
                wrong(&format!("as {last}"), false);
            }
            last = Some((key, grant));
            let mut earlier = self.seen.before(key.lock, grant.sent);
            if let Some((earlier, seen)) =
                earlier.find(|(earlier, _)| grant.share.is_too_low_after(earlier))
            {
                // A reader joins the era that is there, although the store forgot a grant that came
                // after it began. The reader may have been in the era before as well.
                let joined = grant.read.max(grant.sent);
                let by_forgetting = grant.share.mode == Mode::Shared
                    && self.history.may_have_forgotten(seen, joined);
                wrong(&format!("it was granted after {earlier:?} was seen"), by_forgetting);
            }
            if self.is_granted_twice(grant) {
                wrong("it was granted twice", false);
            }
            let told = grant.told.iter().map(|&place| &self.history.events[place]);
            if told.filter_map(Event::share).any(|share| share != grant.share) {
                wrong("its slot changed", false);
            }
        }
        found
    }

    /// Whether it was new twice. A reader may have the token of its era again.
    fn is_granted_twice(&self, grant: &Grant) -> bool {
        let events = grant.told.iter().map(|&place| &self.history.events[place]);
        let granted = events.filter(|event| matches!(event.told, LockAnswer::Granted(_)));
        grant.share.mode != Mode::Shared && granted.count() > 1
    }

    fn fenced(&self) -> Vec<Violation> {
        let (mut found, mut last) = (Vec::new(), BTreeMap::new());
        for taken in &self.history.taken {
            let fencing_token = taken.share.fencing_token;
            let key = GrantKey { lock: taken.lock, fencing_token, token: taken.token };
            for register in taken.registers() {
                let before = last.insert((taken.lock, register), *taken).unwrap_or(*taken);
                let other = before.share.fencing_token;
                if other > fencing_token
                    || (other == fencing_token && before.grant() != taken.grant())
                {
                    let what = format!("it was taken after {before:?}");
                    found.push(self.wrong(Invariant::Fenced, key, 0, &what));
                }
            }
            if !self.grants.contains_key(&key) {
                let what = "it was taken and never granted";
                found.push(self.wrong(Invariant::Fenced, key, 0, what));
            }
        }
        found
    }

    fn gapless(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let doubtful = self.doubtful();
        for event in &self.history.events {
            let LockAnswer::Renewed(lease) = event.told else { continue };
            let share = event.share();
            let mut above = self.seen.before(event.lock, event.sent).filter(|(other, _)| {
                other.fencing_token > lease.fencing_token
                    && share.is_some_and(|share| share.excludes(other))
            });
            if let Some((_, other)) = above.next() {
                let wrong = self.event(Invariant::Gapless, event, "another was granted before");
                let by_forgetting = self.history.may_have_forgotten(other, event.read);
                found.push(Violation { by_forgetting, ..wrong });
            }
            let mut grants = self.grants_of(event.lock, event.token);
            let is_known = grants.any(|key| {
                let told = &self.grants[&key].told;
                let of_acquire = |&place: &usize| self.history.events[place].ask.is_acquire();
                key.fencing_token == lease.fencing_token
                    && told.iter().copied().any(|place| of_acquire(&place))
            });
            if !is_known && !doubtful.contains(&(event.lock, event.token)) {
                found.push(self.event(Invariant::Gapless, event, "renewed what it was not given"));
            }
        }
        found
    }

    fn live(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for healing in &self.history.healings {
            let had = self.history.events.iter().any(|event| {
                let is_refused = matches!(event.told, LockAnswer::Held(_))
                    && healing.refused == Some(event.token);
                event.lock == healing.lock
                    && (is_refused || event.told.acquired().is_some())
                    && event.sent >= healing.at
                    && event.read <= healing.at + healing.within
            });
            if !had {
                let key = GrantKey { lock: healing.lock, fencing_token: 0, token: 0 };
                let events = self.history.events.iter().filter(|event| event.lock == healing.lock);
                let told: Vec<_> = events.filter(|event| event.sent >= healing.at).collect();
                let what = if healing.refused.is_some() { "refused" } else { "had" };
                let what = format!("not {what} within {} us: {told:?}", healing.within);
                let wrong = self.wrong(Invariant::Live, key, healing.at, &what);
                // Nothing is healed while a master is taken for dead.
                let until = healing.at + healing.within;
                let by_forgetting = self.history.may_have_forgotten(healing.at, until);
                found.push(Violation { by_forgetting, ..wrong });
            }
        }
        found
    }

    fn honest(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let refused = |told: &LockAnswer| {
            matches!(told, LockAnswer::Held(_) | LockAnswer::Refused | LockAnswer::NotExecuted)
        };
        let acquires = self.history.events.iter().filter(|event| event.ask.is_acquire());
        let denied: BTreeMap<_, _> = acquires
            .filter(|event| refused(&event.told))
            .map(|event| (event.number, event.read))
            .collect();
        let before = self.possible_before();
        for event in &self.history.events {
            let shown = event.told.holders().iter();
            let mut denied = shown.filter_map(|holder| denied.get(&holder.number));
            if let Some(denied) = denied.find(|denied| **denied < event.sent) {
                let what = "held by a request that was answered as if it had got nothing";
                let wrong = self.event(Invariant::Honest, event, what);
                // The service withdrew the grant at a node that is no longer master.
                let by_forgetting = self.history.may_have_forgotten(*denied, event.read);
                found.push(Violation { by_forgetting, ..wrong });
            }
            let first = matches!(event.told, LockAnswer::Again(_))
                && event.ask == Ask::Acquire { waits: false }
                && before[&(event.lock, event.token)]
                    .iter()
                    .all(|(sent, number)| *sent > event.read || *number == event.number);
            if first {
                let what = "had already what no request was said to have got";
                found.push(self.event(Invariant::Honest, event, what));
            }
            if let LockAnswer::Odd(answer) = &event.told {
                found.push(self.event(Invariant::Honest, event, answer));
            }
        }
        found
    }

    /// The requests by which a token may have got a lock.
    fn possible_before(&self) -> BTreeMap<(usize, u64), Vec<(Micros, u64)>> {
        let mut possible = BTreeMap::<_, Vec<_>>::new();
        for event in self.history.events.iter().filter(|event| event.ask.is_acquire()) {
            let all = possible.entry((event.lock, event.token)).or_default();
            if event.told.is_ambiguous() || event.told.lease().is_some() {
                all.push((event.sent, event.number));
            }
        }
        possible
    }

    /// When each token was first used to acquire.
    pub(super) fn first_asked(&self) -> BTreeMap<(usize, u64), Micros> {
        let mut asked = BTreeMap::new();
        for event in self.history.events.iter().filter(|event| event.ask.is_acquire()) {
            let sent = asked.entry((event.lock, event.token)).or_insert(event.sent);
            *sent = event.sent.min(*sent);
        }
        asked
    }

    /// The tokens that may have got a lock unheard.
    fn doubtful(&self) -> BTreeSet<(usize, u64)> {
        let acquires = self.history.events.iter().filter(|event| event.ask.is_acquire());
        let doubtful = acquires.filter(|event| event.told.is_ambiguous());
        doubtful.map(|event| (event.lock, event.token)).collect()
    }

    pub(super) fn grants_of(&self, lock: usize, token: u64) -> impl Iterator<Item = GrantKey> {
        self.by_token.get(&(lock, token)).into_iter().flatten().copied()
    }

    pub(super) fn event(&self, invariant: Invariant, event: &Event, what: &str) -> Violation {
        let fencing_token = event.told.lease().map_or(0, |lease| lease.fencing_token);
        let key = GrantKey { lock: event.lock, fencing_token, token: event.token };
        self.wrong(invariant, key, event.read, &format!("{what}: {event:?}"))
    }

    fn wrong(&self, invariant: Invariant, key: GrantKey, at: Micros, what: &str) -> Violation {
        let from = self.grants.get(&key).map_or(at, |grant| grant.sent).min(at);
        let faults = self.history.faults_within(from, at);
        let (what, by_forgetting) = (format!("{key}: {what}"), false);
        Violation { invariant, about: vec![key], at, what, by_forgetting, faults }
    }
}
