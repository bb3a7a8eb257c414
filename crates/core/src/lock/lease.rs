//! What a lease is made of: its TTL, its holder's label, the attempt that got it, and how its
//! holder and any other client see it.
//!
//! Each type is checked where it is made, so a value is always valid. `tests/` holds the bounds over
//! HTTP.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Break, EntryName, FencingToken, Limit, LockName};

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

/// A label for people that says who holds a lock: 1 to 256 bytes without control characters.
#[derive(Clone, PartialEq, Eq)]
pub struct Owner(Arc<str>);

impl Owner {
    /// The longest label, in bytes.
    pub const MAX_BYTES: usize = 256;

    /// Checks a label; an empty one is none.
    ///
    /// # Errors
    ///
    /// It is too long or has a control character.
    pub fn parse(owner: &str) -> Result<Option<Self>, InvalidOwner> {
        match owner.len() {
            0 => Ok(None),
            bytes if bytes > Self::MAX_BYTES => Err(InvalidOwner::TooLong(bytes)),
            _ if owner.chars().any(char::is_control) => Err(InvalidOwner::Control),
            _ => Ok(Some(Self(owner.into()))),
        }
    }

    /// The label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({:?})", &*self.0)
    }
}

/// Why a text is not an [`Owner`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOwner {
    /// It has this many bytes, more than [`Owner::MAX_BYTES`].
    #[error("has at most 256 bytes, this one has {0}")]
    TooLong(usize),
    /// It has a control character.
    #[error("must not contain control characters")]
    Control,
}

/// One try to acquire a lock, unlike every other in any process.
///
/// A token may be tried several times, at once even. What one try got can be withdrawn only while
/// no other try has been given the same grant, because that other's client may rely on it.
///
/// The rounds of one waiting request are attempts of that request: its number is in the upper 48 bits, then
/// comes the round, and the lowest bit says whether an earlier round got a queue entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt(u64);

impl Attempt {
    /// The attempt with this number.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The first attempt of a request, whose number has 48 bits.
    pub fn first_of(request: u64) -> Self {
        Self(request << Self::ROUND_BITS)
    }

    /// The next attempt of the same request; `keeps_entry` if an earlier one got a queue entry.
    #[must_use]
    pub fn next(self, keeps_entry: bool) -> Self {
        let rounds = (1 << Self::ROUND_BITS) - 1;
        let round = ((self.0 & rounds) >> 1) + 1;
        Self(self.0 & !rounds | (round << 1) & rounds | u64::from(keeps_entry))
    }

    /// Whether both are of one request.
    pub(super) fn is_of_request_of(self, other: Self) -> bool {
        self.0 >> Self::ROUND_BITS == other.0 >> Self::ROUND_BITS
    }

    /// Whether an earlier attempt of the same request got a queue entry.
    pub(super) fn keeps_entry(self) -> bool {
        self.0 & 1 == 1
    }

    const ROUND_BITS: u32 = 16;
}

/// A grant as its holder sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Larger than that of every earlier grant of the lock that this one cannot be held together with.
    pub fencing_token: FencingToken,
    /// The label that came with the grant.
    pub owner: Option<Owner>,
    /// The TTL of the grant, or of its last renewal.
    pub ttl: Duration,
    /// What is left of it, by the store's clock.
    pub expires_in: Duration,
    /// How many may hold the lock together with the holder.
    pub limit: Limit,
    /// The number of the holder among those that hold the lock together, as long as the lease lasts.
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
    /// The holder whose lease ends first. It has a place of its own, because most replies have no holding and
    /// all have room for one.
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
