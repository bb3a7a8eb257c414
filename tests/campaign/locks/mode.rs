//! How a client of the campaign asks for a lock: alone, beside readers, or as one of at most N.
//!
//! Goal: one place says which grants are never held together, for every rule of the checker that
//! asks it.
//!
//! Method: plain data, without a line of keylatch's own code. The cases of modes in `guilt.rs` show
//! each rule.

use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};

/// The most that hold a counted lock of the campaign.
pub(super) const SLOTS: u32 = 3;

/// How many may hold a lock together with a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    Exclusive,
    /// A reader beside any number of readers.
    Shared,
    /// One of at most so many.
    Counted(u32),
}

impl Mode {
    /// How many hold the lock at most, this one included.
    pub(super) fn most(self) -> usize {
        match self {
            Self::Exclusive => 1,
            Self::Shared => usize::MAX,
            Self::Counted(most) => most as usize,
        }
    }

    /// Asks for a lock in this mode.
    pub(super) fn add_to(self, body: &mut Value) {
        if self != Self::Exclusive {
            body["mode"] = json!("shared");
        }
        if let Self::Counted(most) = self {
            body["limit"] = json!(most);
        }
    }

    /// Whether a lease has what one of this mode has, and nothing else.
    pub(super) fn is_in(self, lease: &Value) -> bool {
        let (mode, limit) = (lease["mode"].as_str(), lease["limit"].as_u64());
        match self {
            Self::Exclusive => (mode, limit) == (None, None),
            Self::Shared => (mode, limit) == (Some("shared"), None),
            Self::Counted(most) => (mode, limit) == (Some("shared"), Some(u64::from(most))),
        }
    }

    /// Whether a lease of this mode has this slot.
    pub(super) fn has(self, slot: Option<u64>) -> bool {
        match self {
            Self::Counted(most) => slot.is_some_and(|slot| slot < u64::from(most)),
            Self::Exclusive | Self::Shared => slot.is_none(),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Counted(most) => write!(f, "{most}"),
        }
    }
}

impl FromStr for Mode {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "exclusive" => Ok(Self::Exclusive),
            "shared" => Ok(Self::Shared),
            most => most.parse().map(Self::Counted).map_err(|_| ()),
        }
    }
}

/// What decides beside which other grants of its lock a grant may be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Share {
    pub(super) fencing_token: u64,
    pub(super) mode: Mode,
    /// Not known of every grant.
    pub(super) slot: Option<u64>,
}

impl Share {
    /// Whether the two are never held together, however few hold the lock.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        match (self.mode, other.mode) {
            (Mode::Exclusive, _) | (_, Mode::Exclusive) => true,
            // Between two eras no reader held the lock.
            (Mode::Shared, Mode::Shared) => self.fencing_token != other.fencing_token,
            (Mode::Counted(_), Mode::Counted(_)) => self.slot.is_some() && self.slot == other.slot,
            (Mode::Shared, Mode::Counted(_)) | (Mode::Counted(_), Mode::Shared) => false,
        }
    }

    /// Whether this one, granted after `earlier` was seen, has a fencing token that is too low.
    pub(super) fn is_too_low_after(&self, earlier: &Self) -> bool {
        match (self.mode, earlier.mode) {
            // All readers of an era have the token of the first.
            (Mode::Shared, Mode::Shared) => self.fencing_token < earlier.fencing_token,
            (Mode::Shared, Mode::Counted(_)) => false,
            _ => self.fencing_token <= earlier.fencing_token,
        }
    }
}
