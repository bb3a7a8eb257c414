//! I4: what was released or broken is so, and a wrong token frees nothing.
//!
//! Goal: a lease that ended by an answer is seen by no later request.
//!
//! Method: a grant is known by its fencing token, or a reader by its token as well, because all
//! readers of an era have one fencing token. A reader that may have been granted the lock once more
//! in the same era proves nothing, so it is left out.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{Ask, Event, Grant, GrantKey, Holder, LockAnswer, Micros};
use super::mode::Mode;
use super::verdict::{Case, Invariant, Violation};

/// A lock, a fencing token, and the token of a reader.
type HolderKey = (usize, u64, Option<u64>);

/// An answer that says that a grant is broken.
struct BreakAnswer {
    read: Micros,
    /// When the lease ends at the latest.
    ends: Micros,
}

impl Case<'_> {
    pub(super) fn released(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let asked = self.first_asked();
        for event in &self.history.events {
            let had = asked.get(&(event.lock, event.token)).is_some_and(|sent| *sent < event.read);
            if matches!(event.told, LockAnswer::Released | LockAnswer::Renewed(_)) && !had {
                found.push(self.event(Invariant::Released, event, "by a wrong token"));
            }
        }
        let freed = self.freed();
        for event in &self.history.events {
            let freed = held(event).filter_map(|one| freed.get(&one));
            if let Some(from) = freed.copied().find(|freed| *freed < event.sent) {
                let wrong = self.event(Invariant::Released, event, "held after it was over");
                let faults = self.history.faults_within(from, event.read);
                let by_forgetting = self.history.may_have_forgotten(from, event.read);
                found.push(Violation { faults, by_forgetting, ..wrong });
            }
        }
        found.extend(self.recorded_otherwise());
        found
    }

    /// What was released while it lasted is in no history as a lease that ended by itself.
    fn recorded_otherwise(&self) -> Vec<Violation> {
        let released = self.released_in_time();
        let mut found = Vec::new();
        for event in &self.history.events {
            let LockAnswer::Expired(expired) = &event.told else { continue };
            let key = |one: &Holder| GrantKey {
                lock: event.lock,
                fencing_token: one.share.fencing_token,
                token: one.token,
            };
            if let Some(from) = expired.iter().filter_map(|one| released.get(&key(one))).min() {
                let what = "released, and recorded as expired";
                let wrong = self.event(Invariant::Released, event, what);
                let by_forgetting = self.history.may_have_forgotten(*from, event.read);
                found.push(Violation { by_forgetting, ..wrong });
            }
        }
        found
    }

    /// The grants of which a client read that they are released before any lease of theirs that it
    /// read of was over.
    fn released_in_time(&self) -> BTreeMap<GrantKey, Micros> {
        let doubtful: BTreeSet<_> = self
            .history
            .events
            .iter()
            .filter_map(|event| event.told.is_ambiguous().then_some((event.lock, event.token)))
            .collect();
        let mut released = BTreeMap::new();
        for event in &self.history.events {
            let is_sure = !doubtful.contains(&(event.lock, event.token));
            if event.told != LockAnswer::Released || !is_sure {
                continue;
            }
            for key in self.grants_of(event.lock, event.token) {
                let told = self.grants[&key].told.iter().map(|&place| &self.history.events[place]);
                let ends = told.filter_map(|told| Some(told.sent + told.told.lease()?.valid_for));
                let is_set = self.history.has_clock_set(self.grants[&key].sent, event.read);
                if !is_set && self.ended_with(&key, event) && ends.min() > Some(event.read) {
                    released.insert(key, event.read);
                }
            }
        }
        released
    }

    /// A lease that was broken is neither renewed nor valid for longer, and none is reported as one
    /// that no client broke.
    pub(super) fn broken(&self) -> Vec<Violation> {
        let (broken, mut found) = (self.breaks(), Vec::new());
        let is_break = |event: &&Event| matches!(event.ask, Ask::Break { .. });
        let breaks: Vec<_> = self.history.events.iter().filter(is_break).collect();
        for event in &self.history.events {
            let is_known =
                || breaks.iter().any(|one| one.lock == event.lock && one.sent < event.read);
            if event.told == LockAnswer::Broken && !is_known() {
                found.push(self.event(Invariant::Released, event, "broken by no client"));
            }
            let Some(lease) = event.told.lease() else { continue };
            let key = GrantKey {
                lock: event.lock,
                fencing_token: lease.fencing_token,
                token: event.token,
            };
            let known = broken.get(&key).into_iter().flatten();
            let known = known.filter(|broken| broken.read < event.sent);
            let Some(ends) = known.clone().map(|broken| broken.ends).min() else { continue };
            let read = known.map(|broken| broken.read).min().unwrap_or(event.sent);
            // Where the store tells no time, an instance that heard of the lease later counts to a
            // later end. A clock that is set moves the end, as it moves that of every lease, and a
            // lease whose end was reckoned by the wrong clock is valid for its whole TTL until the
            // right clock comes near.
            let since = self.grants.get(&key).map_or(read, |grant| grant.sent.min(read));
            let lasts_longer = event.sent + lease.valid_for > ends + self.history.news_take()
                && !self.history.may_lack_news(since, event.read)
                && !self.history.has_clock_set(since, event.read);
            if matches!(event.told, LockAnswer::Renewed(_)) || lasts_longer {
                let wrong = self.event(Invariant::Released, event, "valid after it was broken");
                let by_forgetting = self.history.may_have_forgotten(read, event.read);
                found.push(Violation { by_forgetting, ..wrong });
            }
        }
        found
    }

    /// When clients first read that a grant is over, by a release or a break.
    fn freed(&self) -> BTreeMap<HolderKey, Micros> {
        let mut freed = BTreeMap::<HolderKey, Micros>::new();
        for event in &self.history.events {
            let ended: Vec<_> = match (&event.told, event.ask) {
                (LockAnswer::Released, _) => {
                    let own = self.grants_of(event.lock, event.token);
                    own.filter(|key| self.ended_with(key, event)).collect()
                }
                (LockAnswer::Broke { .. }, Ask::Break { fencing_token, at_once: true }) => {
                    // With it ended the era, whose fencing token no later reader has.
                    let with_it = self.with_fence(event.lock, fencing_token);
                    let before = with_it.filter(|(_, grant)| grant.read <= event.sent);
                    before.map(|(key, _)| *key).collect()
                }
                _ => continue,
            };
            for key in ended {
                let is_reader = self.grants[&key].share.mode == Mode::Shared;
                let ended = (key.lock, key.fencing_token, is_reader.then_some(key.token));
                let read = freed.entry(ended).or_insert(event.read);
                *read = event.read.min(*read);
            }
        }
        freed
    }

    /// The answers that say that a grant is broken. A later one may say that its lease ends
    /// earlier.
    fn breaks(&self) -> BTreeMap<GrantKey, Vec<BreakAnswer>> {
        let mut broken = BTreeMap::<GrantKey, Vec<BreakAnswer>>::new();
        for event in &self.history.events {
            let (LockAnswer::Broke { ends_in }, Ask::Break { fencing_token, .. }) =
                (&event.told, event.ask)
            else {
                continue;
            };
            let with_it = self.with_fence(event.lock, fencing_token);
            for (key, _) in with_it.filter(|(key, _)| self.ended_with(key, event)) {
                let (read, ends) = (event.read, event.read + ends_in);
                broken.entry(*key).or_default().push(BreakAnswer { read, ends });
            }
        }
        broken
    }

    fn with_fence(
        &self,
        lock: usize,
        fencing_token: u64,
    ) -> impl Iterator<Item = (&GrantKey, &Grant)> {
        let of = |token| GrantKey { lock, fencing_token, token };
        self.grants.range(of(0)..=of(u64::MAX))
    }

    /// Whether the grant was there when a release or a break came, and the token did not get the
    /// lock under the same fencing token since, which a reader may.
    fn ended_with(&self, key: &GrantKey, end: &Event) -> bool {
        let grant = &self.grants[key];
        let is_new = |event: &&Event| {
            event.told.is_ambiguous() || event.read > end.sent && event.told.acquired().is_some()
        };
        let mut asked = self.history.events.iter().filter(|event| {
            event.ask.is_acquire() && (event.lock, event.token) == (key.lock, key.token)
        });
        grant.read <= end.sent
            && (grant.share.mode != Mode::Shared || !asked.any(|event| is_new(&event)))
    }
}

/// The grants that an answer says are held.
fn held(event: &Event) -> impl Iterator<Item = HolderKey> {
    let own = event.share().map(|share| (share, event.token));
    let others = event.told.holders().iter().map(|holder| (holder.share, holder.token));
    own.into_iter().chain(others).map(|(share, token)| {
        let is_reader = share.mode == Mode::Shared;
        (event.lock, share.fencing_token, is_reader.then_some(token))
    })
}
