//! With how many others a holder shares a lock.
//!
//! A limit belongs to each holder and each waiter, and to no lock: nothing is configured, and a new
//! deployment that asks with another limit resizes the lock. The one rule that uses it is in
//! `rules.rs`: as many hold a lock together as the smallest limit among them says.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// How many may hold a lock together with a holder, itself included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// The holder alone.
    #[default]
    Exclusive,
    /// At most so many: the holder has one of as many slots.
    Counted(Slots),
    /// Any number, up to [`Limit::HOLDERS_MAX`]: a reader beside readers.
    Shared,
}

impl Limit {
    /// How many hold a lock together at most, whatever their limits.
    pub const HOLDERS_MAX: usize = 1000;
    /// The most bytes that all holders have in the row of their lock. Each step writes the whole
    /// row. The bound leaves room for [`HOLDERS_MAX`](Self::HOLDERS_MAX) holders with a label of 12
    /// bytes each.
    pub const ROW_BYTES_MAX: usize = 96 * 1024;

    /// How many may hold the lock together.
    pub fn holders(self) -> usize {
        match self {
            Self::Exclusive => 1,
            Self::Counted(slots) => slots.get() as usize,
            Self::Shared => usize::MAX,
        }
    }

    /// Whether others may hold the lock at the same time, or might if the limit were larger.
    pub fn is_shared(self) -> bool {
        self != Self::Exclusive
    }

    /// Whether a holder that changes to `other` keeps all that it let others have.
    pub(super) fn is_widened_by(self, other: Self) -> bool {
        other.holders() >= self.holders()
    }
}

/// How many slots a counted lock has: 1 to [`Limit::HOLDERS_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64")]
pub struct Slots(NonZeroU32);

impl Slots {
    /// Checks a number of slots.
    ///
    /// # Errors
    ///
    /// It is 0 or above [`Limit::HOLDERS_MAX`].
    pub fn new(slots: u64) -> Result<Self, InvalidSlots> {
        let checked = u32::try_from(slots).ok().and_then(NonZeroU32::new);
        let checked = checked.filter(|slots| slots.get() as usize <= Limit::HOLDERS_MAX);
        checked.map(Self).ok_or(InvalidSlots(slots))
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl TryFrom<u64> for Slots {
    type Error = InvalidSlots;

    fn try_from(slots: u64) -> Result<Self, InvalidSlots> {
        Self::new(slots)
    }
}

/// A number that is no number of [`Slots`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to 1000, not {0}")]
pub struct InvalidSlots(u64);
