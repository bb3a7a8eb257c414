//! The holders of a lock as its store keeps them: none, one, or several in the order of their slots.
//!
//! They are shared between the copies of a state until one of them changes, and a state is small: it is
//! copied with every step. Most locks have one holder, and it is there without a list.
//!
//! Invariant: slots rise, so no two holders have the same, and the first gap is the lowest that is free.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use super::entries::Entries;
use super::history::Break;
use super::{
    FencingToken, Holder, HolderId, Lease, Limit, LockName, Moment, Owner, Release, TokenHash,
};

/// A holder as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderState {
    /// The proof of the grant.
    pub token: TokenHash,
    /// The grant's fencing token.
    pub fencing_token: FencingToken,
    /// The holder's label.
    pub owner: Option<Owner>,
    /// When the lease began or was last renewed, on the store's monotonic clock.
    pub since: Duration,
    /// How long the lease lasts from then.
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
    Several(Arc<Vec<Arc<HolderState>>>),
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
            Self::Several(holders) => holders,
        }
    }

    /// The holder with this token.
    pub(super) fn find(&self, token: &TokenHash) -> Option<&HolderState> {
        self.iter().find(|holder| holder.token == *token)
    }

    /// The same, to change all but its slot.
    pub(super) fn find_mut(&mut self, token: &TokenHash) -> Option<&mut HolderState> {
        let position = self.iter().position(|holder| holder.token == *token)?;
        self.as_mut_slice().get_mut(position).map(Arc::make_mut)
    }

    /// Those that `is_changed` admits, to change all but their slots.
    pub(super) fn iter_mut(
        &mut self,
        is_changed: impl Fn(&HolderState) -> bool,
    ) -> impl Iterator<Item = &mut HolderState> {
        let holders = self.as_mut_slice().iter_mut();
        holders.filter(move |holder| is_changed(holder)).map(Arc::make_mut)
    }

    fn as_mut_slice(&mut self) -> &mut [Arc<HolderState>] {
        match self {
            Self::None => &mut [],
            Self::One(holder) => slice::from_mut(holder),
            Self::Several(holders) => Arc::<Vec<_>>::make_mut(holders).as_mut_slice(),
        }
    }

    /// The lowest slot that no holder has.
    pub(super) fn free_slot(&self) -> u32 {
        let taken = self.iter().zip(0_u32..);
        taken.take_while(|(holder, slot)| holder.slot == *slot).fold(0, |free, _| free + 1)
    }

    /// Adds a holder whose slot no other has.
    pub(super) fn insert(&mut self, holder: HolderState) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(Arc::new(holder)),
            others => {
                let others = others.as_slice();
                let position = others.partition_point(|other| other.slot < holder.slot);
                let (lower, higher) = others.split_at(position);
                let mut holders = Vec::with_capacity(others.len() + 1);
                holders.extend_from_slice(lower);
                holders.push(Arc::new(holder));
                holders.extend_from_slice(higher);
                Self::Several(Arc::new(holders))
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
            Self::Several(holders) if holders.iter().all(|holder| is_kept(holder)) => {}
            Self::Several(holders) => {
                *self = holders.iter().filter(|holder| is_kept(holder)).cloned().collect();
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
                Self::Several(Arc::new([one, other].into_iter().chain(holders).collect()))
            }
        }
    }
}

impl HolderState {
    pub(super) fn expires(&self) -> Duration {
        self.since + self.ttl
    }

    /// Never more than the TTL, although `now` may be before `since`: two processes of one store estimate
    /// its clock, and one may be ahead of the other.
    pub(super) fn expires_in(&self, now: Duration) -> Duration {
        self.expires().saturating_sub(now).min(self.ttl)
    }

    pub(super) fn has_expired(&self, now: Duration) -> bool {
        self.expires() <= now
    }

    /// What a release ends that comes now.
    pub(super) fn release_at(&self, moment: &Moment) -> Release {
        let held_millis = (moment.unix_micros / 1000).saturating_sub(self.acquired_at_millis);
        let is_whole = self.broken.is_none();
        Release {
            fencing_token: Some(self.fencing_token),
            held_for: is_whole.then(|| Duration::from_millis(held_millis)),
        }
    }

    /// Which grant it is, for those that may not see its token.
    pub(super) fn id(&self) -> HolderId {
        HolderId { fencing_token: self.fencing_token, slot: self.slot }
    }

    pub(super) fn lease(&self, now: Duration) -> Lease {
        Lease {
            limit: self.limit,
            slot: self.slot,
            entries: self.entries.to_names(),
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
