//! What a lease is made of: its TTL, how its holder and any other client see it, who waits for it,
//! and how a watched lock changed.
//!
//! Each type is checked where it is made, so a value is always valid. `tests/` holds the bounds
//! over HTTP.

use std::sync::Arc;
use std::time::Duration;

use super::{Break, EntryName, FencingToken, Limit, LockName, Owner};

/// How long a lease lasts unless renewed: 100 ms to 24 h, in whole milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(Duration);

impl Ttl {
    /// The shortest TTL, in milliseconds.
    pub const MIN_MILLIS: u64 = 100;
    /// The longest TTL, in milliseconds.
    pub const MAX_MILLIS: u64 = 24 * 60 * 60 * 1000;
    /// The longest TTL.
    pub const MAX: Self = Self(Duration::from_millis(Self::MAX_MILLIS));
    /// The TTL of a client that asks for none.
    pub const DEFAULT: Self = Self(Duration::from_secs(30));

    /// Checks a number of milliseconds.
    ///
    /// # Errors
    ///
    /// It is out of range.
    pub fn from_millis(millis: u64) -> Result<Self, InvalidTtl> {
        if (Self::MIN_MILLIS..=Self::MAX_MILLIS).contains(&millis) {
            Ok(Self(Duration::from_millis(millis)))
        } else {
            Err(InvalidTtl(millis))
        }
    }

    /// The TTL as a duration.
    pub fn get(self) -> Duration {
        self.0
    }

    /// The TTL in milliseconds.
    pub fn as_millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(Self::MAX_MILLIS)
    }
}

/// A number of milliseconds that is no [`Ttl`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be 100 to 86400000 (24 h), not {0}")]
pub struct InvalidTtl(u64);

/// A grant as its holder sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Larger than that of every earlier grant of the lock that this one cannot be held together
    /// with.
    pub fencing_token: FencingToken,
    /// The label that came with the grant.
    pub owner: Option<Owner>,
    /// The TTL of the grant, or of its last renewal.
    pub ttl: Duration,
    /// What is left of it, by the store's clock.
    pub expires_in: Duration,
    /// How many may hold the lock together with the holder.
    pub limit: Limit,
    /// The number of the holder among those that hold the lock together, as long as the lease
    /// lasts.
    pub slot: u32,
    /// The names of the holder's entries that have one.
    pub entries: Vec<EntryName>,
}

impl Lease {
    /// That of a holder that holds the lock alone and entered it without a name.
    pub fn exclusive(
        fencing_token: FencingToken,
        owner: Option<Owner>,
        ttl: Duration,
        expires_in: Duration,
    ) -> Self {
        let (limit, slot, entries) = (Limit::Exclusive, 0, Vec::new());
        Self { fencing_token, owner, ttl, expires_in, limit, slot, entries }
    }
}

/// Which grant a holder has, for those that may not see its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HolderId {
    /// The grant's fencing token, which holders that came together share.
    pub fencing_token: FencingToken,
    /// The holder's slot.
    pub slot: u32,
}

/// Those that hold a lock, as any client may see them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The holder whose lease ends first. It has a place of its own, because most replies have no
    /// holding and all have room for one.
    pub first: Box<Holder>,
    /// Others that hold the lock together with it, by slot. There may be fewer than there are.
    pub others: Vec<Holder>,
    /// How many hold the lock.
    pub count: usize,
}

impl Holding {
    /// That of a single holder.
    pub fn by_one(holder: Holder) -> Self {
        Self { first: Box::new(holder), others: Vec::new(), count: 1 }
    }

    /// The holders that are known, in no order.
    pub fn holders(&self) -> impl Iterator<Item = &Holder> {
        [&*self.first].into_iter().chain(&self.others)
    }

    /// The same, by value.
    pub fn into_holders(self) -> impl Iterator<Item = Holder> {
        [*self.first].into_iter().chain(self.others)
    }
}

/// A holder of a lock as any client may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The name of the lock that it holds.
    pub name: LockName,
    /// The holder's label.
    pub owner: Option<Owner>,
    /// The holder's fencing token.
    pub fencing_token: FencingToken,
    /// When the lock was granted by the store's wall clock, in milliseconds since 1970. For
    /// people to read; nothing compares it.
    pub acquired_at_millis: u64,
    /// How long the lease lasts unless renewed, by the store's clock.
    pub expires_in: Duration,
    /// How many are in the queue for it.
    pub waiting: u64,
    /// How many may hold the lock together with the holder.
    pub limit: Limit,
    /// The number of the holder among those that hold the lock together.
    pub slot: u32,
    /// Why the lease ends and cannot be renewed; `None` for one that can.
    pub broken: Option<Arc<Break>>,
}

impl Holder {
    /// Which grant it has.
    pub fn id(&self) -> HolderId {
        HolderId { fencing_token: self.fencing_token, slot: self.slot }
    }
}

/// A waiter of a lock as any client may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    /// The waiter's label.
    pub owner: Option<Owner>,
    /// How long it has been in the queue, by the store's clock.
    pub waited: Duration,
    /// How many may hold the lock together with the waiter, once it holds it.
    pub limit: Limit,
    /// The number of its wait, unlike that of every other.
    pub number: u64,
}

/// How a watched lock changed. No store reports that a lease has expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It was granted.
    Acquired(Holder),
    /// The lease of its grant was renewed, to a later or an earlier end.
    Renewed(Holder),
    /// The lease of its grant was broken: it ends, and cannot be renewed.
    Broken(Holder),
    /// The grant was released or withdrawn, or ended because it was broken.
    Released(HolderId),
}
