//! The locks of a `run`: one, or several at once.
//!
//! One lock goes by the requests for one, which every store serves; several by those for sets.
//! Tested in `tests/cli/run_sets.rs`.

use std::fmt;
use std::slice;

use keylatch_core::lock::{InvalidLockSet, LockName, LockSet};

/// One lock, or several.
#[derive(Debug, Clone)]
pub enum Locks {
    /// One lock.
    One(LockName),
    /// Several locks, in the order of the arguments.
    Several(LockSet),
}

impl Locks {
    /// The locks of these names.
    pub fn new(mut names: Vec<LockName>) -> Result<Self, InvalidLockSet> {
        match (names.pop(), names.is_empty()) {
            (Some(only), true) => Ok(Self::One(only)),
            (last, _) => {
                names.extend(last);
                LockSet::new(names).map(Self::Several)
            }
        }
    }

    /// Their names, in the order of the arguments.
    pub fn names(&self) -> &[LockName] {
        match self {
            Self::One(name) => slice::from_ref(name),
            Self::Several(set) => set.names(),
        }
    }
}

impl fmt::Display for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.names().iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}`{name}`")?;
        }
        Ok(())
    }
}
