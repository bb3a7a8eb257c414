//! The holders of a lock as its store keeps them: none, one, or several in the order of their
//! slots.
//!
//! They are shared between the copies of a state until one of them changes, and a state is small:
//! it is copied with every step. Most locks have one holder, and it is there without a list.
//! Several have a [`Summary`] beside them, so that a step looks through them for a token alone.
//!
//! Invariants: slots rise, so no two holders have the same, and the first gap is the lowest that is
//! free; a summary says what the holders say. Tested below and in `tests/modes`.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::entries::Entries;
use super::history::{Break, EndCause, GrantEnd};
use super::{FencingToken, Holder, HolderId, Lease, Limit, LockName, Moment, Owner, TokenHash};
use crate::snapshot::deserialize_time;

/// A holder as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderState {
    /// The proof of the grant.
    pub token: TokenHash,
    /// The grant's fencing token.
    pub fencing_token: FencingToken,
    /// The holder's label.
    pub owner: Option<Owner>,
    /// When the lease began or was last renewed, on the store's monotonic clock.
    #[serde(deserialize_with = "deserialize_time")]
    pub since: Duration,
    /// How long the lease lasts from then.
    #[serde(deserialize_with = "deserialize_time")]
    pub ttl: Duration,
    /// When the lock was granted by the store's wall clock, in milliseconds since 1970.
    pub acquired_at_millis: u64,
    /// How many may hold the lock together with it.
    pub limit: Limit,
    /// The lowest number that no other holder had when the lock was granted.
    pub slot: u32,
    /// Under which names its token entered the lock.
    pub entries: Entries,
    /// Why the lease ends and cannot be renewed.
    pub broken: Option<Arc<Break>>,
}

/// The holders of a lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Holders {
    #[default]
    None,
    One(Arc<HolderState>),
    /// Two at least.
    Several(Arc<Crowd>),
}

/// Several holders of one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Crowd {
    /// By slot.
    holders: Vec<Arc<HolderState>>,
    summary: Summary,
}

/// What a step wants to know of all holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Summary {
    /// When the first of the leases expires; `None` without a holder.
    pub(super) first_end: Option<Duration>,
    /// How many the strictest of the holders lets hold the lock.
    pub(super) most: usize,
    /// The largest fencing token; `None` without a holder.
    pub(super) fencing_token: Option<FencingToken>,
    /// The fencing token of those that share the lock without a number.
    pub(super) era: Option<FencingToken>,
    /// How many bytes they have in a row, at most.
    pub(super) bytes: usize,
}

impl Summary {
    const NONE: Self =
        Self { first_end: None, most: usize::MAX, fencing_token: None, era: None, bytes: 0 };

    fn of<'a>(holders: impl Iterator<Item = &'a HolderState>) -> Self {
        holders.fold(Self::NONE, Self::with)
    }

    /// The summary with one holder more.
    fn with(self, holder: &HolderState) -> Self {
        let end = holder.expires();
        let is_of_era = holder.limit == Limit::Shared;
        Self {
            first_end: Some(self.first_end.map_or(end, |first| first.min(end))),
            most: self.most.min(holder.limit.holders()),
            fencing_token: self.fencing_token.max(Some(holder.fencing_token)),
            era: self.era.or(is_of_era.then_some(holder.fencing_token)),
            bytes: self.bytes + holder.bytes(),
        }
    }
}

impl Holders {
    /// All of them, by slot.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &HolderState> + Clone {
        self.as_slice().iter().map(|holder| &**holder)
    }

    pub(super) fn len(&self) -> usize {
        self.as_slice().len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn as_slice(&self) -> &[Arc<HolderState>] {
        match self {
            Self::None => &[],
            Self::One(holder) => slice::from_ref(holder),
            Self::Several(crowd) => &crowd.holders,
        }
    }

    /// What all of them say together.
    pub(super) fn summary(&self) -> Summary {
        match self {
            Self::None => Summary::NONE,
            Self::One(holder) => Summary::NONE.with(holder),
            Self::Several(crowd) => crowd.summary,
        }
    }

    /// The holder with this token.
    pub(super) fn find(&self, token: &TokenHash) -> Option<&HolderState> {
        self.iter().find(|holder| holder.token == *token)
    }

    /// The holder that has this grant still.
    pub(super) fn find_grant(&self, grant: &HolderState) -> Option<&HolderState> {
        let holders = self.as_slice();
        let position = holders.binary_search_by_key(&grant.slot, |holder| holder.slot).ok()?;
        let holder = holders.get(position)?;
        (holder.id() == grant.id() && holder.token == grant.token).then_some(holder)
    }

    /// Changes the holder with this token; `None` where no holder has it.
    pub(super) fn change<T>(
        &mut self,
        token: &TokenHash,
        change: impl FnOnce(&mut HolderState) -> T,
    ) -> Option<T> {
        let position = self.iter().position(|holder| holder.token == *token)?;
        self.change_list(|holders| holders.get_mut(position).map(Arc::make_mut).map(change))
    }

    /// Changes those that `is_changed` admits.
    pub(super) fn change_all(
        &mut self,
        is_changed: impl Fn(&HolderState) -> bool,
        change: impl FnMut(&mut HolderState),
    ) {
        self.change_list(|holders| {
            let changed = holders.iter_mut().filter(|holder| is_changed(holder));
            changed.map(Arc::make_mut).for_each(change);
        });
    }

    /// Changes the list in place. A slot may change only where the holder is alone.
    fn change_list<T>(&mut self, change: impl FnOnce(&mut [Arc<HolderState>]) -> T) -> T {
        match self {
            Self::None => change(&mut []),
            Self::One(holder) => change(slice::from_mut(holder)),
            Self::Several(crowd) => {
                let crowd = Arc::make_mut(crowd);
                let changed = change(&mut crowd.holders);
                crowd.summary = Summary::of(crowd.holders.iter().map(AsRef::as_ref));
                changed
            }
        }
    }

    /// The lowest slot that no holder has.
    pub(super) fn free_slot(&self) -> u32 {
        let holders = self.as_slice();
        // Slots rise, so each holder below the first gap has the slot of its position.
        let (mut low, mut high) = (0, holders.len());
        while low < high {
            let middle = low.midpoint(high);
            let is_dense = holders.get(middle).is_some_and(|it| it.slot as usize == middle);
            (low, high) = if is_dense { (middle + 1, high) } else { (low, middle) };
        }
        u32::try_from(low).unwrap_or(u32::MAX)
    }

    /// Adds a holder whose slot no other has.
    pub(super) fn insert(&mut self, holder: HolderState) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(Arc::new(holder)),
            others => {
                let summary = others.summary().with(&holder);
                let others = others.as_slice();
                let position = others.partition_point(|other| other.slot < holder.slot);
                let (lower, higher) = others.split_at(position);
                let mut holders = Vec::with_capacity(others.len() + 1);
                holders.extend_from_slice(lower);
                holders.push(Arc::new(holder));
                holders.extend_from_slice(higher);
                Self::Several(Arc::new(Crowd { holders, summary }))
            }
        };
    }

    /// Removes the holder with this token.
    pub(super) fn remove(&mut self, token: &TokenHash) {
        self.retain(|holder| holder.token != *token);
    }

    /// Keeps the holders that `is_kept` admits.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&HolderState) -> bool) {
        match self {
            Self::None => {}
            Self::One(holder) if is_kept(holder) => {}
            Self::One(_) => *self = Self::None,
            Self::Several(crowd) if crowd.holders.iter().all(|holder| is_kept(holder)) => {}
            Self::Several(crowd) => {
                *self = crowd.holders.iter().filter(|holder| is_kept(holder)).cloned().collect();
            }
        }
    }
}

impl FromIterator<Arc<HolderState>> for Holders {
    /// The holders in the order of their slots.
    fn from_iter<I: IntoIterator<Item = Arc<HolderState>>>(holders: I) -> Self {
        let mut holders = holders.into_iter();
        match (holders.next(), holders.next()) {
            (None, _) => Self::None,
            (Some(one), None) => Self::One(one),
            (Some(one), Some(other)) => {
                let holders: Vec<_> = [one, other].into_iter().chain(holders).collect();
                let summary = Summary::of(holders.iter().map(AsRef::as_ref));
                Self::Several(Arc::new(Crowd { holders, summary }))
            }
        }
    }
}

impl HolderState {
    /// The end of its grant, which was over at `since`, not after `moment`: by `unbroken` where its
    /// lease was not broken.
    pub(super) fn end(&self, unbroken: EndCause, since: Duration, moment: &Moment) -> GrantEnd {
        GrantEnd {
            token: self.token,
            fencing_token: self.fencing_token,
            owner: self.owner.clone(),
            acquired_at_millis: self.acquired_at_millis,
            ended_at_millis: moment.date_of(since),
            cause: match &self.broken {
                None => unbroken,
                Some(why) => EndCause::Break { why: Arc::clone(why), since },
            },
        }
    }

    /// How many bytes it has in a row, at most: 72 beside its texts and entries.
    pub(super) fn bytes(&self) -> usize {
        let label = |owner: &Option<Owner>| owner.as_ref().map_or(0, |it| 2 + it.as_str().len());
        let broken = |why: &Arc<Break>| 10 + why.reason.as_str().len() + label(&why.by);
        let broken = self.broken.as_ref().map_or(0, broken);
        72 + label(&self.owner) + self.entries.bytes() + broken
    }

    pub(super) fn expires(&self) -> Duration {
        self.since + self.ttl
    }

    /// Never more than the TTL, although `now` may be before `since`: two processes of one store
    /// estimate its clock, and one may be ahead of the other.
    pub(super) fn expires_in(&self, now: Duration) -> Duration {
        self.expires().saturating_sub(now).min(self.ttl)
    }

    pub(super) fn has_expired(&self, now: Duration) -> bool {
        self.expires() <= now
    }

    /// Which grant it is, for those that may not see its token.
    pub(super) fn id(&self) -> HolderId {
        HolderId { fencing_token: self.fencing_token, slot: self.slot }
    }

    pub(super) fn lease(&self, now: Duration) -> Lease {
        Lease {
            limit: self.limit,
            slot: self.slot,
            entries: self.entries.names().cloned().collect(),
            ..Lease::exclusive(
                self.fencing_token,
                self.owner.clone(),
                self.ttl,
                self.expires_in(now),
            )
        }
    }

    /// The holder as any client may see it.
    pub(super) fn public(&self, name: &LockName, waiting: u64, now: Duration) -> Holder {
        Holder {
            name: name.clone(),
            owner: self.owner.clone(),
            fencing_token: self.fencing_token,
            acquired_at_millis: self.acquired_at_millis,
            expires_in: self.expires_in(now),
            waiting,
            limit: self.limit,
            slot: self.slot,
            broken: self.broken.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Entry, Slots, Token};
    use super::*;

    /// A holder in this slot, with a token that no other slot has. Those that share have one
    /// fencing token.
    fn holder(slot: u32, since: u64, limit: Limit) -> HolderState {
        let token = Token::parse(&format!("holder-{slot}-of-the-lock")).unwrap();
        HolderState {
            token: token.hash(),
            fencing_token: FencingToken::new(if limit == Limit::Shared { 7 } else { since }),
            owner: None,
            since: Duration::from_secs(since),
            ttl: Duration::from_secs(10),
            acquired_at_millis: 0,
            limit,
            slot,
            entries: Entries::of(Entry { name: None, sole_attempt: None }),
            broken: None,
        }
    }

    proptest! {
        /// Goal: no change leaves a summary of other holders behind. Method: any holders come into
        /// the lowest free slots, go and are renewed; summary and slot are compared with those of
        /// all holders.
        #[test]
        fn summary_and_free_slot_are_those_of_the_holders(
            steps in prop::collection::vec((0..3_u8, 0..12_u32, 1..99_u64), 0..40),
        ) {
            let mut holders = Holders::default();
            for (step, slot, since) in steps {
                let limit = if since % 2 == 0 { Limit::Shared } else { Limit::Counted(Slots::new(20).unwrap()) };
                let token = holder(slot, since, limit).token;
                match step {
                    0 => holders.insert(holder(holders.free_slot(), since, limit)),
                    1 => holders.remove(&token),
                    _ => {
                        holders.change(&token, |it| it.since = Duration::from_secs(since));
                    }
                }
                prop_assert_eq!(holders.summary(), Summary::of(holders.iter()));
                let free = (0..).find(|slot| holders.iter().all(|it| it.slot != *slot));
                prop_assert_eq!(Some(holders.free_slot()), free);
            }
        }
    }
}
